// Attention where earlier tokens of sequences are in a cache (UnitContext::caches), for generation:
// each sequence has seen as many as it has.
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// Columns of a token's row of k, and of v, in the cache of one of a rank's own chunks. Latents are
/// in that of the first.
struct CachedColumns {
  std::int64_t k = 0, v = 0;
};
CachedColumns cached_columns(const ModelConfig& config, const TensorCut& cut,
                             std::int64_t own_chunk, bool latents);

/// Whether caches have latents in the place of keys and values: where the model has some, their
/// matrices are used as they are, without adapters, and latents are no wider than what the device's
/// attention takes as a head.
bool keeps_latents(const ModelConfig& config, std::span<const UnitDesc> units,
                   std::int64_t most_head_dim);

/// Puts what is made of the micro-batch's tokens, (B, T, columns), behind what a cache has of their
/// sequences.
void remember(UnitContext& u, const View& x, const View& cache);

/// Puts k and v of the micro-batch's tokens behind those that the cache has of their sequences, and
/// attends to all of them. The caller counts the tokens.
void attend_cached(UnitContext& u, const KvCache& cache, kernels::Attention attention);

}  // namespace tessera::model
