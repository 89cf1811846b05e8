#include "kernels/cuda/sdpa_rules.hpp"

#include "core/math.hpp"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t kFewestQueries = 64, kWidestHead = 128, kVectorBytes = 16;
// Bounds of what cuDNN 9.19 says that its kernels for sm_80, sm_90 and sm_100 need.
constexpr std::int64_t kTile = 128;       // that numbers of tokens are rounded up to
constexpr std::int64_t kOther = 1 << 20;  // semaphores and other small things

template <typename Operation>
bool takes(const Operation& a, std::initializer_list<View> operands) {
  const AttentionShape& shape = a.shape;
  const DType type = operands.begin()->type;
  if (shape.mask != AttentionMask::causal || shape.window > 0 || shape.soft_cap > 0 ||
      a.documents) {
    return false;
  }
  if (sight_of_call(a) == SdpaSight::none) return false;
  if ((type != DType::bf16 && type != DType::f16) || a.dropout) return false;
  if (shape.skip != 0 || shape.heads % shape.kv_heads != 0 ||
      (shape.group != 0 && shape.group != shape.heads / shape.kv_heads)) {
    return false;
  }
  if (a.q.extent(1) < kFewestQueries || shape.head_dim > kWidestHead) return false;
  if (shape.values() != shape.head_dim) return false;
  const std::int64_t element = size_of(type);
  if (shape.head_dim * element % kVectorBytes != 0) return false;
  for (const View& v : operands) {
    if (v.ld * element % kVectorBytes != 0) return false;
  }
  return true;
}

}  // namespace

std::optional<SdpaPlan> sdpa_plan(const Attention& a) {
  if (a.cached || !takes(a, {a.q, a.k, a.v, a.out})) return std::nullopt;
  return SdpaPlan{a.q.extent(0), kOther};
}

std::optional<SdpaPlan> sdpa_plan(const AttentionBackward& a, std::int64_t most_scores) {
  if (a.q.extent(1) != a.k.extent(1) || a.d_k.type != a.q.type || a.write != Write::overwrite)
    return std::nullopt;
  if (!takes(a, {a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v})) return std::nullopt;
  const std::int64_t tokens = round_up(a.q.extent(1), kTile), rows = a.shape.heads * tokens;
  const bool fixed = a.order == SumOrder::fixed;
  // A number of each row; with groups, d_k and d_v of every query head before they are added up; in
  // any order, sums of d_q, and on older GPUs as much again.
  const std::int64_t gradients = (a.shape.heads == a.shape.kv_heads ? 0 : 2) + (fixed ? 0 : 2);
  const std::int64_t sums = rows * (1 + gradients * a.shape.head_dim) * size_of(DType::f32);
  const std::int64_t scores = fixed ? rows * tokens * size_of(a.q.type) : 0;
  if (scores > most_scores) return std::nullopt;
  const std::int64_t limited = fixed ? scores : sums;
  std::int64_t samples = a.q.extent(0);
  while (samples > 1 && (a.q.extent(0) % samples != 0 || samples * limited > kAtOnce)) --samples;
  return SdpaPlan{samples, samples * (scores + sums) + kOther};
}

}  // namespace tessera::kernels::cuda
