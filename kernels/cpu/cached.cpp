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

void check_cached_rows(const View& cached, std::int64_t tokens, const View& cache) {
  if (!cached) return;
  check_cached_rows(cached, tokens);
  for (const CachedSample& sample : samples_of(cached)) {
    TESSERA_CHECK(sample.slot >= 0 && sample.slot < cache.extent(0) &&
                      std::int64_t{sample.before} + sample.count <= cache.extent(1),
                  "{} tokens after {} in slot {} of {}, which have room for {}", sample.count,
                  sample.before, sample.slot, cache.extent(0), cache.extent(1));
  }
}

void run(const Remember& a, const Context& context) {
  check(a);
  const std::int64_t tokens = a.x.extent(1), room = a.cache.extent(1);
  check_cached_rows(a.cached, tokens, a.cache);
  const auto samples = samples_of(a.cached);
  const std::int64_t element = size_of(a.x.type);
  const auto bytes = static_cast<std::size_t>(a.x.cols() * element);
  parallel_ranges(context.threads, a.x.rows(), 1, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const CachedSample& sample = samples[static_cast<std::size_t>(r / tokens)];
      const std::int64_t t = r % tokens;
      if (t >= sample.count) continue;
      const std::int64_t to = sample.slot * room + sample.before + t;
      std::memcpy(a.cache.data + to * a.cache.ld * element, a.x.data + r * a.x.ld * element, bytes);
    }
  });
}

}  // namespace tessera::kernels::cpu
