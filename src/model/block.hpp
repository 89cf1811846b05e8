// The pre-norm transformer block (Radford et al. 2019, section 2.3; Touvron et al. 2023 with RMS
// norm, rotary positions and SwiGLU): one function for all families.
#pragma once

#include "model/context.hpp"
#include "model/parameters.hpp"

namespace tessera::model {

/// Views of a block's parameters, or of their gradients; where the bytes live is unknown here.
/// Biases may be absent. Joined matrices are one view: qkv_w is (H D + 2 KV D, C), up_w is (F, C),
/// or (2 F, C) = [gate; up] for swiglu.
struct BlockWeights {
  View norm1_w, norm1_b, qkv_w, qkv_b, out_w, out_b;
  View norm2_w, norm2_b, up_w, up_b, down_w, down_b;
};
/// Picks the views out of a unit's parameters, which are given in the order of UnitDesc::params.
BlockWeights block_weights(const UnitDesc& unit, std::span<const View> params);

/// What backward needs from forward. sum1 and sum2 are the inputs of the two norms.
struct BlockSaved {
  View sum1, norm1, h1, qkv, att, lse;
  View sum2, norm2, h2, up, act;
};

void block_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                   BlockSaved& saved, Carry& out);

/// `d` is the gradient of the carry's sum on the way out (B, T, C); returns the one on the way in.
/// Gradients of parameters are written or added as `write` says.
View block_backward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& saved, View d, const BlockWeights& grads,
                    kernels::Write write);

/// Keys and values of earlier tokens of one sequence, for generation.
struct KvCache {
  View k, v;                // (1, capacity, KV D)
  std::int64_t length = 0;  // tokens that are in it
};
/// Forward of T new tokens after `cache.length` cached ones; puts theirs into the cache (the caller
/// advances length).
void block_generate(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                    KvCache& cache, Carry& out);

}  // namespace tessera::model
