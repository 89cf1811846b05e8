// Small matrix products on packed f32 tiles: C (+)= A B, with A's elements broadcast and B and C in
// whole vectors. Each element of C is one chain of multiply-adds over k in order, so how a product
// is blocked changes no bit.
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

/// Element (i, k) of A at data[i row + k step].
struct TileA {
  const float* data;
  std::int64_t row, step;
};
struct TileB {
  const float* data;
  std::int64_t ld;
};
struct TileC {
  float* data;
  std::int64_t ld;
};

template <int kRows, int kVecs>
inline void tile_block(std::int64_t depth, TileA a, TileB b, TileC c, Write write) {
  Vec sum[kRows][kVecs];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) {
      sum[i][j] = write == Write::add ? load(c.data + i * c.ld + j * kLanes, kLanes) : Vec(0.0F);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec row[kVecs];
    for (int j = 0; j < kVecs; ++j) row[j] = load(b.data + k * b.ld + j * kLanes, kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Vec factor(a.data[i * a.row + k * a.step]);
      for (int j = 0; j < kVecs; ++j) sum[i][j] = fmadd(factor, row[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVecs; ++j) store(c.data + i * c.ld + j * kLanes, sum[i][j], kLanes);
  }
}

template <int kRows>
inline void tile_rows(int vecs, std::int64_t depth, TileA a, TileB b, TileC c, Write write) {
  for (; vecs >= kBlockVecs; vecs -= kBlockVecs) {
    tile_block<kRows, kBlockVecs>(depth, a, b, c, write);
    b.data += kBlockVecs * kLanes, c.data += kBlockVecs * kLanes;
  }
  for (; vecs > 0; --vecs) {
    tile_block<kRows, 1>(depth, a, b, c, write);
    b.data += kLanes, c.data += kLanes;
  }
}

/// The last rows, fewer than a block of `kRows` + 1.
template <int kRows>
inline void tile_rest(std::int64_t rows, int vecs, std::int64_t depth, TileA a, TileB b, TileC c,
                      Write write) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      tile_rows<kRows>(vecs, depth, a, b, c, write);
    } else {
      tile_rest<kRows - 1>(rows, vecs, depth, a, b, c, write);
    }
  }
}

/// C (+)= A B for C of `rows` x 16 `vecs`.
inline void tile_product(std::int64_t rows, int vecs, std::int64_t depth, TileA a, TileB b, TileC c,
                         Write write) {
  for (; rows >= kBlockRows; rows -= kBlockRows) {
    tile_rows<kBlockRows>(vecs, depth, a, b, c, write);
    a.data += kBlockRows * a.row, c.data += kBlockRows * c.ld;
  }
  tile_rest<kBlockRows - 1>(rows, vecs, depth, a, b, c, write);
}

}  // namespace tessera::kernels::TESSERA_ISA
