#include "kernels/api/cached.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check_cached(const View& cached, std::int64_t samples) {
  if (cached) check_flat({cached}, DType::i32, samples * kCachedColumns);
}

void check_pages(const View& pages, std::int64_t samples, const View& cache) {
  check_flat({pages}, DType::i32, pages.elements());
  TESSERA_CHECK(pages.rank == 2 && pages.extent(0) == samples && cache.rank == 3 &&
                    (pages.extent(1) == 1 || cache.extent(1) % kPageTokens == 0),
                "{} x {} pages of {} tokens, for {} samples", pages.extent(0), pages.extent(1),
                cache.extent(1), samples);
}

void check(const Remember& a) {
  check_floats({a.x});
  check_same_type({a.x, a.cache});
  TESSERA_CHECK(a.x.rank == 3 && a.cache.rank == 3 && a.x.cols() == a.cache.cols() && a.cached,
                "({}, {}, {}) into ({}, {}, {})", a.x.extent(0), a.x.extent(1), a.x.cols(),
                a.cache.extent(0), a.cache.extent(1), a.cache.cols());
  check_cached(a.cached, a.x.extent(0));
  check_pages(a.pages, a.x.extent(0), a.cache);
}

}  // namespace tessera::kernels
