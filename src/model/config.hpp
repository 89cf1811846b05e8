// The architecture of a model. Model families are values of these fields; they have no code of
// their own.
#pragma once

#include <cstdint>

#include "core/math.hpp"
#include "kernels/api/activation.hpp"
#include "kernels/api/norm.hpp"

namespace tessera::model {

struct ModelConfig {
  std::int64_t layers = 0;      // L
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // KV
  std::int64_t head_dim = 0;    // D
  std::int64_t hidden = 0;      // C
  std::int64_t ffn_hidden = 0;  // F
  std::int64_t vocab = 0;       // V
  std::int64_t context = 0;     // longest sequence
  NormKind norm = NormKind::layernorm;
  float norm_eps = 1e-5F;
  AttentionMask attention = AttentionMask::causal;
  PositionKind position = PositionKind::learned;
  double rope_theta = 10000.0;
  ActivationKind activation = ActivationKind::gelu;
  bool bias = true;
  bool tied_embeddings = true;
  float dropout = 0;
  float init_std = 0.02F;

  /// Rows of the token matrix as stored and multiplied: padded to 64 whatever the layout, so that
  /// the layout does not change the loss (trap 22 in tests/README.md).
  std::int64_t padded_vocab() const { return round_up(vocab, 64); }
  std::int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Columns of the feed-forward layer's first product: gate and up for swiglu.
  std::int64_t up_columns() const {
    return activation == ActivationKind::swiglu ? 2 * ffn_hidden : ffn_hidden;
  }
};

}  // namespace tessera::model
