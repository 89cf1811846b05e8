// Loops of pooling.
#include "kernels/common/pool.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

void pool(const Pool& a, Range elements) {
  const std::int64_t columns = columns_of(a.x), tokens = a.x.shape[1];
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t at = elements.begin; at < elements.end;) {
      const std::int64_t b = at / columns, first = at % columns;
      const std::int64_t last =
          elements.end - b * columns < columns ? elements.end - b * columns : columns;
      const Range pooled = pooled_tokens(a.kind, documents, b, tokens);
      const Vec share(pooled_share(pooled));
      for_vectors(
          last - first, [&](std::int64_t i, std::int64_t n) __attribute__((always_inline)) {
            const std::int64_t c = first + i;
            Vec part[kPoolParts];
            for (int p = 0; p < kPoolParts; ++p) {
              part[p] = Vec(0.0F);
              for (std::int64_t t = pooled.begin + p; t < pooled.end; t += kPoolParts)
                part[p] = part[p] + load(row_of<T>(a.x, b * tokens + t) + c, n);
            }
            fold_parts(part);
            store(row_of<T>(a.out, b) + c, part[0] * share, n);
          });
      at += last - first;
    }
  });
}

void pool_backward(const PoolBackward& a, Range rows) {
  const std::int64_t columns = columns_of(a.d_x), tokens = a.d_x.shape[1];
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  with_type(a.d_x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t b = r / tokens, t = r % tokens;
      const Range pooled = pooled_tokens(a.kind, documents, b, tokens);
      const bool is_pooled = t >= pooled.begin && t < pooled.end;
      const Vec share(pooled_share(pooled));
      for_vectors(
          columns, [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
            const Vec d = is_pooled ? load(row_of<T>(a.d_out, b) + c, n) * share : Vec(0.0F);
            store(row_of<T>(a.d_x, r) + c, d, n);
          });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
