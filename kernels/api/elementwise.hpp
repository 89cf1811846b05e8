// Plain data movement and sums over flat views.
#pragma once

#include "core/exact_sum.hpp"
#include "kernels/api/access.hpp"
#include "kernels/api/optimizer.hpp"

namespace tessera::kernels {

/// out = 0.
struct Fill {
  static constexpr const char* kName = "fill";
  View out;  // dense
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Fill&) const = default;
};

/// out = row next[0] of x, and next[0] becomes the number of the next row, behind the last that of
/// the first: so work that is the same each time goes through rows.
struct TakeRow {
  static constexpr const char* kName = "take_row";
  View x;     // (N, C) u8, dense; C, and where x and out begin, are multiples of kRowAlignment
  View next;  // (1) i64, below N
  View out;   // (C) u8
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.next, Access::update), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const TakeRow&) const = default;
};

inline constexpr std::int64_t kRowAlignment = 16;

/// out (+)= x, converted to out's type; sums in f32. f32, bf16 and f16 in any pairing; dense with
/// equal counts, or matrices of equal shape whose rows are any distance apart. With a verdict
/// (VerdictField::count f32): only where it applies the step.
struct Convert {
  static constexpr const char* kName = "convert";
  View x;
  View out;
  Write write = Write::overwrite;
  View verdict;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.verdict, Access::read),
        f(s.out, s.verdict ? Access::update : access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const Convert&) const = default;
};

/// Which tokens of a sequence each of P equal shares of it has, for causal attention: of 2 P equal
/// chunks share p has the p-th and the p-th from the end, so that all shares have as many pairs of
/// a query and a key that it sees (Dubey et al. 2024, Llama 3, section 3.3.2).
struct ZigzagChunks {
  std::int64_t shares = 1;  // P

  constexpr std::int64_t count() const { return 2 * shares; }
  /// The chunk that is a share's half 0 or 1.
  constexpr std::int64_t chunk_of(std::int64_t share, std::int64_t half) const {
    return half == 0 ? share : count() - 1 - share;
  }
  /// Where a row of (P, 2, B, T) is in the order of tokens, (B, 2 P T).
  constexpr std::int64_t row_by_tokens(std::int64_t row, std::int64_t samples,
                                       std::int64_t tokens) const {
    const std::int64_t chunk = row / tokens, sample = chunk % samples, place = chunk / samples;
    return (sample * count() + chunk_of(place / 2, place % 2)) * tokens + row % tokens;
  }
  bool operator==(const ZigzagChunks&) const = default;
};

/// out = x with its chunks in the order of tokens, or back. Ordered by shares x is (P, 2, B, T, C):
/// of each share both halves, of each half all samples' chunks of T tokens; by tokens it is (B, 2 P
/// T, C).
struct OrderChunks {
  enum class To : std::uint8_t { tokens, shares };
  static constexpr const char* kName = "order_chunks";
  View x, out;               // matrices of one type, whose rows may be any distance apart
  std::int64_t samples = 1;  // B
  ZigzagChunks chunks;
  To to = To::tokens;
  View scratch;

  /// Rows of a chunk, T.
  std::int64_t tokens() const { return x.rows() / (chunks.count() * samples); }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const OrderChunks&) const = default;
};

/// out = factor x.
struct Scale {
  static constexpr const char* kName = "scale";
  View x;    // (..., C)
  View out;  // (..., C)
  float factor = 1;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.out, Access::write), f(s.scratch, Access::write);
  }
  /// A call whose views `tensor()` makes.
  template <typename Tensor>
  static Scale example(Tensor&& tensor) {
    return {.x = tensor(), .out = tensor(), .factor = 27.712812F};
  }
  bool operator==(const Scale&) const = default;
};

/// out = keep out + add y. With `scalars`, add is multiplied with the loss scale, 1 / their
/// StepScalar::unscale; with a verdict with its coefficient, and where that skips the step out
/// stays. Each product with `add` is rounded, and the sum with the other product once (fma).
struct Blend {
  static constexpr const char* kName = "blend";
  View y;    // (n) f32
  View out;  // (n) f32
  float keep = 1, add = 0;
  View scalars;  // (StepScalar::count) f32, or absent
  View verdict;  // (VerdictField::count) f32, or absent
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.y, Access::read), f(s.scalars, Access::read), f(s.verdict, Access::read),
        f(s.out, Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const Blend&) const = default;
};

/// out (+)= the sum of the parts, added in f32 in an aligned binary tree, ((0+1)+(2+3))+..., plus
/// bias, rounded once. With Write::add the sum is added to out as a whole.
struct TreeSum {
  static constexpr const char* kName = "tree_sum";
  View parts;  // (parts, ..., C) f32, or of a 16-bit type where there is no bias; dense
  View bias;   // (C) or absent
  View out;    // (..., C) f32, bf16 or f16, dense
  Write write = Write::overwrite;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.parts, Access::read), f(s.bias, Access::read), f(s.out, access_of(s.write)),
        f(s.scratch, Access::write);
  }
  bool operator==(const TreeSum&) const = default;
};

/// accumulator += exact sum of x or of x^2 (core/exact_sum.hpp): no rounding, hence no order.
/// Not-a-numbers and infinities are counted there instead.
struct ExactSum {
  static constexpr const char* kName = "exact_sum";
  enum class Of : std::uint8_t { values, squares };
  View x;            // dense, f32, bf16 or f16
  View accumulator;  // (kExactSumWords) i64
  Of of = Of::squares;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.accumulator, Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const ExactSum&) const = default;
};

/// accumulators[into[r]] += exact sum of row r of x, as of ExactSum; a row whose `into` is below 0
/// is in no sum.
struct ExactSums {
  static constexpr const char* kName = "exact_sums";
  View x;             // (R, C) dense, f32, bf16 or f16
  View into;          // (R) i32, below K
  View accumulators;  // (K, kExactSumWords) i64
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.into, Access::read), f(s.accumulators, Access::update),
        f(s.scratch, Access::write);
  }
  bool operator==(const ExactSums&) const = default;
};

}  // namespace tessera::kernels
