// Dividing work over the team of threads.
#pragma once

#include <omp.h>

#include <cstdint>

#include "core/math.hpp"

namespace tessera::kernels::cpu {

/// f(part) over [0, n) in as many even parts as there are threads, cut at multiples of `granule`.
template <typename F>
void parallel_ranges(int threads, std::int64_t n, std::int64_t granule, F&& f) {
  const std::int64_t granules = ceil_div(n, granule);
#pragma omp parallel for num_threads(threads) schedule(static) if (granules > 1)
  for (int i = 0; i < threads; ++i) {
    const Range part = even_part(granules, i, threads);
    const Range range{part.begin * granule, part.end * granule < n ? part.end * granule : n};
    if (!range.empty()) f(range);
  }
}

/// f(index, thread) for each index in [0, n), taken up as threads become free.
template <typename F>
void parallel_units(int threads, std::int64_t n, F&& f) {
#pragma omp parallel num_threads(threads) if (n > 1)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < n; ++i) f(i, thread);
  }
}

}  // namespace tessera::kernels::cpu
