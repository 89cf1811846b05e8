// What a router's logits mean and how experts compare, shared by every back end. Sums over experts
// have 32 parts, each of every 32nd expert in their order, which are folded by halves, so back ends
// agree to the bit and choose the same experts.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/api/experts.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// Added to sums of scores before they divide, so that scores which are all 0 in f32 leave numbers
/// (DeepSeek-V3 does so).
inline constexpr float kLeastSum = 1e-20F;

/// Scores of a token's experts. `F`: float, or a vector of floats.
struct RouteRow {
  RouterScores scores;
  float largest, inverse_exponentials, inverse_scores;

  TESSERA_INLINE RouteRow(RouterScores of, const float* stats)
      : scores(of), largest(stats[0]), inverse_exponentials(stats[1]), inverse_scores(stats[2]) {}

  template <typename F>
  TESSERA_INLINE F softmax(F logit) const {
    return exp_of(logit - F(largest)) * F(inverse_exponentials);
  }
  template <typename F>
  TESSERA_INLINE F score(F logit) const {
    return scores == RouterScores::softmax ? softmax(logit) : sigmoid(logit);
  }
  /// Its part of the sum of all scores.
  template <typename F>
  TESSERA_INLINE F share(F logit) const {
    return score(logit) * F(inverse_scores);
  }
};

/// Orders experts, or groups of them: by their key, those that are no number last, and of equal
/// ones the smaller index first. Larger than 0, which stands for one that cannot be chosen.
TESSERA_INLINE std::uint64_t choice_word(float key, std::uint32_t index) {
  constexpr float kLeast = -__builtin_inff();
  const float number = key > kLeast ? key + 0.0F : kLeast;
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
  return std::uint64_t{ordered} << 32 | (0xffffffffU - index);
}
TESSERA_INLINE std::uint32_t chosen_index(std::uint64_t word) {
  return 0xffffffffU - static_cast<std::uint32_t>(word);
}

/// What a group of `n` experts counts, of whose keys `key(i)` is one.
template <typename Key>
TESSERA_INLINE float group_key(GroupScore kind, std::int64_t n, Key&& key) {
  constexpr float kLeast = -__builtin_inff();
  float first = kLeast, second = kLeast;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = key(i);
    if (x > first) {
      second = first, first = x;
    } else if (x > second) {
      second = x;
    }
  }
  return kind == GroupScore::largest ? first : first + second;
}

/// The largest word of `n` keys below `last`; the first is below ~0.
TESSERA_INLINE std::uint64_t best_below(std::uint64_t last, const float* keys, std::int64_t n) {
  std::uint64_t best = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t word = choice_word(keys[i], static_cast<std::uint32_t>(i));
    best = word < last && word > best ? word : best;
  }
  return best;
}

/// By how much logarithms of a token's gates differ at most: e^-80 is a normal number.
inline constexpr float kWidestGates = 80;

/// See JoinGates in api/experts.hpp; of one token.
TESSERA_INLINE void join_gates(const Routing& r, std::int64_t experts, const float* logits,
                               float* joined) {
  constexpr float kLeast = -__builtin_inff();
  constexpr std::uint64_t kFirst = ~std::uint64_t{0};
  const std::int64_t size = experts / r.groups, each = r.choices / r.open_groups;
  const float* groups = logits + experts;
  for (std::int64_t e = 0; e < experts; ++e) joined[e] = kLeast;
  std::uint64_t group = kFirst;
  float most = kLeast;
  for (std::int64_t n = 0; n < r.open_groups; ++n) {
    group = best_below(group, groups, r.groups);
    const std::int64_t g = chosen_index(group);
    const float* of_group = logits + g * size;
    float* kept = joined + g * size;
    std::uint64_t expert = kFirst;
    float largest = 0, sum = 0;
    for (std::int64_t k = 0; k < each; ++k) {
      expert = best_below(expert, of_group, size);
      const std::int64_t i = chosen_index(expert);
      if (k == 0) largest = of_group[i];
      kept[i] = of_group[i] - largest;
      sum = sum + exp_of(kept[i]);
    }
    const auto log_sum = static_cast<float>(__builtin_log(static_cast<double>(sum)));
    for (std::int64_t i = 0; i < size; ++i) {
      kept[i] = kept[i] == kLeast ? kLeast : kept[i] + (groups[g] - log_sum);
      most = kept[i] > most ? kept[i] : most;
    }
  }
  // So that in f32 what is kept weighs more than what is not, which weighs 0.
  const float least = most - kWidestGates;
  for (std::int64_t e = 0; e < experts; ++e)
    joined[e] = joined[e] != kLeast && joined[e] < least ? least : joined[e];
}

/// See JoinGatesBackward in api/experts.hpp; of one token. `d(i, gradient of logit i)`.
template <typename Store>
TESSERA_INLINE void separate_gates(const Routing& r, std::int64_t experts, const float* joined,
                                   const float* d_joined, Store&& d) {
  constexpr float kLeast = -__builtin_inff();
  const std::int64_t size = experts / r.groups;
  for (std::int64_t g = 0; g < r.groups; ++g) {
    const std::int64_t first = g * size;
    float largest = kLeast, sum = 0, d_group = 0;
    for (std::int64_t e = first; e < first + size; ++e)
      largest = joined[e] > largest ? joined[e] : largest;
    for (std::int64_t e = first; e < first + size; ++e) {
      if (joined[e] == kLeast) continue;
      sum = sum + exp_of(joined[e] - largest);
      d_group = d_group + d_joined[e];
    }
    for (std::int64_t e = first; e < first + size; ++e) {
      d(e, joined[e] == kLeast ? 0.0F : d_joined[e] - exp_of(joined[e] - largest) / sum * d_group);
    }
    d(experts + g, d_group);
  }
}

/// Scores of the chosen become weights, in place.
TESSERA_INLINE void weigh(const Routing& routing, float* scores) {
  const auto n = static_cast<int>(routing.choices);
  float sum = kLeastSum;
  for (int k = 0; k < n; ++k) sum = sum + scores[k];
  for (int k = 0; k < n; ++k) {
    if (routing.normalized) scores[k] = scores[k] / sum;
    scores[k] = scores[k] * routing.scale;
  }
}

/// Gradients of the chosen's scores from those of weights; `scores` are theirs.
TESSERA_INLINE void unweigh(const Routing& routing, const float* scores, const float* d_weights,
                            float* d_scores) {
  const auto n = static_cast<int>(routing.choices);
  float sum = kLeastSum, mean = 0;
  for (int k = 0; k < n; ++k) sum = sum + scores[k], mean = fmadd(d_weights[k], scores[k], mean);
  for (int k = 0; k < n; ++k) {
    d_scores[k] = routing.normalized ? (d_weights[k] - mean / sum) / sum : d_weights[k];
    d_scores[k] = d_scores[k] * routing.scale;
  }
}

/// How many of an expert's choices are more than its capacity; 0: no limit.
TESSERA_INLINE std::int64_t beyond_capacity(std::int64_t choices, std::int64_t capacity) {
  return capacity > 0 && choices > capacity ? choices - capacity : 0;
}

/// See PartsOfChoices in api/experts.hpp; of one token. `places` may be null.
TESSERA_INLINE void parts_of_choices(const std::int32_t* experts, const std::int32_t* places,
                                     std::int64_t choices, std::int64_t first, std::int64_t of_part,
                                     std::int64_t count, std::int32_t* parts, std::int32_t* own) {
  for (std::int64_t k = 0; k < choices; ++k) {
    const std::int64_t e = experts[k] - first;
    const bool here = e >= 0 && e < of_part * count && (places == nullptr || places[k] >= 0);
    own[k] = here ? static_cast<std::int32_t>(e) + 1 : 0;
  }
  const std::int64_t most = choices < count ? choices : count;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < most; ++i) {
    std::int64_t next = 0;  // the smallest above the last
    for (std::int64_t k = 0; k < choices; ++k) {
      const std::int64_t part = own[k] == 0 ? 0 : (own[k] - 1) / of_part + 1;
      if (part > last && (next == 0 || part < next)) next = part;
    }
    parts[i] = static_cast<std::int32_t>(next);
    last = next == 0 ? count : next;
  }
}

/// What is kept of an expert; see BalanceExperts in api/experts.hpp. Of `all` choices of `experts`
/// so many are this one.
TESSERA_INLINE float balanced(BalanceBy by, float kept, std::int64_t choices, std::int64_t experts,
                              std::int64_t all, float rate) {
  if (by == BalanceBy::shares)
    return all > 0 ? static_cast<float>(choices) / static_cast<float>(all) : kept;
  const std::int64_t more = choices * experts - all;
  return more > 0 ? kept - rate : more < 0 ? kept + rate : kept;
}

/// The terms times `scale`, which is read only where there are any.
TESSERA_INLINE RouterTerms scaled(const RouterTerms& terms, const float* scale) {
  const float factor = terms.balance > 0 || terms.z > 0 ? *scale : 0.0F;
  return {.balance = factor * terms.balance, .z = factor * terms.z};
}

/// What the squared logarithm of the sum of exponentials weighs in the gradient of each logit,
/// times its softmax.
TESSERA_INLINE float z_slope(float z, const RouteRow& row) {
  if (z == 0) return 0;
  const double lse = static_cast<double>(row.largest) -
                     __builtin_log(static_cast<double>(row.inverse_exponentials));
  return static_cast<float>(2 * static_cast<double>(z) * lse);
}

}  // namespace tessera::kernels
