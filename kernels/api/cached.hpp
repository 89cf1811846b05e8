// What a cache has of sequences that are gone on with, in generation.
#pragma once

#include "kernels/api/checks.hpp"

namespace tessera::kernels {

/// Of one sample, a row of a table (B, 4) i32: the slot of the cache that its earlier tokens are
/// in, how many these are, and how many of the call's T tokens there are, behind which is padding.
/// Token t has position `before` + t. What depends on how long a sequence is (RopeScaling's dynamic
/// frequencies) is of `tokens`, which may be more than are there yet; 0: of before + count.
struct CachedSample {
  std::int32_t slot = 0, before = 0, count = 0, tokens = 0;
};
inline constexpr std::int64_t kCachedColumns = sizeof(CachedSample) / sizeof(std::int32_t);

inline void check_cached(const View& cached, std::int64_t samples) {
  if (cached) check_flat({cached}, DType::i32, samples * kCachedColumns);
}

/// Puts the `count` tokens of each sample behind those that its slot has.
struct Remember {
  static constexpr const char* kName = "remember";
  View x;       // (B, T, C)
  View cached;  // (B, 4)
  View cache;   // (slots, N, C), of x's type, whose rows may be any distance apart
  View scratch;

  /// Bytes that it moves: of the cache only the rows that it fills.
  double bytes() const { return 2 * static_cast<double>(x.elements() * size_of(x.type)); }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.cached, Access::read), f(s.cache, Access::update),
        f(s.scratch, Access::write);
  }
};

inline void check(const Remember& a) {
  check_floats({a.x});
  check_same_type({a.x, a.cache});
  TESSERA_CHECK(a.x.rank == 3 && a.cache.rank == 3 && a.x.cols() == a.cache.cols() && a.cached,
                "({}, {}, {}) into ({}, {}, {})", a.x.extent(0), a.x.extent(1), a.x.cols(),
                a.cache.extent(0), a.cache.extent(1), a.cache.cols());
  check_cached(a.cached, a.x.extent(0));
}

}  // namespace tessera::kernels
