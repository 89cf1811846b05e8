// Rotary positions.
#pragma once

#include "core/choices.hpp"
#include "kernels/api/cached.hpp"

namespace tessera::kernels {

/// How frequencies f_i = theta^(-2 i / R) of rotary positions change for contexts `factor` times
/// those of the training before. The formulas are those of Hugging Face's transformers
/// (modeling_rope_utils), which published weights count on.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::none;
  double factor = 1;
  /// Tokens of the context of the training before. linear does without.
  std::int64_t original_positions = 0;
  /// dynamic (NTK-aware): tokens of the sequences at hand, which decide theta.
  std::int64_t positions = 0;
  /// llama3: f_i stays where the original context holds more than `high_frequency` turns, becomes
  /// f_i / factor below `low_frequency`, and is between in between.
  double low_frequency = 1, high_frequency = 4;
  /// yarn (Peng et al. 2023): likewise, on a ramp over i between where there are `fast_turns` and
  /// `slow_turns` turns; cosines and sines are multiplied by `magnitude` (0: 0.1 ln(factor) + 1).
  double fast_turns = 32, slow_turns = 1, magnitude = 0;
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary positions (Su et al. 2021), in place. The pair i of R columns of each head, those from
/// `first_column` on, turns by (first_position + t) theta^(-2 i / R), changed as `scaling` says;
/// with documents, positions count from the begin of the token's document, where a sample is a part
/// of a sequence from one before it; with `cached` they are those of CachedSample, and dynamic
/// frequencies those of a sample's own tokens. Direction::inverse turns the gradient back: it is
/// the transpose, so that yarn's magnitude multiplies there too.
struct Rope {
  enum class Direction : std::uint8_t { forward, inverse };
  static constexpr const char* kName = "rope";
  View x;          // (B, T, heads D), changed in place
  View documents;  // see check_documents; absent: a sample is one document
  View cached;     // (B, 3), see CachedSample; absent: there is no cache
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;      // R; 0: D
  std::int64_t first_column = 0;    // of each head, that turns
  std::int64_t first_position = 0;  // 0 with documents, and with a cache
  std::int64_t longest = 0;         // tokens of a document at most; 0: T
  double theta = 10000.0;
  RopePairs pairs = RopePairs::halves;
  RopeScaling scaling;
  Direction direction = Direction::forward;
  View scratch;

  /// Positions from the first one on that tokens may have, and how many tables of these there are.
  std::int64_t positions() const { return longest > 0 ? longest : x.extent(1); }
  std::int64_t tables() const { return cached ? x.extent(0) : 1; }
  /// Columns of a head that turn.
  std::int64_t turned() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::update), f(s.documents, Access::read), f(s.cached, Access::read),
        f(s.scratch, Access::write);
  }
  bool operator==(const Rope&) const = default;
};

}  // namespace tessera::kernels
