// What a cache has of sequences, on the CPU.
#include "kernels/cpu/cached.hpp"

#include <cstring>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

std::span<const CachedSample> samples_of(const View& cached) {
  return {reinterpret_cast<const CachedSample*>(cached.data),
          static_cast<std::size_t>(cached.elements() / kCachedColumns)};
}

}  // namespace

void check_cached_rows(const View& cached, std::int64_t tokens) {
  if (!cached) return;
  for (const CachedSample& sample : samples_of(cached)) {
    TESSERA_CHECK(sample.before >= 0 && sample.count >= 0 && sample.count <= tokens,
                  "{} tokens after {}, of {}", sample.count, sample.before, tokens);
  }
}

void check_cached_rows(const View& cached, std::int64_t tokens, const View& pages,
                       const View& cache) {
  if (!cached) return;
  check_cached_rows(cached, tokens);
  const auto* page = reinterpret_cast<const std::int32_t*>(pages.data);
  const std::int64_t most = pages.extent(1), room = cache.extent(1);
  for (const CachedSample& sample : samples_of(cached)) {
    const std::int64_t all = std::int64_t{sample.before} + sample.count;
    TESSERA_CHECK(all <= most * room, "{} tokens after {} in {} pages of {}", sample.count,
                  sample.before, most, room);
    for (std::int64_t i = 0; i * room < all; ++i)
      TESSERA_CHECK(page[i] >= 0 && page[i] < cache.extent(0), "page {} of {}", page[i],
                    cache.extent(0));
    page += most;
  }
}

void run(const Remember& a, const Context& context) {
  const std::int64_t tokens = a.x.extent(1), room = a.cache.extent(1), most = a.pages.extent(1);
  check_cached_rows(a.cached, tokens, a.pages, a.cache);
  const auto samples = samples_of(a.cached);
  const auto* pages = reinterpret_cast<const std::int32_t*>(a.pages.data);
  const std::int64_t element = size_of(a.x.type);
  const auto bytes = static_cast<std::size_t>(a.x.cols() * element);
  parallel_ranges(context.threads, a.x.rows(), 1, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t b = r / tokens, t = r % tokens;
      const CachedSample& sample = samples[static_cast<std::size_t>(b)];
      if (t >= sample.count) continue;
      const std::int64_t token = sample.before + t,
                         to = pages[b * most + token / room] * room + token % room;
      std::memcpy(a.cache.data + to * a.cache.ld * element, a.x.data + r * a.x.ld * element, bytes);
    }
  });
}

}  // namespace tessera::kernels::cpu
