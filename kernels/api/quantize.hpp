// Elements in 8, 4 bits or 1 on the wire, one scale a block: ZeRO++'s compressed weights and
// gradients (Wang et al. 2023, sections 3.1 and 3.3), momentum as its signs (Tang et al. 2021,
// "1-bit Adam"), and frozen parameters.
#pragma once

#include <algorithm>

#include "core/enums.hpp"
#include "core/math.hpp"
#include "core/random.hpp"
#include "kernels/api/access.hpp"
#include "kernels/api/optimizer.hpp"

namespace tessera::kernels {

enum class BlockType : std::uint8_t { int8, int4, sign, nf4 };
/// Those that kernels round to. Of the rest the host makes codes (kernels/common/slots).
inline constexpr std::array kRoundedTypes = {BlockType::int8, BlockType::int4, BlockType::sign};

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::BlockType> {
  using enum tessera::kernels::BlockType;
  static constexpr std::array table = {std::pair{int8, "int8"}, std::pair{int4, "int4"},
                                       std::pair{sign, "sign"}, std::pair{nf4, "nf4"}};
};

namespace tessera::kernels {

/// How n elements (a slot) become bytes. First come the values, for int4 two a byte, the first in
/// the low half; then, from the next multiple of 16 bytes on, an f32 scale for each `block`
/// elements (the last block may be short); the end is padded to 16 bytes. Padding is 0. A value is
/// q * scale with |q| <= Q = 127 or 7. With m the block's largest magnitude, scale = m / Q and q =
/// x (Q / m), each rounded to f32, then q to the nearest even integer. A block whose scale would be
/// below 2^-126 counts as zero. A block that holds an infinity or not-a-number is not-a-number
/// throughout.
///
/// Signs are eight a byte, the first in the lowest bit, which is the sign bit of x; scales are
/// bf16. A value is scale or -scale, and scale the mean magnitude of the block, which no order of
/// sums changes: magnitudes become integers as above with Q = 2^15, and their sum by their number,
/// times m / Q, is rounded to f32 at each step and to bf16. Nothing is left to chance. In a block
/// that counts as zero or is not-a-number all codes are 0.
///
/// nf4 lies in memory as int4, but its codes stand for quantiles of normal numbers
/// (common/quantize, 4-bit NormalFloat: Dettmers et al. 2023, "QLoRA", section 3 and appendix E). A
/// value is one of them times m, the nearest to x (1 / m); m is the scale. In a block that counts
/// as zero or is not-a-number all codes are that of 0.
struct BlockFormat {
  BlockType type = BlockType::int8;
  std::int64_t block = 256;  // even; of signs, a multiple of 32, at most 2^15
  auto operator<=>(const BlockFormat&) const = default;

  constexpr std::int64_t bits() const {
    return type == BlockType::int8 ? 8 : type == BlockType::sign ? 1 : 4;
  }
  std::int64_t scale_bytes() const { return type == BlockType::sign ? 2 : 4; }
  std::int64_t scales_at(std::int64_t n) const { return round_up(ceil_div(n * bits(), 8), 16); }
  std::int64_t bytes(std::int64_t n) const {
    return scales_at(n) + round_up(scale_bytes() * ceil_div(n, block), 16);
  }
};

/// Codes that are rounded up or down at random in proportion, which is right on average (stochastic
/// rounding: Gupta et al. 2015): q = x (Q / m) + r before it is rounded, then at most Q either way,
/// where r is uniform in (-1/2, 1/2). For element i of slot s it comes from random_bits(key(),
/// samples[0], first + s stride + i). Absent without samples: rounding is to nearest.
struct Chance {
  std::uint64_t seed = 0;
  std::uint64_t site = 0;  // what is rounded
  std::int64_t first = 0, stride = 0;
  View samples;  // i64; the first is another one in each step, micro-batch and data rank

  explicit operator bool() const { return static_cast<bool>(samples); }
  RandomKey key() const { return random_key(seed, RandomPurpose::rounding, site); }
  bool operator==(const Chance&) const = default;
};

/// code[b][a] = the bytes of x[a][b].
///
/// With error feedback (Seide et al. 2014; for sums of ZeRO in 4 bits: Xie et al. 2024, "LoCo")
/// what is rounded is y = x + loss scale e, and what that loses, (y - its value) / loss scale,
/// becomes `lost`. e is `error`, or where that is absent what `lost` had before. In a block that is
/// not-a-number so is what it loses.
struct Quantize {
  static constexpr const char* kName = "quantize";
  View x;     // (A, B, n) f32, bf16 or f16; slots count as a B + b
  View code;  // (B, A, format.bytes(n)) u8, on 16 bytes
  BlockFormat format;
  Chance chance;
  View error, lost;  // like x, bf16; both absent without error feedback
  View scalars;      // (StepScalar::count) f32; present with `lost`
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.chance.samples, Access::read), f(s.error, Access::read),
        f(s.scalars, Access::read), f(s.code, Access::write),
        f(s.lost, s.error ? Access::write : Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const Quantize&) const = default;
};

/// Blocks that parameters may be kept as.
void check_kept(const BlockFormat& format);

/// out (S, n) (+)= the sum over parts of the values of code[part][s], added in f32 in an aligned
/// binary tree over the parts, rounded once. One part: dequantisation, which alone nf4 has.
struct SumQuantized {
  static constexpr const char* kName = "sum_quantized";
  View code;  // (parts, S, format.bytes(n)) u8, on 16 bytes
  View out;   // (S, n) f32, bf16 or f16
  BlockFormat format;
  Write write = Write::overwrite;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.code, Access::read), f(s.out, access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const SumQuantized&) const = default;
};

/// (parts, S, bytes) codes of n elements a slot.
void check_parts(const View& code, const BlockFormat& format, std::int64_t n);

/// sum[s] = the bytes of the sum over parts of code[part][s], added like SumQuantized; the f32 sum
/// is never stored. Error feedback as in Quantize.
struct RequantizeSum {
  static constexpr const char* kName = "requantize_sum";
  View code;                  // (parts, S, format.bytes(elements)) u8, on 16 bytes
  View sum;                   // (S, format.bytes(elements)) u8, on 16 bytes
  std::int64_t elements = 0;  // n of a slot
  BlockFormat format;
  Chance chance;
  View error, lost;  // (S, elements) bf16; both absent without error feedback
  View scalars;      // (StepScalar::count) f32; present with `lost`
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.code, Access::read), f(s.chance.samples, Access::read), f(s.error, Access::read),
        f(s.scalars, Access::read), f(s.sum, Access::write),
        f(s.lost, s.error ? Access::write : Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const RequantizeSum&) const = default;
};

}  // namespace tessera::kernels
