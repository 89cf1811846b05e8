#include "model/feed_forward.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

bool activated_in_products(const UnitContext& u, const ModelConfig& c) {
  return u.activations == Activations::in_products && c.activation == ActivationKind::gelu;
}

/// act = f(up), up = h W^T + b.
void project_up(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& h,
                BlockSaved::Chunk& s) {
  s.up = u.activation(Keep::expensive, w.up_w.rows());
  s.act = u.activation(Keep::cheap, w.down_w.cols());
  Linear up{.x = h, .weight = w.up_w, .bias = w.up_b, .y = s.act, .preactivation = s.up};
  if (activated_in_products(u, c)) return u.multiply(up);
  u.multiply(product_of(up));
  u.run(Activate{.x = s.up, .y = s.act, .kind = c.activation});
}

/// The gradient of up from that of the product W act.
View project_down_back(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& d,
                       const View& up) {
  LinearBackwardInput down{.d_y = d, .weight = w.down_w};
  const View d_up = u.activation(Keep::transient, w.up_w.rows());
  if (activated_in_products(u, c)) {
    down.d_x = d_up, down.preactivation = up;
    u.multiply(down);
    return d_up;
  }
  down.d_x = u.activation(Keep::transient, w.down_w.cols());
  u.multiply(down);
  u.run(ActivateBackward{.x = up, .d_y = down.d_x, .d_x = d_up, .kind = c.activation});
  return d_up;
}

/// How many summands a chunk of the feed-forward layer has: of its experts, and of what all tokens
/// go through.
std::int64_t parts_of(const BlockChunk& chunk) {
  return (chunk.experts.up_w ? 1 : 0) + (chunk.up_w ? 1 : 0);
}

/// The experts that the i-th chunk has, whole or parts of.
Range experts_of(const UnitContext& u, const ModelConfig& c, const BlockWeights& w, std::size_t i) {
  const TensorCut& cut = u.tensor_region().cut;
  if (!w.whole_experts) return {0, c.experts.count};
  return even_part(c.experts.count, cut.first() + static_cast<std::int64_t>(i), cut.chunks);
}

}  // namespace

void feed_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, BlockSaved& s,
                  ChunkSum& sum) {
  if (w.router_w) s.routed = route_tokens(u, c, w.router_w, w.router_b, s.h2);
  s.experts.resize(w.chunks.size());
  DispatchedTokens to;
  for (std::size_t i = 0; i < w.chunks.size(); ++i) {
    const BlockChunk& chunk = w.chunks[i];
    Summands parts(u, sum.part(i), parts_of(chunk));
    if (chunk.experts.up_w) {
      if (const Range own = experts_of(u, c, w, i); own != to.experts)
        to = dispatch_tokens(u, c, s.routed, own);
      experts_forward(u, c, s.routed, to, chunk.experts, s.experts[i], parts.next());
    }
    if (chunk.up_w) {
      project_up(u, c, chunk, s.h2, s.chunks[i]);
      u.multiply(Linear{.x = s.chunks[i].act,
                        .weight = chunk.down_w,
                        .bias = sum.bias_of_part(),
                        .y = parts.next()});
    }
    parts.finish();
  }
}

FeedForwardBackward::FeedForwardBackward(UnitContext& u, const ModelConfig& c,
                                         const BlockWeights& w, const BlockSaved& saved,
                                         const View& d_out)
    : u_(u), c_(c), w_(w), s_(saved), d_out_(d_out) {
  if (w_.router_w) experts_.emplace(u_, c_, s_.routed, d_out, std::ssize(w_.chunks));
}

void FeedForwardBackward::input(ChunkSum& sum) {
  const bool first = u_.tensor_region().cut.rank == 0;
  std::optional<Summands> with_router;
  for (std::size_t i = 0; i < w_.chunks.size(); ++i) {
    const BlockChunk& chunk = w_.chunks[i];
    const bool routes = experts_ && first && i == 0;
    Summands parts(u_, sum.part(i), parts_of(chunk) + (routes ? 1 : 0));
    if (experts_) experts_->input(chunk.experts, s_.experts[i], parts.next());
    if (chunk.up_w) {
      d_up_.push_back(project_down_back(u_, c_, chunk, d_out_, s_.chunks[i].up));
      u_.multiply(
          LinearBackwardInput{.d_y = d_up_.back(), .weight = chunk.up_w, .d_x = parts.next()});
    }
    if (routes) {
      with_router.emplace(parts);
    } else {
      parts.finish();
    }
  }
  if (experts_) experts_->logits();
  if (!with_router) return;
  experts_->router_input(w_.router_w, with_router->next());
  with_router->finish();
}

void FeedForwardBackward::weights(const BlockWeights& g, Write write) const {
  u_.adapter_gradients(write);
  if (experts_) experts_->router_weights(g.router_w, write);
  for (std::size_t i = 0; i < w_.chunks.size(); ++i) {
    const BlockChunk& chunk = g.chunks[i];
    if (experts_) experts_->weights(i, chunk.experts, write);
    if (!chunk.up_w) continue;
    u_.multiply(LinearBackwardWeight{.d_y = d_out_,
                                     .x = s_.chunks[i].act,
                                     .d_weight = chunk.down_w,
                                     .d_bias = i == 0 ? g.down_b : View{},
                                     .write = write});
    u_.multiply(LinearBackwardWeight{
        .d_y = d_up_[i], .x = s_.h2, .d_weight = chunk.up_w, .d_bias = chunk.up_b, .write = write});
  }
}

}  // namespace tessera::model
