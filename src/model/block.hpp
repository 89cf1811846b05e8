// The transformer block (Radford et al. 2019, section 2.3; Touvron et al. 2023 with RMS norm,
// rotary positions and SwiGLU), with norms where ModelConfig places them: one function for all
// families.
#pragma once

#include "model/context.hpp"
#include "model/experts.hpp"
#include "model/parameters.hpp"

namespace tessera::model {

/// The query heads of one chunk, and the kv heads that they read.
struct HeadPart {
  Range heads, kv_heads;
  std::int64_t group = 1;  // query heads that share a kv head
  std::int64_t skip() const { return heads.begin - kv_heads.begin * group; }
};
HeadPart heads_of(const ModelConfig& config, std::int64_t chunk, std::int64_t chunks);

/// Views of a block's parameters, or of their gradients. Biases may be absent. Joined matrices are
/// one view: qkv_w is (H D + KV D + KV E, C), up_w is (F, C), or (2 F, C) = [gate; up] of a gated
/// one; H, KV and F are the chunk's.
struct BlockChunk {
  View qkv_w, qkv_b;    // of q alone where keys and values are whole, or made of latents
  View latent_w, kv_w;  // what makes the chunk's columns of latents, and keys and values of all
  View out_w;
  View up_w, up_b, down_w;  // of the shared expert in a layer of experts, where there is one
  ExpertsChunk experts;
};
struct BlockWeights {
  View norm1_w, norm1_b, norm2_w, norm2_b;                  // of the sub-layers' inputs
  View norm1_out_w, norm1_out_b, norm2_out_w, norm2_out_b;  // of outputs, or of sums with them
  View q_norm_w, k_norm_w;
  View q_latent_norm_w, kv_latent_norm_w;
  View out_b, down_b;
  View router_w;                   // (E or more, C) of a layer of experts,
  View router_b, router_shares;    // (E): what is kept of steps' choices,
  bool whole_experts = false;      // whose chunks have some of them whole
  View k_w, k_b, v_w, v_b;         // where fewer kv heads than chunks make them whole on every rank
  std::vector<BlockChunk> chunks;  // this rank's
};
/// Picks the views out of the parameters of a block's units.
BlockWeights block_weights(std::span<const UnitViews> units);

/// Latents of a layer's input (model/latents).
struct LatentsSaved {
  View all;                // as products have made them
  View q, kv, rope;        // behind their norms; keys' positions, turned
  View q_stats, kv_stats;  // of the norms
};

/// What backward needs from forward. sum1 and sum2 are what the two sub-layers read before its
/// norm; h1 and h2 what they read at all positions; out1 and out2 their outputs, or the sums with
/// them, where those are normalised. norm1, ... are the norms' statistics.
struct BlockSaved {
  struct Chunk {
    View qkv;                 // with q and k as attention sees them, or before qk-norm
    View qk, q_norm, k_norm;  // q and k as attention sees them after qk-norm, and its statistics
    View kv;                  // of latents: keys without positions, and values. qkv is q then, qk k
    View att, lse, up, act;
  };
  LatentsSaved latents;
  RoutedTokens routed;                // of a layer of experts
  std::vector<ExpertsSaved> experts;  // by chunk
  View sum1, norm1, h1, out1, norm1_out;
  View sum2, norm2, h2, out2, norm2_out;
  std::vector<Chunk> chunks;
};

/// A head's rotary positions in the layer at hand, of nothing yet.
kernels::Rope rope_of(const UnitContext& u, const ModelConfig& c,
                      kernels::Rope::Direction direction);
/// out = the norm of each part of x's columns that is as wide as `weight`: of each head's, or of
/// all columns as one. `stats`: what backward needs.
void norm_heads(UnitContext& u, const ModelConfig& c, const View& x, const View& weight,
                const View& out, View& stats);

/// With UnitContext::cache the tokens follow those that it has of their sequences.
void block_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                   BlockSaved& saved, Carry& out);

/// `d` is the gradient of the carry's sum on the way out (B, T, C); returns the one on the way in.
/// Gradients of parameters are written or added as `write` says.
View block_backward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& saved, View d, const BlockWeights& grads,
                    kernels::Write write);

}  // namespace tessera::model
