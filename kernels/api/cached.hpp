// What a cache has of sequences that are gone on with, in generation.
#pragma once

#include "core/math.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// Of one sample, a row of a table (B, 3) i32: how many earlier tokens of it the cache has, and how
/// many of the call's T tokens there are, behind which is padding. Token t has position `before` +
/// t. What depends on how long a sequence is (RopeScaling's dynamic frequencies) is of `tokens`,
/// which may be more than are there yet; 0: of before + count.
struct CachedSample {
  std::int32_t before = 0, count = 0, tokens = 0;
};
inline constexpr std::int64_t kCachedColumns = sizeof(CachedSample) / sizeof(std::int32_t);

void check_cached(const View& cached, std::int64_t samples);

/// A cache is pages of N tokens each (Kwon et al. 2023, PagedAttention). Which of them a sample has
/// is a row of a table (B, P) i32: token t of the sequence is in row t % N of page t / N of the
/// row. Kernels walk over keys in tiles that do not cross pages: where a sample may have several, N
/// is a multiple of this.
inline constexpr std::int64_t kPageTokens = 64;
/// Pages of that size which so many tokens take.
constexpr std::int64_t pages_of(std::int64_t tokens) { return ceil_div(tokens, kPageTokens); }

/// Of a table of pages, and a cache (pages, N, C).
void check_pages(const View& pages, std::int64_t samples, const View& cache);

/// Puts the `count` tokens of each sample behind those that the cache has of it.
struct Remember {
  static constexpr const char* kName = "remember";
  View x;       // (B, T, C)
  View cached;  // (B, 3)
  View pages;   // (B, P)
  View cache;   // (pages, N, C), of x's type, whose rows may be any distance apart
  View scratch;

  /// Bytes that it moves: of the cache only the rows that it fills.
  double bytes() const { return 2 * static_cast<double>(x.elements() * size_of(x.type)); }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.cached, Access::read), f(s.pages, Access::read),
        f(s.cache, Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const Remember&) const = default;
};

}  // namespace tessera::kernels
