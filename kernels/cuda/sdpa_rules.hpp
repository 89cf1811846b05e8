// Which attention calls go to cuDNN, and how much workspace they may take: decided by a call's
// shapes and a limit that is the same on all ranks, so that memory can be predicted without a GPU.
#pragma once

#include <optional>

#include "kernels/api/attention.hpp"

namespace tessera::kernels::cuda {

/// What cuDNN is told of what causal queries see: all keys, where these end before the first query
/// or with it; those up to their own, which is one of them; or it is not asked.
enum class SdpaSight : std::uint8_t { none, up_to_own, all };

template <typename Operation>
SdpaSight sight_of_call(const Operation& a) {
  const std::int64_t first = first_query_of(a), keys = a.k.extent(1);
  if (first >= 0 && first + a.q.extent(1) <= keys) return SdpaSight::up_to_own;
  return first + 1 >= keys ? SdpaSight::all : SdpaSight::none;
}

/// How cuDNN runs a call: so many samples at a time, which divide the batch, in so much workspace.
struct SdpaPlan {
  std::int64_t samples = 0, workspace_bytes = 0;
};

/// Nothing where the own kernel runs: a mask other than the causal one, a window, capped scores,
/// documents, a cache, f32, dropout, keys of which SdpaSight has no word, groups of heads that
/// begin or end within a rank, fewer than 64 queries (a walk along a cache), heads of more than 128
/// columns or rows that are not whole vectors of 16 bytes. Of a backward whose sums have a fixed
/// order cuDNN writes the gradients of all scores to memory, in any order d_q's sums: of as many
/// samples at a time as have kAtOnce of them, or of one. Nothing too where the gradients of a
/// sample's scores are more than `most_scores`, in bytes.
std::optional<SdpaPlan> sdpa_plan(const Attention& call);
std::optional<SdpaPlan> sdpa_plan(const AttentionBackward& call, std::int64_t most_scores);

/// Bytes of workspace that samples of a backward share. A quarter of a GiB holds a sample of 32
/// heads of 2048 tokens, which is enough work for a GPU.
inline constexpr std::int64_t kAtOnce = std::int64_t{256} << 20;

}  // namespace tessera::kernels::cuda
