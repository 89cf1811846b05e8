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

}  // namespace tessera::kernels
