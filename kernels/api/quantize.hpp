// Elements in 8 or 4 bits on the wire, one scale a block: ZeRO++'s compressed weights and gradients
// (Wang et al. 2023, sections 3.1 and 3.3).
#pragma once

#include "core/enums.hpp"
#include "core/math.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

enum class BlockType : std::uint8_t { int8, int4 };

/// How n elements (a slot) become bytes. First come the values, for int4 two a byte, the first in
/// the low half; then, from the next multiple of 16 bytes on, an f32 scale for each `block`
/// elements (the last block may be short); the end is padded to 16 bytes. Padding is 0. A value is
/// q * scale with |q| <= Q = 127 or 7. With m the block's largest magnitude, scale = m / Q and q =
/// x (Q / m), each rounded to f32, then q to the nearest even integer. A block whose scale would be
/// below 2^-126 counts as zero. A block that holds an infinity or not-a-number is not-a-number
/// throughout.
struct BlockFormat {
  BlockType type = BlockType::int8;
  std::int64_t block = 256;  // even
  bool operator==(const BlockFormat&) const = default;

  std::int64_t scales_at(std::int64_t n) const {
    return round_up(type == BlockType::int8 ? n : ceil_div(n, 2), 16);
  }
  std::int64_t bytes(std::int64_t n) const {
    return scales_at(n) + round_up(4 * ceil_div(n, block), 16);
  }
};

/// code[b][a] = the bytes of x[a][b].
struct Quantize {
  static constexpr const char* kName = "quantize";
  View x;     // (A, B, n) f32, bf16 or f16, dense
  View code;  // (B, A, format.bytes(n)) u8, on 16 bytes
  BlockFormat format;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.code, Access::write), f(s.scratch, Access::write);
  }
};

/// out (S, n) (+)= the sum over parts of the values of code[part][s], added in f32 in an aligned
/// binary tree over the parts, rounded once. One part: dequantisation.
struct SumQuantized {
  static constexpr const char* kName = "sum_quantized";
  View code;  // (parts, S, format.bytes(n)) u8, on 16 bytes
  View out;   // (S, n) f32, bf16 or f16, dense
  BlockFormat format;
  Write write = Write::overwrite;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.code, Access::read), f(s.out, access_of(s.write)), f(s.scratch, Access::write);
  }
};

/// sum[s] = the bytes of the sum over parts of code[part][s], added like SumQuantized; the f32 sum
/// is never stored.
struct RequantizeSum {
  static constexpr const char* kName = "requantize_sum";
  View code;                  // (parts, S, format.bytes(elements)) u8, on 16 bytes
  View sum;                   // (S, format.bytes(elements)) u8, on 16 bytes
  std::int64_t elements = 0;  // n of a slot
  BlockFormat format;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.code, Access::read), f(s.sum, Access::write), f(s.scratch, Access::write);
  }
};

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::BlockType> {
  static constexpr std::array table = {std::pair{tessera::kernels::BlockType::int8, "int8"},
                                       std::pair{tessera::kernels::BlockType::int4, "int4"}};
};
