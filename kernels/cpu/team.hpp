// Dividing work over the team of threads.
#pragma once

#include <cstdint>

#include "core/math.hpp"

#ifdef __SANITIZE_THREAD__  // which does not see how OpenMP orders its threads
#include <atomic>

#include "core/thread.hpp"
#else
#include <omp.h>
#endif

namespace tessera::kernels::cpu {

#ifdef __SANITIZE_THREAD__
/// f(thread) on so many threads.
template <typename F>
void on_team(int threads, F&& f) {
  std::vector<std::jthread> others;
  for (int t = 1; t < threads; ++t) others.push_back(start_thread("team", [&f, t] { f(t); }));
  f(0);
}
#endif

/// f(part) over [0, n) in as many even parts as there are threads, cut at multiples of `granule`.
template <typename F>
void parallel_ranges(int threads, std::int64_t n, std::int64_t granule, F&& f) {
  const std::int64_t granules = ceil_div(n, granule);
  const auto work = [&](int i) {
    const Range part = even_part(granules, i, threads);
    const Range range{part.begin * granule, part.end * granule < n ? part.end * granule : n};
    if (!range.empty()) f(range);
  };
#ifdef __SANITIZE_THREAD__
  on_team(threads, work);
#else
#pragma omp parallel for num_threads(threads) schedule(static) if (granules > 1)
  for (int i = 0; i < threads; ++i) work(i);
#endif
}

/// f(index, thread) for each index in [0, n), taken up as threads become free.
template <typename F>
void parallel_units(int threads, std::int64_t n, F&& f) {
#ifdef __SANITIZE_THREAD__
  std::atomic<std::int64_t> next = 0;
  on_team(n > 1 ? threads : 1, [&](int thread) {
    for (std::int64_t i = next++; i < n; i = next++) f(i, thread);
  });
#else
#pragma omp parallel num_threads(threads) if (n > 1)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < n; ++i) f(i, thread);
  }
#endif
}

}  // namespace tessera::kernels::cpu
