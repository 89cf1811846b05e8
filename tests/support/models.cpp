#include "support/models.hpp"

#include <algorithm>

#include "core/hash.hpp"
#include "core/random.hpp"

namespace tessera::test {

model::ModelConfig gpt2_like() {
  return {.layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 4,
          .hidden = 16,
          .ffn_hidden = 40,
          .vocab = 37,
          .context = 12};
}

model::ModelConfig llama_like() {
  model::ModelConfig c = gpt2_like();
  c.kv_heads = 2;
  c.norm = NormKind::rmsnorm;
  c.position = PositionKind::rope;
  c.activation = ActivationKind::swiglu;
  c.bias = c.tied_embeddings = false;
  return c;
}

model::ModelConfig qwen_like() {
  model::ModelConfig c = llama_like();
  c.qkv_bias = true;
  c.qk_norm = QkNorm::head;
  return c;
}

model::ModelConfig olmo2_like() {
  model::ModelConfig c = llama_like();
  c.norm_placed = NormPlacement::after;
  c.qk_norm = QkNorm::whole;
  return c;
}

model::ModelConfig mixtral_like() {
  model::ModelConfig c = llama_like();
  c.experts = {.count = 4, .hidden = 24, .routing = {.choices = 2, .normalized = true}};
  return c;
}

model::ModelConfig deepseek_like() {
  model::ModelConfig c = llama_like();
  c.experts = {.count = 6,
               .hidden = 12,
               .shared_hidden = 20,
               .first = 1,
               .routing = {.choices = 2,
                           .scores = RouterScores::sigmoid,
                           .normalized = true,
                           .scale = 2.5F,
                           .groups = 3,
                           .open_groups = 2,
                           .group_score = GroupScore::two_largest}};
  return c;
}

model::ModelConfig balanced_like() {
  model::ModelConfig c = deepseek_like();
  c.experts.balance = kernels::BalanceBy::bias;
  return c;
}

model::ModelConfig latent_like() {
  model::ModelConfig c = llama_like();
  c.kv_heads = c.heads;
  c.head_dim = 10, c.value_dim = 6;
  c.rope_pairs = RopePairs::neighbours;
  c.score_scale = 1.25F;
  c.latent = {.kv = 8, .q = 12, .rope = 4};
  return c;
}

model::ModelConfig gpt_neox_like() {
  model::ModelConfig c = gpt2_like();
  c.position = PositionKind::rope;
  c.block = BlockForm::parallel;
  c.activation = ActivationKind::gelu_erf;
  c.rotary_dim = 2;
  c.tied_embeddings = false;
  return c;
}

model::ModelConfig gptj_like() {
  model::ModelConfig c = gpt_neox_like();
  c.block = BlockForm::parallel_one_norm;
  c.activation = ActivationKind::gelu;
  c.rope_pairs = RopePairs::neighbours;
  c.attention_bias = false;
  c.head.bias = true;
  return c;
}

model::ModelConfig gemma2_like() {
  model::ModelConfig c = llama_like();
  c.norm_placed = NormPlacement::both;
  c.activation = ActivationKind::geglu;
  c.tied_embeddings = c.scaled_embeddings = true;
  c.query_scalar = 6;
  c.attention_soft_cap = 3;
  c.logit_soft_cap = 5;
  c.window = 3, c.global_every = 2;
  c.rope_local_theta = 100;
  return c;
}

model::ModelConfig bert_like() {
  model::ModelConfig c = gpt2_like();
  c.attention = AttentionMask::bidirectional;
  c.norm_placed = NormPlacement::sum;
  c.embedding_norm = true;
  c.activation = ActivationKind::gelu_erf;
  c.head = {.hidden = c.hidden, .activation = ActivationKind::gelu_erf, .norm = true, .bias = true};
  return c;
}

model::ModelConfig classifier_like() {
  model::ModelConfig c = gpt2_like();
  c.attention = AttentionMask::bidirectional;
  c.position = PositionKind::sinusoidal;
  c.norm_placed = NormPlacement::sum;
  c.activation = ActivationKind::relu;
  c.tied_embeddings = false;
  c.head = {.pooling = Pooling::mean,
            .labels = 5,
            .hidden = 6,
            .activation = ActivationKind::tanh,
            .bias = true};
  return c;
}

train::ParameterSource test_values(std::uint64_t seed) {
  return [seed](const model::ParamDesc& p, Range range, std::span<float> out) {
    const RandomKey key = random_key(seed, RandomPurpose::init, hash_text(p.name));
    const double mean = p.init == model::Init::ones ? 1 : 0;
    const double deviation = p.init == model::Init::normal ? 0.3 : 0.1;
    if (p.init == model::Init::sinusoids) return train::initial_values(seed)(p, range, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto element = static_cast<std::uint64_t>(range.begin) + i;
      out[i] = static_cast<float>(mean + deviation * random_normal(key, 0, element));
    }
  };
}

std::int64_t TokenBatch::counted() const {
  return std::ranges::count_if(targets, [](std::int32_t t) { return t >= 0; });
}

namespace {

/// Whether the target of place t of sample g counts.
bool counts(std::int64_t g, std::int64_t t, std::uint64_t bits) {
  if (g % 4 == 1) return false;
  if (g % 4 == 2) return t == 1;
  return bits % 3 == 0;
}

/// Documents of a sample end behind some of its tokens.
void add_documents(TokenBatch& b, std::int64_t g) {
  const RandomKey key = random_key(19, RandomPurpose::sampling, 0);
  std::int64_t begin = 0;
  for (std::int64_t t = 0; t < b.sequence; ++t) {
    const auto bits =
        random_bits(key, static_cast<std::uint64_t>(g), static_cast<std::uint64_t>(t));
    if (t + 1 < b.sequence && bits % 3 != 0) continue;
    for (const std::int64_t first = begin; begin <= t; ++begin) {
      b.documents.push_back(static_cast<std::int32_t>(first));
      b.documents.push_back(static_cast<std::int32_t>(t + 1));
    }
  }
}

}  // namespace

TokenBatch batch_of(const model::ModelConfig& config, std::int64_t first_sample, std::int64_t count,
                    std::int64_t sequence, const BatchKind& kind) {
  TokenBatch b{.batch = count, .sequence = sequence};
  const RandomKey key = random_key(17, RandomPurpose::sampling, 0),
                  mask = random_key(18, RandomPurpose::sampling, 0);
  for (std::int64_t g = first_sample; g < first_sample + count; ++g) {
    const auto token = [&](std::int64_t t) {
      const auto bits =
          random_bits(key, static_cast<std::uint64_t>(g), static_cast<std::uint64_t>(t));
      return static_cast<std::int32_t>(bits % static_cast<std::uint64_t>(config.vocab));
    };
    const std::int64_t labels = config.head.labels, targets = config.targets_of(sequence);
    for (std::int64_t t = 0; t < sequence; ++t) {
      b.tokens.push_back(token(t));
      if (t >= targets) continue;
      const std::int32_t target = token(t + 1);
      const auto bits =
          random_bits(mask, static_cast<std::uint64_t>(g), static_cast<std::uint64_t>(t));
      const bool counted = !kind.masked || counts(g, targets > 1 ? t : 1, bits);
      b.targets.push_back(!counted     ? -1
                          : labels > 0 ? static_cast<std::int32_t>(target % labels)
                                       : target);
    }
    b.samples.push_back(g);
    if (kind.documents) add_documents(b, g);
  }
  return b;
}

}  // namespace tessera::test
