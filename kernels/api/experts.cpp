#include "kernels/api/experts.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_routing(const Routing& r, std::int64_t experts) {
  TESSERA_CHECK(experts >= 1 && experts <= kMostExperts && r.choices >= 1 &&
                    r.choices <= kMostChoices && r.groups >= 1 && r.groups <= kMostGroups &&
                    experts % r.groups == 0 && r.open_groups >= 1 && r.open_groups <= r.groups &&
                    r.choices <= r.open_groups * (experts / r.groups),
                "{} choices of {} experts, {} of {} groups", r.choices, experts, r.open_groups,
                r.groups);
  TESSERA_CHECK(r.group_score == GroupScore::largest || r.groups == 1 || experts / r.groups >= 2,
                "the two best of groups of {} experts", experts / r.groups);
}

/// `logits` (N, E), and what is known of them.
void check_routed(const View& logits, const View& stats, const View& experts,
                  const Routing& routing) {
  TESSERA_CHECK(logits.type == DType::f32, "logits of {}", to_string(logits.type));
  check_routing(routing, logits.cols());
  check_flat({stats}, DType::f32, logits.rows() * kRouteStats);
  check_flat({experts}, DType::i32, logits.rows() * routing.choices);
}

void check_samples(const View& of_samples, const View& logits) {
  check_flat({of_samples}, DType::f32, of_samples.rows() * logits.cols());
  TESSERA_CHECK(of_samples.rows() > 0 && logits.rows() % of_samples.rows() == 0,
                "{} tokens of {} samples", logits.rows(), of_samples.rows());
}

/// `logits` of experts and groups (N, E + G), and what is made of them (N, E).
void check_gates(const View& logits, const View& joined, const Routing& routing) {
  check_routing(routing, joined.cols());
  TESSERA_CHECK(logits.rows() == joined.rows() && logits.cols() == joined.cols() + routing.groups,
                "logits ({}, {}) of {} tokens with {} experts in {} groups", logits.rows(),
                logits.cols(), joined.rows(), joined.cols(), routing.groups);
  TESSERA_CHECK(routing.choices % routing.open_groups == 0 &&
                    routing.choices / routing.open_groups <= joined.cols() / routing.groups,
                "{} choices in {} groups", routing.choices, routing.open_groups);
  TESSERA_CHECK(joined.type == DType::f32, "gates of {}", to_string(joined.type));
}

/// x (R, I), y (R, O) and E matrices (O, I).
void check_experts(const View& x, const View& y, const View& weight, const View& begins,
                   const WeightCodes& codes = {}) {
  check_floats({x, y});
  const std::int64_t experts = begins.elements() - 1;
  check_flat({begins}, DType::i32, experts + 1);
  TESSERA_CHECK(x.rows() == y.rows() && x.rows() % kExpertRows == 0 && experts >= 1 &&
                    weight.rows() == experts * y.cols() && codes.columns(weight) == x.cols(),
                "x ({}, {}), y ({}, {}), {} experts' weights ({}, {})", x.rows(), x.cols(),
                y.rows(), y.cols(), experts, weight.rows(), weight.cols());
}

}  // namespace

void check(const Route& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_flat({a.weights}, DType::f32, a.logits.rows() * a.routing.choices);
  if (a.bias) check_flat({a.bias}, DType::f32, a.logits.cols());
}

void check(const RouteBackward& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_flat({a.d_weights}, DType::f32, a.logits.rows() * a.routing.choices);
  check_floats({a.d_logits});
  check_same_matrix({a.logits, a.d_logits});
  TESSERA_CHECK(a.terms.balance >= 0 && a.terms.z >= 0, "terms of {} and {}", a.terms.balance,
                a.terms.z);
  if (a.terms.balance > 0) check_samples(a.counts, a.logits);
  if (a.terms) check_flat({a.scale}, DType::f32, 1);
}

void check(const JoinGates& a) {
  check_gates(a.logits, a.joined, a.routing);
  TESSERA_CHECK(a.logits.type == DType::f32, "logits of {}", to_string(a.logits.type));
}

void check(const JoinGatesBackward& a) {
  check_gates(a.d_logits, a.joined, a.routing);
  check_same_matrix({a.joined, a.d_joined});
  TESSERA_CHECK(a.d_joined.type == DType::f32, "gradients of {}", to_string(a.d_joined.type));
  check_floats({a.d_logits});
}

void check(const CountChoices& a) {
  check_flat({a.experts}, DType::i32, a.experts.elements());
  check_flat({a.counts}, DType::i64, a.counts.elements());
  TESSERA_CHECK(a.counts.elements() >= 1 && a.counts.elements() <= kMostExperts, "{} experts",
                a.counts.elements());
  if (a.dropped) check_flat({a.dropped}, DType::i64, 1);
  TESSERA_CHECK(a.capacity >= 0, "a capacity of {}", a.capacity);
}

void check(const BalanceExperts& a) {
  const std::int64_t experts = a.kept.elements();
  check_flat({a.kept}, DType::f32, experts);
  check_flat({a.choices}, DType::i64, experts);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
  TESSERA_CHECK(experts >= 1 && experts <= kMostExperts && a.rate >= 0, "{} experts, a rate of {}",
                experts, a.rate);
}

void check(const ExpertLoad& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_samples(a.counts, a.logits);
  check_same_matrix({a.counts, a.shares});
  check_samples(a.shares, a.logits);
}

void check(const Dispatch& a) {
  const std::int64_t own = a.own(), all = a.experts_of_all();
  check_flat({a.experts, a.place}, DType::i32, a.experts.elements());
  TESSERA_CHECK(own >= 1 && a.first >= 0 && a.first + own <= all && own <= kMostExperts,
                "{} experts from {} on, of {}", own, a.first, all);
  TESSERA_CHECK(a.capacity >= 0 && a.parts >= 1 && own % a.parts == 0,
                "a capacity of {}, {} parts of {} experts", a.capacity, a.parts, own);
  check_flat({a.begins}, DType::i32, own + a.parts);
  check_flat({a.source}, DType::i32, a.rows());
}

void check(const PartsOfChoices& a) {
  check_flat({a.experts, a.own}, DType::i32, a.experts.elements());
  if (a.place) check_flat({a.place}, DType::i32, a.experts.elements());
  check_flat({a.parts}, DType::i32, a.experts.rows() * std::min(a.experts.cols(), a.count));
  TESSERA_CHECK(
      a.first >= 0 && a.of_part >= 1 && a.count >= 1 && a.count <= kMostExperts / a.of_part,
      "{} parts of {} experts from {} on", a.count, a.of_part, a.first);
}

void check(const SpreadRows& a) {
  if (a.weights) check_floats({a.x});
  check_same_type({a.x, a.rows});
  check_flat({a.source}, DType::i32, a.rows.rows());
  TESSERA_CHECK(a.x.cols() == a.rows.cols() && a.choices >= 1,
                "rows of {} columns from {}, {} each", a.rows.cols(), a.x.cols(), a.choices);
  if (a.weights) check_flat({a.weights}, DType::f32, a.x.rows() * a.choices);
}

void check(const CombineRows& a) {
  check_floats({a.rows});
  check_result(a.out, a.rows.type);
  TESSERA_CHECK(a.out.cols() == a.rows.cols() && a.place.rows() == a.out.rows(),
                "{} rows of {} columns from {} places of {}", a.out.rows(), a.out.cols(),
                a.place.rows(), a.rows.cols());
  check_flat({a.place}, DType::i32, a.place.elements());
  if (a.weights) check_flat({a.weights}, DType::f32, a.place.elements());
}

void check(const RowDots& a) {
  check_floats({a.x});
  check_same_type({a.x, a.rows});
  TESSERA_CHECK(a.x.cols() == a.rows.cols() && a.place.rows() == a.x.rows(),
                "{} rows of {} columns with {} places of {}", a.x.rows(), a.x.cols(),
                a.place.rows(), a.rows.cols());
  check_flat({a.place}, DType::i32, a.place.elements());
  check_flat({a.dots}, DType::f32, a.place.elements());
}

void check(const ExpertLinear& a) {
  check_experts(a.x, a.y, a.weight, a.begins, a.codes);
  check_weight(a.weight, a.codes, a.x, a.weight.rows());
  TESSERA_CHECK(!a.codes || a.y.cols() * a.x.cols() % a.codes.format.block == 0,
                "experts of {} elements in blocks of {}", a.y.cols() * a.x.cols(),
                a.codes.format.block);
  check_result(a.y, a.x.type);
}

void check(const ExpertLinearBackwardInput& a) {
  check_experts(a.d_x, a.d_y, a.weight, a.begins);
  check_floats({a.weight});
  check_same_type({a.d_y, a.weight});
  check_result(a.d_x, a.d_y.type);
}

void check(const ExpertLinearBackwardWeight& a) {
  check_experts(a.x, a.d_y, a.d_weight, a.begins);
  check_floats({a.d_weight});
  check_same_type({a.d_y, a.x});
  check_result(a.d_weight, a.x.type);
}

}  // namespace tessera::kernels
