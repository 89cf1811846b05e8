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

/// What has arrived of one of the ranks that exchange copies.
struct Slot {
  std::int64_t number = 0, ranks = 1;
  View begins;

  View of(const View& rows) const {
    const std::int64_t n = rows.rows() / ranks;
    return rows.row_range(number * n, n);
  }
};

/// How many ranks exchange copies of tokens.
std::int64_t ranks_within(const UnitContext& u) { return u.experts.within.ranks.count; }

template <typename F>
void for_slots(const UnitContext& u, const DispatchedTokens& to, F&& f) {
  const std::int64_t ranks = ranks_within(u);
  for (std::int64_t i = 0; i < ranks; ++i)
    f(Slot{.number = i, .ranks = ranks, .begins = to.arrived.row_range(i, 1)});
}

/// Exchanges rows with other ranks that divide experts: these have `begins`, those which come have
/// `others`; so many are `expected` of a slot.
View exchange(UnitContext& u, const comm::Hop& among, std::int64_t expected, const View& rows,
              const View& begins, const View& others, Keep keep) {
  const View arrived = u.tensor(keep, rows.type, {rows.rows(), rows.cols()});
  u.experts.run(comm::ExchangeRows{.send = rows,
                                   .receive = arrived,
                                   .send_begins = begins,
                                   .receive_begins = others,
                                   .within = (among.ranks.count - 1 - among.remote) * expected,
                                   .across = among.remote * expected,
                                   .among = among});
  return arrived;
}

/// Exchanges an equal part of the rows for each of the ranks, whatever is in them.
View exchange_all(UnitContext& u, const comm::Hop& among, const View& rows, Keep keep) {
  const std::int64_t ranks = among.ranks.count;
  const View arrived = u.tensor(keep, rows.type, {rows.rows(), rows.cols()});
  const auto slots = [&](const View& v) {
    return View(v.data, DType::u8, {ranks, v.elements() / ranks * size_of(v.type)});
  };
  u.experts.run(comm::AllToAll{.send = slots(rows),
                               .receive = slots(arrived),
                               .ranks = among.ranks,
                               .remote = among.remote});
  return arrived;
}

/// What rows become that are rounded for experts, on whatever ranks these are.
constexpr BlockFormat kRounded{.type = BlockType::int8, .block = 128};

/// (R, bytes of a row) of rows (R, C).
View codes_of(UnitContext& u, const View& rows) {
  const std::int64_t count = rows.rows(), columns = rows.cols();
  const View codes = u.tensor(Keep::transient, DType::u8, {count, kRounded.bytes(columns)});
  u.run(kernels::Quantize{.x = rows.reshaped({1, count, columns}),
                          .code = codes.reshaped({count, 1, codes.cols()}),
                          .format = kRounded});
  return codes;
}

/// Rows of copies go where their experts are.
View leave(UnitContext& u, const DispatchedTokens& to, const View& rows, Keep keep) {
  if (ranks_within(u) == 1) return rows;
  return exchange(u, u.experts.within, to.copies, rows, to.begins, to.arrived, keep);
}
/// What was made of copies goes where these were made.
View come_back(UnitContext& u, const DispatchedTokens& to, const View& rows, Keep keep) {
  if (ranks_within(u) == 1) return rows;
  return exchange(u, u.experts.within, to.copies, rows, to.arrived, to.begins, keep);
}

/// A row of `of` for each token and node it goes to.
View spread_over_nodes(UnitContext& u, const CrossedTokens& way, const View& of) {
  const View rows = u.tensor(Keep::transient, of.type, {way.source.elements(), of.cols()});
  u.run(SpreadRows{.x = of, .source = way.source, .rows = rows, .choices = way.place.cols()});
  return rows;
}

/// What is known of this rank's tokens goes to the nodes that have experts for them.
View cross(UnitContext& u, const CrossedTokens& way, const View& of) {
  return exchange(u, u.experts.across, way.expected, spread_over_nodes(u, way, of), way.begins,
                  way.arrived, Keep::transient);
}

/// Copies' rows, which are where copies were made, are added up there, and the sums of other
/// nodes' tokens go back to these.
View cross_back(UnitContext& u, const DispatchedTokens& to, const View& rows, const View& weights) {
  const View sums = u.temporary({to.place.rows(), rows.cols()});
  u.run(CombineRows{.rows = rows, .weights = weights, .place = to.place, .out = sums});
  return exchange(u, u.experts.across, to.crossed.expected, sums, to.crossed.arrived,
                  to.crossed.begins, Keep::transient);
}

/// Which share of tokens goes to each of some equal parts of all experts, if they choose evenly.
double share_of_tokens(const Routing& r, std::int64_t experts, std::int64_t parts) {
  double none = 1;  // that no choice is in the part
  for (std::int64_t k = 0; k < r.choices; ++k) {
    const auto left = static_cast<double>(experts - k);
    none *= std::max(0.0, left - static_cast<double>(experts) / static_cast<double>(parts)) / left;
  }
  // Experts of a group are in so many parts at most.
  const std::int64_t group = experts / r.groups, part = experts / parts;
  const std::int64_t touched = part % group == 0   ? 1
                               : group % part == 0 ? group / part
                                                   : (group - 2) / part + 2;
  const std::int64_t most = r.open_groups * touched;
  return std::min(1 - none, static_cast<double>(most) / static_cast<double>(parts));
}

/// Choices that have a row among an expert's; absent where all have one.
View places_of(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed, Range experts) {
  if (routed.capacity == 0) return {};
  const std::int64_t n = routed.experts.rows(), k = routed.experts.cols();
  const auto words = [&](std::initializer_list<std::int64_t> extents) {
    return u.tensor(Keep::transient, DType::i32, extents);
  };
  const View place = words({n, k});
  u.run(Dispatch{.experts = routed.experts,
                 .place = place,
                 .source = words({dispatched_rows(n, k, experts.count(), routed.capacity)}),
                 .begins = words({experts.count() + 1}),
                 .first = experts.begin,
                 .all = c.experts.count,
                 .capacity = routed.capacity});
  return place;
}

/// Tokens go to nodes, with what the router says of them; copies are made there.
void cross_nodes(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed,
                 DispatchedTokens& to) {
  const comm::Hop& hop = u.experts.across;
  const std::int64_t n = routed.experts.rows(), k = routed.experts.cols(), nodes = hop.ranks.count,
                     most = std::min(k, nodes), of_node = to.experts.count() / nodes;
  const View parts = u.tensor(Keep::transient, DType::i32, {n, most}),
             own = u.tensor(Keep::transient, DType::i32, {n, k});
  u.run(PartsOfChoices{.experts = routed.experts,
                       .place = places_of(u, c, routed, to.experts),
                       .parts = parts,
                       .own = own,
                       .first = to.experts.begin,
                       .of_part = of_node,
                       .count = nodes});
  CrossedTokens& way = to.crossed;
  way = {.place = u.tensor(Keep::cheap, DType::i32, {n, most}),
         .source = u.tensor(Keep::cheap, DType::i32, {nodes * dispatched_rows(n, most, 1)}),
         .begins = u.tensor(Keep::cheap, DType::i32, {nodes, std::int64_t{2}}),
         .arrived = {},
         .expected = static_cast<std::int64_t>(
             std::ceil(static_cast<double>(n) *
                       share_of_tokens(c.experts.routing, c.experts.count,
                                       nodes * (c.experts.count / to.experts.count()))))};
  u.run(Dispatch{.experts = parts,
                 .place = way.place,
                 .source = way.source,
                 .begins = way.begins,
                 .first = 1,
                 .all = nodes + 1,
                 .parts = nodes});
  way.arrived = exchange_all(u, hop, way.begins, Keep::expensive);
  to.chosen = exchange_all(u, hop, spread_over_nodes(u, way, own), Keep::expensive);
  to.weights = exchange_all(u, hop, spread_over_nodes(u, way, routed.weights), Keep::expensive);
  to.tokens = cross(u, way, to.tokens);
  to.first = 1 + u.experts.within.ranks.first / ranks_within(u) * of_node;
  to.all = to.experts.count() + 1;
  to.capacity *= nodes;
}

/// Copies of the tokens that are here, in the order of their experts, go to these.
void copy_tokens(UnitContext& u, DispatchedTokens& to) {
  const std::int64_t n = to.chosen.rows(), k = to.chosen.cols(), ranks = ranks_within(u),
                     own = to.experts.count() / u.experts.ranks,
                     rows = ranks * dispatched_rows(n, k, own, to.capacity);
  to.place = u.tensor(Keep::cheap, DType::i32, {n, k});
  to.source = u.tensor(Keep::cheap, DType::i32, {rows});
  to.begins = u.tensor(Keep::cheap, DType::i32, {ranks, own + 1});
  u.run(Dispatch{.experts = to.chosen,
                 .place = to.place,
                 .source = to.source,
                 .begins = to.begins,
                 .first = to.first,
                 .all = to.all,
                 .capacity = to.capacity,
                 .parts = ranks});
  // What comes from elsewhere is not cheap to have again.
  const Keep keep = ranks > 1 ? Keep::transient : to.crossed ? Keep::expensive : Keep::cheap;
  const View sent = u.tensor(keep, to.tokens.type, {rows, to.tokens.cols()});
  u.run(SpreadRows{.x = to.tokens, .source = to.source, .rows = sent, .choices = k});
  to.arrived =
      ranks > 1 ? exchange_all(u, u.experts.within, to.begins, Keep::expensive) : to.begins;
  (to.tokens.type == DType::u8 ? to.codes : to.rows) = leave(u, to, sent, Keep::expensive);
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
  const bool rounded = u.training && c.experts.dispatch == ExpertDispatch::int8;
  DispatchedTokens to{.experts = experts,
                      .tokens = rounded ? codes_of(u, routed.h.matrix()) : routed.h.matrix(),
                      .chosen = routed.experts,
                      .weights = routed.weights,
                      .first = experts.begin,
                      .all = c.experts.count,
                      .capacity = routed.capacity};
  const std::int64_t copies = routed.experts.elements() * experts.count() / c.experts.count;
  to.copies = copies / ranks_within(u);
  if (u.experts.across) {
    cross_nodes(u, c, routed, to);
  } else {
    copy_tokens(u, to);
  }
  return to;
}

void read_tokens(UnitContext& u, const ModelConfig& c, DispatchedTokens& to) {
  if (!to.place) copy_tokens(u, to);
  if (to.rows) return;
  const std::int64_t count = to.codes.rows();
  to.rows = u.tensor(Keep::cheap, u.compute(), {count, c.hidden});
  u.run(SumQuantized{
      .code = to.codes.reshaped({1, count, to.codes.cols()}), .out = to.rows, .format = kRounded});
}

void experts_forward(UnitContext& u, const ModelConfig& c, const DispatchedTokens& to,
                     const ExpertsChunk& w, ExpertsSaved& s) {
  const std::int64_t rows = to.rows.rows(), own = to.experts.count() / u.experts.ranks;
  const bool alone = ranks_within(u) == 1;
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
  s.out = come_back(u, to, made, Keep::expensive);
  if (to.crossed) s.home = cross_back(u, to, s.out, to.weights);
}

void combine_experts(UnitContext& u, const ExpertsSaved& s, const View& out) {
  const DispatchedTokens& to = s.dispatched;
  if (to.crossed) {
    u.run(CombineRows{.rows = s.home, .place = to.crossed.place, .out = out.matrix()});
  } else {
    u.run(
        CombineRows{.rows = s.out, .weights = to.weights, .place = to.place, .out = out.matrix()});
  }
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

const ExpertsBackward::Chunk* ExpertsBackward::alike() const {
  if (chunks_.size() < 2) return nullptr;
  const Chunk& before = chunks_[chunks_.size() - 2];
  return before.dispatched().experts == chunks_.back().dispatched().experts ? &before : nullptr;
}

View ExpertsBackward::dots_of(std::size_t chunk) const {
  const std::int64_t copies = routed_.weights.elements();
  return dots_.range(static_cast<std::int64_t>(chunk) * copies, copies);
}

/// The gradient of what experts have made of each copy, where they are.
View ExpertsBackward::spread(const Chunk& chunk) const {
  const DispatchedTokens& to = chunk.dispatched();
  const View d_rows = rows(to, c_.hidden);
  u_.run(SpreadRows{.x = chunk.d_tokens,
                    .weights = to.weights,
                    .source = to.source,
                    .rows = d_rows,
                    .choices = to.weights.cols()});
  return leave(u_, to, d_rows, Keep::transient);
}

void ExpertsBackward::begin(const ExpertsSaved& saved) {
  chunks_.push_back({.saved = &saved});
  const DispatchedTokens& to = saved.dispatched;
  const View d_out = d_out_.matrix();
  chunks_.back().d_tokens = alike()      ? alike()->d_tokens
                            : to.crossed ? cross(u_, to.crossed, d_out)
                                         : d_out;
  if (!to.crossed) depart();
}

void ExpertsBackward::depart() {
  Chunk& chunk = chunks_.back();
  const DispatchedTokens& to = chunk.dispatched();
  const View dots =
      to.crossed ? u_.tensor(Keep::transient, DType::f32, {to.weights.rows(), to.weights.cols()})
                 : dots_of(chunks_.size() - 1);
  u_.run(RowDots{.x = chunk.d_tokens, .rows = chunk.saved->out, .place = to.place, .dots = dots});
  if (to.crossed) chunk.dots = exchange_all(u_, u_.experts.across, dots, Keep::transient);
  chunk.d_rows = alike() ? alike()->d_rows : spread(chunk);
}

void ExpertsBackward::products(const ExpertsChunk& w) {
  Chunk& chunk = chunks_.back();
  const ExpertsSaved& saved = *chunk.saved;
  const DispatchedTokens& to = saved.dispatched;
  if (to.crossed) depart();
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
  chunk.d_copies = come_back(u_, to, d_copies, Keep::transient);
  if (to.crossed) chunk.d_copies = cross_back(u_, to, chunk.d_copies, {});
}

void ExpertsBackward::input(const View& d_x) {
  const Chunk& chunk = chunks_.back();
  const DispatchedTokens& to = chunk.dispatched();
  u_.run(CombineRows{.rows = chunk.d_copies,
                     .place = to.crossed ? to.crossed.place : to.place,
                     .out = d_x.matrix()});
}

void ExpertsBackward::logits(const View& shares) {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const auto& [saved, d_tokens, d_rows, d_up, d_copies, dots] = chunks_[i];
    if (!dots) continue;
    u_.run(CombineRows{.rows = dots,
                       .place = saved->dispatched.crossed.place,
                       .out = dots_of(i).reshaped({routed_.weights.rows(), dots.cols()})});
  }
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
