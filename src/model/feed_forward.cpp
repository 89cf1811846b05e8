#include "model/feed_forward.hpp"

#include "model/shares.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

bool activated_in_products(const UnitContext& u, const ModelConfig& c) {
  return u.activations == Activations::in_products && c.activation == ActivationKind::gelu;
}

/// Whether inner columns are only there for some rows at once.
bool in_groups(const UnitContext& u, std::int64_t rows) {
  return u.inner_rows > 0 && u.inner_rows < rows / u.context.own();
}

/// What a dense layer makes inside, of as many rows as it reads.
struct Inner {
  View up, act;
};

/// act = f(up), up = h W^T + b.
void project_up(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& h,
                const Inner& to) {
  Linear up{.x = h, .weight = w.up_w, .bias = w.up_b, .y = to.act, .preactivation = to.up};
  if (activated_in_products(u, c)) return u.multiply(up);
  u.multiply(product_of(up));
  u.run(Activate{.x = to.up, .y = to.act, .kind = c.activation});
}

/// The same of some rows, which nobody keeps.
Inner project_group(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& h) {
  const Inner made{.up = u.temporary({h.rows(), w.up_w.rows()}),
                   .act = u.temporary({h.rows(), w.down_w.cols()})};
  project_up(u, c, w, h, made);
  return made;
}

/// The first half of a chunk of a dense layer, unless its rows go through both in groups.
void dense_up(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& h,
              BlockSaved::Chunk& s) {
  if (in_groups(u, h.rows())) return;
  s.up = u.activation(Keep::expensive, w.up_w.rows());
  s.act = u.activation(Keep::cheap, w.down_w.cols());
  project_up(u, c, w, h, {s.up, s.act});
}

/// y = act W^T + bias, of what a chunk of a dense layer has read.
void dense_down(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& h,
                const View& bias, const View& y, const BlockSaved::Chunk& s) {
  if (s.act) return u.multiply(Linear{.x = s.act, .weight = w.down_w, .bias = bias, .y = y});
  const View all = h.matrix(), out = y.matrix();
  for (const RowGroup& group : row_groups(u, h.rows(), u.inner_rows)) {
    const Inner made = project_group(u, c, w, group.of(all));
    u.multiply(Linear{.x = made.act, .weight = w.down_w, .bias = bias, .y = group.of(out)});
  }
}

/// As many rows as `of`, in the compute type.
View beside(UnitContext& u, const View& of, std::int64_t columns) {
  if (of.rank < 3) return u.temporary({of.rows(), columns});
  return u.temporary({of.extent(0), of.extent(1), columns});
}

/// The gradient of up from that of the product W act.
View project_down_back(UnitContext& u, const ModelConfig& c, const BlockChunk& w, const View& d,
                       const View& up) {
  LinearBackwardInput down{.d_y = d, .weight = w.down_w};
  const View d_up = beside(u, d, w.up_w.rows());
  if (activated_in_products(u, c)) {
    down.d_x = d_up, down.preactivation = up;
    u.multiply(down);
    return d_up;
  }
  down.d_x = beside(u, d, w.down_w.cols());
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
    // What all tokens go through is computed while copies of tokens are on their ways.
    const bool routes = static_cast<bool>(chunk.experts.up_w);
    if (const Range own = experts_of(u, c, w, i); routes && own != to.experts)
      to = dispatch_tokens(u, c, s.routed, own);
    if (chunk.up_w) dense_up(u, c, chunk, s.h2, s.chunks[i]);
    const View of_experts = routes ? parts.next() : View{};
    if (routes) read_tokens(u, c, to);
    if (routes) experts_forward(u, c, to, chunk.experts, s.experts[i]);
    if (chunk.up_w) dense_down(u, c, chunk, s.h2, sum.bias_of_part(), parts.next(), s.chunks[i]);
    if (routes) combine_experts(u, s.experts[i], of_experts);
    parts.finish();
  }
}

FeedForwardBackward::FeedForwardBackward(UnitContext& u, const ModelConfig& c,
                                         const BlockWeights& w, const BlockSaved& saved,
                                         const View& d_out, const BlockWeights& gradients,
                                         Write write)
    : u_(u),
      c_(c),
      w_(w),
      s_(saved),
      g_(gradients),
      write_(write),
      d_out_(d_out),
      grouped_(in_groups(u, saved.h2.rows())) {
  if (w_.router_w) experts_.emplace(u_, c_, s_.routed, d_out, std::ssize(w_.chunks));
}

void FeedForwardBackward::input(ChunkSum& sum) {
  const bool first = u_.tensor_region().cut.rank == 0;
  std::optional<Summands> with_router;
  for (std::size_t i = 0; i < w_.chunks.size(); ++i) {
    const BlockChunk& chunk = w_.chunks[i];
    const bool routes = experts_ && first && i == 0;
    Summands parts(u_, sum.part(i), parts_of(chunk) + (routes ? 1 : 0));
    // As in forward.
    if (experts_) experts_->begin(s_.experts[i]);
    if (chunk.up_w && !grouped_)
      d_up_.push_back(project_down_back(u_, c_, chunk, d_out_, s_.chunks[i].up));
    const View of_experts = experts_ ? parts.next() : View{};
    if (experts_) experts_->products(chunk.experts);
    if (chunk.up_w && grouped_) {
      groups(i, parts.next());
    } else if (chunk.up_w) {
      u_.multiply(
          LinearBackwardInput{.d_y = d_up_.back(), .weight = chunk.up_w, .d_x = parts.next()});
    }
    if (experts_) experts_->input(of_experts);
    if (routes) {
      with_router.emplace(parts);
    } else {
      parts.finish();
    }
  }
  if (experts_) experts_->logits(w_.router_shares);
  if (!with_router) return;
  experts_->router_input(w_.router_w, with_router->next());
  with_router->finish();
}

/// The way back through a chunk of a dense layer, group by group of rows, of which its inner
/// columns are made again; its own gradients too.
void FeedForwardBackward::groups(std::size_t i, const View& d_x) {
  const BlockChunk& chunk = w_.chunks[i];
  const BlockChunk& g = g_.chunks[i];
  const View h = s_.h2.matrix(), d_out = d_out_.matrix(), d_h = d_x.matrix();
  ShareSum down_w(u_, g.down_w), down_b(u_, i == 0 ? g_.down_b : View{}), up_w(u_, g.up_w),
      up_b(u_, g.up_b);
  for (const RowGroup& group : row_groups(u_, h.rows(), u_.inner_rows)) {
    const auto write_to = [&](const ShareSum& sum) {
      return group.first ? sum.write_to(write_) : Write::add;
    };
    const Inner made = project_group(u_, c_, chunk, group.of(h));
    const View d_up = project_down_back(u_, c_, chunk, group.of(d_out), made.up);
    u_.multiply(LinearBackwardInput{.d_y = d_up, .weight = chunk.up_w, .d_x = group.of(d_h)});
    u_.multiply(LinearBackwardWeight{.d_y = group.of(d_out),
                                     .x = made.act,
                                     .d_weight = down_w.part(group.share),
                                     .d_bias = down_b.part(group.share),
                                     .write = write_to(down_w)});
    u_.multiply(LinearBackwardWeight{.d_y = d_up,
                                     .x = group.of(h),
                                     .d_weight = up_w.part(group.share),
                                     .d_bias = up_b.part(group.share),
                                     .write = write_to(up_w)});
  }
  for (ShareSum* sum : {&down_w, &down_b, &up_w, &up_b}) sum->finish(write_);
}

void FeedForwardBackward::weights() const {
  u_.adapter_gradients(write_);
  if (experts_) experts_->router_weights(g_.router_w, write_);
  for (std::size_t i = 0; i < w_.chunks.size(); ++i) {
    const BlockChunk& chunk = g_.chunks[i];
    if (experts_) experts_->weights(i, chunk.experts, write_);
    if (!chunk.up_w || grouped_) continue;
    u_.multiply(LinearBackwardWeight{.d_y = d_out_,
                                     .x = s_.chunks[i].act,
                                     .d_weight = chunk.down_w,
                                     .d_bias = i == 0 ? g_.down_b : View{},
                                     .write = write_});
    u_.multiply(LinearBackwardWeight{.d_y = d_up_[i],
                                     .x = s_.h2,
                                     .d_weight = chunk.up_w,
                                     .d_bias = chunk.up_b,
                                     .write = write_});
  }
}

}  // namespace tessera::model
