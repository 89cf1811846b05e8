#include "io/hugging_face.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/error.hpp"
#include "support/hf_data.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using nlohmann::json;
using test::data_path;
using test::message_of;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> all;
  for (const float value : values) all.push_back(std::bit_cast<std::uint32_t>(value));
  return all;
}

std::vector<float> read_all(const io::HfModel& model, const io::HfTensor& parameter) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
  model.read(parameter.parameter, 0, values);
  return values;
}

io::ParameterSource source_of(const io::HfModel& model) {
  return [&](std::string_view parameter, std::int64_t begin, std::span<float> out) {
    model.read(parameter, begin, out);
  };
}

/// A writable copy of a committed model.
struct Copy {
  explicit Copy(std::string_view name) : path(directory / name) { fs::copy(data_path(name), path); }
  void edit(const char* file, const std::function<void(json&)>& change) const {
    test::edit_json(path / file, change);
  }
  TemporaryDirectory directory;
  fs::path path;
};

/// Puts what a file says of its tensors through `change`; their bytes stay, and `more` follows
/// them.
void rewrite_header(const fs::path& path, const std::function<void(json&, std::uint64_t)>& change,
                    std::string_view more = "") {
  const std::string bytes = test::read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  json header = json::parse(bytes.substr(8, length));
  const std::string data = bytes.substr(8 + length);
  change(header, data.size());
  const std::string text = header.dump();
  length = text.size();
  const std::string size(reinterpret_cast<const char*>(&length), sizeof(length));
  test::write_file(path, fmt::format("{}{}{}{}", size, text, data, more));
}

class HfOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(HfOracle, ReadsTheParametersOfTheReferenceInAnyRange) {
  const auto model = io::HfModel::open(data_path(GetParam()));
  const io::SafetensorsFile ours(data_path(std::string(GetParam()) + ".ours.safetensors"));
  EXPECT_EQ(model.parameters().size(), ours.tensors().size());
  for (const io::HfTensor& parameter : model.parameters()) {
    const auto expected = ours.tensors().find(parameter.parameter);
    ASSERT_NE(expected, ours.tensors().end()) << parameter.parameter;
    EXPECT_EQ(parameter.shape, expected->second.shape) << parameter.parameter;
    std::vector<float> whole(static_cast<std::size_t>(expected->second.elements));
    ours.read(expected->second, 0, whole);
    EXPECT_EQ(bits(read_all(model, parameter)), bits(whole)) << parameter.parameter;
    for (std::size_t begin = 0; begin < whole.size(); begin += 5)
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{19}}) {
        if (begin + count > whole.size()) continue;
        std::vector<float> part(count);
        model.read(parameter.parameter, static_cast<std::int64_t>(begin), part);
        EXPECT_EQ(bits(part), bits(std::span(whole).subspan(begin, count)));
      }
  }
}

TEST_P(HfOracle, ExportAndImportGiveTheSameBits) {
  const TemporaryDirectory dir;
  const auto model = io::HfModel::open(data_path(GetParam()));
  for (const std::int64_t shard_bytes : {std::int64_t{1} << 30, std::int64_t{1000}}) {
    const fs::path path = dir / std::to_string(shard_bytes);
    io::export_hugging_face({.directory = path,
                             .architecture = model.architecture(),
                             .type = model.stored_dtype(),
                             .shard_bytes = shard_bytes},
                            source_of(model));
    const auto again = io::HfModel::open(path);
    EXPECT_EQ(fs::exists(path / "model.safetensors"), shard_bytes > 1000);
    EXPECT_EQ(again.architecture(), model.architecture());
    EXPECT_EQ(again.stored_dtype(), model.stored_dtype());
    for (const io::HfTensor& parameter : model.parameters()) {
      EXPECT_EQ(bits(read_all(again, parameter)), bits(read_all(model, parameter)));
    }
  }
}

/// All models of tests/data/hf.
constexpr std::array kModels = {"gpt2",
                                "llama",
                                "llama_sharded",
                                "llama3",
                                "mistral",
                                "qwen2",
                                "qwen3",
                                "phi3",
                                "olmo2",
                                "gpt_neox",
                                "gemma2",
                                "gemma3",
                                "llama_yarn",
                                "gpt_neox_sequential",
                                "qwen2_windows",
                                "qwen3_windows",
                                "gptj",
                                "llama_dynamic",
                                "bert",
                                "roberta",
                                "bert_classes",
                                "roberta_classes",
                                "bert_tokens",
                                "roberta_tokens",
                                "llama_reward",
                                "gpt_neox_reward",
                                "mixtral",
                                "qwen3_moe",
                                "qwen3_moe_sparse",
                                "glm4_moe",
                                "glm4_moe_plain",
                                "deepseek_v2",
                                "deepseek_v2_groups",
                                "deepseek_v3",
                                "deepseek_v3_plain"};
INSTANTIATE_TEST_SUITE_P(Models, HfOracle, ::testing::ValuesIn(kModels));

// tests/data/check_hf.py loads what this leaves with transformers.
TEST(HfExport, KeepsDirectoriesForTheReferenceCheck) {
  const char* kept = std::getenv("TESSERA_EXPORT_DIRECTORY");
  if (kept == nullptr) GTEST_SKIP() << "needs TESSERA_EXPORT_DIRECTORY: see check_hf.py";
  for (const char* name : kModels) {
    const auto model = io::HfModel::open(data_path(name));
    io::export_hugging_face({.directory = fs::path(kept) / name,
                             .architecture = model.architecture(),
                             .type = model.stored_dtype(),
                             .classes = {model.classes().begin(), model.classes().end()},
                             .shard_bytes = name == std::string("llama_sharded") ? 1000 : 1 << 30},
                            source_of(model));
  }
}

TEST(HfModel, DescribesTheArchitectureAsDeckKeys) {
  const auto model = io::HfModel::open(data_path("llama"));
  const io::HfArchitecture expected{.family = "llama",
                                    .layers = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 6,
                                    .hidden = 8,
                                    .ffn_hidden = 12,
                                    .vocab = 13,
                                    .context = 16,
                                    .norm_eps = 1e-6,
                                    .rope_theta = 50000,
                                    .norm = "rmsnorm",
                                    .position = "rope",
                                    .activation = "swiglu",
                                    .tied_embeddings = false,
                                    .bias = false};
  EXPECT_EQ(model.architecture(), expected);
  EXPECT_EQ(model.stored_dtype(), DType::f32);
  EXPECT_EQ(io::HfModel::open(data_path("llama_sharded")).stored_dtype(), DType::bf16);
  std::map<std::string, io::HfKey> keys;
  for (const io::HfKey& key : model.keys())
    EXPECT_TRUE(keys.emplace(key.key, key).second) << key.key;
  EXPECT_EQ(keys.size(), io::kHfFields.size() - 3 - 14)
      << "all but those of masked tokens and classes, and what experts are that it has not";
  EXPECT_EQ(std::get<std::int64_t>(keys.at("moe.experts").value), 0);
  EXPECT_EQ(std::get<std::int64_t>(keys.at("kv_heads").value), 2);
  EXPECT_EQ(std::get<double>(keys.at("rope_theta").value), 50000.0);
  EXPECT_EQ(std::get<bool>(keys.at("tied_embeddings").value), false);
  EXPECT_EQ(keys.at("rope_theta").place,
            (data_path("llama") / "config.json").string() + ": $.rope_parameters.rope_theta");

  const auto gpt2 = io::HfModel::open(data_path("gpt2")).architecture();
  EXPECT_EQ(gpt2.ffn_hidden, 12);
  EXPECT_EQ(gpt2.kv_heads, 2);
  EXPECT_EQ(gpt2.head_dim, 4);
  EXPECT_EQ(gpt2.activation, "gelu");
  EXPECT_TRUE(gpt2.tied_embeddings && gpt2.bias);
}

TEST(HfModel, DescribesEachFamilyByItsFeatures) {
  const auto read = [](const char* name) {
    return io::HfModel::open(data_path(name)).architecture();
  };
  const auto llama3 = read("llama3");
  EXPECT_EQ(llama3.rope_scaling, "llama3");
  EXPECT_EQ(std::tuple(llama3.rope_factor, llama3.rope_low_frequency, llama3.rope_high_frequency,
                       llama3.rope_original_context),
            std::tuple(4.0, 0.5, 2.0, 8));
  const auto mistral = read("mistral");
  EXPECT_EQ(std::tuple(mistral.window, mistral.global_every), std::tuple(5, 0));
  EXPECT_TRUE(read("qwen2").qkv_bias && !read("qwen2").bias);
  EXPECT_EQ(read("qwen3").qk_norm, "head");
  EXPECT_EQ(read("phi3").rotary_share, 0.67);
  EXPECT_EQ(read("olmo2").qk_norm, "whole");
  EXPECT_EQ(read("olmo2").norm_placed, "after");
  const auto gpt2 = read("gpt2");
  EXPECT_EQ(std::tuple(gpt2.dropout_embedding, gpt2.dropout_attention, gpt2.dropout_residual),
            std::tuple(0.1, 0.1, 0.1));
  const auto neox = read("gpt_neox");
  EXPECT_EQ(std::tuple(neox.block, neox.activation, neox.rotary_share),
            std::tuple("parallel", "gelu_erf", 0.5));
  const auto gemma2 = read("gemma2");
  EXPECT_EQ(std::tuple(gemma2.window, gemma2.global_every, gemma2.query_scalar,
                       gemma2.attention_soft_cap, gemma2.logit_soft_cap),
            std::tuple(5, 2, 9, 2.0, 3.0));
  EXPECT_EQ(std::tuple(gemma2.norm_placed, gemma2.activation, gemma2.scaled_embeddings),
            std::tuple("both", "geglu", true));
  const auto gemma3 = read("gemma3");
  EXPECT_EQ(std::tuple(gemma3.rope_theta, gemma3.rope_local_theta, gemma3.rope_scaling,
                       gemma3.rope_factor, gemma3.global_every, gemma3.logit_soft_cap),
            std::tuple(5000.0, 100.0, "linear", 2.0, 2, 0.0));
}

// What transformers takes where a file says nothing is not what null says.
TEST(HfModel, MissingSettingsAreTheDefaultsOfTransformersAndNullIsNone) {
  const auto edited = [](const char* name, const std::function<void(json&)>& change) {
    const Copy copy(name);
    copy.edit("config.json", change);
    return io::read_hf_config(copy.path / "config.json").architecture;
  };
  const auto without = [&](const char* name, const std::vector<const char*>& settings) {
    return edited(name, [&](json& c) {
      for (const char* setting : settings) c.erase(setting);
    });
  };
  const auto with_null = [&](const char* name, const std::vector<const char*>& settings) {
    return edited(name, [&](json& c) {
      for (const char* setting : settings) c[setting] = nullptr;
    });
  };
  EXPECT_EQ(without("mistral", {"sliding_window"}).window, 4096);
  EXPECT_EQ(with_null("mistral", {"sliding_window"}).window, 0);
  EXPECT_EQ(edited("mistral",
                   [](json& c) { c["num_attention_heads"] = 16, c.erase("num_key_value_heads"); })
                .kv_heads,
            8);
  EXPECT_EQ(with_null("mistral", {"num_key_value_heads", "head_dim"}).kv_heads, 4);
  EXPECT_EQ(without("llama", {"num_key_value_heads"}).kv_heads, 4);
  EXPECT_EQ(edited("qwen2",
                   [](json& c) {
                     c["num_attention_heads"] = 64, c["hidden_size"] = 128;
                     c.erase("num_key_value_heads");
                   })
                .kv_heads,
            32);
  EXPECT_EQ(without("qwen2_windows", {"sliding_window"}).window, 4096);
  EXPECT_EQ(without("phi3", {"sliding_window"}).window, 0);
  const auto gemma2 = without(
      "gemma2", {"sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
                 "query_pre_attn_scalar", "head_dim", "num_key_value_heads", "layer_types"});
  EXPECT_EQ(
      std::tuple(gemma2.window, gemma2.global_every, gemma2.attention_soft_cap,
                 gemma2.logit_soft_cap, gemma2.query_scalar, gemma2.head_dim, gemma2.kv_heads),
      std::tuple(4096, 2, 50.0, 30.0, 256, 256, 4));
  const auto uncapped = with_null("gemma2", {"attn_logit_softcapping", "final_logit_softcapping"});
  EXPECT_EQ(std::tuple(uncapped.attention_soft_cap, uncapped.logit_soft_cap), std::tuple(0.0, 0.0));
  const json written = json::parse(io::write_hf_config(uncapped, DType::f32, {}));
  EXPECT_TRUE(written["attn_logit_softcapping"].is_null() && written.contains("sliding_window"));
  const auto gemma3 =
      without("gemma3", {"sliding_window", "attn_logit_softcapping", "final_logit_softcapping"});
  EXPECT_EQ(std::tuple(gemma3.window, gemma3.attention_soft_cap, gemma3.logit_soft_cap),
            std::tuple(4096, 0.0, 0.0));
  const auto mixtral = edited("mixtral", [](json& c) {
    c["num_attention_heads"] = 16;
    for (const char* setting :
         {"num_local_experts", "num_experts_per_tok", "router_aux_loss_coef", "rms_norm_eps",
          "sliding_window", "rope_parameters", "num_key_value_heads", "router_jitter_noise"})
      c.erase(setting);
  });
  EXPECT_EQ(
      std::tuple(mixtral.moe_experts, mixtral.moe_top_k, mixtral.moe_aux_loss, mixtral.norm_eps,
                 mixtral.window, mixtral.rope_theta, mixtral.kv_heads, mixtral.moe_normalize),
      std::tuple(8, 2, 0.001, 1e-5, 0, 1e6, 8, true));
  const auto qwen =
      without("qwen3_moe_sparse",
              {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
               "decoder_sparse_step", "norm_topk_prob", "router_aux_loss_coef", "mlp_only_layers",
               "num_key_value_heads", "sliding_window", "head_dim", "rope_parameters"});
  EXPECT_EQ(std::tuple(qwen.moe_experts, qwen.moe_top_k, qwen.moe_ffn_hidden, qwen.moe_every,
                       qwen.moe_normalize, qwen.moe_aux_loss, qwen.moe_first_dense, qwen.kv_heads),
            std::tuple(128, 8, 768, 1, false, 0.001, 0, 4));
  EXPECT_EQ(std::tuple(qwen.window, qwen.head_dim, qwen.rope_theta), std::tuple(4096, 2, 10000.0));
  EXPECT_EQ(without("qwen3_moe_sparse", {"use_sliding_window"}).window, 0);
  const auto glm = edited("glm4_moe", [](json& c) {
    c["num_attention_heads"] = 16;
    for (const char* setting :
         {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
          "first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor", "n_group",
          "topk_group", "use_qk_norm", "attention_bias", "num_key_value_heads", "rms_norm_eps",
          "rope_parameters", "num_nextn_predict_layers"})
      c.erase(setting);
  });
  EXPECT_EQ(std::tuple(glm.moe_experts, glm.moe_top_k, glm.moe_ffn_hidden,
                       glm.moe_shared_ffn_hidden, glm.moe_first_dense, glm.moe_normalize,
                       glm.moe_scale, glm.moe_groups, glm.moe_group_top, glm.moe_group_score),
            std::tuple(128, 8, 1408, 1408, 1, true, 1.0, 1, 1, "largest"));
  EXPECT_EQ(std::tuple(glm.qk_norm, glm.qkv_bias, glm.kv_heads, glm.norm_eps, glm.rotary_share),
            std::tuple("none", false, 8, 1e-5, 0.5));
  const auto v2 =
      without("deepseek_v2", {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                              "v_head_dim", "n_routed_experts", "moe_intermediate_size",
                              "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor",
                              "num_key_value_heads", "n_group", "topk_group", "topk_method"});
  EXPECT_EQ(std::tuple(v2.kv_latent, v2.q_latent, v2.head_dim, v2.rope_dim, v2.value_dim),
            std::tuple(512, 1536, 192, 64, 128));
  EXPECT_EQ(std::tuple(v2.moe_experts, v2.moe_ffn_hidden, v2.moe_shared_ffn_hidden,
                       v2.moe_first_dense, v2.moe_scale, v2.moe_groups, v2.kv_heads),
            std::tuple(64, 1407, 2 * 1407, 0, 1.0, 1, 4));
  const auto v3 = edited("deepseek_v3", [](json& c) {
    c["num_attention_heads"] = 128;
    for (const char* setting :
         {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
          "n_routed_experts", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace",
          "routed_scaling_factor", "num_key_value_heads", "n_group", "topk_group",
          "num_experts_per_tok", "norm_topk_prob", "rope_interleave", "num_nextn_predict_layers"})
      c.erase(setting);
  });
  EXPECT_EQ(
      std::tuple(v3.kv_latent, v3.q_latent, v3.head_dim, v3.rope_dim, v3.value_dim, v3.rope_pairs),
      std::tuple(512, 1536, 192, 64, 128, "neighbours"));
  EXPECT_EQ(
      std::tuple(v3.moe_experts, v3.moe_ffn_hidden, v3.moe_shared_ffn_hidden, v3.moe_first_dense,
                 v3.moe_scale, v3.moe_groups, v3.moe_group_top, v3.moe_top_k, v3.moe_normalize),
      std::tuple(256, 2048, 2048, 3, 2.5, 8, 4, 8, true));
  const auto bert = without("bert", {"layer_norm_eps", "hidden_act", "hidden_dropout_prob",
                                     "attention_probs_dropout_prob", "mask_token_id"});
  EXPECT_EQ(std::tuple(bert.norm_eps, bert.activation, bert.dropout_residual,
                       bert.dropout_attention, bert.mask_token),
            std::tuple(1e-12, "gelu_erf", 0.1, 0.1, -1));
}

TEST(HfModel, DescribesExperts) {
  const auto model = io::HfModel::open(data_path("mixtral"));
  const auto& mixtral = model.architecture();
  EXPECT_EQ(std::tuple(mixtral.moe_experts, mixtral.moe_top_k, mixtral.moe_ffn_hidden,
                       mixtral.ffn_hidden, mixtral.moe_every, mixtral.moe_first_dense,
                       mixtral.moe_normalize, mixtral.moe_aux_loss, mixtral.window),
            std::tuple(4, 2, 12, 12, 1, 0, true, 0.02, 5));
  EXPECT_EQ(model.keys().size(), io::kHfFields.size() - 3) << "experts are described in full";
  const auto qwen = io::HfModel::open(data_path("qwen3_moe")).architecture();
  EXPECT_EQ(std::tuple(qwen.moe_experts, qwen.moe_top_k, qwen.moe_ffn_hidden, qwen.ffn_hidden,
                       qwen.moe_every, qwen.moe_first_dense, qwen.moe_normalize, qwen.moe_aux_loss,
                       qwen.qk_norm, qwen.window),
            std::tuple(5, 2, 7, 12, 1, 1, true, 0.001, "head", 0));
  const auto sparse = io::HfModel::open(data_path("qwen3_moe_sparse")).architecture();
  EXPECT_EQ(std::tuple(sparse.moe_top_k, sparse.moe_every, sparse.moe_first_dense,
                       sparse.moe_normalize, sparse.moe_aux_loss, sparse.window),
            std::tuple(3, 2, 0, false, 0.0, 5));
  const json written = json::parse(io::write_hf_config(qwen, DType::f32, {}));
  for (const auto& [setting, value] : std::map<std::string, json>{{"num_experts", 5},
                                                                  {"num_experts_per_tok", 2},
                                                                  {"moe_intermediate_size", 7},
                                                                  {"intermediate_size", 12},
                                                                  {"decoder_sparse_step", 1},
                                                                  {"mlp_only_layers", {0}},
                                                                  {"norm_topk_prob", true},
                                                                  {"router_aux_loss_coef", 0.001}})
    EXPECT_EQ(written[setting], value) << setting;
  EXPECT_FALSE(written.contains("num_local_experts")) << "one name is enough";
  const auto glm = io::HfModel::open(data_path("glm4_moe")).architecture();
  EXPECT_EQ(std::tuple(glm.moe_scores, glm.moe_bias, glm.moe_shared_ffn_hidden, glm.moe_first_dense,
                       glm.moe_scale, glm.moe_groups, glm.moe_group_top, glm.moe_group_score,
                       glm.qk_norm, glm.qkv_bias),
            std::tuple("sigmoid", true, 14, 1, 1.5, 3, 2, "two_largest", "head", true));
}

TEST(HfModel, DescribesLatents) {
  const auto v3 = io::HfModel::open(data_path("deepseek_v3")).architecture();
  EXPECT_EQ(std::tuple(v3.kv_latent, v3.q_latent, v3.head_dim, v3.rope_dim, v3.value_dim,
                       v3.kv_heads, v3.rope_pairs, v3.rope_scaling, v3.rope_mscale_all_dim),
            std::tuple(6, 10, 6, 4, 5, 4, "neighbours", "yarn", 0.7));
  EXPECT_EQ(
      std::tuple(v3.moe_scores, v3.moe_bias, v3.moe_groups, v3.moe_group_top, v3.moe_group_score),
      std::tuple("sigmoid", true, 3, 2, "two_largest"));
  const auto plain = io::HfModel::open(data_path("deepseek_v3_plain")).architecture();
  EXPECT_EQ(std::tuple(plain.q_latent, plain.rope_pairs, plain.moe_groups, plain.moe_normalize),
            std::tuple(0, "halves", 1, false));
  const auto groups = io::HfModel::open(data_path("deepseek_v2_groups")).architecture();
  EXPECT_EQ(std::tuple(groups.moe_scores, groups.moe_bias, groups.moe_groups, groups.moe_group_top,
                       groups.moe_group_score, groups.moe_scale),
            std::tuple("softmax", false, 3, 2, "largest", 2.0));
  // Groups that a file names beside a choice among all experts are of no effect.
  const Copy copy("deepseek_v2_groups");
  copy.edit("config.json", [](json& c) { c["topk_method"] = "greedy"; });
  EXPECT_EQ(io::HfModel::open(copy.path).architecture().moe_groups, 1);
  const auto written = [](const auto& a) {
    return json::parse(io::write_hf_config(a, DType::f32, {}));
  };
  EXPECT_EQ(written(v3)["qk_nope_head_dim"], 2);
  EXPECT_EQ(written(v3)["rope_scaling"]["mscale_all_dim"], 0.7);
  auto as_wide = v3;
  as_wide.value_dim = 0;
  EXPECT_EQ(written(as_wide)["v_head_dim"], 6);
  as_wide.kv_latent = 0;
  EXPECT_THROW(written(as_wide), DataError);
  EXPECT_TRUE(written(plain)["q_lora_rank"].is_null());
  EXPECT_EQ(written(plain)["rope_interleave"], false);
  EXPECT_EQ(written(groups)["topk_method"], "group_limited_greedy");
  EXPECT_EQ(written(io::HfModel::open(data_path("deepseek_v2")).architecture())["topk_method"],
            "greedy");
}

TEST(HfModel, LeavesOutLayersBehindTheLast) {
  const Copy copy("glm4_moe");
  copy.edit("config.json",
            [](json& c) { c["num_hidden_layers"] = 2, c["num_nextn_predict_layers"] = 1; });
  const auto model = io::HfModel::open(copy.path);
  const auto left = model.other_heads();
  EXPECT_TRUE(std::ranges::any_of(left, [](const auto& name) {
    return name == "model.layers.2.mlp.gate.e_score_correction_bias";
  }));
  for (const auto& name : left) EXPECT_TRUE(name.starts_with("model.layers.2.")) << name;
}

// Which layers have experts: the last of every so many, but for the first so many, of which those
// that have none anyway need not be listed.
TEST(HfModel, KnowsLayersWithoutExperts) {
  const auto first_dense = [](std::int64_t every, const json& listed) {
    const Copy copy("qwen3_moe_sparse");
    copy.edit("config.json", [&](json& c) {
      c["num_hidden_layers"] = 6, c["decoder_sparse_step"] = every, c["mlp_only_layers"] = listed;
    });
    const auto a = io::read_hf_config(copy.path / "config.json").architecture;
    const std::set<std::int64_t> dense(listed.begin(), listed.end());
    for (std::int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(a.has_experts(i), !dense.contains(i) && (i + 1) % every == 0) << i;
    copy.edit("config.json",
              [&](json& c) { c = json::parse(io::write_hf_config(a, DType::f32, {})); });
    EXPECT_EQ(io::read_hf_config(copy.path / "config.json").architecture, a);
    return a.moe_first_dense;
  };
  EXPECT_EQ(first_dense(1, nullptr), 0);
  EXPECT_EQ(first_dense(1, json::array()), 0);
  EXPECT_EQ(first_dense(1, {1, 0, 1}), 2);
  EXPECT_EQ(first_dense(1, {0, 9, -1}), 1) << "there are no such layers";
  EXPECT_EQ(first_dense(2, {0}), 1);
  EXPECT_EQ(first_dense(2, {1}), 2);
  EXPECT_EQ(first_dense(3, {4, 2}), 5);
  EXPECT_EQ(first_dense(2, {4}), 0) << "it has none anyway";
  for (const auto& [every, listed] :
       std::vector<std::pair<std::int64_t, json>>{{1, {1}}, {1, {0, 5}}, {2, {1, 5}}}) {
    const auto message = message_of<DataError>([&] { first_dense(every, listed); });
    EXPECT_NE(message.find(fmt::format("$.mlp_only_layers: layer {} without experts behind a layer "
                                       "with them is not supported",
                                       listed.back().get<int>())),
              std::string::npos)
        << message;
  }
}

TEST(HfModel, DescribesEncoders) {
  const auto bert = io::HfModel::open(data_path("bert")).architecture();
  EXPECT_EQ(std::tuple(bert.attention, bert.norm_placed, bert.embedding_norm, bert.head_hidden,
                       bert.head_activation, bert.head_norm, bert.head_bias, bert.task),
            std::tuple("bidirectional", "sum", true, 8, "gelu_erf", true, true, "mlm"));
  EXPECT_EQ(std::tuple(bert.context, bert.mask_token), std::tuple(16, 3));
  const auto roberta = io::HfModel::open(data_path("roberta")).architecture();
  EXPECT_EQ(std::tuple(roberta.activation, roberta.head_activation, roberta.context),
            std::tuple("gelu", "gelu_erf", 16))
      << "of 18 positions two are before the first";
  auto changed = bert;
  changed.head_activation = "relu";
  const auto message =
      message_of<DataError>([&] { (void)io::write_hf_config(changed, DType::f32, {}); });
  EXPECT_NE(message.find("model.head_activation = \"relu\", needed: \"gelu_erf\""),
            std::string::npos)
      << message;
  changed = bert, changed.head_hidden = 12;
  EXPECT_NE(message_of<DataError>([&] {
              (void)io::write_hf_config(changed, DType::f32, {});
            }).find("model.head_hidden = 12, needed: 8"),
            std::string::npos);
}

TEST(HfModel, NamesClasses) {
  for (const char* name : {"bert_classes", "roberta_classes"}) {
    const auto model = io::HfModel::open(data_path(name));
    const auto& a = model.architecture();
    EXPECT_EQ(std::tuple(a.task, a.labels, a.pooling, a.head_activation, a.tied_embeddings),
              std::tuple("classify", 3, "first", "tanh", false));
    const std::vector<std::string> names(model.classes().begin(), model.classes().end());
    EXPECT_EQ(names, (std::vector<std::string>{"warm", "cold", "hot"}));
    const json written = json::parse(io::write_hf_config(a, DType::f32, {}, names));
    EXPECT_EQ(written["id2label"], (json{{"0", "warm"}, {"1", "cold"}, {"2", "hot"}}));
    EXPECT_EQ(written["label2id"], (json{{"warm", 0}, {"cold", 1}, {"hot", 2}}));
  }
  const Copy copy("bert_classes");
  copy.edit("config.json", [](json& c) {
    c["id2label"] = {{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}};
  });
  EXPECT_TRUE(io::HfModel::open(copy.path).classes().empty()) << "these are no names";
  copy.edit("config.json",
            [](json& c) { c.erase("id2label"), c["num_labels"] = 3, c["problem_type"] = nullptr; });
  const auto numbered = io::HfModel::open(copy.path);
  EXPECT_EQ(numbered.architecture().labels, 3);
  EXPECT_TRUE(numbered.classes().empty());
  const json written = json::parse(io::write_hf_config(numbered.architecture(), DType::f32, {}));
  EXPECT_EQ(written["id2label"], (json{{"0", "LABEL_0"}, {"1", "LABEL_1"}, {"2", "LABEL_2"}}));
}

TEST(HfModel, NamesClassesOfTokens) {
  for (const char* name : {"bert_tokens", "roberta_tokens"}) {
    const auto model = io::HfModel::open(data_path(name));
    const auto& a = model.architecture();
    EXPECT_EQ(
        std::tuple(a.task, a.labels, a.pooling, a.head_hidden, a.head_bias, a.tied_embeddings),
        std::tuple("tokens", 3, "none", 0, true, false));
    EXPECT_EQ(json::parse(io::write_hf_config(a, DType::f32, {}))["architectures"][0],
              std::string(name).starts_with("bert_") ? "BertForTokenClassification"
                                                     : "RobertaForTokenClassification");
  }
}

TEST(HfModel, LeavesItsHeadForAFreshOne) {
  const auto open = [](const char* name, const char* task, std::int64_t hidden) {
    return io::HfModel::open(data_path(name), io::HfFreshHead{.task = task, .hidden = hidden});
  };
  const auto leaves_head = [&](const char* name, const char* task) {
    const auto own = io::HfModel::open(data_path(name));
    const auto model = open(name, task, 0);
    EXPECT_EQ(model.architecture().task, task);
    EXPECT_FALSE(model.architecture().tied_embeddings);
    EXPECT_EQ(model.architecture().logit_soft_cap, 0);
    for (const auto& p : own.parameters()) {
      const bool of_head = p.parameter.starts_with("head");
      EXPECT_EQ(model.has(p.parameter), !of_head) << name << ": " << p.parameter;
      if (of_head) continue;
      EXPECT_EQ(bits(read_all(model, p)), bits(read_all(own, p))) << p.parameter;
    }
  };
  for (const char* name : {"bert", "roberta", "bert_tokens", "bert_classes", "gpt2", "qwen2",
                           "gemma2", "gptj", "llama_sharded"}) {
    leaves_head(name, "tokens");
    leaves_head(name, "reward");
  }
  leaves_head("gpt_neox", "reward");
  leaves_head("llama_reward", "reward");
  EXPECT_TRUE(open("bert_classes", "classify", 8).has("head_dense.weight")) << "its pooler";
  EXPECT_FALSE(open("bert_classes", "classify", 8).has("head.weight"));
  EXPECT_FALSE(open("bert_classes", "classify", 12).has("head_dense.weight"));
  EXPECT_EQ(std::ssize(open("bert_classes", "classify", 12).other_heads()), 4);
  EXPECT_FALSE(open("bert", "classify", 8).has("head_dense.weight"));
  EXPECT_FALSE(open("roberta_classes", "classify", 8).has("head_dense.weight")) << "of its head";
}

TEST(HfConfig, SaysWhichHeadAClassifierBeginsWith) {
  const auto read = [](const std::filesystem::path& directory, io::HfWantedHead wanted) {
    return io::read_hf_config(directory / "config.json", wanted);
  };
  const auto head = [&](const char* name, const char* task) {
    return read(data_path(name), {.task = task, .head = {}}).head;
  };
  EXPECT_EQ(head("bert", "classify"), HeadWeights::fresh);
  EXPECT_EQ(head("bert_tokens", "classify"), HeadWeights::fresh);
  EXPECT_EQ(head("bert_classes", "classify"), HeadWeights::directory);
  EXPECT_EQ(head("gpt2", "classify"), HeadWeights::fresh);
  EXPECT_EQ(head("gpt2", "reward"), HeadWeights::fresh);
  EXPECT_EQ(head("llama_reward", "reward"), HeadWeights::directory);
  EXPECT_EQ(read(data_path("gpt2"), {.task = "classify", .head = {}}).architecture.pooling, "last");
  EXPECT_EQ(read(data_path("bert"), {.task = "classify", .head = {}}).architecture.pooling,
            "first");
  const auto fresh =
      read(data_path("bert_classes"), {.task = "classify", .head = HeadWeights::fresh});
  EXPECT_EQ(fresh.architecture.labels, 0);
  EXPECT_TRUE(fresh.classes.empty());
  for (const io::HfKey& key : fresh.keys)
    EXPECT_EQ(key.fixed, !(key.key.starts_with("head_") || key.key == "task.pooling" ||
                           key.key == "tied_embeddings" || key.key == "logit_soft_cap"))
        << key.key;
  const auto message = message_of<DataError>(
      [&] { read(data_path("gpt2"), {.task = "tokens", .head = HeadWeights::directory}); });
  EXPECT_NE(message.find("a head for task.kind = \"tokens\" is not there"), std::string::npos)
      << message;
  const Copy other("gpt2");
  other.edit("config.json",
             [](json& c) { c["architectures"] = {"GPT2ForSequenceClassification"}; });
  const auto unsupported =
      message_of<DataError>([&] { read(other.path, {.task = "classify", .head = {}}); });
  EXPECT_NE(unsupported.find("a head for task.kind = \"classify\" is not supported"),
            std::string::npos)
      << unsupported;
  EXPECT_EQ(read(other.path, {.task = "classify", .head = HeadWeights::fresh}).head,
            HeadWeights::fresh);
  // What the file says of a head that is not read does not matter.
  const Copy copy("bert_classes");
  copy.edit("config.json", [](json& c) {
    c["architectures"] = {"BertForQuestionAnswering"};
    c["problem_type"] = "multi_label_classification";
  });
  EXPECT_EQ(read(copy.path, {.task = "classify", .head = {}}).head, HeadWeights::fresh);
}

// Positions hold the first type of tokens too, and files keep a place for both.
TEST(HfModel, TypesOfTokensAreInPositions) {
  const TemporaryDirectory dir;
  for (const char* name : {"bert", "roberta"}) {
    const auto model = io::HfModel::open(data_path(name));
    io::export_hugging_face({.directory = dir / name, .architecture = model.architecture()},
                            source_of(model));
    const io::SafetensorsFile file(dir / name / "model.safetensors");
    const auto tensor = [&](const char* of) {
      const auto& entry =
          file.tensors().find(fmt::format("{}.embeddings.{}.weight", name, of))->second;
      std::vector<float> values(static_cast<std::size_t>(entry.elements));
      file.read(entry, 0, values);
      return values;
    };
    const std::size_t types = name == std::string("bert") ? 2 : 1, unused = types == 1 ? 2 : 0;
    EXPECT_EQ(tensor("token_type_embeddings"), std::vector<float>(types * 8));
    const auto stored = tensor("position_embeddings");
    ASSERT_EQ(stored.size(), (unused + 16) * 8);
    EXPECT_EQ(std::vector<float>(stored.begin(), stored.begin() + std::ptrdiff_t(unused) * 8),
              std::vector<float>(unused * 8));
    EXPECT_EQ(bits(std::span(stored).subspan(unused * 8)),
              bits(read_all(model, model.parameters()[1])));
    EXPECT_EQ(model.parameters()[1].parameter, "positions.weight");
  }
}

// The norms of Gemma are 1 + weight, in f32. What comes back is the weight, but for what 1 + weight
// has no bits for, and means the same to the last bit.
TEST(HfModel, NormsOfGemmaAreOnePlusTheirWeights) {
  const auto model = io::HfModel::open(data_path("gemma2"));
  const io::SafetensorsFile stored(data_path("gemma2") / "model.safetensors");
  const auto& entry = stored.tensors().find("model.norm.weight")->second;
  std::vector<float> weight(8), parameter(8), again(8);
  stored.read(entry, 0, weight);
  model.read("final_norm.weight", 0, parameter);
  const TemporaryDirectory dir;
  io::export_hugging_face({.directory = dir / "out", .architecture = model.architecture()},
                          source_of(model));
  const io::SafetensorsFile exported(dir / "out" / "model.safetensors");
  exported.read(exported.tensors().find("model.norm.weight")->second, 0, again);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    EXPECT_EQ(parameter[i], 1.0F + weight[i]);
    EXPECT_NEAR(again[i], weight[i], 0x1p-23 * std::max(1.0F, std::abs(weight[i])));
    EXPECT_EQ(1.0F + again[i], parameter[i]);
  }
}

TEST(HfModel, ReadsYarn) {
  const Copy copy("llama_yarn");
  const auto edited = [&](const std::function<void(json&)>& change) {
    copy.edit("config.json", [&](json& c) { change(c["rope_parameters"]); });
    const auto a = io::read_hf_config(copy.path / "config.json").architecture;
    return std::tuple(a.rope_low_frequency, a.rope_high_frequency, a.rope_magnitude,
                      a.rope_original_context);
  };
  EXPECT_EQ(edited([](json&) {}), std::tuple(0.5, 4.0, 0.0, 8));
  EXPECT_EQ(edited([](json& r) { r["attention_factor"] = 1.5; }), std::tuple(0.5, 4.0, 1.5, 8));
  const double log = std::log(4.0);
  EXPECT_EQ(edited([](json& r) {
              r["attention_factor"] = nullptr, r["mscale"] = 2, r["mscale_all_dim"] = 0.5;
            }),
            std::tuple(0.5, 4.0, (0.1 * 2 * log + 1) / (0.1 * 0.5 * log + 1), 8));
  EXPECT_EQ(edited([](json& r) {
              for (const char* key :
                   {"mscale", "beta_fast", "beta_slow", "original_max_position_embeddings"})
                r.erase(key);
            }),
            std::tuple(1.0, 32.0, 0.0, 16))
      << "what transformers takes where a file says nothing";
}

// Files say the context before; what is possible with it is `factor` times as long.
TEST(HfModel, ReadsAndWritesDynamicFrequencies) {
  auto a = io::HfModel::open(data_path("llama_dynamic")).architecture();
  EXPECT_EQ(std::tuple(a.rope_scaling, a.rope_factor, a.rope_original_context, a.context),
            std::tuple("dynamic", 2.0, 8, 16));
  const json written = json::parse(io::write_hf_config(a, DType::f32, {}));
  EXPECT_EQ(written["max_position_embeddings"], 8);
  EXPECT_EQ(written["rope_scaling"], (json{{"rope_type", "dynamic"}, {"factor", 2.0}}));
  a.context = 12;
  EXPECT_EQ(json::parse(io::write_hf_config(a, DType::f32, {})), written);
  a.context = 17;
  EXPECT_NE(message_of<DataError>([&] {
              io::write_hf_config(a, DType::f32, {});
            }).find("model.context = 17, needed: 16"),
            std::string::npos);
}

TEST(HfModel, ReadsAndWritesWindowsOfQwen) {
  const Copy copy("qwen2_windows");
  const auto edited = [&](const std::function<void(json&)>& change) {
    copy.edit("config.json", change);
    const auto a = io::read_hf_config(copy.path / "config.json").architecture;
    return std::tuple(a.window, a.global_every);
  };
  EXPECT_EQ(edited([](json&) {}), std::tuple(5, 0));
  EXPECT_EQ(edited([](json& c) { c.erase("layer_types"); }), std::tuple(5, 0));
  EXPECT_EQ(edited([](json& c) { c["max_window_layers"] = 3; }), std::tuple(0, 0));
  EXPECT_EQ(edited([](json& c) { c.erase("max_window_layers"); }), std::tuple(0, 0)) << "28";
  EXPECT_EQ(edited([](json& c) { c["max_window_layers"] = 0, c["use_sliding_window"] = false; }),
            std::tuple(0, 0));
  EXPECT_NE(
      message_of<DataError>([&] {
        edited([](json& c) { c["max_window_layers"] = 1, c["use_sliding_window"] = true; });
      })
          .find("$.max_window_layers: 1 of 3 layers without a window before the others is not "
                "supported; allowed: 0, or 3 or more"),
      std::string::npos);
  const auto qwen3 = io::HfModel::open(data_path("qwen3_windows")).architecture();
  EXPECT_EQ(std::tuple(qwen3.window, qwen3.global_every), std::tuple(5, 2));
  const json written = json::parse(io::write_hf_config(qwen3, DType::f32, {}));
  EXPECT_EQ(written["use_sliding_window"], true);
  EXPECT_EQ(written["layer_types"],
            (json{"sliding_attention", "full_attention", "sliding_attention"}));
}

TEST(HfModel, DropoutGoesBothWays) {
  const Copy copy("gpt_neox");
  copy.edit("config.json",
            [](json& c) { c["hidden_dropout"] = 0.25, c.erase("attention_dropout"); });
  const auto a = io::read_hf_config(copy.path / "config.json").architecture;
  EXPECT_EQ(std::tuple(a.dropout_embedding, a.dropout_attention, a.dropout_residual),
            std::tuple(0.25, 0.0, 0.25));
  const json written = json::parse(io::write_hf_config(a, DType::f32, {}));
  EXPECT_EQ(written["hidden_dropout"], 0.25);
  EXPECT_EQ(written["attention_dropout"], 0.0);
  copy.edit("config.json", [](json& c) { c["hidden_dropout"] = 1; });
  EXPECT_NE(message_of<DataError>([&] {
              io::read_hf_config(copy.path / "config.json");
            }).find("$.hidden_dropout: 1; allowed: 0 to below 1"),
            std::string::npos);
}

TEST(HfModel, HasNoLocalPositionsWithoutWindows) {
  const Copy copy("gemma3");
  copy.edit("config.json", [](json& c) {
    c.erase("sliding_window_pattern");
    for (json& type : c["layer_types"]) type = "full_attention";
  });
  const auto a = io::read_hf_config(copy.path / "config.json").architecture;
  EXPECT_EQ(std::tuple(a.window, a.rope_local_theta), std::tuple(0, 0.0));
  const json written = json::parse(io::write_hf_config(a, DType::f32, {}));
  EXPECT_EQ(written["rope_local_base_freq"], 10000.0);
  copy.edit("config.json", [&](json& c) { c = written; });
  const auto again = io::read_hf_config(copy.path / "config.json").architecture;
  EXPECT_EQ(std::tuple(again.window, again.rope_local_theta), std::tuple(0, 0.0));
}

TEST(HfModel, KnowsWindowsByAnyOfTheirSettings) {
  const Copy copy("gemma3");
  const auto edited = [&](const std::function<void(json&)>& change) {
    copy.edit("config.json", change);
    return io::read_hf_config(copy.path / "config.json").architecture.global_every;
  };
  EXPECT_EQ(edited([](json& c) { c.erase("sliding_window_pattern"); }), 2) << "from layer_types";
  EXPECT_EQ(edited([](json& c) { c.erase("layer_types"); }), 6) << "the family's";
  EXPECT_EQ(edited([](json& c) { c["sliding_window_pattern"] = 3; }), 3);
  const auto message = message_of<DataError>([&] {
    edited([](json& c) {
      c["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
    });
  });
  EXPECT_NE(message.find("$.layer_types: does not agree with sliding_window_pattern = 3"),
            std::string::npos)
      << message;
}

TEST(HfModel, ReadsWhatOlderVersionsWrote) {
  const Copy llama("llama");
  llama.edit("config.json", [](json& config) {
    config.erase("rope_parameters");
    config.erase("head_dim");
    config["rope_theta"] = 50000;
    config["rope_scaling"] = nullptr;
    config["hidden_size"] = 24;
  });
  EXPECT_EQ(io::read_hf_config(llama.path / "config.json").architecture.rope_theta, 50000);
  EXPECT_EQ(io::read_hf_config(llama.path / "config.json").architecture.head_dim, 6);

  // GPT-2's first files have no "transformer." and carry the causal mask.
  const Copy gpt2("gpt2");
  rewrite_header(
      gpt2.path / "model.safetensors",
      [](json& header, std::uint64_t data) {
        json renamed;
        for (const auto& [name, entry] : header.items()) {
          renamed[name.starts_with("transformer.") ? name.substr(12) : name] = entry;
        }
        renamed["h.0.attn.bias"] = {
            {"dtype", "U8"}, {"shape", {1, 1, 2, 2}}, {"data_offsets", {data, data + 4}}};
        header = renamed;
      },
      "mask");
  const auto old = io::HfModel::open(gpt2.path), current = io::HfModel::open(data_path("gpt2"));
  for (const io::HfTensor& parameter : current.parameters()) {
    EXPECT_EQ(bits(read_all(old, parameter)), bits(read_all(current, parameter)));
  }
}

TEST(HfModel, RefusesSettingsThatChangeTheComputation) {
  struct Case {
    const char* model;
    const char* pointer;
    json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"gptj", "/rotary_dim", 3, "rotary_dim = 3; allowed: even numbers from 2 to 8"},
      {"gptj", "/rotary_dim", nullptr, "rotary_dim: null is not supported"},
      {"gptj", "/rotary", false, "$.rotary: false is not supported; allowed: true"},
      {"gpt2", "/model_type", "gpt_neo", "$.model_type: \"gpt_neo\" is not supported"},
      {"gpt2", "/activation_function", "silu", "allowed: gelu_new, gelu_pytorch_tanh, gelu, relu"},
      {"gpt2", "/rope_theta", 500, "$.rope_theta: rope_theta is not known of a gpt2"},
      {"gpt2", "/scale_attn_weights", false, "$.scale_attn_weights: false"},
      {"gpt2", "/scale_attn_by_inverse_layer_idx", true, "allowed: false"},
      {"gpt2", "/n_layer", 0, "$.n_layer: 0; allowed: 1 to 4096"},
      {"gpt2", "/n_layer", 1000000000, "allowed: 1 to 4096"},
      {"gpt2", "/n_layer", nullptr, "\"n_layer\" is missing"},
      {"gpt2", "/n_head", 3, "3 heads do not divide the width of 8"},
      {"gpt2", "/vocab_size", 9223372036854775807, "allowed: 1 to 16777216"},
      {"gpt2", "/vocab_size", "many", "expected an integer, found \"many\""},
      {"gpt2", "/layer_norm_epsilon", 0, "must be above 0"},
      {"llama", "/attention_bias", true, "$.attention_bias: true"},
      {"llama", "/mlp_bias", true, "$.mlp_bias: true"},
      {"llama", "/hidden_act", "gelu", "allowed: silu"},
      {"llama", "/rope_parameters/rope_type", "yarn", "\"factor\" is missing"},
      {"llama", "/rope_parameters/rope_type", "ntk",
       "$.rope_parameters.rope_type: \"ntk\" is not supported; allowed: \"default\", \"linear\", "
       "\"dynamic\", \"llama3\", \"yarn\""},
      {"llama", "/rope_parameters/rope_type", "dynamic", "\"factor\" is missing"},
      {"llama_dynamic", "/rope_parameters/original_max_position_embeddings", 4,
       "4 is not supported beside \"dynamic\"; allowed: 8, which is max_position_embeddings"},
      {"llama_dynamic", "/rope_parameters/factor", 1e7, "at most 16777216 in all are possible"},
      {"llama_yarn", "/rope_parameters/truncate", false, "truncate: false is not supported"},
      {"llama_yarn", "/rope_parameters/beta_slow", 8, "8 is not below beta_fast = 4"},
      {"llama", "/rope_parameters/rope_type", "llama3", "\"factor\" is missing"},
      {"llama", "/rope_scaling", {{"type", "linear"}, {"factor", 2}}, "remove one of the two"},
      {"llama", "/rope_parameters/partial_rotary_factor", 0.5, "0.5 is not supported"},
      {"llama3", "/rope_parameters/low_freq_factor", 2, "2 is not below high_freq_factor = 2"},
      {"llama", "/some_new_setting", true, "some_new_setting is not known of a llama"},
      {"qwen2_windows", "/sliding_window", nullptr,
       "layer_types names layers with a window, but sliding_window says of none"},
      {"qwen3", "/layer_types/1", "sliding_attention",
       "layer_types names layers with a window, but use_sliding_window is not true"},
      {"llama", "/layer_types", {"full_attention", "sliding_attention"}, "allowed: full_attention"},
      {"qwen3", "/attention_bias", true, "$.attention_bias: true"},
      {"qwen2", "/use_mrope", true, "$.use_mrope: true"},
      {"mixtral", "/router_jitter_noise", 0.1, "$.router_jitter_noise: 0.1 is not supported"},
      {"mixtral", "/num_local_experts", 0, "$.num_local_experts: 0; allowed: 1 to 512"},
      {"mixtral", "/num_experts_per_tok", 0, "$.num_experts_per_tok: 0; allowed: 1 to"},
      {"mixtral", "/router_aux_loss_coef", -0.1, "$.router_aux_loss_coef: -0.1; must be 0 or more"},
      {"glm4_moe", "/n_shared_experts", 0, "$.n_shared_experts: 0; allowed: 1 to 2396745"},
      {"glm4_moe", "/first_k_dense_replace", -1, "-1; allowed: 0 to"},
      {"glm4_moe", "/use_qk_norm", "yes", "\"yes\" is not supported; allowed: false, true"},
      {"deepseek_v2", "/topk_method", "noaux_tc",
       "\"noaux_tc\" is not supported; allowed: greedy, group_limited_greedy"},
      {"deepseek_v2", "/norm_topk_prob", true, "$.norm_topk_prob: true is not supported"},
      {"deepseek_v2", "/kv_lora_rank", 0, "$.kv_lora_rank: 0; allowed: 1 to"},
      {"deepseek_v2", "/rms_norm_eps", 1e-5, "is not supported; allowed: 1e-06"},
      {"deepseek_v3", "/topk_method", "greedy", "allowed: \"noaux_tc\""},
      {"deepseek_v3", "/attention_bias", true, "$.attention_bias: true"},
      {"deepseek_v3", "/rope_parameters/mscale_all_dim", -1, "-1; must be 0 or more"},
      {"deepseek_v3",
       "/rope_parameters",
       {{"rope_type", "linear"}, {"rope_theta", 1e4}, {"factor", 2.0}, {"mscale_all_dim", 1.0}},
       "1 is not supported beside \"linear\"; allowed: beside \"yarn\", or 0"},
      {"deepseek_v2", "/num_local_experts", 8, "num_local_experts is not known of a deepseek_v2"},
      {"deepseek_v3", "/quantization_config", {{"quant_method", "fp8"}}, "quantization_config"},
      {"mixtral", "/router_aux_loss_coef", nullptr, "router_aux_loss_coef: null is not supported"},
      {"mixtral", "/hidden_act", "gelu", "allowed: silu"},
      {"mixtral", "/mlp_only_layers", {0}, "mlp_only_layers is not known of a mixtral"},
      {"mixtral", "/norm_topk_prob", false, "norm_topk_prob is not known of a mixtral"},
      {"qwen3_moe", "/decoder_sparse_step", 0, "$.decoder_sparse_step: 0; allowed: 1 to"},
      {"qwen3_moe", "/norm_topk_prob", 1, "$.norm_topk_prob"},
      {"qwen3_moe", "/mlp_only_layers/0", "first", "$.mlp_only_layers[0]: expected an integer"},
      {"qwen3_moe", "/mlp_only_layers", 1, "$.mlp_only_layers: expected an array"},
      {"qwen3_moe", "/shared_expert_intermediate_size", 8,
       "$.shared_expert_intermediate_size: 8 is not supported; allowed: 0"},
      {"qwen3_moe", "/use_qk_norm", false, "$.use_qk_norm: false is not supported"},
      {"qwen3_moe", "/attention_bias", true, "$.attention_bias: true"},
      {"qwen3_moe", "/n_group", 2, "n_group is not known of a qwen3_moe"},
      {"phi3", "/rope_parameters/rope_type", "longrope", "\"longrope\" is not supported"},
      {"gpt_neox", "/use_parallel_residual", 2,
       "$.use_parallel_residual: 2 is not supported; allowed: true, false"},
      {"gpt_neox", "/attention_bias", false, "$.attention_bias: false"},
      {"gemma2",
       "/layer_types",
       {"full_attention", "sliding_attention", "sliding_attention"},
       "$.layer_types: is not supported"},
      {"gemma2", "/layer_types/0", "chunked_attention", "\"chunked_attention\" is not supported"},
      {"gemma2", "/final_logit_softcapping", -1, "must be above 0"},
      {"gemma2", "/head_dim", nullptr,
       "head_dim: null is not supported; allowed: a value, or no such setting, which means 256"},
      {"gpt2", "/scale_attn_weights", nullptr, "scale_attn_weights: null is not supported"},
      {"gpt_neox", "/use_parallel_residual", nullptr,
       "null is not supported; allowed: true, false"},
      {"bert", "/position_embedding_type", "relative_key",
       "$.position_embedding_type: \"relative_key\" is not supported; allowed: \"absolute\""},
      {"bert", "/hidden_act", "silu",
       "allowed: gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, tanh"},
      {"bert", "/is_decoder", true, "$.is_decoder: true is not supported; allowed: false"},
      {"bert", "/add_cross_attention", true, "$.add_cross_attention: true is not supported"},
      {"bert", "/tie_word_embeddings", false, "$.tie_word_embeddings: false is not supported"},
      {"bert", "/architectures/0", "BertForQuestionAnswering",
       "$.architectures[0]: the head of a BertForQuestionAnswering is not supported; allowed: "
       "BertForMaskedLM, BertForPreTraining, BertModel, BertForSequenceClassification, "
       "BertForTokenClassification"},
      {"bert_classes", "/num_labels", 4, "$.num_labels: 4, but id2label names 3 classes"},
      {"bert_tokens", "/id2label/3", "mild", "classifier.weight has the shape (3, 8)"},
      {"bert_classes", "/problem_type", "regression",
       "$.problem_type: \"regression\" is not supported"},
      {"bert_classes", "/id2label/1", "warm", "two classes have the same name"},
      {"bert_classes", "/id2label/3", "mild", "classifier.weight has the shape (3, 8)"},
      {"llama_reward", "/id2label/1", "LABEL_1", "a head of 2 outputs is not supported for llama"},
      {"gpt_neox_reward", "/problem_type", "single_label_classification",
       "$.problem_type: \"single_label_classification\" is not supported"},
      {"bert", "/mask_token_id", -3, "$.mask_token_id"},
      {"roberta", "/pad_token_id", 0, "$.pad_token_id: 0 is not supported; allowed: 1"},
      {"roberta", "/max_position_embeddings", 2, "$.max_position_embeddings: 2; allowed: 3 to"},
      {"gemma2", "/use_bidirectional_attention", true, "$.use_bidirectional_attention: true"},
      {"gemma3", "/rope_parameters/sliding_attention/rope_type", "linear",
       "of layers with a window"},
      {"llama", "/sliding_window", 128, "$.sliding_window: 128 is not supported; allowed: null"},
      {"llama", "/quantization_config", {{"bits", 4}}, "$.quantization_config: an object of 1"},
      {"llama", "/num_key_value_heads", 3, "3 kv heads do not divide 4 heads"},
      {"llama", "/head_dim", 16777216, "at most 16777216 in all"}};
  for (const Case& c : cases) {
    const Copy copy(c.model);
    copy.edit("config.json",
              [&](json& config) { config[json::json_pointer(c.pointer)] = c.value; });
    const auto message = message_of<DataError>([&] { io::HfModel::open(copy.path); });
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.expected << " | " << message;
    EXPECT_NE(message.find("config.json"), std::string::npos) << message;
  }
}

// The hub's files and those that transformers writes have one of two names for it.
TEST(HfModel, KnowsTheNumberOfExpertsByBothNames) {
  for (const char* name : {"mixtral", "qwen3_moe"}) {
    const Copy copy(name);
    const auto before = io::read_hf_config(copy.path / "config.json").architecture;
    const auto change = [&](std::int64_t experts, std::int64_t local) {
      copy.edit("config.json", [&](json& c) {
        c["num_experts"] = experts == 0 ? json(nullptr) : json(experts);
        c["num_local_experts"] = local == 0 ? json(nullptr) : json(local);
      });
    };
    const std::int64_t n = before.moe_experts;
    for (const auto& [experts, local] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{n, 0}, {0, n}, {n, n}}) {
      change(experts, local);
      EXPECT_EQ(io::read_hf_config(copy.path / "config.json").architecture, before);
    }
    change(n, n + 1);
    const auto message = message_of<DataError>([&] { io::HfModel::open(copy.path); });
    EXPECT_NE(message.find("which is the same setting: remove one of the two"), std::string::npos)
        << message;
  }
}

TEST(HfModel, NamesTensorsOfExpertsThatDoNotFit) {
  const auto refusal = [](const char* name, const std::function<void(json&)>& change) {
    const Copy copy(name);
    rewrite_header(copy.path / "model.safetensors",
                   [&](json& header, std::uint64_t) { change(header); });
    return message_of<DataError>([&] { io::HfModel::open(copy.path); });
  };
  const auto move = [](json& header, const std::string& from, const std::string& to) {
    header[to] = header[from];
    header.erase(from);
  };
  const std::string mixtral = "model.layers.1.block_sparse_moe.", qwen = "model.layers.1.mlp.";
  const auto renamed = refusal("mixtral", [&](json& header) {
    move(header, mixtral + "experts.3.w3.weight", mixtral + "experts.4.w3.weight");
  });
  for (const char* part :
       {"experts.3.w3.weight is missing", "experts.4.w3.weight is not a tensor of the family"})
    EXPECT_NE(renamed.find("\n  " + mixtral + part), std::string::npos) << renamed;
  const auto turned = refusal("qwen3_moe", [&](json& header) {
    header[qwen + "experts.0.down_proj.weight"]["shape"] = {7, 8};
    header[qwen + "gate.weight"]["shape"] = {8, 5};
  });
  for (const char* part :
       {"experts.0.down_proj.weight has the shape (7, 8); config.json says (8, 7)",
        "gate.weight has the shape (8, 5); config.json says (5, 8)"})
    EXPECT_NE(turned.find("\n  " + qwen + part), std::string::npos) << turned;
  const auto dense = refusal("qwen3_moe", [&](json& header) {
    for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
      move(header, fmt::format("model.layers.0.mlp.{}.weight", matrix),
           fmt::format("model.layers.0.mlp.experts.0.{}.weight", matrix));
    }
  });
  EXPECT_NE(dense.find("model.layers.0.mlp.gate_proj.weight is missing"), std::string::npos);
  EXPECT_NE(dense.find("model.layers.0.mlp.experts.0.gate_proj.weight is not a tensor"),
            std::string::npos)
      << dense;
  for (const auto& [experts, part] :
       {std::pair{5, "experts.4.w1.weight is missing"},
        std::pair{3, "experts.3.w1.weight is not a tensor of the family"}}) {
    const Copy copy("mixtral");
    copy.edit("config.json", [&](json& c) { c["num_local_experts"] = experts; });
    const auto message = message_of<DataError>([&] { io::HfModel::open(copy.path); });
    EXPECT_NE(message.find(mixtral + part), std::string::npos) << message;
  }
}

TEST(HfModel, ListsAllTensorsThatDoNotFit) {
  const Copy copy("llama");
  copy.edit("config.json", [](json& config) {
    config["num_hidden_layers"] = 3;
    config["vocab_size"] = 14;
    config["tie_word_embeddings"] = true;  // lm_head is then known, and must fit too
  });
  const auto message = message_of<DataError>([&] { io::HfModel::open(copy.path); });
  EXPECT_NE(
      message.find("model.embed_tokens.weight has the shape (13, 8); config.json says (14, 8)"),
      std::string::npos)
      << message;
  EXPECT_NE(message.find("model.layers.2.mlp.up_proj.weight is missing"), std::string::npos);
  EXPECT_NE(message.find("lm_head.weight has the shape (13, 8); config.json says (14, 8)"),
            std::string::npos)
      << message;
  EXPECT_EQ(message.find("not a tensor of the family"), std::string::npos) << message;

  copy.edit("config.json", [](json& config) {
    config["num_hidden_layers"] = 1;
    config["vocab_size"] = 13;
  });
  const auto extra = message_of<DataError>([&] { io::HfModel::open(copy.path); });
  EXPECT_NE(extra.find("model.layers.1.mlp.up_proj.weight is not a tensor of the family"),
            std::string::npos)
      << extra;
}

/// A tied model whose file has a head, a copy of the embedding but for one element.
struct WithHead {
  explicit WithHead(std::string_view name, std::int64_t changed = -1) : copy(name) {
    const auto model = io::HfModel::open(copy.path);
    io::HfArchitecture untied = model.architecture();
    untied.tied_embeddings = false;
    io::export_hugging_face(
        {.directory = directory / name, .architecture = untied, .type = model.stored_dtype()},
        [&](std::string_view parameter, std::int64_t begin, std::span<float> out) {
          const bool head = parameter == "head.weight";
          model.read(head ? "vocabulary.weight" : parameter, begin, out);
          if (head && changed >= 0) out[static_cast<std::size_t>(changed)] += 8;
        });
    copy.path = directory / name;
  }
  void tie() const {
    copy.edit("config.json", [](json& config) { config["tie_word_embeddings"] = true; });
  }
  TemporaryDirectory directory;
  Copy copy;
};

TEST(HfModel, TakesAHeadThatIsTheEmbedding) {
  for (const char* name : {"gpt2", "llama_sharded"}) {
    const WithHead same(name);
    same.tie();
    const auto model = io::HfModel::open(same.copy.path),
               plain = io::HfModel::open(data_path(name));
    EXPECT_EQ(model.parameters().size(), plain.parameters().size());
    EXPECT_EQ(bits(read_all(model, model.parameters()[0])),
              bits(read_all(plain, plain.parameters()[0])));
  }
}

TEST(HfModel, RefusesAHeadThatDiffersFromTheEmbeddingThatItIsTiedTo) {
  for (const char* name : {"gpt2", "llama_sharded"}) {
    const WithHead other(name, 21);  // of rows of 8
    const auto untied = io::HfModel::open(other.copy.path);
    std::vector<float> head(1), embedding(1);
    untied.read("head.weight", 21, head);
    untied.read("vocabulary.weight", 21, embedding);
    other.tie();
    const auto model = io::HfModel::open(other.copy.path);
    const auto message = message_of<DataError>([&] { read_all(model, model.parameters()[0]); });
    for (const std::string& part :
         {fmt::format("{}: lm_head.weight[2, 5] = {} differs from",
                      (other.copy.path / "model.safetensors").string(), head[0]),
          fmt::format("[2, 5] = {}, but", embedding[0]),
          std::string("set tie_word_embeddings = false")})
      EXPECT_NE(message.find(part), std::string::npos) << part << " | " << message;
    // A rank that reads other rows has nothing to compare.
    std::vector<float> rows(16);
    EXPECT_NO_THROW(model.read("vocabulary.weight", 0, rows));
    EXPECT_THROW(model.read("vocabulary.weight", 8, rows), DataError);
  }
}

TEST(HfModel, SaysWhereAnElementIsStored) {
  for (const char* name : kModels) {
    const auto model = io::HfModel::open(data_path(name));
    std::map<std::string, io::SafetensorsFile> files;
    for (const io::HfTensor& parameter : model.parameters()) {
      const std::vector<float> values = read_all(model, parameter);
      for (std::int64_t e = 0; e < parameter.elements(); ++e) {
        const std::string place = model.place(parameter.parameter, e);
        const auto colon = place.find(": "), bracket = place.find('[');
        const std::string path = place.substr(0, colon);
        const io::SafetensorsFile& file = files.try_emplace(path, path).first->second;
        const auto& entry =
            file.tensors().find(place.substr(colon + 2, bracket - colon - 2))->second;
        const auto index = json::parse(place.substr(bracket)).get<std::vector<std::int64_t>>();
        ASSERT_EQ(index.size(), entry.shape.size()) << place;
        const std::int64_t at = index.size() == 1 ? index[0] : index[0] * entry.shape[1] + index[1];
        float stored = 0;
        file.read(entry, at, {&stored, 1});
        float added = 0;
        if (!parameter.added.empty())
          file.read(file.tensors().find(parameter.added)->second, index[1], {&added, 1});
        ASSERT_EQ(parameter.less_one ? 1.0F + stored : stored + added,
                  values[static_cast<std::size_t>(e)])
            << place;
      }
    }
  }
}

TEST(HfModel, RefusesADirectoryOfTwoModels) {
  const Copy copy("llama_sharded");
  fs::copy(data_path("llama") / "model.safetensors", copy.path);
  const auto message = message_of<DataError>([&] { io::HfModel::open(copy.path); });
  EXPECT_NE(message.find("two models: remove one"), std::string::npos) << message;
}

TEST(HfModel, RefusesIndexesThatLeadOutOfTheDirectory) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "a/b", "", "..", "."}) {
    const Copy copy("llama_sharded");
    copy.edit("model.safetensors.index.json",
              [&](json& index) { index["weight_map"]["model.norm.weight"] = name; });
    EXPECT_THROW(io::HfModel::open(copy.path), DataError) << name;
  }
  const Copy copy("llama_sharded");
  fs::remove(copy.path / "model-00002-of-00003.safetensors");
  EXPECT_THROW(io::HfModel::open(copy.path), DataError);
}

TEST(HfExport, NeverOverwritesAndLeavesNothingBehind) {
  const TemporaryDirectory dir;
  const auto model = io::HfModel::open(data_path("llama"));
  io::HfExport options{.directory = dir / "out", .architecture = model.architecture()};
  const auto failing = [](std::string_view, std::int64_t, std::span<float>) {
    throw DataError("no more");
  };
  EXPECT_THROW(io::export_hugging_face(options, failing), DataError);
  EXPECT_TRUE(fs::is_empty(dir.path()));

  fs::create_directory(dir / "out");  // an empty one may be there
  io::export_hugging_face(options, source_of(model));
  const auto message =
      message_of<DataError>([&] { io::export_hugging_face(options, source_of(model)); });
  EXPECT_NE(message.find("overwrites nothing"), std::string::npos) << message;

  fs::create_directory(dir / "other.partial");
  options.directory = dir / "other/";
  EXPECT_THROW(io::export_hugging_face(options, source_of(model)), DataError);
  EXPECT_TRUE(fs::exists(dir / "other.partial"));  // not ours to remove
}

TEST(HfExport, RefusesWhatTheFamilyCannotExpress) {
  const TemporaryDirectory dir;
  const auto llama = io::HfModel::open(data_path("llama")).architecture();
  const auto gpt2 = io::HfModel::open(data_path("gpt2")).architecture();
  const auto refusal = [&](io::HfArchitecture a,
                           const std::function<void(io::HfArchitecture&)>& change) {
    change(a);
    const auto nothing = [](std::string_view, std::int64_t, std::span<float>) {};
    return message_of<DataError>(
        [&] { io::export_hugging_face({.directory = dir / "x", .architecture = a}, nothing); });
  };
  EXPECT_NE(refusal(gpt2, [](auto& a) { a.bias = false; }).find("model.bias = false, needed: true"),
            std::string::npos);
  EXPECT_NE(refusal(gpt2, [](auto& a) { a.kv_heads = 1; }).find("model.kv_heads = 1"),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.activation = "gelu"; }).find("model.activation"),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.position = "learned"; }).find("model.position"),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.qk_norm = "head"; })
                .find("model.qk_norm = \"head\", needed: \"none\""),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.window = 4; }).find("model.window = 4, needed: 0"),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.family = "t5"; }).find("model.family"),
            std::string::npos);
  EXPECT_NE(refusal(llama, [](auto& a) { a.moe_experts = 4; }).find("moe.experts = 4, needed: 0"),
            std::string::npos);
}

TEST(HfExport, RefusesExpertsThatTheFamilyCannotExpress) {
  using Change = std::function<void(io::HfArchitecture&)>;
  for (const auto& [name, change, says] : std::vector<std::tuple<const char*, Change, const char*>>{
           {"mixtral", [](auto& a) { a.moe_experts = 0; }, "moe.experts = 0, needed: \"1 or more"},
           {"mixtral", [](auto& a) { a.moe_ffn_hidden = 8; }, "moe.ffn_hidden = 8, needed: 12"},
           {"mixtral", [](auto& a) { a.moe_normalize = false; }, "moe.normalize = false"},
           {"mixtral", [](auto& a) { a.moe_first_dense = 1; }, "moe.first_dense = 1, needed: 0"},
           {"mixtral", [](auto& a) { a.moe_every = 2; }, "moe.every = 2, needed: 1"},
           {"qwen3_moe", [](auto& a) { a.moe_shared_ffn_hidden = 8; }, "moe.shared_ffn_hidden = 8"},
           {"qwen3_moe", [](auto& a) { a.moe_scores = "sigmoid"; }, "moe.scores = \"sigmoid\""},
           {"qwen3_moe", [](auto& a) { a.moe_scale = 2.5; }, "moe.scale = 2.5, needed: 1"},
           {"qwen3_moe", [](auto& a) { a.moe_groups = 5; }, "moe.groups = 5, needed: 1"}}) {
    auto a = io::HfModel::open(data_path(name)).architecture();
    change(a);
    const auto message =
        message_of<DataError>([&a = a] { (void)io::write_hf_config(a, DType::f32, {}); });
    EXPECT_NE(message.find(says), std::string::npos) << says << " | " << message;
  }
}

}  // namespace
}  // namespace tessera
