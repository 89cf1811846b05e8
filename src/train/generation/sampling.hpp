// How the next token is drawn from logits.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::train {

/// Which tokens may be drawn, and how likely each is. Of softmax(logits / temperature) first only
/// the k likeliest, then of these only the likeliest that make up p, then those that are not far
/// below the likeliest.
struct SamplingRule {
  double temperature = 1;  // 0: always the most likely token
  std::int64_t top_k = 0;  // only the k most likely; 0: all
  double top_p = 1;  // only the most likely ones that make up this probability (Holtzman et al.
                     // 2020)
  double min_p = 0;  // only those at least so likely, times the most likely one (Nguyen et al.
                     // 2024)
  /// Logits above 0 of tokens that were there before are divided by it, others multiplied (Keskar
  /// et al. 2019, CTRL).
  double repetition_penalty = 1;
  std::uint64_t seed = 1;
};

/// Which number of the generator a draw takes: the same one whatever else is drawn.
struct Draw {
  std::uint64_t sequence = 0;
  std::int64_t position = 0;
};

/// Draws from logits[0 .. vocab); `before`: tokens that repetition_penalty is about. Throws
/// NonFiniteError for logits that are not numbers.
std::int32_t sample_token(std::span<const float> logits, const SamplingRule& rule, Draw draw,
                          std::span<const std::int32_t> before = {});

/// log p of a token under softmax(logits).
double log_probability(std::span<const float> logits, std::int32_t token);

}  // namespace tessera::train
