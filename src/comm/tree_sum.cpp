#include "comm/tree_sum.hpp"

namespace tessera::comm {

void tree_sum(std::span<float* const> parts, std::int64_t count, float* out, bool add) {
  const std::size_t n = parts.size();
  for (std::size_t stride = 1; stride < n; stride *= 2) {
    for (std::size_t i = 0; i + stride < n; i += 2 * stride) {
      float* a = parts[i];
      const float* b = parts[i + stride];
      for (std::int64_t e = 0; e < count; ++e) a[e] += b[e];
    }
  }
  const float* sum = parts[0];
  if (add) {
    for (std::int64_t e = 0; e < count; ++e) out[e] += sum[e];
  } else if (out != sum) {
    for (std::int64_t e = 0; e < count; ++e) out[e] = sum[e];
  }
}

void to_f32(const bf16* in, std::int64_t count, float* out) {
  for (std::int64_t e = 0; e < count; ++e) out[e] = static_cast<float>(in[e]);
}

void to_bf16(const float* in, std::int64_t count, bf16* out) {
  for (std::int64_t e = 0; e < count; ++e) out[e] = bf16(in[e]);
}

}  // namespace tessera::comm
