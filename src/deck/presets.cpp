#include "deck/presets.hpp"

#include <array>
#include <optional>

#include "core/sharding.hpp"
#include "deck/codec.hpp"

namespace tessera::deck {

namespace {

struct PresetRow {
  Preset preset;
  Family family;
  std::int64_t layers, heads, kv_heads, hidden, ffn_hidden, vocab, context;
  bool tied;
  double rope_theta;
  std::int64_t head_dim = 0, experts = 0, top_k = 0, expert_hidden = 0;
};

// GPT-2: Radford et al. 2019, table 2. Llama 2: Touvron et al. 2023. Llama 3 8B and the 1B and 3B
// of Llama 3.2: Grattafiori et al. 2024, at the pre-training context of 8192 (without the rescaled
// frequencies of their long-context stage). Mixtral: Jiang et al. 2024. Qwen3: Yang et al. 2025, at
// the context of its last stage of pre-training. A size of 0 follows from the others as in any
// deck.
constexpr PresetRow kPresets[] = {
    // preset, family, layers, heads, kv_heads, hidden, ffn_hidden, vocab, context, tied, theta
    {Preset::gpt2_124m, Family::gpt2, 12, 12, 0, 768, 0, 50257, 1024, true, 10000},
    {Preset::gpt2_350m, Family::gpt2, 24, 16, 0, 1024, 0, 50257, 1024, true, 10000},
    {Preset::gpt2_774m, Family::gpt2, 36, 20, 0, 1280, 0, 50257, 1024, true, 10000},
    {Preset::gpt2_1_5b, Family::gpt2, 48, 25, 0, 1600, 0, 50257, 1024, true, 10000},
    {Preset::llama_1b, Family::llama, 16, 32, 8, 2048, 8192, 128256, 8192, true, 500000},
    {Preset::llama_3b, Family::llama, 28, 24, 8, 3072, 8192, 128256, 8192, true, 500000},
    {Preset::llama_8b, Family::llama, 32, 32, 8, 4096, 14336, 128256, 8192, false, 500000},
    {Preset::llama2_7b, Family::llama, 32, 32, 0, 4096, 11008, 32000, 4096, false, 10000},
    {Preset::mixtral_8x7b, Family::mixtral, 32, 32, 8, 4096, 14336, 32000, 32768, false, 1e6, 128,
     8, 2, 14336},
    {Preset::qwen3_30b_a3b, Family::qwen3_moe, 48, 32, 4, 2048, 6144, 151936, 32768, false, 1e6,
     128, 128, 8, 768},
};

/// What a family implies, as values of [model].
struct FamilyRow {
  Family family;
  NormKind norm = NormKind::rmsnorm;
  NormPlacement norm_placed = NormPlacement::before;
  AttentionMask attention = AttentionMask::causal;
  PositionKind position = PositionKind::rope;
  ActivationKind activation = ActivationKind::swiglu;
  bool bias = false, qkv_bias = false, tied = false;
  QkNorm qk_norm = QkNorm::none;
  BlockForm block = BlockForm::sequential;
  bool scaled_embeddings = false, embedding_norm = false;
  double rope_theta = 10000, rope_local_theta = 0, rotary_share = 1;
  RopePairs rope_pairs = RopePairs::halves;
  bool attention_bias = true, head_bias = false;
  std::int64_t global_every = 0;
  double attention_soft_cap = 0, logit_soft_cap = 0;
  RouterScores scores = RouterScores::softmax;
  bool router_bias = false;
  double norm_eps = 1e-5;
  bool normalised_choices = true;  // of several experts
  GroupScore group_score = GroupScore::largest;
};

/// RoBERTa has BERT's blocks.
constexpr FamilyRow of_bert(Family family) {
  return {.family = family,
          .norm = NormKind::layernorm,
          .norm_placed = NormPlacement::sum,
          .attention = AttentionMask::bidirectional,
          .position = PositionKind::learned,
          .activation = ActivationKind::gelu_erf,
          .bias = true,
          .tied = true,
          .embedding_norm = true};
}

// Radford et al. 2019; Touvron et al. 2023; Jiang et al. 2023 and 2024; Yang et al. 2024 and 2025;
// Abdin et al. 2024; Walsh et al. 2024; Black et al. 2022; Riviere et al. 2024; Kamath et al. 2025;
// Wang and Komatsuzaki 2021; Devlin et al. 2019; Liu et al. 2019; Zeng et al. 2025 (GLM-4.5);
// DeepSeek-AI 2024 (DeepSeek-V2, DeepSeek-V3).
constexpr FamilyRow kFamilies[] = {
    {.family = Family::gpt2,
     .norm = NormKind::layernorm,
     .position = PositionKind::learned,
     .activation = ActivationKind::gelu,
     .bias = true,
     .tied = true},
    {.family = Family::llama},
    {.family = Family::mistral},
    {.family = Family::mixtral, .rope_theta = 1e6},
    {.family = Family::qwen2, .qkv_bias = true, .rope_theta = 1e6},
    {.family = Family::qwen3, .qk_norm = QkNorm::head, .rope_theta = 1e6},
    {.family = Family::qwen3_moe, .qk_norm = QkNorm::head, .rope_theta = 1e6},
    {.family = Family::glm4_moe,
     .rope_theta = 1e6,
     .rotary_share = 0.5,
     .scores = RouterScores::sigmoid,
     .router_bias = true,
     .group_score = GroupScore::two_largest},
    {.family = Family::deepseek_v2,
     .rope_pairs = RopePairs::neighbours,
     .norm_eps = 1e-6,
     .normalised_choices = false},
    {.family = Family::deepseek_v3,
     .rope_pairs = RopePairs::neighbours,
     .scores = RouterScores::sigmoid,
     .router_bias = true,
     .norm_eps = 1e-6,
     .group_score = GroupScore::two_largest},
    {.family = Family::phi3},
    {.family = Family::olmo2,
     .norm_placed = NormPlacement::after,
     .qk_norm = QkNorm::whole,
     .rope_theta = 500000},
    {.family = Family::gpt_neox,
     .norm = NormKind::layernorm,
     .activation = ActivationKind::gelu_erf,
     .bias = true,
     .block = BlockForm::parallel,
     .rotary_share = 0.25},
    {.family = Family::gemma2,
     .norm_placed = NormPlacement::both,
     .activation = ActivationKind::geglu,
     .tied = true,
     .scaled_embeddings = true,
     .global_every = 2,
     .attention_soft_cap = 50,
     .logit_soft_cap = 30},
    {.family = Family::gemma3,
     .norm_placed = NormPlacement::both,
     .activation = ActivationKind::geglu,
     .tied = true,
     .qk_norm = QkNorm::head,
     .scaled_embeddings = true,
     .rope_theta = 1e6,
     .rope_local_theta = 10000,
     .global_every = 6},
    {.family = Family::gptj,
     .norm = NormKind::layernorm,
     .activation = ActivationKind::gelu,
     .bias = true,
     .block = BlockForm::parallel_one_norm,
     .rotary_share = 0.25,
     .rope_pairs = RopePairs::neighbours,
     .attention_bias = false,
     .head_bias = true},
    of_bert(Family::bert),
    of_bert(Family::roberta),
};

/// An absent value: the optimizer does not use the key.
struct OptimizerRow {
  OptimizerName name;
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<std::array<double, 2>> trust = {};
  std::optional<double> momentum = {};
  std::optional<bool> nesterov = {};
  std::optional<std::int64_t> newton_schulz = {};
  std::optional<WholeAttention> attention = {};
  std::optional<std::int64_t> compress_after = {};
  std::optional<double> beta3 = {}, r_min = {}, r_max = {}, r_threshold = {};
  std::optional<double> clip_norm = {};  // absent: the default of all
  std::int64_t zero_stages = kZeroStages;
};

constexpr OptimizerRow kOptimizers[] = {
    {.name = OptimizerName::adamw, .betas = {{0.9, 0.95}}, .eps = 1e-8},
    {.name = OptimizerName::adam, .betas = {{0.9, 0.95}}, .eps = 1e-8},
    {.name = OptimizerName::lamb, .betas = {{0.9, 0.999}}, .eps = 1e-12, .trust = {{0.01, 10}}},
    {.name = OptimizerName::lion, .betas = {{0.9, 0.99}}},
    {.name = OptimizerName::sgd, .momentum = 0.9, .nesterov = false},
    {.name = OptimizerName::muon,
     .betas = {{0.9, 0.95}},
     .eps = 1e-8,
     .momentum = 0.95,
     .nesterov = true,
     .newton_schulz = 5,
     .attention = WholeAttention::projections},
    // After 0 updates there is no second moment yet: a deck must say more.
    {.name = OptimizerName::onebit_adam,
     .betas = {{0.9, 0.999}},
     .eps = 1e-8,
     .compress_after = 0,
     .clip_norm = 0,
     .zero_stages = 3},
    {.name = OptimizerName::onebit_lamb,
     .betas = {{0.9, 0.999}},
     .eps = 1e-12,
     .trust = {{0.01, 10}},
     .compress_after = 0,
     .beta3 = 0.9,
     .r_min = 0.5,
     .r_max = 4.0,
     .r_threshold = 0.1,
     .clip_norm = 0,
     .zero_stages = 3},
};

template <typename T>
ImpliedKey implied(const char* key, const T& value) {
  return {key, Codec<T>::write(value)};
}

/// All keys of the table; unset values for those that the optimizer does not use.
std::vector<ImpliedKey> all_optimizer_keys(OptimizerName optimizer) {
  std::vector<ImpliedKey> keys;
  for (const OptimizerRow& row : kOptimizers) {
    if (row.name != optimizer) continue;
    keys.push_back(implied("optimizer.betas", row.betas));
    keys.push_back(implied("optimizer.eps", row.eps));
    keys.push_back(implied("optimizer.trust", row.trust));
    keys.push_back(implied("optimizer.momentum", row.momentum));
    keys.push_back(implied("optimizer.nesterov", row.nesterov));
    keys.push_back(implied("optimizer.newton_schulz", row.newton_schulz));
    keys.push_back(implied("optimizer.attention", row.attention));
    keys.push_back(implied("optimizer.compress_after", row.compress_after));
    keys.push_back(implied("optimizer.beta3", row.beta3));
    keys.push_back(implied("optimizer.r_min", row.r_min));
    keys.push_back(implied("optimizer.r_max", row.r_max));
    keys.push_back(implied("optimizer.r_threshold", row.r_threshold));
    if (row.clip_norm) keys.push_back(implied("optimizer.clip_norm", row.clip_norm));
  }
  return keys;
}

}  // namespace

std::vector<ImpliedKey> preset_keys(Preset preset) {
  for (const PresetRow& row : kPresets) {
    if (row.preset != preset) continue;
    std::vector<ImpliedKey> keys = {
        implied("model.family", row.family),        implied("model.layers", row.layers),
        implied("model.heads", row.heads),          implied("model.hidden", row.hidden),
        implied("model.vocab", row.vocab),          implied("model.context", row.context),
        implied("model.tied_embeddings", row.tied), implied("model.rope_theta", row.rope_theta)};
    if (row.kv_heads > 0) keys.push_back(implied("model.kv_heads", row.kv_heads));
    if (row.ffn_hidden > 0) keys.push_back(implied("model.ffn_hidden", row.ffn_hidden));
    if (row.head_dim > 0) keys.push_back(implied("model.head_dim", row.head_dim));
    if (row.experts > 0) {
      keys.push_back(implied("moe.experts", row.experts));
      keys.push_back(implied("moe.top_k", row.top_k));
      keys.push_back(implied("moe.ffn_hidden", row.expert_hidden));
    }
    return keys;
  }
  return {};
}

std::vector<ImpliedKey> family_keys(Family family) {
  for (const FamilyRow& row : kFamilies) {
    if (row.family != family) continue;
    return {implied("model.norm", row.norm),
            implied("model.norm_placed", row.norm_placed),
            implied("model.attention", row.attention),
            implied("model.position", row.position),
            implied("model.activation", row.activation),
            implied("model.bias", row.bias),
            implied("model.qkv_bias", row.qkv_bias),
            implied("model.tied_embeddings", row.tied),
            implied("model.qk_norm", row.qk_norm),
            implied("moe.scores", row.scores),
            implied("moe.bias", row.router_bias),
            implied("moe.normalize", row.normalised_choices),
            implied("moe.group_score", row.group_score),
            implied("model.norm_eps", row.norm_eps),
            implied("model.block", row.block),
            implied("model.scaled_embeddings", row.scaled_embeddings),
            implied("model.embedding_norm", row.embedding_norm),
            implied("model.rope_theta", row.rope_theta),
            implied("model.rope_local_theta", row.rope_local_theta),
            implied("model.rotary_share", row.rotary_share),
            implied("model.rope_pairs", row.rope_pairs),
            implied("model.attention_bias", row.attention_bias),
            implied("model.head_bias", row.head_bias),
            implied("model.global_every", row.global_every),
            implied("model.attention_soft_cap", row.attention_soft_cap),
            implied("model.logit_soft_cap", row.logit_soft_cap)};
  }
  return {};
}

std::vector<ImpliedKey> optimizer_keys(OptimizerName optimizer) {
  auto keys = all_optimizer_keys(optimizer);
  std::erase_if(keys, [](const ImpliedKey& key) { return key.value.unset(); });
  return keys;
}

std::vector<std::string> unused_optimizer_keys(OptimizerName optimizer) {
  std::vector<std::string> unused;
  for (const ImpliedKey& key : all_optimizer_keys(optimizer)) {
    if (key.value.unset()) unused.push_back(key.name);
  }
  return unused;
}

std::int64_t zero_stages(OptimizerName optimizer) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.name == optimizer) return row.zero_stages;
  }
  return kZeroStages;
}

}  // namespace tessera::deck
