// What products have in common, however their operands are packed.
#pragma once

#include "kernels/cpu/hot/operands.hpp"

namespace tessera::kernels::TESSERA_ISA {

/// The block of an operand at these rows and columns of its view.
inline Block block_of(const View& v, Range rows, Range columns) {
  return Block{v.data, v.type, v.ld, rows.count(), columns.count()}.from(rows.begin, columns.begin);
}

/// Columns of the right operand as they lie.
inline Block tile_of(const Product& p, Range columns, Range depth) {
  return p.b_stored == Stored::straight ? block_of(p.b, depth, columns)
                                        : block_of(p.b, columns, depth);
}

/// Where rows of a tile of columns have their sums: `own` room where the depth is whole.
inline TileC sums_of(const ProductPart& part, Range rows, Range columns, float* own) {
  if (part.sums == nullptr) return {own, kTile};
  const std::int64_t tile = (columns.begin - part.first_column) / kTile;
  return {part.sums + (tile * part.block_rows.count() + rows.begin - part.block_rows.begin) * kTile,
          kTile};
}

/// Whether c is written past the caches: not where it is read anyway, to be added to, or has rows
/// that do not begin on whole vectors.
inline bool goes_past_caches(const Product& p) {
  const std::int64_t size = size_of(p.c.type);
  return p.write == Write::overwrite && exceeds_caches(p.m() * p.n() * size) &&
         p.c.ld % kLanes == 0 && lies_on(p.c.data, static_cast<std::size_t>(kLanes * size));
}

/// Asks for a tile of c, which is written when its sums are made.
inline void ask_for_result(const Product& p, Range rows, Range columns) {
  if (goes_past_caches(p)) return;
  const std::int64_t size = size_of(p.c.type);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::byte* row = p.c.data + (r * p.c.ld + columns.begin) * size;
    for (std::int64_t i = 0; i < columns.count() * size; i += 64) __builtin_prefetch(row + i, 1);
  }
}

/// c (+)= sums + bias in a tile.
template <typename T>
void finish_rows(const Product& p, TileC sums, Range rows, Range columns) {
  const bool past = goes_past_caches(p);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* sum = sums.data + (r - rows.begin) * sums.ld;
    T* to = row_of<T>(p.c, r) + columns.begin;
    for_vectors(
        columns.count(), [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          Vec x = load(sum + i, kLanes);
          if (p.bias.data != nullptr) {
            with_type(
                p.bias.type, [&]<typename B>() __attribute__((always_inline)) {
                  x = x + load(row_of<const B>(p.bias, 0) + columns.begin + i, count);
                });
          }
          if (p.write == Write::add) x = load(to + i, count) + x;
          past ? store_past_caches(to + i, x, count) : store(to + i, x, count);
        });
  }
}
inline void finish(const Product& p, TileC sums, Range rows, Range columns) {
  with_type(p.c.type, [&]<typename T>() { finish_rows<T>(p, sums, rows, columns); });
}

}  // namespace tessera::kernels::TESSERA_ISA
