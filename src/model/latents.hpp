// Queries, keys and values that are made of vectors of few columns, latents (multi-head latent
// attention: DeepSeek-AI 2024, DeepSeek-V2, section 2.1). Each chunk makes some columns of all
// latents, which every chunk then has; of these it makes what its heads see.
#pragma once

#include "model/block.hpp"
#include "model/tensor_parallel.hpp"

namespace tessera::model {

/// Where in latents what is made of them lies.
struct LatentColumns {
  explicit LatentColumns(const ModelConfig& c) : latent(c.latent) {}

  View q(const View& all) const { return all.col_range(0, latent.q); }
  View kv(const View& all) const { return all.col_range(latent.q, latent.kv); }
  View rope(const View& all) const { return all.col_range(latent.q + latent.kv, latent.rope); }

  const LatentConfig& latent;
};

/// Latents of a layer's input h, all positions of it, which their norms and positions have behind
/// them.
LatentsSaved make_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                          const View& h);

/// What chunk i's attention sees: q, k and v. Fills in what of it is kept.
struct HeadInputs {
  View q, k, v;
};
HeadInputs heads_of_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                            const BlockSaved& s, std::size_t i, BlockSaved::Chunk& chunk);

/// Attention of chunk i where the cache has latents (KvCache), behind which this micro-batch's are
/// put: queries are multiplied with what makes a head's keys, and what attention sees of latents
/// with what makes its values, so that neither is made of earlier tokens (DeepSeek-V2, section
/// 2.1.2). `shape`: of the heads. Writes chunk.att. Adapters beside these matrices are not heeded.
void attend_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& s, std::size_t i, const kernels::AttentionShape& shape,
                    BlockSaved::Chunk& chunk);

/// The way back, of all chunks: first each one's heads, then what all have read.
class LatentsBackward {
 public:
  LatentsBackward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, const BlockSaved& s,
                  const BlockWeights& gradients, kernels::Write write);

  /// `attention`: that of chunk i, with everything but q, k, v and their gradients.
  void heads(std::size_t i, kernels::AttentionBackward attention);
  /// Writes this rank's parts of the gradient of h, and gradients of what heads are made with.
  void input(const ChunkSum& d_h);
  /// Gradients of what latents are made with.
  void weights();

 private:
  void norm(const View& d_out, const View& of, const View& stats, const View& weight,
            const View& gradient, const View& d);
  View of_chunk(const View& all, std::size_t i);

  UnitContext& u_;
  const ModelConfig& c_;
  const BlockWeights& w_;
  const BlockSaved& s_;
  const BlockWeights& g_;
  kernels::Write write_;
  LatentColumns columns_;
  ChunkSum d_latents_;
  std::vector<View> d_q_, d_kv_, d_own_;  // by chunk; d_own_: of its columns of latents
};

}  // namespace tessera::model
