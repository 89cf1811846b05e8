// Loop of rotary positions.
#include "kernels/common/sight.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// Turns pairs of elements; afterwards x' = x c - y s, y' = x s + y c.
TESSERA_INLINE void turn(Vec& x, Vec& y, const Vec& c, const Vec& s) {
  const Vec first = x * c - y * s;
  y = fmadd(x, s, y * c);
  x = first;
}

/// One head's columns: `half` pairs, each with its cosine and sine.
template <typename T>
void turn_halves(T* low, std::int64_t half, const float* cosine, const Vec& sign) {
  T* high = low + half;
  for_vectors(
      half, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec c = load(cosine + i, count), s = load(cosine + half + i, count) * sign;
        Vec x = load(low + i, count), y = load(high + i, count);
        turn(x, y, c, s);
        store(low + i, x, count);
        store(high + i, y, count);
      });
}
template <typename T>
void turn_neighbours(T* columns, std::int64_t half, const float* cosine, const Vec& sign) {
  for_vectors(
      half, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec c = load(cosine + i, count), s = load(cosine + half + i, count) * sign;
        T* low = columns + 2 * i;
        const std::int64_t lows = 2 * count < kLanes ? 2 * count : kLanes, highs = 2 * count - lows;
        Vec x = load(low, lows), y = highs > 0 ? load(low + kLanes, highs) : Vec(0.0F);
        split_pairs(x, y);
        turn(x, y, c, s);
        join_pairs(x, y);
        store(low, x, lows);
        if (highs > 0) store(low + kLanes, y, highs);
      });
}

}  // namespace

void rope(const Rope& a, const float* turns, Range rows) {
  const std::int64_t turned = a.rotary_dim > 0 ? a.rotary_dim : a.head_dim;
  const std::int64_t heads = columns_of(a.x) / a.head_dim, tokens = a.x.shape[1];
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  const Vec sign(a.direction == Rope::Direction::forward ? 1.0F : -1.0F);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t t = r % tokens;
      const std::int64_t begin = document_of(documents, r / tokens, t, tokens).begin;
      const float* cosine = turns + (a.cached.data != nullptr ? r : t - begin) * turned;
      for (std::int64_t h = 0; h < heads; ++h) {
        T* columns = row_of<T>(a.x, r) + h * a.head_dim + a.first_column;
        if (a.pairs == RopePairs::halves) {
          turn_halves(columns, turned / 2, cosine, sign);
        } else {
          turn_neighbours(columns, turned / 2, cosine, sign);
        }
      }
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
