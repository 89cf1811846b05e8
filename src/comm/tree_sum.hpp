// Adds one contribution of each rank in an order that depends on the ranks' numbers alone: so sums
// have the same bits whatever carried the contributions.
#pragma once

#include <span>

#include "core/dtype.hpp"

namespace tessera::comm {

/// out[i] (+)= tree sum over parts of part[i]: neighbours first, ((0+1)+(2+3))+..., each addition
/// in f32 (kernels/common/tree). `out` may be one of the parts.
void tree_sum(std::span<float* const> parts, std::int64_t count, float* out, bool add);

void to_f32(const bf16* in, std::int64_t count, float* out);
void to_bf16(const float* in, std::int64_t count, bf16* out);

}  // namespace tessera::comm
