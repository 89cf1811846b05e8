// What is multiplied in tiles: blocks of matrices, rows of heads, probabilities and gradients of
// scores, packed as floats or as pairs of bf16. An operand on the left has the depth along a row;
// one on the right has a row for each word of the depth.
#pragma once

#include "kernels/cpu/hot/product.hpp"
#include "kernels/cpu/hot/tile.hpp"

namespace tessera::kernels::TESSERA_ISA {

/// Rows of a matrix, or columns of some rows, of any element type.
struct Block {
  std::byte* data;
  DType type;
  std::int64_t ld, rows, columns;
  std::int64_t ahead = kTile;  // packing a row asks for the one so far behind it

  template <typename T>
  T* row(std::int64_t r) const {
    return reinterpret_cast<T*>(data) + r * ld;
  }
  /// The same extents, from another first row and column on.
  Block from(std::int64_t row, std::int64_t column) const {
    Block b = *this;
    b.data += (row * ld + column) * size_of(type);
    return b;
  }
};

inline void clear(float* x, std::int64_t n) {
  std::memset(x, 0, static_cast<std::size_t>(n) * sizeof(float));
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/// to = eight rows of eight words of 4 bytes, transposed; rows so many bytes apart.
TESSERA_INLINE void turn_eight(const std::byte* from, std::int64_t step, std::byte* to,
                               std::int64_t to_step) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; ++i)
    a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + i * step));
  // Words of two rows, then of four, side by side in each half of a register.
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
      a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
    }
  }
  for (int c = 0; c < 4; ++c) {
    _mm256_storeu_ps(reinterpret_cast<float*>(to + c * to_step),
                     _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + (4 + c) * to_step),
                     _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
  }
}
#endif

/// to (16, to_ld) = sixteen rows of sixteen words of 4 bytes, `step` bytes apart, transposed.
TESSERA_INLINE void turn_square(const void* from, std::int64_t step, void* to, std::int64_t to_ld) {
#if defined(__AVX512F__)
  constexpr __mmask8 kPairs = 0xff;
  __m512i a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; ++i)
    a[i] = _mm512_loadu_si512(static_cast<const std::byte*>(from) + i * step);
  // Words of two rows, then of four, side by side in each quarter of a register.
  for (int i = 0; i < kLanes; i += 2) {
    b[i] = _mm512_maskz_unpacklo_epi32(kAllLanes, a[i], a[i + 1]);
    b[i + 1] = _mm512_maskz_unpackhi_epi32(kAllLanes, a[i], a[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm512_maskz_unpacklo_epi64(kPairs, b[i + j], b[i + j + 2]);
      a[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(kPairs, b[i + j], b[i + j + 2]);
    }
  }
  // Register 4 g + c has column 4 q + c of rows 4 g to 4 g + 3 in quarter q.
  for (int c = 0; c < 4; ++c) {
    const __m512i even = _mm512_maskz_shuffle_i32x4(kAllLanes, a[c], a[4 + c], 0x88),
                  odd = _mm512_maskz_shuffle_i32x4(kAllLanes, a[c], a[4 + c], 0xdd),
                  even_behind = _mm512_maskz_shuffle_i32x4(kAllLanes, a[8 + c], a[12 + c], 0x88),
                  odd_behind = _mm512_maskz_shuffle_i32x4(kAllLanes, a[8 + c], a[12 + c], 0xdd);
    const __m512i columns[] = {_mm512_maskz_shuffle_i32x4(kAllLanes, even, even_behind, 0x88),
                               _mm512_maskz_shuffle_i32x4(kAllLanes, odd, odd_behind, 0x88),
                               _mm512_maskz_shuffle_i32x4(kAllLanes, even, even_behind, 0xdd),
                               _mm512_maskz_shuffle_i32x4(kAllLanes, odd, odd_behind, 0xdd)};
    for (int q = 0; q < 4; ++q)
      _mm512_storeu_si512(static_cast<std::uint32_t*>(to) + (4 * q + c) * to_ld, columns[q]);
  }
#elif defined(__AVX2__)
  for (int row = 0; row < kLanes; row += 8) {
    for (int column = 0; column < kLanes; column += 8) {
      turn_eight(static_cast<const std::byte*>(from) + row * step + 4 * column, step,
                 static_cast<std::byte*>(to) + 4 * (column * to_ld + row), 4 * to_ld);
    }
  }
#else
  for (int row = 0; row < kLanes; ++row) {
    for (int column = 0; column < kLanes; ++column) {
      std::memcpy(static_cast<std::byte*>(to) + 4 * (column * to_ld + row),
                  static_cast<const std::byte*>(from) + row * step + 4 * column, 4);
    }
  }
#endif
}

/// to (words, 64) = packed (tokens, ld), transposed; columns from `tokens` up to a whole vector are
/// 0.
template <typename Word>
void turn_words(const Word* packed, std::int64_t tokens, std::int64_t words, std::int64_t ld,
                Word* to) {
  for (std::int64_t d0 = 0; d0 < words; d0 += kLanes) {
    const std::int64_t d1 = at_most(words, d0 + kLanes);
    std::int64_t t = 0;
    for (; d1 - d0 == kLanes && t + kLanes <= tokens; t += kLanes)
      turn_square(packed + t * ld + d0, ld * std::int64_t{sizeof(Word)}, to + d0 * kTile + t,
                  kTile);
    for (; t < tokens; ++t) {
      for (std::int64_t d = d0; d < d1; ++d) to[d * kTile + t] = packed[t * ld + d];
    }
  }
  const std::int64_t whole = round_up(tokens, kLanes);
  if (tokens == whole) return;
  for (std::int64_t d = 0; d < words; ++d) {
    for (std::int64_t t = tokens; t < whole; ++t) to[d * kTile + t] = 0;
  }
}

/// Operands of any type as floats, of which q is scaled before it is multiplied.
struct Floats {
  using Word = float;
  static constexpr std::int64_t kOfWord = 1;

  /// How many words are multiplied of a depth of so many elements.
  static std::int64_t words_of(std::int64_t depth) { return depth; }
  static float scale_before(float scale) { return scale; }
  static float scale_after(float /*scale*/) { return 1.0F; }

  /// to (rows, ld) = factor x; columns behind those of x are 0.
  static void pack_left(const Block& x, float factor, float* to, std::int64_t ld) {
    with_type(x.type, [&]<typename T>() {
      for (std::int64_t t = 0; t < x.rows; ++t) {
        const T* from = x.row<T>(t);
        for_vectors(
            x.columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
              store(to + t * ld + i, load(from + i, count) * Vec(factor), kLanes);
            });
      }
    });
  }
  /// The same, with the depth along tokens.
  static void pack_right(const Block& x, float factor, float* to, std::int64_t ld) {
    pack_left(x, factor, to, ld);
  }
  /// to (dim, 64) = what pack_left() has made, transposed; columns from `tokens` up to a whole
  /// vector are 0.
  static void turn(const float* packed, std::int64_t tokens, std::int64_t dim, std::int64_t ld,
                   float* to) {
    turn_words(packed, tokens, dim, ld, to);
  }
  /// C (+)= A B over `depth` elements.
  static void multiply(std::int64_t rows, int vecs, std::int64_t depth, TileA<float> a,
                       TileB<float> b, TileC c, Write write) {
    tile_product<FloatBlocks<Chain::forward>>(rows, vecs, depth, a, b, c, write);
  }

  /// Rows of 64 floats, of which `vecs` vectors are used, as left operands with the depth along a
  /// row: they stay where they are.
  static TileA<float> rows_as_left(float* x, std::int64_t /*rows*/, int /*vecs*/,
                                   float* /*words*/) {
    return {x, kTile, 1};
  }
  /// With the depth along the column.
  static TileA<float> columns_as_left(float* x, std::int64_t /*rows*/, int /*vecs*/,
                                      float* /*words*/) {
    return {x, 1, kTile};
  }
};

/// bf16 as floats, with which others are multiplied that are rounded to bf16: for machines that do
/// not multiply pairs, with the bits of those that do. Scores are scaled after they are made.
struct RoundedFloats : Floats {
  static std::int64_t words_of(std::int64_t depth) { return round_up(depth, 2); }
  static float scale_before(float /*scale*/) { return 1.0F; }
  static float scale_after(float scale) { return scale; }

  /// A last token that is alone has one of zeros beside it.
  static void pack_right(const Block& x, float factor, float* to, std::int64_t ld) {
    pack_left(x, factor, to, ld);
    if (x.rows % 2 != 0) clear(to + x.rows * ld, ld);
  }
  static void turn(const float* packed, std::int64_t tokens, std::int64_t dim, std::int64_t ld,
                   float* to) {
    turn_words(packed, tokens, words_of(dim), ld, to);
  }
  static void multiply(std::int64_t rows, int vecs, std::int64_t depth, TileA<float> a,
                       TileB<float> b, TileC c, Write write) {
    tile_product<FloatBlocks<Chain::swapped>>(rows, vecs, words_of(depth), a, b, c, write);
  }

  /// As the processor rounds them, to which numbers below the normal ones are 0.
  static void round_row(float* row, int vecs) {
    const Vec smallest(0x1p-126F);
    for (int j = 0; j < vecs; ++j) {
      const Vec x = load(row + j * kLanes, kLanes);
      const Vec normal = select(magnitude_of(x) < smallest, x * Vec(0.0F), x);
      store(row + j * kLanes, rounded_to<bf16>(normal), kLanes);
    }
  }
  static TileA<float> rows_as_left(float* x, std::int64_t rows, int vecs, float* /*words*/) {
    for (std::int64_t i = 0; i < rows; ++i) round_row(x + i * kTile, vecs);
    return {x, kTile, 1};
  }
  static TileA<float> columns_as_left(float* x, std::int64_t rows, int vecs, float* /*words*/) {
    for (std::int64_t i = 0; i < rows; ++i) round_row(x + i * kTile, vecs);
    if (rows % 2 != 0) clear(x + rows * kTile, vecs * kLanes);
    return {x, 1, kTile};
  }
};

#ifdef TESSERA_PAIRS
/// bf16 as pairs.
struct Pairs {
  using Word = Pair;
  static constexpr std::int64_t kOfWord = 2;

  static std::int64_t words_of(std::int64_t depth) { return ceil_div(depth, kOfWord); }
  static float scale_before(float /*scale*/) { return 1.0F; }
  static float scale_after(float scale) { return scale; }

  /// 32 elements, 0 from `count` on.
  TESSERA_INLINE static __m512i load_pairs(const bf16* from, std::int64_t count) {
    if (count >= 2 * kLanes) return _mm512_loadu_si512(from);
    if (count <= 0) return _mm512_setzero_si512();
    return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
  }
  /// Asks for a row behind this one, to be near when it is packed: rows may lie further apart than
  /// hardware looks ahead. It may be behind the last one.
  TESSERA_INLINE static void look_ahead(const Block& x, const bf16* row) {
    if (x.ahead == 0) return;
    const auto* next = reinterpret_cast<const std::byte*>(row + x.ahead * x.ld);
    for (std::int64_t i = 0; i < 2 * x.columns; i += 64) __builtin_prefetch(next + i, 0, 2);
  }
  /// Words of an even and an odd row: of their first sixteen columns, and of the others.
  TESSERA_INLINE static void join(const __m512i& even, const __m512i& odd, __m512i (&words)[2]) {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    words[0] = _mm512_permutex2var_epi16(even, low, odd);
    words[1] = _mm512_permutex2var_epi16(even, _mm512_add_epi16(low, _mm512_set1_epi16(16)), odd);
  }

  /// to (tokens, ld): pairs of neighbouring columns; 2 ld of them, those from dim on are 0.
  static void pack_left(const Block& x, float /*factor*/, Pair* to, std::int64_t ld) {
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const bf16* from = x.row<bf16>(t);
      look_ahead(x, from);
      for (std::int64_t i = 0; i < ld; i += kLanes) {
        const __m512i pairs = load_pairs(from + 2 * i, x.columns - 2 * i);
        const auto words = static_cast<unsigned>(at_most(kLanes, ld - i));
        _mm512_mask_storeu_epi32(to + t * ld + i, static_cast<__mmask16>((1U << words) - 1), pairs);
      }
    }
  }
  /// to (tokens / 2, ld): pairs of neighbouring tokens; a last one that is alone has 0 beside it.
  static void pack_right(const Block& x, float /*factor*/, Pair* to, std::int64_t ld) {
    for (std::int64_t t = 0; t < x.rows; t += 2, to += ld) {
      const bf16* even = x.row<bf16>(t);
      const bf16* odd = t + 1 < x.rows ? x.row<bf16>(t + 1) : nullptr;
      look_ahead(x, even);
      look_ahead(x, even + x.ld);
      for (std::int64_t i = 0; i < ld; i += 2 * kLanes) {
        __m512i words[2];
        join(load_pairs(even + i, x.columns - i),
             odd == nullptr ? __m512i{} : load_pairs(odd + i, x.columns - i), words);
        _mm512_storeu_si512(to + i, words[0]);
        if (i + kLanes < ld) _mm512_storeu_si512(to + i + kLanes, words[1]);
      }
    }
  }
  static void turn(const Pair* packed, std::int64_t tokens, std::int64_t dim, std::int64_t ld,
                   Pair* to) {
    turn_words(packed, tokens, words_of(dim), ld, to);
  }
  static void multiply(std::int64_t rows, int vecs, std::int64_t depth, TileA<Pair> a,
                       TileB<Pair> b, TileC c, Write write) {
    tile_product<PairBlocks>(rows, vecs, words_of(depth), a, b, c, write);
  }

  /// words (rows, 32).
  TESSERA_PAIR_INSTRUCTIONS static TileA<Pair> rows_as_left(const float* x, std::int64_t rows,
                                                            int vecs, Pair* words) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * kTile;
      for (int j = 0; j < vecs; j += 2) {
        const __m512 first = _mm512_loadu_ps(row + j * kLanes),
                     second = j + 1 < vecs ? _mm512_loadu_ps(row + (j + 1) * kLanes)
                                           : _mm512_setzero_ps();
        _mm512_storeu_si512(words + i * (kTile / 2) + j * (kLanes / 2),
                            (__m512i)_mm512_cvtne2ps_pbh(second, first));
      }
    }
    return {words, kTile / 2, 1};
  }
  /// words (rows / 2, 64).
  TESSERA_PAIR_INSTRUCTIONS static TileA<Pair> columns_as_left(const float* x, std::int64_t rows,
                                                               int vecs, Pair* words) {
    const __m512i places =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (std::int64_t i = 0; i < rows; i += 2) {
      for (int j = 0; j < vecs; ++j) {
        const float* even = x + i * kTile + j * kLanes;
        const __m512 odd = i + 1 < rows ? _mm512_loadu_ps(even + kTile) : _mm512_setzero_ps();
        const auto both = (__m512i)_mm512_cvtne2ps_pbh(odd, _mm512_loadu_ps(even));
        _mm512_storeu_si512(words + i / 2 * kTile + j * kLanes,
                            _mm512_permutexvar_epi16(places, both));
      }
    }
    return {words, 1, kTile};
  }
};
#endif

/// f.operator()<O>() with how operands of a type are packed here.
template <typename F>
TESSERA_INLINE void with_operands(DType type, F&& f) {
#ifdef TESSERA_PAIRS
  if (type == DType::bf16 && multiplies_pairs()) return f.template operator()<Pairs>();
#endif
  if (type == DType::bf16) return f.template operator()<RoundedFloats>();
  f.template operator()<Floats>();
}

}  // namespace tessera::kernels::TESSERA_ISA
