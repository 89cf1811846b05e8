// Factors of tensors in 1-bit LAMB: one element's and one tensor's numbers, shared by every back
// end.
#pragma once

#include "kernels/common/verdict.hpp"

namespace tessera::kernels {

/// The mean of ratios with one more, by the tensor's sums (kTensorWords), which are used up.
TESSERA_INLINE float averaged_trust(float average, std::int64_t* sums, float beta3, float least,
                                    float most) {
  const float c = trust_of(sums, {.trust_min = least, .trust_max = most});
  return fmadd(average, beta3, c * (1.0F - beta3));
}

/// A second moment after a step, as LambMoments has it. `F` is a float or a vector of floats.
template <typename F>
TESSERA_INLINE F moved_moment(F moment, F g, float beta2) {
  return fmadd(g * g, F(1.0F - beta2), moment * F(beta2));
}
/// How far it has moved from another, which counts as 0 where that is.
template <typename F>
TESSERA_INLINE F moment_ratio_of(F frozen, F moment) {
  return select(frozen > F(0.0F), frozen / moment, F(0.0F));
}

/// See FollowRatio in api/optimizer.hpp.
TESSERA_INLINE float followed_ratio(float before, std::int64_t largest, float threshold,
                                    float r_min, float r_max) {
  const float last = before == 0.0F ? 1.0F : before,
              ratio = std::bit_cast<float>(static_cast<std::int32_t>(largest)),
              least = last * (1.0F - threshold), most = last * (1.0F + threshold);
  float r = ratio > most ? most : ratio;
  r = r < least ? least : r;
  r = r > r_max ? r_max : r;
  return r < r_min ? r_min : r;
}

}  // namespace tessera::kernels
