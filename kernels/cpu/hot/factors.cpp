// The loop of second moments that go on behind the warm-up of 1-bit LAMB.
#include "kernels/common/factors.hpp"

#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

std::int64_t moment_ratio(const MomentRatio& a, Range elements) {
  const float* gradient = row_of<float>(a.gradient, 0) + elements.begin;
  float* moment = row_of<float>(a.moment, 0) + elements.begin;
  const float* frozen = row_of<float>(a.frozen, 0) + elements.begin;
  const Vec coefficient(row_of<float>(a.verdict, 0)[static_cast<int>(VerdictField::coefficient)]);
  LargestMagnitude largest;
  for_vectors(
      elements.end - elements.begin, [&](std::int64_t i,
                                         std::int64_t count) __attribute__((always_inline)) {
        const Vec moved =
            moved_moment(load(moment + i, count), load(gradient + i, count) * coefficient, a.beta2);
        store(moment + i, moved, count);
        largest.take(moment_ratio_of(load(frozen + i, count), moved));
      });
  return largest.bits();
}

}  // namespace tessera::kernels::TESSERA_ISA
