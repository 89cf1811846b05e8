#include "model/experts.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::model {

using namespace kernels;

namespace {

/// What is minimised of each token beside the losses of targets, from what the deck weighs it with:
/// the mean over a sample's tokens, which weighs as much as the sample's targets, is weight x E x
/// the sum over experts of their share of choices, the sample's or those of the step before, times
/// their mean share of scores.
RouterTerms terms_of(const UnitContext& u, const ModelConfig& c) {
  if (!u.training) return {};
  const std::int64_t t = u.micro_batch().sequence;
  const float token = static_cast<float>(c.targets_of(t)) / static_cast<float>(t);
  const auto experts = static_cast<float>(c.experts.count);
  const float even = c.experts.keeps_shares()
                         ? experts
                         : experts / static_cast<float>(c.experts.routing.choices * t);
  return {.balance = u.router_terms.balance * token * even, .z = u.router_terms.z * token};
}

/// How many of `tokens` an expert takes; 0: all. Evaluation drops none, so that its losses do not
/// depend on what else is in a batch.
std::int64_t capacity_of(const UnitContext& u, const ExpertsConfig& e, std::int64_t tokens) {
  if (!u.training || e.capacity == 0) return 0;
  const double even =
      static_cast<double>(tokens * e.routing.choices) / static_cast<double>(e.count);
  // A product that is whole but for its rounding is not one more.
  const double most = std::min(e.capacity * even * (1 - 1e-12), static_cast<double>(tokens));
  return static_cast<std::int64_t>(std::ceil(most));
}

/// What has arrived of one of the ranks that divide experts.
struct Slot {
  std::int64_t number = 0, ranks = 1;
  View begins;

  View of(const View& rows) const {
    const std::int64_t n = rows.rows() / ranks;
    return rows.row_range(number * n, n);
  }
};

template <typename F>
void for_slots(const UnitContext& u, const DispatchedTokens& to, F&& f) {
  for (std::int64_t i = 0; i < u.experts.ranks; ++i)
    f(Slot{.number = i, .ranks = u.experts.ranks, .begins = to.arrived.row_range(i, 1)});
}

/// As bytes.
View slots_of(const View& begins) {
  return View(begins.data, DType::u8, {begins.rows(), begins.cols() * size_of(begins.type)});
}

/// Exchanges rows with the other ranks that divide experts: these have `begins`, those which come
/// have `others`.
View exchange(UnitContext& u, const DispatchedTokens& to, const View& rows, const View& begins,
              const View& others, Keep keep) {
  const View arrived = u.tensor(keep, rows.type, {rows.rows(), rows.cols()});
  u.experts.run(comm::ExchangeRows{.send = rows,
                                   .receive = arrived,
                                   .send_begins = begins,
                                   .receive_begins = others,
                                   .within = (u.experts.ranks - 1 - u.experts.remote) * to.copies,
                                   .across = u.experts.remote * to.copies});
  return arrived;
}

/// What rows become that are rounded for experts, on whatever ranks these are.
constexpr BlockFormat kRounded{.type = BlockType::int8, .block = 128};

/// (R, bytes of a row) of rows (R, C).
View codes_of(UnitContext& u, const View& rows, Keep keep) {
  const std::int64_t count = rows.rows(), columns = rows.cols();
  const View codes = u.tensor(keep, DType::u8, {count, kRounded.bytes(columns)});
  u.run(kernels::Quantize{.x = rows.reshaped({1, count, columns}),
                          .code = codes.reshaped({count, 1, codes.cols()}),
                          .format = kRounded});
  return codes;
}

/// Rows of this rank's tokens go where their experts are.
View leave(UnitContext& u, const DispatchedTokens& to, const View& rows, Keep keep) {
  return exchange(u, to, rows, to.begins, to.arrived, keep);
}
/// What was made of tokens goes where they have come from.
View come_back(UnitContext& u, const DispatchedTokens& to, const View& rows, Keep keep) {
  return exchange(u, to, rows, to.arrived, to.begins, keep);
}

}  // namespace

RoutedTokens route_tokens(UnitContext& u, const ModelConfig& c, const View& router_w,
                          const View& router_b, const View& h) {
  const ExpertsConfig& e = c.experts;
  const std::int64_t n = h.rows(), k = e.routing.choices, batch = u.micro_batch().batch;
  const auto floats = [&](std::int64_t height, std::int64_t width) {
    return u.tensor(Keep::expensive, DType::f32, {height, width});
  };
  RoutedTokens r{.h = h,
                 .jittered = h,
                 .scores = floats(n, e.count),
                 .stats = floats(n, kRouteStats),
                 .experts = u.tensor(Keep::expensive, DType::i32, {n, k}),
                 .weights = floats(n, k),
                 .counts = {},
                 .capacity = capacity_of(u, e, n)};
  if (const Dropout jitter = u.router_jitter(c)) {
    r.jittered = u.activation(Keep::cheap, c.hidden);
    u.run(ApplyDropout{.x = h, .out = r.jittered, .dropout = jitter});
  }
  const bool joins = e.gates == RouterGates::two_levels;
  const View logits =
      joins ? u.tensor(Keep::transient, DType::f32, {n, e.router_rows()}) : r.scores;
  u.run(Linear{.x = r.jittered, .weight = router_w, .y = logits});
  if (joins) u.run(JoinGates{.logits = logits, .joined = r.scores, .routing = e.routing});
  const Routing routing = e.last_routing();
  u.run(Route{.logits = r.scores,
              .bias = router_b,
              .experts = r.experts,
              .weights = r.weights,
              .stats = r.stats,
              .routing = routing});
  if (terms_of(u, c).balance > 0 && !e.keeps_shares()) {
    r.counts = floats(batch, e.count);
    u.run(ExpertLoad{.logits = r.scores,
                     .stats = r.stats,
                     .experts = r.experts,
                     .counts = r.counts,
                     .shares = u.tensor(Keep::transient, DType::f32, {batch, e.count}),
                     .routing = routing});
  }
  if (u.choices) {
    u.run(CountChoices{.experts = r.experts,
                       .counts = u.choices.range(0, e.count),
                       .dropped = u.choices.range(e.count, 1),
                       .capacity = r.capacity});
  }
  return r;
}

DispatchedTokens dispatch_tokens(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed,
                                 Range experts) {
  const std::int64_t n = routed.experts.rows(), k = routed.experts.cols(), ranks = u.experts.ranks,
                     own = experts.count() / ranks;
  const std::int64_t rows = ranks * dispatched_rows(n, k, own, routed.capacity);
  const bool rounded = u.training && c.experts.dispatch == ExpertDispatch::int8;
  DispatchedTokens to{.experts = experts,
                      .place = u.tensor(Keep::cheap, DType::i32, {n, k}),
                      .source = u.tensor(Keep::cheap, DType::i32, {rows}),
                      .begins = u.tensor(Keep::cheap, DType::i32, {ranks, own + 1}),
                      .arrived = {},
                      .codes = {},
                      .rows = {},
                      .copies = n * k * own / c.experts.count};
  u.run(Dispatch{.experts = routed.experts,
                 .place = to.place,
                 .source = to.source,
                 .begins = to.begins,
                 .first = experts.begin,
                 .all = c.experts.count,
                 .capacity = routed.capacity,
                 .parts = ranks});
  const Keep keep = ranks > 1 ? Keep::transient : Keep::cheap;  // what experts read, if it is here
  View sent = u.tensor(rounded ? Keep::transient : keep, u.compute(), {rows, c.hidden});
  u.run(SpreadRows{.x = routed.h, .source = to.source, .rows = sent, .choices = k});
  if (rounded) sent = codes_of(u, sent, keep);
  to.arrived = to.begins;
  if (ranks > 1) {
    to.arrived = u.tensor(Keep::expensive, DType::i32, {ranks, own + 1});
    u.experts.run(comm::AllToAll{.send = slots_of(to.begins),
                                 .receive = slots_of(to.arrived),
                                 .ranks = {.count = ranks},
                                 .remote = u.experts.remote});
    sent = leave(u, to, sent, Keep::expensive);
  }
  (rounded ? to.codes : to.rows) = sent;
  return to;
}

void read_tokens(UnitContext& u, const ModelConfig& c, DispatchedTokens& to) {
  if (to.rows) return;
  const std::int64_t count = to.codes.rows();
  to.rows = u.tensor(Keep::cheap, u.compute(), {count, c.hidden});
  u.run(SumQuantized{
      .code = to.codes.reshaped({1, count, to.codes.cols()}), .out = to.rows, .format = kRounded});
}

void experts_forward(UnitContext& u, const ModelConfig& c, const DispatchedTokens& to,
                     const ExpertsChunk& w, ExpertsSaved& s) {
  const std::int64_t rows = to.rows.rows(), own = to.experts.count() / u.experts.ranks;
  const bool alone = u.experts.ranks == 1;
  s.dispatched = to;
  s.up = u.tensor(Keep::expensive, u.compute(), {rows, w.up_w.rows() / own});
  s.act = u.tensor(Keep::cheap, u.compute(), {rows, w.down_w.cols()});
  const View made =
      u.tensor(alone ? Keep::expensive : Keep::transient, u.compute(), {rows, c.hidden});
  for_slots(u, to, [&](const Slot& slot) {
    u.run(ExpertLinear{.x = slot.of(to.rows),
                       .weight = w.up_w,
                       .begins = slot.begins,
                       .y = slot.of(s.up),
                       .copies = to.copies});
  });
  u.run(Activate{.x = s.up, .y = s.act, .kind = c.activation});
  for_slots(u, to, [&](const Slot& slot) {
    u.run(ExpertLinear{.x = slot.of(s.act),
                       .weight = w.down_w,
                       .begins = slot.begins,
                       .y = slot.of(made),
                       .copies = to.copies});
  });
  s.out = alone ? made : come_back(u, to, made, Keep::expensive);
}

void combine_experts(UnitContext& u, const RoutedTokens& routed, const ExpertsSaved& s,
                     const View& out) {
  u.run(CombineRows{
      .rows = s.out, .weights = routed.weights, .place = s.dispatched.place, .out = out.matrix()});
}

ExpertsBackward::ExpertsBackward(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed,
                                 const View& d_out, std::int64_t chunks)
    : u_(u),
      c_(c),
      routed_(routed),
      d_out_(d_out),
      partial_(u, Write::overwrite),
      d_weights_(
          u.tensor(Keep::transient, DType::f32, {routed.weights.rows(), routed.weights.cols()})),
      dots_(partial_.parts(d_weights_, chunks, u.tensor_region().cut.ranks > 1)) {}

View ExpertsBackward::rows(const DispatchedTokens& of, std::int64_t columns) const {
  return u_.temporary({of.rows.rows(), columns});
}

/// The gradient of what experts have made of each copy, where they are.
View ExpertsBackward::spread(const DispatchedTokens& to) const {
  const View d_rows = rows(to, c_.hidden);
  u_.run(SpreadRows{.x = d_out_,
                    .weights = routed_.weights,
                    .source = to.source,
                    .rows = d_rows,
                    .choices = routed_.weights.cols()});
  return u_.experts.ranks > 1 ? leave(u_, to, d_rows, Keep::transient) : d_rows;
}

void ExpertsBackward::begin(const ExpertsSaved& saved) {
  const DispatchedTokens& to = saved.dispatched;
  const std::int64_t copies = routed_.weights.elements();
  u_.run(RowDots{.x = d_out_,
                 .rows = saved.out,
                 .place = to.place,
                 .dots = dots_.range(std::ssize(chunks_) * copies, copies)});
  const bool again = !chunks_.empty() && chunks_.back().dispatched().experts == to.experts;
  chunks_.push_back({.saved = &saved,
                     .d_rows = again ? chunks_.back().d_rows : spread(to),
                     .d_up = {},
                     .d_copies = {}});
}

void ExpertsBackward::products(const ExpertsChunk& w) {
  Chunk& chunk = chunks_.back();
  const ExpertsSaved& saved = *chunk.saved;
  const DispatchedTokens& to = saved.dispatched;
  const View d_act = rows(to, w.down_w.cols()), d_copies = rows(to, c_.hidden);
  chunk.d_up = rows(to, saved.up.cols());
  for_slots(u_, to, [&](const Slot& slot) {
    u_.run(ExpertLinearBackwardInput{.d_y = slot.of(chunk.d_rows),
                                     .weight = w.down_w,
                                     .begins = slot.begins,
                                     .d_x = slot.of(d_act),
                                     .copies = to.copies});
  });
  u_.run(ActivateBackward{.x = saved.up, .d_y = d_act, .d_x = chunk.d_up, .kind = c_.activation});
  for_slots(u_, to, [&](const Slot& slot) {
    u_.run(ExpertLinearBackwardInput{.d_y = slot.of(chunk.d_up),
                                     .weight = w.up_w,
                                     .begins = slot.begins,
                                     .d_x = slot.of(d_copies),
                                     .copies = to.copies});
  });
  chunk.d_copies = u_.experts.ranks > 1 ? come_back(u_, to, d_copies, Keep::transient) : d_copies;
}

void ExpertsBackward::input(const View& d_x) {
  const Chunk& chunk = chunks_.back();
  u_.run(
      CombineRows{.rows = chunk.d_copies, .place = chunk.dispatched().place, .out = d_x.matrix()});
}

void ExpertsBackward::logits(const View& shares) {
  partial_.finish();
  const ExpertsConfig& e = c_.experts;
  const std::int64_t n = routed_.scores.rows();
  d_logits_ = u_.temporary({n, e.router_rows()});
  const bool joined = e.gates == RouterGates::two_levels;
  const View d_scores = joined ? u_.tensor(Keep::transient, DType::f32, {n, e.count}) : d_logits_;
  const RouterTerms terms = terms_of(u_, c_);
  u_.run(RouteBackward{.logits = routed_.scores,
                       .stats = routed_.stats,
                       .experts = routed_.experts,
                       .d_weights = d_weights_,
                       .counts = terms.balance > 0 && e.keeps_shares() ? shares : routed_.counts,
                       .scale = terms ? u_.scale : View{},
                       .d_logits = d_scores,
                       .terms = terms,
                       .routing = e.last_routing()});
  if (joined) {
    u_.run(JoinGatesBackward{.joined = routed_.scores,
                             .d_joined = d_scores,
                             .d_logits = d_logits_,
                             .routing = e.routing});
  }
}

void ExpertsBackward::router_input(const View& router_w, const View& d_x) const {
  LinearBackwardInput product{.d_y = d_logits_, .weight = router_w, .d_x = d_x};
  const Dropout jitter = u_.router_jitter(c_);
  if (jitter) {
    const MicroBatch& m = u_.micro_batch();
    product.d_x = u_.tensor(Keep::transient, d_x.type, {m.batch, m.sequence, c_.hidden});
  }
  u_.run(product);
  if (jitter) u_.run(ApplyDropout{.x = product.d_x, .out = d_x, .dropout = jitter});
}

void ExpertsBackward::weights(std::size_t i, const ExpertsChunk& gradients, Write write) const {
  const auto& chunk = chunks_[i];
  const DispatchedTokens& to = chunk.dispatched();
  const std::int64_t step = u_.experts.gradient_step;
  const Write first = u_.experts.write.value_or(write);
  for_slots(u_, to, [&](const Slot& slot) {
    const auto add = [&](const View& d_y, const View& x, View gradient) {
      gradient.data += slot.number * step * size_of(gradient.type);
      u_.run(ExpertLinearBackwardWeight{.d_y = slot.of(d_y),
                                        .x = slot.of(x),
                                        .begins = slot.begins,
                                        .d_weight = gradient,
                                        .write = slot.number > 0 && step == 0 ? Write::add : first,
                                        .copies = to.copies});
    };
    add(chunk.d_rows, chunk.saved->act, gradients.down_w);
    add(chunk.d_up, to.rows, gradients.up_w);
  });
}

void ExpertsBackward::router_weights(const View& gradient, Write write) const {
  u_.run(LinearBackwardWeight{
      .d_y = d_logits_, .x = routed_.jittered, .d_weight = gradient, .write = write});
}

}  // namespace tessera::model
