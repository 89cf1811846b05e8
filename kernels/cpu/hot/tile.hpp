// Small matrix products on packed tiles: C (+)= A B, with A's words broadcast and B and C in whole
// vectors. A word is a float, or a pair of bf16 that lie along the depth. Each element of C is one
// chain of multiply-adds in an order of its own, so how a product is blocked changes no bit.
#pragma once

#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

// The register block: rows x vectors of accumulators, most of the register file.
#if defined(__AVX512F__)
inline constexpr int kBlockRows = 6, kBlockVecs = 4;
#elif defined(__AVX2__)
inline constexpr int kBlockRows = 6, kBlockVecs = 1;
#else
inline constexpr int kBlockRows = 2, kBlockVecs = 1;
#endif

/// Two bf16, the earlier one in the lower half.
using Pair = std::uint32_t;

/// Word (i, k) of A at data[i row + k step].
template <typename Word>
struct TileA {
  const Word* data;
  std::int64_t row, step;
};
template <typename Word>
struct TileB {
  const Word* data;
  std::int64_t ld;
};
struct TileC {
  float* data;
  std::int64_t ld;
};

/// In which order words of the depth are added: as they come, or the later one of two first, in
/// which the processor adds products of pairs. Then the depth is even.
enum class Chain : std::uint8_t { forward, swapped };

/// What a block of C is made of: words that are floats. A function of its own has all registers,
/// and loops that are unrolled early keep its sums there; by reference, so that no processor waits
/// for what it has just written in parts.
template <Chain kChain>
struct FloatBlocks {
  template <int kRows, int kVecs>
  [[gnu::noinline]] static void block(std::int64_t depth, const TileA<float>& a, TileB<float> b,
                                      TileC c, Write write) {
    constexpr int kRegisters = kVecs * kParts;
    NativeFloat sum[kRows][kRegisters];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) {
        sum[i][j] =
            write == Write::add ? load_native(c.data + i * c.ld + j * kNative) : NativeFloat{};
      }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t at = kChain == Chain::swapped ? k ^ 1 : k;
      NativeFloat row[kRegisters];
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) row[j] = load_native(b.data + at * b.ld + j * kNative);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const NativeFloat factor = a.data[i * a.row + at * a.step] - NativeFloat{};
#pragma GCC unroll 8
        for (int j = 0; j < kRegisters; ++j) sum[i][j] = fmadd_native(factor, row[j], sum[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) store_native(c.data + i * c.ld + j * kNative, sum[i][j]);
    }
  }
};

#ifdef __AVX512F__
#define TESSERA_PAIRS 1
/// For what only some processors with AVX-512 have.
#define TESSERA_PAIR_INSTRUCTIONS [[gnu::target("avx512bf16")]]

/// Whether products of pairs are added as they are documented: the later element first, then the
/// earlier one, each by a multiply-add. The bits of other machines rest on it.
TESSERA_PAIR_INSTRUCTIONS inline bool adds_pairs_in_order() {
  std::uint32_t random = 1;
  const auto next = [&random] { return random = random * 1664525U + 1013904223U; };
  const auto as_float = [](std::uint32_t bits) { return __builtin_bit_cast(float, bits); };
  // With signs of their own, some between 1 and 2, others sixteen times smaller.
  const auto pair = [&next] { return (next() & 0x83ff83ffU) | 0x3d803d80U; };
  for (int n = 0; n < 64; ++n) {
    Pair a[kLanes], b[kLanes];
    float sum[kLanes], got[kLanes];
    for (int i = 0; i < kLanes; ++i)
      a[i] = pair(), b[i] = pair(), sum[i] = as_float((next() & 0x83ffffffU) | 0x3d800000U);
    _mm512_storeu_ps(got, _mm512_dpbf16_ps(_mm512_loadu_ps(sum), (__m512bh)_mm512_loadu_si512(a),
                                           (__m512bh)_mm512_loadu_si512(b)));
    for (int i = 0; i < kLanes; ++i) {
      const float later =
          __builtin_fmaf(as_float(a[i] & 0xffff0000U), as_float(b[i] & 0xffff0000U), sum[i]);
      if (got[i] != __builtin_fmaf(as_float(a[i] << 16), as_float(b[i] << 16), later)) return false;
    }
  }
  return true;
}

/// Whether this one has it, and so.
inline bool multiplies_pairs() {
  static const bool yes = __builtin_cpu_supports("avx512bf16") != 0 && adds_pairs_in_order();
  return yes;
}

/// Words that are pairs. The processor multiplies and adds the later element first, then the
/// earlier one, each rounded as by fmadd; what is below the smallest normal number is 0 to it.
struct PairBlocks {
  template <int kRows, int kVecs>
  TESSERA_PAIR_INSTRUCTIONS static void block(std::int64_t depth, const TileA<Pair>& a,
                                              TileB<Pair> b, TileC c, Write write) {
    __m512 sum[kRows][kVecs];
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVecs; ++j) {
        sum[i][j] = write == Write::add ? _mm512_loadu_ps(c.data + i * c.ld + j * kLanes)
                                        : _mm512_setzero_ps();
      }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      __m512bh row[kVecs];
      for (int j = 0; j < kVecs; ++j)
        row[j] = (__m512bh)_mm512_loadu_si512(b.data + k * b.ld + j * kLanes);
      for (int i = 0; i < kRows; ++i) {
        const auto factor =
            (__m512bh)_mm512_set1_epi32(static_cast<int>(a.data[i * a.row + k * a.step]));
        for (int j = 0; j < kVecs; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], factor, row[j]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kVecs; ++j) _mm512_storeu_ps(c.data + i * c.ld + j * kLanes, sum[i][j]);
    }
  }
};
#endif

template <typename Blocks, int kRows, typename Word>
inline void tile_rows(int vecs, std::int64_t depth, TileA<Word> a, TileB<Word> b, TileC c,
                      Write write) {
  for (; vecs >= kBlockVecs; vecs -= kBlockVecs) {
    Blocks::template block<kRows, kBlockVecs>(depth, a, b, c, write);
    b.data += kBlockVecs * kLanes, c.data += kBlockVecs * kLanes;
  }
  for (; vecs > 0; --vecs) {
    Blocks::template block<kRows, 1>(depth, a, b, c, write);
    b.data += kLanes, c.data += kLanes;
  }
}

/// The last rows, fewer than a block of `kRows` + 1.
template <typename Blocks, int kRows, typename Word>
inline void tile_rest(std::int64_t rows, int vecs, std::int64_t depth, TileA<Word> a, TileB<Word> b,
                      TileC c, Write write) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      tile_rows<Blocks, kRows>(vecs, depth, a, b, c, write);
    } else {
      tile_rest<Blocks, kRows - 1>(rows, vecs, depth, a, b, c, write);
    }
  }
}

/// C (+)= A B for C of `rows` x 16 `vecs`, over `depth` words.
template <typename Blocks, typename Word>
inline void tile_product(std::int64_t rows, int vecs, std::int64_t depth, TileA<Word> a,
                         TileB<Word> b, TileC c, Write write) {
  for (; rows >= kBlockRows; rows -= kBlockRows) {
    tile_rows<Blocks, kBlockRows>(vecs, depth, a, b, c, write);
    a.data += kBlockRows * a.row, c.data += kBlockRows * c.ld;
  }
  tile_rest<Blocks, kBlockRows - 1>(rows, vecs, depth, a, b, c, write);
}

}  // namespace tessera::kernels::TESSERA_ISA
