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

/// See BalanceExperts in api/experts.hpp; of `all` choices of `experts` so many are this one.
TESSERA_INLINE float balanced(float bias, std::int64_t choices, std::int64_t experts,
                              std::int64_t all, float rate) {
  const std::int64_t more = choices * experts - all;
  return more > 0 ? bias - rate : more < 0 ? bias + rate : bias;
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
