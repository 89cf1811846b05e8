// Mixtures of experts (Shazeer et al. 2017): which experts a router chooses for each token, copies
// of tokens in the order of their experts, and products of each expert's rows with its own matrix.
// N tokens, K choices of each, E experts.
#pragma once

#include <algorithm>

#include "core/choices.hpp"
#include "core/math.hpp"
#include "kernels/api/linear.hpp"
#include "kernels/api/optimizer.hpp"

namespace tessera::kernels {

/// How a router chooses from its logits. With `groups`, experts are so many equal neighbours, and
/// only those of the `open_groups` best can be chosen (DeepSeek-AI 2024, DeepSeek-V2, section
/// 2.2.2; DeepSeek-V3, section 2.1.2).
struct Routing {
  std::int64_t choices = 1;  // K
  RouterScores scores = RouterScores::softmax;
  bool normalized = false;  // a token's weights are divided by their sum
  float scale = 1;          // what weights are multiplied with at the end
  std::int64_t groups = 1, open_groups = 1;
  GroupScore group_score = GroupScore::largest;
  bool operator==(const Routing&) const = default;
};

inline constexpr std::int64_t kMostExperts = 512, kMostChoices = 32, kMostGroups = 32;
/// What is known of a token's logits: the largest, and the inverse sums of their exponentials,
/// relative to it, and of all scores.
inline constexpr std::int64_t kRouteStats = 3;

/// experts[n] = the K experts with the largest score, the best first and of equal ones that of the
/// smaller index; weights[n] their scores. With a bias scores are compared after it is added to
/// them, which changes no weight (Wang et al. 2024, loss-free balancing). Whatever logits are, K
/// different experts are chosen.
struct Route {
  static constexpr const char* kName = "route";
  View logits;   // (N, E) f32
  View bias;     // (E) f32, or absent
  View experts;  // (N, K) i32
  View weights;  // (N, K) f32
  View stats;    // (N, kRouteStats) f32
  Routing routing;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.bias, Access::read), f(s.experts, Access::write);
    f(s.weights, Access::write), f(s.stats, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Route&) const = default;
};

/// Of a token's logits, a of groups of experts and b of experts, those that count where groups have
/// a gate and the experts of each group another (Shazeer et al. 2017, appendix B): of the
/// `open_groups` groups with the largest a, and of K / open_groups experts of each with the largest
/// b. For these joined[n, e] = a + b - log sum(exp b), the sum over those of its group, and for
/// others minus infinity. So the softmax of `joined` is the product of both gates' softmaxes of
/// what they keep, and the K largest of it are the token's experts. What is kept is no more than 80
/// below the largest, so that it is told from what is not in f32.
struct JoinGates {
  static constexpr const char* kName = "join_gates";
  View logits;      // (N, E + G) f32: of experts, then of groups
  View joined;      // (N, E) f32
  Routing routing;  // whose groups are G
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.joined, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const JoinGates&) const = default;
};

/// The gradient of logits from that of `joined`: 0 of those that do not count.
struct JoinGatesBackward {
  static constexpr const char* kName = "join_gates_backward";
  View joined;    // (N, E) f32, of JoinGates
  View d_joined;  // (N, E) f32
  View d_logits;  // (N, E + G), f32 or the type that products take
  Routing routing;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.joined, Access::read), f(s.d_joined, Access::read), f(s.d_logits, Access::write);
    f(s.scratch, Access::write);
  }
  bool operator==(const JoinGatesBackward&) const = default;
};

/// What is minimised beside the loss, of each token: `balance` times the sum over experts of the
/// number of the sample's choices that are the expert, times the token's share of scores that it
/// has (Fedus et al. 2021, Switch Transformer, equation 4, where balance is alpha E / (K tokens of
/// the sample); Lepikhin et al. 2020); and z times the squared logarithm of the sum of exponentials
/// of the token's logits (Zoph et al. 2022, equation 5).
struct RouterTerms {
  float balance = 0, z = 0;
  explicit operator bool() const { return balance > 0 || z > 0; }
  bool operator==(const RouterTerms&) const = default;
};

/// The gradient of logits from that of weights and, times `scale`, of the terms.
struct RouteBackward {
  static constexpr const char* kName = "route_backward";
  View logits;     // (N, E) f32
  View stats;      // (N, kRouteStats) f32
  View experts;    // (N, K) i32
  View d_weights;  // (N, K) f32
  View counts;     // (S, E) f32, of ExpertLoad; absent where there is no balance
  View scale;      // (1) f32; absent where there are no terms
  View d_logits;   // (N, E), f32 or the type that products take
  RouterTerms terms;
  Routing routing;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.stats, Access::read), f(s.experts, Access::read);
    f(s.d_weights, Access::read), f(s.counts, Access::read), f(s.scale, Access::read);
    f(s.d_logits, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const RouteBackward&) const = default;
};

/// Of each sample: how many of its tokens' choices each expert is, exactly, and the mean over its
/// tokens of each expert's share of scores. A sum has sixteen parts, as in Pool.
struct ExpertLoad {
  static constexpr const char* kName = "expert_load";
  View logits;   // (N, E) f32
  View stats;    // (N, kRouteStats) f32
  View experts;  // (N, K) i32
  View counts;   // (S, E) f32
  View shares;   // (S, E) f32
  Routing routing;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.stats, Access::read), f(s.experts, Access::read);
    f(s.counts, Access::write), f(s.shares, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ExpertLoad&) const = default;
};

/// counts[e] += how many choices are expert e; dropped += how many of them are more than the
/// `capacity` of an expert, which is what a Dispatch to all experts leaves without a row.
struct CountChoices {
  static constexpr const char* kName = "count_choices";
  View experts;               // (N, K) i32
  View counts;                // (E) i64
  View dropped;               // (1) i64, or absent
  std::int64_t capacity = 0;  // 0: no limit
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.experts, Access::read), f(s.counts, Access::update), f(s.dropped, Access::update);
    f(s.scratch, Access::write);
  }
  bool operator==(const CountChoices&) const = default;
};

/// What is kept of a step's choices: a bias of each expert, by which experts are chosen, or each
/// one's share of them, by which its share of scores is weighed (RouterTerms::balance).
enum class BalanceBy : std::uint8_t { bias, shares };

/// A bias += rate for an expert that was chosen less often than experts were on average, -= rate
/// for one that was chosen more often, and stays for others (Wang et al. 2024, "Auxiliary-loss-free
/// load balancing", algorithm 1). A share is that of this step. apply = 0: all stay.
struct BalanceExperts {
  static constexpr const char* kName = "balance_experts";
  View choices;  // (E) i64: how many of a step's choices are each expert
  View kept;     // (E) f32
  View verdict;  // (VerdictField::count) f32
  BalanceBy by = BalanceBy::bias;
  float rate = 0;  // of biases
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.choices, Access::read), f(s.kept, Access::update), f(s.verdict, Access::read),
        f(s.scratch, Access::write);
  }
  bool operator==(const BalanceExperts&) const = default;
};

/// Rows of an expert begin on multiples of this; those between are padding.
inline constexpr std::int64_t kExpertRows = 16;
/// Rows that hold the copies of tokens which go to `own` experts, of at most `capacity` each (0: no
/// limit), whatever is chosen.
constexpr std::int64_t dispatched_rows(std::int64_t tokens, std::int64_t choices, std::int64_t own,
                                       std::int64_t capacity = 0) {
  const std::int64_t copies = tokens * std::min(choices, own);
  const std::int64_t rows = round_up(copies + own * (kExpertRows - 1), kExpertRows);
  if (capacity == 0) return rows;
  return std::min(rows, own * round_up(std::min(capacity, tokens), kExpertRows));
}

/// The order of copies by expert, those of an expert in the order of tokens and choices. Only
/// copies that go to the own experts, G neighbours, have rows, and of an expert's only the first
/// `capacity` (Fedus et al. 2021, Switch Transformer, section 2.2). A token's choices of own
/// experts are different ones, as those of Route. With several `parts` the own experts are so many
/// equal ranges, and each has a slot of R / parts rows, from whose begin its rows are counted in
/// `begins`.
struct Dispatch {
  static constexpr const char* kName = "dispatch";
  View experts;  // (N, K) i32
  View place;    // (N, K) i32: the row of each copy; -1: none
  View source;   // (R) i32: which copy, n K + k, a row has; -1: none
  View begins;  // (parts, G / parts + 1) i32: the first row of each own expert, and behind the last
  std::int64_t first = 0;     // of the own experts
  std::int64_t all = 0;       // E; 0: the own experts are all
  std::int64_t capacity = 0;  // 0: no limit
  std::int64_t parts = 1;
  View scratch;

  /// G.
  std::int64_t own() const { return begins.elements() - parts; }
  /// E.
  std::int64_t experts_of_all() const { return all == 0 ? own() : all; }
  /// R.
  std::int64_t rows() const {
    return parts * dispatched_rows(experts.rows(), experts.cols(), own() / parts, capacity);
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.experts, Access::read), f(s.place, Access::write), f(s.source, Access::write);
    f(s.begins, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Dispatch&) const = default;
};

/// Where copies of a token go if the own experts, G neighbours, are in P equal parts: `parts`, each
/// once, in ascending order, and `own`, the token's choices among the own experts. Both count from
/// 1; 0 is none. A choice is none too that has no row by `place`.
struct PartsOfChoices {
  static constexpr const char* kName = "parts_of_choices";
  View experts;  // (N, K) i32
  View place;    // (N, K) i32, of a Dispatch to the own experts; absent: every choice has a row
  View parts;    // (N, min(K, P)) i32
  View own;      // (N, K) i32
  std::int64_t first = 0;    // of the own experts
  std::int64_t of_part = 1;  // G / P
  std::int64_t count = 1;    // P
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.experts, Access::read), f(s.place, Access::read), f(s.parts, Access::write);
    f(s.own, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const PartsOfChoices&) const = default;
};

/// rows[r] = x of the token whose copy it is, times the copy's weight if there are weights; padding
/// is 0. Without weights elements may be of any type.
struct SpreadRows {
  static constexpr const char* kName = "spread_rows";
  View x;        // (N, C)
  View weights;  // (N, K) f32, or absent
  View source;   // (R) i32
  View rows;     // (R, C)
  std::int64_t choices = 1;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.weights, Access::read), f(s.source, Access::read);
    f(s.rows, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const SpreadRows&) const = default;
};

/// out[n] = the sum of the token's copies that have a row, times their weights if there are
/// weights, in f32 and in the order of choices.
struct CombineRows {
  static constexpr const char* kName = "combine_rows";
  View rows;     // (R, C)
  View weights;  // (N, K) f32, or absent
  View place;    // (N, K) i32; -1: no row
  View out;      // (N, C), of the type of rows or f32
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.rows, Access::read), f(s.weights, Access::read), f(s.place, Access::read);
    f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const CombineRows&) const = default;
};

/// dots[n, k] = x[n] . rows[place[n, k]], 0 of a copy without a row: the gradient of CombineRows'
/// weights from that of `out`.
struct RowDots {
  static constexpr const char* kName = "row_dots";
  View x;      // (N, C)
  View rows;   // (R, C)
  View place;  // (N, K) i32; -1: no row
  View dots;   // (N, K) f32
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.rows, Access::read), f(s.place, Access::read);
    f(s.dots, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const RowDots&) const = default;
};

/// y = x W^T for the rows of each expert, with its own of E matrices that lie behind one another.
/// Rows behind the last expert's are not written. `copies`: rows that are no padding, or how many
/// of them are expected.
struct ExpertLinear {
  static constexpr const char* kName = "expert_linear";
  View x;       // (R, I)
  View weight;  // (E O, I), or its codes (E O, I bits / 8), u8
  View begins;  // (E + 1) i32
  View y;       // (R, O)
  std::int64_t copies = 0;
  WeightCodes codes;  // each expert's begin with a block
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(copies) * static_cast<double>(x.cols() * y.cols());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.weight, Access::read), f(s.begins, Access::read);
    f(s.y, Access::write), f(s.codes.scales, Access::read), f(s.scratch, Access::write);
  }
  bool operator==(const ExpertLinear&) const = default;
};

/// d_x = d_y W for the rows of each expert.
struct ExpertLinearBackwardInput {
  static constexpr const char* kName = "expert_linear_dgrad";
  View d_y;     // (R, O)
  View weight;  // (E O, I)
  View begins;  // (E + 1) i32
  View d_x;     // (R, I)
  std::int64_t copies = 0;
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(copies) * static_cast<double>(d_x.cols() * d_y.cols());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.weight, Access::read), f(s.begins, Access::read);
    f(s.d_x, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ExpertLinearBackwardInput&) const = default;
};

/// d_weight (+)= d_y^T x of each expert's rows, padding included, of which d_y or x must be 0 while
/// the other is finite; an expert without any rows has a gradient of 0.
struct ExpertLinearBackwardWeight {
  static constexpr const char* kName = "expert_linear_wgrad";
  View d_y;       // (R, O)
  View x;         // (R, I)
  View begins;    // (E + 1) i32
  View d_weight;  // (E O, I), accumulation type
  Write write = Write::overwrite;
  std::int64_t copies = 0;
  View scratch;

  double flop() const {
    return 2.0 * static_cast<double>(copies) * static_cast<double>(x.cols() * d_y.cols());
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_y, Access::read), f(s.x, Access::read), f(s.begins, Access::read);
    f(s.d_weight, access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const ExpertLinearBackwardWeight&) const = default;
};

inline void check_routing(const Routing& r, std::int64_t experts) {
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
inline void check_routed(const View& logits, const View& stats, const View& experts,
                         const Routing& routing) {
  TESSERA_CHECK(logits.type == DType::f32, "logits of {}", to_string(logits.type));
  check_routing(routing, logits.cols());
  check_flat({stats}, DType::f32, logits.rows() * kRouteStats);
  check_flat({experts}, DType::i32, logits.rows() * routing.choices);
}

inline void check(const Route& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_flat({a.weights}, DType::f32, a.logits.rows() * a.routing.choices);
  if (a.bias) check_flat({a.bias}, DType::f32, a.logits.cols());
}

inline void check_samples(const View& of_samples, const View& logits) {
  check_flat({of_samples}, DType::f32, of_samples.rows() * logits.cols());
  TESSERA_CHECK(of_samples.rows() > 0 && logits.rows() % of_samples.rows() == 0,
                "{} tokens of {} samples", logits.rows(), of_samples.rows());
}

inline void check(const RouteBackward& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_flat({a.d_weights}, DType::f32, a.logits.rows() * a.routing.choices);
  check_floats({a.d_logits});
  check_same_matrix({a.logits, a.d_logits});
  TESSERA_CHECK(a.terms.balance >= 0 && a.terms.z >= 0, "terms of {} and {}", a.terms.balance,
                a.terms.z);
  if (a.terms.balance > 0) check_samples(a.counts, a.logits);
  if (a.terms) check_flat({a.scale}, DType::f32, 1);
}

/// `logits` of experts and groups (N, E + G), and what is made of them (N, E).
inline void check_gates(const View& logits, const View& joined, const Routing& routing) {
  check_routing(routing, joined.cols());
  TESSERA_CHECK(logits.rows() == joined.rows() && logits.cols() == joined.cols() + routing.groups,
                "logits ({}, {}) of {} tokens with {} experts in {} groups", logits.rows(),
                logits.cols(), joined.rows(), joined.cols(), routing.groups);
  TESSERA_CHECK(routing.choices % routing.open_groups == 0 &&
                    routing.choices / routing.open_groups <= joined.cols() / routing.groups,
                "{} choices in {} groups", routing.choices, routing.open_groups);
  TESSERA_CHECK(joined.type == DType::f32, "gates of {}", to_string(joined.type));
}
inline void check(const JoinGates& a) {
  check_gates(a.logits, a.joined, a.routing);
  TESSERA_CHECK(a.logits.type == DType::f32, "logits of {}", to_string(a.logits.type));
}
inline void check(const JoinGatesBackward& a) {
  check_gates(a.d_logits, a.joined, a.routing);
  check_same_matrix({a.joined, a.d_joined});
  TESSERA_CHECK(a.d_joined.type == DType::f32, "gradients of {}", to_string(a.d_joined.type));
  check_floats({a.d_logits});
}

inline void check(const CountChoices& a) {
  check_flat({a.experts}, DType::i32, a.experts.elements());
  check_flat({a.counts}, DType::i64, a.counts.elements());
  TESSERA_CHECK(a.counts.elements() >= 1 && a.counts.elements() <= kMostExperts, "{} experts",
                a.counts.elements());
  if (a.dropped) check_flat({a.dropped}, DType::i64, 1);
  TESSERA_CHECK(a.capacity >= 0, "a capacity of {}", a.capacity);
}

inline void check(const BalanceExperts& a) {
  const std::int64_t experts = a.kept.elements();
  check_flat({a.kept}, DType::f32, experts);
  check_flat({a.choices}, DType::i64, experts);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
  TESSERA_CHECK(experts >= 1 && experts <= kMostExperts && a.rate >= 0, "{} experts, a rate of {}",
                experts, a.rate);
}

inline void check(const ExpertLoad& a) {
  check_routed(a.logits, a.stats, a.experts, a.routing);
  check_samples(a.counts, a.logits);
  check_same_matrix({a.counts, a.shares});
  check_samples(a.shares, a.logits);
}

inline void check(const Dispatch& a) {
  const std::int64_t own = a.own(), all = a.experts_of_all();
  check_flat({a.experts, a.place}, DType::i32, a.experts.elements());
  TESSERA_CHECK(own >= 1 && a.first >= 0 && a.first + own <= all && own <= kMostExperts,
                "{} experts from {} on, of {}", own, a.first, all);
  TESSERA_CHECK(a.capacity >= 0 && a.parts >= 1 && own % a.parts == 0,
                "a capacity of {}, {} parts of {} experts", a.capacity, a.parts, own);
  check_flat({a.begins}, DType::i32, own + a.parts);
  check_flat({a.source}, DType::i32, a.rows());
}

inline void check(const PartsOfChoices& a) {
  check_flat({a.experts, a.own}, DType::i32, a.experts.elements());
  if (a.place) check_flat({a.place}, DType::i32, a.experts.elements());
  check_flat({a.parts}, DType::i32, a.experts.rows() * std::min(a.experts.cols(), a.count));
  TESSERA_CHECK(
      a.first >= 0 && a.of_part >= 1 && a.count >= 1 && a.count <= kMostExperts / a.of_part,
      "{} parts of {} experts from {} on", a.count, a.of_part, a.first);
}

inline void check(const SpreadRows& a) {
  if (a.weights) check_floats({a.x});
  check_same_type({a.x, a.rows});
  check_flat({a.source}, DType::i32, a.rows.rows());
  TESSERA_CHECK(a.x.cols() == a.rows.cols() && a.choices >= 1,
                "rows of {} columns from {}, {} each", a.rows.cols(), a.x.cols(), a.choices);
  if (a.weights) check_flat({a.weights}, DType::f32, a.x.rows() * a.choices);
}

inline void check(const CombineRows& a) {
  check_floats({a.rows});
  check_result(a.out, a.rows.type);
  TESSERA_CHECK(a.out.cols() == a.rows.cols() && a.place.rows() == a.out.rows(),
                "{} rows of {} columns from {} places of {}", a.out.rows(), a.out.cols(),
                a.place.rows(), a.rows.cols());
  check_flat({a.place}, DType::i32, a.place.elements());
  if (a.weights) check_flat({a.weights}, DType::f32, a.place.elements());
}

inline void check(const RowDots& a) {
  check_floats({a.x});
  check_same_type({a.x, a.rows});
  TESSERA_CHECK(a.x.cols() == a.rows.cols() && a.place.rows() == a.x.rows(),
                "{} rows of {} columns with {} places of {}", a.x.rows(), a.x.cols(),
                a.place.rows(), a.rows.cols());
  check_flat({a.place}, DType::i32, a.place.elements());
  check_flat({a.dots}, DType::f32, a.place.elements());
}

/// x (R, I), y (R, O) and E matrices (O, I).
inline void check_experts(const View& x, const View& y, const View& weight, const View& begins,
                          const WeightCodes& codes = {}) {
  check_floats({x, y});
  const std::int64_t experts = begins.elements() - 1;
  check_flat({begins}, DType::i32, experts + 1);
  TESSERA_CHECK(x.rows() == y.rows() && x.rows() % kExpertRows == 0 && experts >= 1 &&
                    weight.rows() == experts * y.cols() && codes.columns(weight) == x.cols(),
                "x ({}, {}), y ({}, {}), {} experts' weights ({}, {})", x.rows(), x.cols(),
                y.rows(), y.cols(), experts, weight.rows(), weight.cols());
}

inline void check(const ExpertLinear& a) {
  check_experts(a.x, a.y, a.weight, a.begins, a.codes);
  check_weight(a.weight, a.codes, a.x, a.weight.rows());
  TESSERA_CHECK(!a.codes || a.y.cols() * a.x.cols() % a.codes.format.block == 0,
                "experts of {} elements in blocks of {}", a.y.cols() * a.x.cols(),
                a.codes.format.block);
  check_result(a.y, a.x.type);
}
inline void check(const ExpertLinearBackwardInput& a) {
  check_experts(a.d_x, a.d_y, a.weight, a.begins);
  check_floats({a.weight});
  check_same_type({a.d_y, a.weight});
  check_result(a.d_x, a.d_y.type);
}
inline void check(const ExpertLinearBackwardWeight& a) {
  check_experts(a.x, a.d_y, a.d_weight, a.begins);
  check_floats({a.d_weight});
  check_same_type({a.d_y, a.x});
  check_result(a.d_weight, a.x.type);
}

}  // namespace tessera::kernels
