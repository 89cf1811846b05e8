// Models and batches small enough to differentiate numerically, as pure functions of seeds, so that
// every rank of a test and every layout sees the same ones.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.hpp"
#include "train/state/model_state.hpp"

namespace tessera::test {

/// Layer norm with biases, learned positions, gelu, tied matrix.
model::ModelConfig gpt2_like();
/// RMS norm without biases, rotary positions, SwiGLU, two query heads a kv head, untied.
model::ModelConfig llama_like();
/// As that with what Qwen 2 and 3 have: biases of q, k and v, a norm of each head's q and k.
model::ModelConfig qwen_like();
/// As that with four experts in each layer, of which a token goes to two (Mixtral).
model::ModelConfig mixtral_like();
/// As that with a dense first layer, and behind it experts in groups that are chosen by sigmoid
/// scores, beside one that all tokens go to (DeepSeek-V3, without its attention).
model::ModelConfig deepseek_like();
/// The same with biases by which experts are chosen.
model::ModelConfig balanced_like();
/// Keys and values of latents, and queries of one too (DeepSeek-V2's attention).
model::ModelConfig latent_like();
/// Norms of outputs alone, and of the whole of q and of k (OLMo 2).
model::ModelConfig olmo2_like();
/// Attention and feed-forward layer in parallel, layer norm with biases, the exact gelu (GPT-NeoX).
model::ModelConfig gpt_neox_like();
model::ModelConfig gptj_like();
/// Norms of inputs and outputs, gated gelu, scaled embeddings, a query scalar, caps of scores and
/// of logits, every other layer with a window (Gemma 2), which has a theta of its own (Gemma 3).
model::ModelConfig gemma2_like();

/// Norms of sums and of the embedding, attention of all tokens, and before the tied matrix a dense
/// layer with a norm, and a bias behind it (BERT's masked language model).
model::ModelConfig bert_like();
/// Sinusoidal positions, norms of sums, ReLU; of a sample's mean a dense layer makes the logits of
/// five classes (Vaswani et al. 2017's encoder as a classifier).
model::ModelConfig classifier_like();

/// Parameters away from symmetric points: no gain is exactly one, no bias zero, and weights large
/// enough that every parameter's gradient stands out of rounding.
train::ParameterSource test_values(std::uint64_t seed);

struct TokenBatch {
  std::int64_t batch = 0, sequence = 0;
  std::vector<std::int32_t> tokens, targets;  // (B T); of pooled outputs (B) targets
  std::vector<std::int64_t> samples;          // (B)
  std::vector<std::int32_t> documents;        // (B, T, 2), or empty
  /// How many targets count.
  std::int64_t counted() const;
};
struct BatchKind {
  /// Of the samples some have no target that counts, some one, some a third.
  bool masked = false;
  /// Samples have several documents, of one token or more.
  bool documents = false;
};
/// Sequences of `count` consecutive global samples; what a sample holds depends on its index only.
TokenBatch batch_of(const model::ModelConfig& config, std::int64_t first_sample, std::int64_t count,
                    std::int64_t sequence, const BatchKind& kind = {});

}  // namespace tessera::test
