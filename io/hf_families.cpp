#include "io/hf_families.hpp"

#include <algorithm>
#include <array>

#include "io/hf_config.hpp"

namespace tessera::io {
namespace {

using Numbers = std::vector<HfNumberRow>;
using Fixed = std::vector<HfFixedRow>;
using Implied = std::vector<HfImpliedRow>;
using Dropouts = std::vector<HfDropoutRow>;

template <typename Rows>
Rows joined(Rows first, const Rows& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

/// The settings that most families share.
Numbers common_numbers(double norm_eps, bool tied) {
  return {{"layers", "num_hidden_layers"},
          {"heads", "num_attention_heads"},
          {"hidden", "hidden_size"},
          {"ffn_hidden", "intermediate_size"},
          {"vocab", "vocab_size"},
          {"context", "max_position_embeddings"},
          {"norm_eps", "rms_norm_eps", norm_eps},
          {"tied_embeddings", "tie_word_embeddings", tied}};
}

/// Those and kv heads; 0: as many as heads, and hidden / heads columns.
Numbers numbers(double norm_eps, std::int64_t kv_heads = 0) {
  return joined(common_numbers(norm_eps, false),
                {{"kv_heads", "num_key_value_heads", kv_heads, 0}, {"head_dim", "head_dim", 0, 0}});
}

const Dropouts kAttentionDropout = {{"dropout_attention", "attention_dropout"}};

/// As BERT names them.
const Dropouts kDropoutProbs = {{"dropout_embedding", "hidden_dropout_prob", 0.1},
                                {"dropout_attention", "attention_probs_dropout_prob", 0.1},
                                {"dropout_residual", "hidden_dropout_prob", 0.1}};

/// As GPT-2 names them; `otherwise` is what a file without them means.
Dropouts pdrops(const char* attention, double otherwise) {
  return {{"dropout_embedding", "embd_pdrop", otherwise},
          {"dropout_attention", attention, otherwise},
          {"dropout_residual", "resid_pdrop", otherwise}};
}

const Fixed kAnyFamily = {{"is_encoder_decoder", false}};
const Fixed kNoBiases = joined(kAnyFamily, {{"attention_bias", false}, {"mlp_bias", false}});
const Implied kRms = {{"norm", "rmsnorm"}, {"position", "rope"}, {"bias", false}};
const std::vector<HfWordRow> kSilu = {{"silu", "swiglu"}};
const std::vector<HfWordRow> kGeluGated = {{"gelu_pytorch_tanh", "geglu"}};
constexpr HfRotary kRotary{};
const HfNumberRow kBalance = {
    .key = "moe.aux_loss", .setting = "router_aux_loss_coef", .otherwise = 0.001, .or_zero = true};

/// What GPT-2 and GPT-J call sizes; `tied`: what they mean where they do not say.
std::vector<HfNumberRow> gpt2_numbers(bool tied) {
  return {{"layers", "n_layer"},
          {"heads", "n_head"},
          {"hidden", "n_embd"},
          {"ffn_hidden", "n_inner", 0, 0},  // 0: four times hidden
          {"vocab", "vocab_size"},
          {"context", "n_positions"},
          {"norm_eps", "layer_norm_epsilon", 1e-5},
          {"tied_embeddings", "tie_word_embeddings", tied}};
}

HfFamily gpt2() {
  return {.family = "gpt2",
          .model_type = "gpt2",
          .model_class = "GPT2LMHeadModel",
          .numbers = gpt2_numbers(true),
          .fixed = joined(kAnyFamily, {{"scale_attn_weights", true},
                                       {"scale_attn_by_inverse_layer_idx", false},
                                       {"add_cross_attention", false}}),
          .implied = {{"norm", "layernorm"}, {"position", "learned"}, {"bias", true}},
          .dropouts = pdrops("attn_pdrop", 0.1),
          .activation_setting = "activation_function",
          .activations = {{"gelu_new", "gelu"},
                          {"gelu_pytorch_tanh", "gelu"},
                          {"gelu", "gelu_erf"},
                          {"relu", "relu"}}};
}

HfFamily llama() {
  return {.family = "llama",
          .model_type = "llama",
          .model_class = "LlamaForCausalLM",
          .numbers = numbers(1e-6),
          .fixed = joined(kNoBiases, {{"sliding_window", nullptr},
                                      {"partial_rotary_factor", 1.0},
                                      {"rope_interleaved", false}}),
          .implied = kRms,
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary};
}

HfFamily mistral() {
  static constexpr HfWindows windows{.default_size = 4096};
  return {.family = "mistral",
          .model_type = "mistral",
          .model_class = "MistralForCausalLM",
          .numbers = numbers(1e-6, 8),
          .fixed = kNoBiases,
          .implied = kRms,
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary,
          .windows = &windows};
}

/// Of Qwen: a window that a file names beside use_sliding_window = false is not used.
constexpr HfWindows kQwenWindows{.used = "use_sliding_window",
                                 .first = "max_window_layers",
                                 .default_first = 28,
                                 .default_size = 4096,
                                 .layer_types = true};

HfFamily qwen2() {
  return {.family = "qwen2",
          .model_type = "qwen2",
          .model_class = "Qwen2ForCausalLM",
          .numbers = numbers(1e-6, 32),
          .fixed = joined(kAnyFamily, {{"use_mrope", false}}),
          .implied = joined(kRms, {{"qkv_bias", true}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary,
          .windows = &kQwenWindows};
}

HfFamily qwen3() {
  return {.family = "qwen3",
          .model_type = "qwen3",
          .model_class = "Qwen3ForCausalLM",
          .numbers =
              joined(common_numbers(1e-6, false),
                     {{"kv_heads", "num_key_value_heads", 32, 0}, {"head_dim", "head_dim", 128}}),
          .fixed = kNoBiases,
          .implied = joined(kRms, {{"qk_norm", "head"}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary,
          .windows = &kQwenWindows};
}

/// Every layer has experts, as wide as the dense layer that no layer has.
HfFamily mixtral() {
  static constexpr HfRotary rotary{.default_theta = 1'000'000};
  static constexpr HfWindows windows{};
  return {.family = "mixtral",
          .model_type = "mixtral",
          .model_class = "MixtralForCausalLM",
          .numbers = joined(numbers(1e-5, 8), {{.key = "moe.experts",
                                                .setting = "num_local_experts",
                                                .otherwise = 8,
                                                .alias = "num_experts"},
                                               {"moe.top_k", "num_experts_per_tok", 2},
                                               {"moe.ffn_hidden", "intermediate_size"},
                                               kBalance}),
          .fixed = joined(kNoBiases, {{"router_jitter_noise", 0.0}}),
          .implied = joined(kRms, {{"moe.normalize", true}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &rotary,
          .windows = &windows};
}

/// Files of some models name what the class does not have.
HfFamily qwen3_moe() {
  static constexpr HfWindows windows{.used = "use_sliding_window", .default_size = 4096};
  return {.family = "qwen3_moe",
          .model_type = "qwen3_moe",
          .model_class = "Qwen3MoeForCausalLM",
          .numbers =
              joined(common_numbers(1e-6, false), {{"kv_heads", "num_key_value_heads", 4},
                                                   {"head_dim", "head_dim", 0, 0},
                                                   {.key = "moe.experts",
                                                    .setting = "num_experts",
                                                    .otherwise = 128,
                                                    .alias = "num_local_experts"},
                                                   {"moe.top_k", "num_experts_per_tok", 8},
                                                   {"moe.ffn_hidden", "moe_intermediate_size", 768},
                                                   {"moe.every", "decoder_sparse_step", 1},
                                                   {"moe.normalize", "norm_topk_prob", false},
                                                   kBalance}),
          .fixed = joined(
              kNoBiases,
              {{"qkv_bias", false}, {"use_qk_norm", true}, {"shared_expert_intermediate_size", 0}}),
          .implied = joined(kRms, {{"qk_norm", "head"}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary,
          .windows = &windows,
          .dense_layers = "mlp_only_layers"};
}

/// GLM-4.5, whose routers are those of DeepSeek-V3. Layers behind the last, which predict further
/// tokens, are no part of it.
HfFamily glm4_moe() {
  static constexpr HfRotary rotary{.share = "partial_rotary_factor", .default_share = 0.5};
  return {.family = "glm4_moe",
          .model_type = "glm4_moe",
          .model_class = "Glm4MoeForCausalLM",
          .numbers = joined(common_numbers(1e-5, false),
                            {{"kv_heads", "num_key_value_heads", 8},
                             {"head_dim", "head_dim", 0, 0},
                             {"qkv_bias", "attention_bias", false},
                             {.key = "moe.experts",
                              .setting = "n_routed_experts",
                              .otherwise = 128,
                              .alias = "num_local_experts"},
                             {"moe.top_k", "num_experts_per_tok", 8},
                             {"moe.ffn_hidden", "moe_intermediate_size", 1408},
                             {.key = "moe.shared_ffn_hidden",
                              .setting = "n_shared_experts",
                              .otherwise = 1,
                              .times = "moe.ffn_hidden"},
                             {.key = "moe.first_dense",
                              .setting = "first_k_dense_replace",
                              .otherwise = 1,
                              .or_zero = true},
                             {"moe.normalize", "norm_topk_prob", true},
                             {"moe.scale", "routed_scaling_factor", 1.0},
                             {"moe.groups", "n_group", 1},
                             {"moe.group_top", "topk_group", 1}}),
          .fixed = kAnyFamily,
          .implied = joined(
              kRms,
              {{"moe.scores", "sigmoid"}, {"moe.bias", true}, {"moe.group_score", "two_largest"}}),
          .dropouts = kAttentionDropout,
          .choices = {{"qk_norm", "use_qk_norm", {{false, "none"}, {true, "head"}}}},
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &rotary,
          .further_layers = {.key = "",
                             .setting = "num_nextn_predict_layers",
                             .alias = "num_mtp_layers"},
          .written = {{"num_nextn_predict_layers", 0}}};
}

/// What both generations of DeepSeek's models have: keys and values of latents, whose norms have a
/// constant of their own that other norms must have too.
HfFamily deepseek(std::string_view family, std::string_view model_class,
                  const Numbers& of_experts) {
  static constexpr HfRotary rotary{.scores = true};
  Numbers numbers = joined(
      common_numbers(1e-6, false),
      {{"rope_dim", "qk_rope_head_dim", 64},
       {.key = "head_dim", .setting = "qk_nope_head_dim", .otherwise = 128, .beside = "rope_dim"},
       {"value_dim", "v_head_dim", 128},
       {"kv_latent", "kv_lora_rank", 512},
       {"q_latent", "q_lora_rank", 1536, 0}});
  std::erase_if(numbers, [](const HfNumberRow& row) { return row.key == "norm_eps"; });
  return {.family = family,
          .model_type = family,
          .model_class = model_class,
          .numbers = joined(numbers, of_experts),
          .fixed = joined(kNoBiases, {{"rms_norm_eps", 1e-6}, {"moe_layer_freq", 1}}),
          .implied = joined(kRms, {{"norm_eps", 1e-6}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &rotary,
          .unused = {"head_dim", "qk_head_dim"}};  // which follow from others
}

/// Of DeepSeek's routers, whose groups a file may leave out: what it means without settings.
Numbers deepseek_experts(std::string_view alias, std::int64_t count, std::int64_t shared,
                         std::int64_t hidden, std::int64_t first_dense, double scale) {
  return {{.key = "moe.experts", .setting = "n_routed_experts", .otherwise = count, .alias = alias},
          {"moe.ffn_hidden", "moe_intermediate_size", hidden},
          {.key = "moe.shared_ffn_hidden",
           .setting = "n_shared_experts",
           .otherwise = shared,
           .times = "moe.ffn_hidden"},
          {.key = "moe.first_dense",
           .setting = "first_k_dense_replace",
           .otherwise = first_dense,
           .or_zero = true},
          {"moe.scale", "routed_scaling_factor", scale}};
}

HfFamily deepseek_v2() {
  static constexpr HfGroups groups{
      .setting = "topk_method", .all = "greedy", .of_groups = "group_limited_greedy"};
  HfFamily family = deepseek("deepseek_v2", "DeepseekV2ForCausalLM",
                             joined(deepseek_experts("num_experts", 64, 2, 1407, 0, 1.0),
                                    {{"kv_heads", "num_key_value_heads", 0, 0},
                                     {"moe.top_k", "num_experts_per_tok"},
                                     {"moe.groups", "n_group", 1, 1},
                                     {"moe.group_top", "topk_group", 1, 1}}));
  family.fixed = joined(family.fixed, {{"norm_topk_prob", false}, {"scoring_func", "softmax"}});
  family.implied =
      joined(family.implied,
             {{"rope_pairs", "neighbours"}, {"moe.normalize", false}, {"moe.scores", "softmax"}});
  family.groups = &groups;
  return family;
}

HfFamily deepseek_v3() {
  HfFamily family = deepseek("deepseek_v3", "DeepseekV3ForCausalLM",
                             joined(deepseek_experts("num_local_experts", 256, 1, 2048, 3, 2.5),
                                    {{"kv_heads", "num_key_value_heads", 128, 0},
                                     {"moe.top_k", "num_experts_per_tok", 8},
                                     {"moe.normalize", "norm_topk_prob", true},
                                     {"moe.groups", "n_group", 8},
                                     {"moe.group_top", "topk_group", 4}}));
  family.fixed = joined(family.fixed, {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}});
  family.implied =
      joined(family.implied,
             {{"moe.scores", "sigmoid"}, {"moe.bias", true}, {"moe.group_score", "two_largest"}});
  family.choices = {{"rope_pairs", "rope_interleave", {{true, "neighbours"}, {false, "halves"}}}};
  family.further_layers = {
      .key = "", .setting = "num_nextn_predict_layers", .alias = "num_mtp_layers"};
  family.written = {{"num_nextn_predict_layers", 0}};
  return family;
}

HfFamily phi3() {
  static constexpr HfWindows windows{};
  static constexpr HfRotary rotary{.share = "partial_rotary_factor"};
  return {.family = "phi3",
          .model_type = "phi3",
          .model_class = "Phi3ForCausalLM",
          .numbers = numbers(1e-5),
          .fixed = kNoBiases,
          .implied = kRms,
          .dropouts = pdrops("attention_dropout", 0),
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &rotary,
          .windows = &windows};
}

HfFamily olmo2() {
  return {.family = "olmo2",
          .model_type = "olmo2",
          .model_class = "Olmo2ForCausalLM",
          .numbers = numbers(1e-5),
          .fixed = kNoBiases,
          .implied = joined(kRms, {{"norm_placed", "after"}, {"qk_norm", "whole"}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_act",
          .activations = kSilu,
          .rotary = &kRotary};
}

/// Also of Pythia.
HfFamily gpt_neox() {
  static constexpr HfRotary rotary{
      .theta = "rotary_emb_base", .share = "rotary_pct", .default_share = 0.25};
  return {
      .family = "gpt_neox",
      .model_type = "gpt_neox",
      .model_class = "GPTNeoXForCausalLM",
      .numbers = {{"layers", "num_hidden_layers"},
                  {"heads", "num_attention_heads"},
                  {"hidden", "hidden_size"},
                  {"ffn_hidden", "intermediate_size"},
                  {"vocab", "vocab_size"},
                  {"context", "max_position_embeddings"},
                  {"norm_eps", "layer_norm_eps", 1e-5},
                  {"tied_embeddings", "tie_word_embeddings", false}},
      .fixed = joined(kAnyFamily, {{"attention_bias", true}}),
      .implied = {{"norm", "layernorm"}, {"position", "rope"}, {"bias", true}},
      .dropouts = {{"dropout_attention", "attention_dropout"},
                   {"dropout_embedding", "hidden_dropout"},
                   {"dropout_residual", "hidden_dropout"}},
      .choices = {{"block", "use_parallel_residual", {{true, "parallel"}, {false, "sequential"}}}},
      .activation_setting = "hidden_act",
      .activations = {{"gelu", "gelu_erf"},
                      {"gelu_new", "gelu"},
                      {"gelu_pytorch_tanh", "gelu"},
                      {"gelu_fast", "gelu"},
                      {"relu", "relu"}},
      .rotary = &rotary};
}

HfFamily gptj() {
  static constexpr HfRotaryColumns columns{.setting = "rotary_dim", .otherwise = 64};
  return {.family = "gptj",
          .model_type = "gptj",
          .model_class = "GPTJForCausalLM",
          .numbers = gpt2_numbers(false),
          .fixed = joined(kAnyFamily, {{"rotary", true}, {"scale_attn_weights", true}}),
          .implied = {{"norm", "layernorm"},
                      {"position", "rope"},
                      {"rope_theta", 10000.0},
                      {"rope_pairs", "neighbours"},
                      {"bias", true},
                      {"attention_bias", false},
                      {"block", "parallel_one_norm"},
                      {"head_bias", true}},
          .dropouts = pdrops("attn_pdrop", 0),
          .activation_setting = "activation_function",
          .activations = {{"gelu_new", "gelu"},
                          {"gelu_pytorch_tanh", "gelu"},
                          {"gelu", "gelu_erf"},
                          {"relu", "relu"}},
          .rotary_columns = &columns};
}

/// What a file means that does not say at what Gemma's scores and logits are capped; 0: nowhere.
struct GemmaCaps {
  double scores = 0, logits = 0;
};

/// What both generations of Gemma have.
HfFamily gemma(std::string_view family, const HfRotary& rotary, const HfWindows& windows,
               const GemmaCaps& caps) {
  return {.family = family,
          .model_type = family,
          .model_class = "",
          .numbers = joined(common_numbers(1e-6, true),
                            {{"kv_heads", "num_key_value_heads", 4},
                             {"head_dim", "head_dim", 256},
                             {"query_scalar", "query_pre_attn_scalar", 256},
                             {"attention_soft_cap", "attn_logit_softcapping", caps.scores, 0.0},
                             {"logit_soft_cap", "final_logit_softcapping", caps.logits, 0.0}}),
          .fixed = joined(kNoBiases, {{"use_bidirectional_attention", false}}),
          .implied = joined(kRms, {{"norm_placed", "both"}, {"scaled_embeddings", true}}),
          .dropouts = kAttentionDropout,
          .activation_setting = "hidden_activation",
          .activations = kGeluGated,
          .rotary = &rotary,
          .windows = &windows,
          .unused = {"hidden_act"}};  // hidden_activation is what counts
}

HfFamily gemma2() {
  static constexpr HfWindows windows{.default_size = 4096, .default_every = 2, .layer_types = true};
  HfFamily family = gemma("gemma2", kRotary, windows, {.scores = 50, .logits = 30});
  family.model_class = "Gemma2ForCausalLM";
  return family;
}

HfFamily gemma3() {
  static constexpr HfWindows windows{.default_size = 4096,
                                     .default_every = 6,
                                     .every = "sliding_window_pattern",
                                     .layer_types = true};
  static constexpr HfRotary rotary{.default_theta = 1'000'000,
                                   .local_theta = "rope_local_base_freq",
                                   .default_local_theta = 10000};
  HfFamily family = gemma("gemma3", rotary, windows, {});
  family.model_type = "gemma3_text";
  family.model_class = "Gemma3ForCausalLM";
  family.implied.push_back({"qk_norm", "head"});
  return family;
}

/// An encoder whose masked tokens are found again. Types of tokens but the first, and heads that
/// read the first token, are no part of it.
HfFamily bert() {
  return {.family = "bert",
          .model_type = "bert",
          .model_class = "BertForMaskedLM",
          .numbers = {{"layers", "num_hidden_layers"},
                      {"heads", "num_attention_heads"},
                      {"hidden", "hidden_size"},
                      {"head_hidden", "hidden_size"},
                      {"ffn_hidden", "intermediate_size"},
                      {"vocab", "vocab_size"},
                      {"context", "max_position_embeddings"},
                      {"norm_eps", "layer_norm_eps", 1e-12}},
          .fixed = joined(kAnyFamily, {{"tie_word_embeddings", true},
                                       {"position_embedding_type", "absolute"},
                                       {"is_decoder", false},
                                       {"add_cross_attention", false}}),
          .implied = {{"norm", "layernorm"},
                      {"norm_placed", "sum"},
                      {"attention", "bidirectional"},
                      {"position", "learned"},
                      {"bias", true},
                      {"embedding_norm", true},
                      {"tied_embeddings", true},
                      {"head_norm", true},
                      {"head_bias", true}},
          .dropouts = kDropoutProbs,
          .optional = {{"task.mask_token", "mask_token_id"}},
          .activation_setting = "hidden_act",
          .activation_keys = {"activation", "head_activation"},
          .activations = {{"gelu", "gelu_erf"},
                          {"gelu_new", "gelu"},
                          {"gelu_pytorch_tanh", "gelu"},
                          {"gelu_fast", "gelu"},
                          {"relu", "relu"},
                          {"tanh", "tanh"}},
          .unused = {"type_vocab_size", "directionality", "pooler_fc_size",
                     "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
                     "pooler_type"},
          .written = {{"type_vocab_size", 2}},
          .classes = {"BertForMaskedLM", "BertForPreTraining", "BertModel"},
          .task = "mlm"};
}

/// The same encoder with a head of classes in place of its own.
HfFamily with_classes(HfFamily family, std::string_view model_class, std::string_view task) {
  const auto of_tied = [](const HfFixedRow& row) { return row.setting == "tie_word_embeddings"; };
  std::erase_if(family.fixed, of_tied);
  family.unused.emplace_back("tie_word_embeddings");
  const auto of_head = [](const HfImpliedRow& row) {
    return row.key == "tied_embeddings" || row.key.starts_with("head_");
  };
  std::erase_if(family.implied, of_head);
  family.implied = joined(family.implied, {{"tied_embeddings", false}, {"head_bias", true}});
  family.activation_keys = {"activation"};
  for (const HfOptionalRow& row : std::exchange(family.optional, {}))
    family.unused.push_back(row.setting);
  family.model_class = model_class;
  family.classes = {model_class};
  family.task = task;
  return family;
}

/// Its head says the class of a text from its first token, behind a dense layer.
HfFamily classifier(HfFamily family, std::string_view model_class) {
  family = with_classes(std::move(family), model_class, "classify");
  family.fixed.push_back({.setting = "problem_type",
                          .value = "single_label_classification",
                          .or_null = true,
                          .of_head = true});
  family.implied = joined(family.implied, {{"head_activation", "tanh"}, {"task.pooling", "first"}});
  return family;
}

/// Its head says the class of each token.
HfFamily token_classifier(HfFamily family, std::string_view model_class) {
  family = with_classes(std::move(family), model_class, "tokens");
  std::erase_if(family.numbers, [](const HfNumberRow& row) { return row.key == "head_hidden"; });
  return family;
}

/// The same model with one output, of a text's last token, in place of those that are tokens.
HfFamily scorer(HfFamily family, std::string_view model_class) {
  std::erase_if(family.numbers,
                [](const HfNumberRow& row) { return row.key == "tied_embeddings"; });
  std::erase_if(family.implied, [](const HfImpliedRow& row) { return row.key == "head_bias"; });
  family.unused.emplace_back("tie_word_embeddings");
  family.implied = joined(
      family.implied, {{"tied_embeddings", false}, {"head_bias", false}, {"task.pooling", "last"}});
  family.fixed.push_back(
      {.setting = "problem_type", .value = "regression", .or_null = true, .of_head = true});
  const std::string name = unnamed_class(0);
  family.written.push_back({.setting = "id2label", .value = nlohmann::json{{"0", name}}});
  family.written.push_back({.setting = "label2id", .value = nlohmann::json{{name, 0}}});
  family.model_class = model_class;
  family.classes = {model_class};
  family.task = "reward";
  return family;
}

/// Positions begin behind that of the padding token, whose number is part of the model.
HfFamily roberta() {
  HfFamily family = bert();
  family.family = family.model_type = "roberta";
  family.model_class = "RobertaForMaskedLM";
  std::ranges::find(family.numbers, "context", &HfNumberRow::key)->more = 2;
  family.fixed.push_back({"pad_token_id", 1});
  family.implied.push_back({"head_activation", "gelu_erf"});
  family.activation_keys = {"activation"};
  family.unused = {"type_vocab_size"};
  family.written = {{"type_vocab_size", 1}};
  family.classes = {"RobertaForMaskedLM", "RobertaModel"};
  return family;
}

constexpr auto kHarmless = std::to_array<std::string_view>({
    // where the file comes from, and its types
    "architectures",
    "auto_map",
    "dtype",
    "model_type",
    "name_or_path",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unsloth_version",
    // generation
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "task_specific_params",
    "use_cache",
    // training
    "aux_loss_alpha",
    "classifier_dropout",
    "initializer_range",
    "seq_aux",
    // what is returned, or how the same is computed
    "chunk_size_feed_forward",
    "ep_size",
    "gradient_checkpointing",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "return_dict",
    "use_return_dict",
    // other heads
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    // what others say already
    "is_decoder",
    "max_window_layers",
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "original_max_position_embeddings",
});

}  // namespace

std::span<const HfFamily> hf_families() {
  static const std::vector<HfFamily> families = {
      gpt2(),
      llama(),
      mistral(),
      mixtral(),
      qwen2(),
      qwen3(),
      qwen3_moe(),
      glm4_moe(),
      deepseek_v2(),
      deepseek_v3(),
      phi3(),
      olmo2(),
      gpt_neox(),
      gemma2(),
      gemma3(),
      gptj(),
      bert(),
      classifier(bert(), "BertForSequenceClassification"),
      token_classifier(bert(), "BertForTokenClassification"),
      roberta(),
      classifier(roberta(), "RobertaForSequenceClassification"),
      token_classifier(roberta(), "RobertaForTokenClassification"),
      scorer(gpt2(), "GPT2ForSequenceClassification"),
      scorer(llama(), "LlamaForSequenceClassification"),
      scorer(mistral(), "MistralForSequenceClassification"),
      scorer(mixtral(), "MixtralForSequenceClassification"),
      scorer(qwen2(), "Qwen2ForSequenceClassification"),
      scorer(qwen3(), "Qwen3ForSequenceClassification"),
      scorer(qwen3_moe(), "Qwen3MoeForSequenceClassification"),
      scorer(phi3(), "Phi3ForSequenceClassification"),
      scorer(gpt_neox(), "GPTNeoXForSequenceClassification"),
      scorer(gptj(), "GPTJForSequenceClassification")};
  return families;
}

bool hf_harmless(std::string_view setting) {
  return setting.starts_with('_') || std::ranges::find(kHarmless, setting) != kHarmless.end();
}

}  // namespace tessera::io
