#include "comm/tree_sum.hpp"

#include <cstring>

#include "core/error.hpp"
#include "core/math.hpp"
#include "kernels/common/tree.hpp"

namespace tessera::comm {

namespace {

/// Neighbouring elements, added together.
using Run = float __attribute__((vector_size(16)));
constexpr std::int64_t kRun = sizeof(Run) / sizeof(float);

Run run_at(const float* from) {
  Run run;
  std::memcpy(&run, from, sizeof run);
  return run;
}

/// out[e] (+)= the tree over sum_at(p, e) for all e.
template <typename Sum>
void add_all(std::int64_t count, float* out, bool add, Sum&& sum) {
  std::int64_t e = 0;
  for (; e + kRun <= count; e += kRun) {
    Run total = sum([&](const float* part) { return run_at(part + e); });
    if (add) total = run_at(out + e) + total;
    std::memcpy(out + e, &total, sizeof total);
  }
  for (; e < count; ++e) {
    const float total = sum([&](const float* part) { return part[e]; });
    out[e] = add ? out[e] + total : total;
  }
}

}  // namespace

void tree_sum(std::span<float* const> parts, std::int64_t count, float* out, bool add) {
  constexpr int kFew = 64;  // whose additions a compiler writes one after another
  constexpr int kLevels = 16;
  const int n = static_cast<int>(parts.size());
  TESSERA_CHECK(n < kFew << kLevels, "a sum of {} parts", n);
  // Groups of a power of two are nodes of the tree.
  const auto of_group = [&](auto&& at, int first) {
    return kernels::small_tree_sum<kFew>(
        n, [&](int p) { return at(parts[static_cast<std::size_t>(p)]); }, first);
  };
  if (n <= kFew) {
    add_all(count, out, add, [&](auto&& at) { return of_group(at, 0); });
  } else {
    add_all(count, out, add, [&](auto&& at) {
      return kernels::tree_sum<kLevels>(ceil_div(n, kFew), [&](std::int64_t g) {
        return of_group(at, static_cast<int>(g) * kFew);
      });
    });
  }
}

void to_f32(const bf16* in, std::int64_t count, float* out) {
  for (std::int64_t e = 0; e < count; ++e) out[e] = static_cast<float>(in[e]);
}

void to_bf16(const float* in, std::int64_t count, bf16* out) {
  for (std::int64_t e = 0; e < count; ++e) out[e] = bf16(in[e]);
}

}  // namespace tessera::comm
