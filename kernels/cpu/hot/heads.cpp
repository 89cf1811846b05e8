// Loop of the gradient of columns that heads share.
#include <cstring>

#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

void split_heads(const SplitHeads& a, Range rows) {
  const std::int64_t own = columns_of(a.d_own) / a.heads, shared = columns_of(a.d_shared);
  with_type(a.d.type, [&]<typename T>() {
    with_type(a.d_shared.type, [&]<typename G>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const T* from = row_of<T>(a.d, r);
        for (std::int64_t h = 0; h < a.heads; ++h) {
          std::memcpy(row_of<T>(a.d_own, r) + h * own, from + h * (own + shared),
                      static_cast<std::size_t>(own) * sizeof(T));
        }
        for_vectors(
            shared, [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
              Vec sum(0.0F);
              for (std::int64_t h = 0; h < a.heads; ++h)
                sum = sum + load(from + h * (own + shared) + own + c, n);
              store(row_of<G>(a.d_shared, r) + c, sum, n);
            });
      }
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
