// What attention to bf16 with a processor's instructions for matrices is made of: products of
// blocks of 32 rows, powers of two, sixteen rows' maxima and sums at once, rows that are rounded.
#pragma once

#include "kernels/cpu/hot/attention_parts.hpp"
#include "kernels/cpu/hot/matrices.hpp"

namespace tessera::kernels::TESSERA_ISA {

inline constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;
/// Elements along the depth that are multiplied at once, and rows of a block of scores.
inline constexpr std::int64_t kSide = 2 * kLanes;

/// A right operand in groups of sixteen columns, so many words apart; of each word of the depth
/// there are the pairs of the sixteen.
struct Right {
  Pair* data;
  std::int64_t group;

  /// From another column and element of the depth on, multiples of 16 and of 32.
  Right from(std::int64_t column, std::int64_t depth) const {
    return {data + column / kLanes * group + depth / 2 * kLanes, group};
  }
};

/// C (+)= A B: `above` times sixteen rows, `beside` times sixteen columns, over words of the depth,
/// a multiple of sixteen. Registers are those of MatrixRegisters for 32 rows.
inline void multiply_blocks(std::int64_t above, std::int64_t beside, std::int64_t words,
                            Matrices::Left a, Right b, TileC c, Write write) {
  for (std::int64_t i = 0; i < above; i += 2, a.data += 2 * a.below) {
    for (std::int64_t j = 0; j < beside; j += 2) {
      const Pair* right = b.data + j * b.group;
      const TileC sums{c.data + (i * c.ld + j) * kLanes, c.ld};
      Matrices::block(i + 1 < above, j + 1 < beside, words, a, right, b.group / kLanes, sums,
                      write);
    }
  }
}

/// Asks for rows that are packed next, to be near then: rows of a head lie further apart than
/// hardware looks ahead.
inline void ask_for(const Block& x) {
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const auto* row = reinterpret_cast<const std::byte*>(x.row<bf16>(t));
    for (std::int64_t i = 0; i < x.columns * std::int64_t{sizeof(bf16)}; i += 64)
      __builtin_prefetch(row + i, 0, 2);
  }
}

/// Rows of pairs of neighbouring columns, `ld` words each, as a left operand of as many rows as
/// registers have: those behind x are 0 up to `rows`.
inline void pack_rows(const Block& x, std::int64_t rows, std::int64_t ld, Pair* to) {
  Block own = x;
  own.ahead = 0;
  Pairs::pack_left(own, 1.0F, to, ld);
  std::memset(to + x.rows * ld, 0, static_cast<std::size_t>((rows - x.rows) * ld) * sizeof(Pair));
}
/// x (columns, depth) as a right operand whose groups are as long as the depth; columns behind
/// those of x are 0 up to `columns`.
inline void pack_turned(const Block& x, std::int64_t columns, Pair* to) {
  const std::int64_t group = Matrices::words_of(x.columns) * kLanes,
                     groups = ceil_div(x.rows, kLanes);
  Matrices::pack_turned_tiles(x, to);
  std::memset(to + groups * group, 0,
              static_cast<std::size_t>((columns / kLanes - groups) * group) * sizeof(Pair));
}
/// x (depth, columns) as a right operand, in groups so many words apart; what is behind the depth
/// is 0 up to the next 32 elements.
inline void pack_pairs(const Block& x, std::int64_t group, Pair* to) {
  Block own = x;
  own.ahead = 0;
  Matrices::pack_tiles(own, to, group);
}

/// 2^y, 0 of -infinity, at most 2.4 * 2^-24 off. A polynomial of degree 5 of what y is above the
/// next integer below (of least relative error for which 2^0 is 1: 2^-23.5).
TESSERA_INLINE Vec power_of_two_at(const Vec& y, __mmask16 lanes = kAllLanes) {
  constexpr int kFromBelow = 0x09;
  Vec f, r;
  f.part[0] = _mm512_maskz_reduce_ps(kAllLanes, y.part[0], kFromBelow);
  Vec p(1.86713005e-3F);
  p = fmadd(p, f, Vec(9.01703071e-3F));
  p = fmadd(p, f, Vec(5.57999127e-2F));
  p = fmadd(p, f, Vec(2.40164444e-1F));
  p = fmadd(p, f, Vec(6.93151295e-1F));
  p = fmadd(p, f, Vec(1.0F));
  r.part[0] = _mm512_maskz_scalef_ps(lanes, p.part[0], y.part[0]);
  return r;
}

/// Lane i is what `combine` makes of all lanes of rows[i].
template <typename Combine>
TESSERA_INLINE Vec fold_rows(const Vec (&rows)[kLanes], Combine combine) {
  // Of two, four, eight, then sixteen rows there are eight, four, two and one lane each.
  NativeFloat two[8], four[4], eight[2];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      const NativeFloat a = rows[i + 8 * j].part[0], b = rows[i + 8 * j + 4].part[0];
      two[2 * i + j] = combine((NativeFloat)_mm512_maskz_shuffle_f32x4(kAllLanes, a, b, 0x44),
                               (NativeFloat)_mm512_maskz_shuffle_f32x4(kAllLanes, a, b, 0xee));
    }
  }
  for (int i = 0; i < 4; ++i) {
    const NativeFloat a = two[2 * i], b = two[2 * i + 1];
    four[i] = combine((NativeFloat)_mm512_maskz_shuffle_f32x4(kAllLanes, a, b, 0x88),
                      (NativeFloat)_mm512_maskz_shuffle_f32x4(kAllLanes, a, b, 0xdd));
  }
  for (int i = 0; i < 2; ++i) {
    const NativeFloat a = four[2 * i], b = four[2 * i + 1];
    eight[i] = combine((NativeFloat)_mm512_maskz_shuffle_ps(kAllLanes, a, b, 0x44),
                       (NativeFloat)_mm512_maskz_shuffle_ps(kAllLanes, a, b, 0xee));
  }
  Vec all;
  all.part[0] = combine((NativeFloat)_mm512_maskz_shuffle_ps(kAllLanes, eight[0], eight[1], 0x88),
                        (NativeFloat)_mm512_maskz_shuffle_ps(kAllLanes, eight[0], eight[1], 0xdd));
  return all;
}
TESSERA_INLINE Vec sums_of_rows(const Vec (&rows)[kLanes]) {
  return fold_rows(
      rows, [](const NativeFloat& a, const NativeFloat& b)
                __attribute__((always_inline)) { return a + b; });
}
TESSERA_INLINE Vec maxima_of_rows(const Vec (&rows)[kLanes]) {
  return fold_rows(
      rows, [](const NativeFloat& a, const NativeFloat& b) __attribute__((always_inline)) {
        return (NativeFloat)_mm512_maskz_max_ps(kAllLanes, a, b);
      });
}

/// 32 floats as bf16, in order.
TESSERA_INLINE __m512i rounded(const Vec& first, const Vec& second) {
  return (__m512i)_mm512_cvtne2ps_pbh(second.part[0], first.part[0]);
}
/// The first `count` of 32, all where it is more.
TESSERA_INLINE __mmask32 first_of(std::int64_t count) {
  return count >= kSide ? ~__mmask32{0} : (__mmask32{1} << at_least(count, 0)) - 1;
}

/// A row of 0.
inline void write_zeros(std::int64_t columns, bf16* to) {
  std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(columns) * sizeof(bf16));
}
/// What a row of floats becomes, times `factor`: bf16 as the processor rounds them.
inline void write_rounded(const float* from, float factor, std::int64_t columns, bf16* to) {
  const Vec by(factor);
  for (std::int64_t c = 0; c < columns; c += kSide) {
    const Vec first = load(from + c, kLanes) * by,
              second = c + kLanes < columns ? load(from + c + kLanes, kLanes) * by : Vec(0.0F);
    _mm512_mask_storeu_epi16(to + c, first_of(columns - c), rounded(first, second));
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
