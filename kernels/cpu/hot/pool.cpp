// Loops of pooling.
#include "kernels/common/pool.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

PooledDocuments pooled_documents(const View& x, const View& out, const View& documents,
                                 Pooling kind) {
  return {.table = reinterpret_cast<const std::int32_t*>(documents.data),
          .tokens = x.shape[1],
          .most = row_count(out) / x.shape[0],
          .kind = kind};
}

}  // namespace

void pool(const Pool& a, Range elements) {
  const std::int64_t columns = columns_of(a.x), tokens = a.x.shape[1];
  const PooledDocuments documents = pooled_documents(a.x, a.out, a.documents, a.kind);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t at = elements.begin; at < elements.end;) {
      const std::int64_t row = at / columns, first = at % columns, b = row / documents.most;
      const std::int64_t last =
          elements.end - row * columns < columns ? elements.end - row * columns : columns;
      const Range pooled = documents.of_output(row);
      const Vec share(pooled_share(pooled.count()));
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
            store(row_of<T>(a.out, row) + c, part[0] * share, n);
          });
      at += last - first;
    }
  });
}

void pool_backward(const PoolBackward& a, Range rows) {
  const std::int64_t columns = columns_of(a.d_x), tokens = a.d_x.shape[1];
  const PooledDocuments documents = pooled_documents(a.d_x, a.d_out, a.documents, a.kind);
  with_type(a.d_x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const auto of = documents.of_token(r / tokens, r % tokens);
      const Vec share(pooled_share(of.tokens));
      for_vectors(
          columns, [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
            const Vec d = of.row >= 0 ? load(row_of<T>(a.d_out, of.row) + c, n) * share : Vec(0.0F);
            store(row_of<T>(a.d_x, r) + c, d, n);
          });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
