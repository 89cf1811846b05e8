#include "kernels/cpu/triad.hpp"

#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void triad(int threads, std::int64_t n, const float* b, const float* c, float* a) {
  parallel_ranges(threads, n, 4096, [&](Range part) {
#pragma omp simd
    for (std::int64_t i = part.begin; i < part.end; ++i) a[i] = b[i] + 3.0F * c[i];
  });
}

}  // namespace tessera::kernels::cpu
