// The parameter table against hand-made counts.
#include "model/parameters.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "support/models.hpp"

namespace tessera::model {
namespace {

ModelConfig gpt2_124m() {
  return {.layers = 12,
          .heads = 12,
          .kv_heads = 12,
          .head_dim = 64,
          .hidden = 768,
          .ffn_hidden = 3072,
          .vocab = 50257,
          .context = 1024};
}

ModelConfig llama_8b() {
  return {.layers = 32,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .hidden = 4096,
          .ffn_hidden = 14336,
          .vocab = 128256,
          .context = 8192,
          .norm = NormKind::rmsnorm,
          .position = PositionKind::rope,
          .activation = ActivationKind::swiglu,
          .bias = false,
          .tied_embeddings = false};
}

ModelConfig qwen3_600m() {
  ModelConfig c = llama_8b();
  c.layers = 28, c.heads = 16, c.hidden = 1024, c.ffn_hidden = 3072, c.vocab = 151936;
  c.qk_norm = QkNorm::head;
  c.tied_embeddings = true;
  return c;
}

ModelConfig mixtral_8x7b() {
  ModelConfig c = llama_8b();
  c.vocab = 32000;
  c.experts = {.count = 8, .hidden = 14336, .routing = {.choices = 2, .normalized = true}};
  return c;
}

ModelConfig qwen3_30b_a3b() {
  ModelConfig c = qwen3_600m();
  c.layers = 48, c.heads = 32, c.kv_heads = 4, c.hidden = 2048;
  c.tied_embeddings = false;
  c.experts = {.count = 128, .hidden = 768, .routing = {.choices = 8, .normalized = true}};
  return c;
}

/// Keys and values of latents; of experts, three of DeepSeek-V3's layers and one of
/// DeepSeek-V2-Lite's have none.
ModelConfig deepseek_v2_lite() {
  ModelConfig c = llama_8b();
  c.layers = 27, c.heads = c.kv_heads = 16, c.head_dim = 192, c.value_dim = 128;
  c.hidden = 2048, c.ffn_hidden = 10944, c.vocab = 102400;
  c.latent = {.kv = 512, .rope = 64};
  c.experts = {
      .count = 64, .hidden = 1408, .shared_hidden = 2816, .first = 1, .routing = {.choices = 6}};
  return c;
}

ModelConfig deepseek_v3() {
  ModelConfig c = deepseek_v2_lite();
  c.layers = 61, c.heads = c.kv_heads = 128, c.hidden = 7168, c.ffn_hidden = 18432;
  c.vocab = 129280;
  c.latent.q = 1536;
  c.experts = {.count = 256,
               .hidden = 2048,
               .shared_hidden = 2048,
               .first = 3,
               .balance = kernels::BalanceBy::bias,
               .routing = {.choices = 8}};
  return c;
}

ModelConfig gemma2_2b() {
  ModelConfig c = llama_8b();
  c.layers = 26, c.heads = 8, c.kv_heads = 4, c.head_dim = 256, c.hidden = 2304;
  c.ffn_hidden = 9216, c.vocab = 256000;
  c.norm_placed = NormPlacement::both;
  c.activation = ActivationKind::geglu;
  c.tied_embeddings = true;
  c.window = 4096, c.global_every = 2;
  return c;
}

ModelConfig pythia_160m() {
  ModelConfig c = gpt2_124m();
  c.vocab = 50304;
  c.position = PositionKind::rope;
  c.block = BlockForm::parallel;
  c.tied_embeddings = false;
  return c;
}

/// With its head for masked tokens. There are no types of tokens: type 0 of all is in positions.
ModelConfig bert_base() {
  ModelConfig c = gpt2_124m();
  c.vocab = 30522, c.context = 512;
  c.norm_placed = NormPlacement::sum;
  c.embedding_norm = true;
  c.head = {.hidden = 768, .norm = true, .bias = true};
  return c;
}

TEST(ParameterTable, CountsThePublishedNumberOfParameters) {
  EXPECT_EQ(parameter_count(model_units(bert_base())), 109'514'298 - 2 * 768);
  EXPECT_EQ(parameter_count(model_units(gpt2_124m())), 124'439'808);
  EXPECT_EQ(parameter_count(model_units(llama_8b())), 8'030'261'248);
  EXPECT_EQ(parameter_count(model_units(qwen3_600m())), 596'049'920);
  EXPECT_EQ(parameter_count(model_units(gemma2_2b())), 2'614'341'888);
  EXPECT_EQ(parameter_count(model_units(mixtral_8x7b())), 46'702'792'704);
  EXPECT_EQ(parameter_count(model_units(qwen3_30b_a3b())), 30'532'122'624);
  EXPECT_EQ(parameter_count(model_units(pythia_160m())), 162'322'944);
  EXPECT_EQ(parameter_count(model_units(deepseek_v2_lite())), 15'706'484'224);
  EXPECT_EQ(parameter_count(model_units(deepseek_v3())), 671'026'404'352 + 58 * 256);
}

// What every tile reads comes once, with what is in no tile.
TEST(ParameterTable, LatentsAreInNoTile) {
  for (const UnitDesc& unit : model_units(deepseek_v3(), 4, {.tiles = 4})) {
    if (unit.layer != "block.7" || unit.traits.balances) continue;
    const bool tile = unit.tile.count > 1;
    for (const char* name : {"q_latent", "kv_latent", "k_rope"})
      EXPECT_EQ(unit.has(fmt::format("attention.{}.weight", name)), !tile) << unit.name;
    for (const char* name : {"q", "k", "v", "out"}) {
      const bool of_attention = unit.name.find("attention") != std::string::npos;
      EXPECT_EQ(unit.has(fmt::format("attention.{}.weight", name)), of_attention) << unit.name;
    }
  }
}

// Every other layer's queries see w keys but at the begin: w - w^2 / 2 T on average, for T / 2.
TEST(ParameterTable, WindowsMakeAttentionCheaper) {
  ModelConfig all = gemma2_2b();
  all.window = 0;
  const double t = 8192, w = 4096;
  EXPECT_EQ(flop_per_token(all, 8192) - flop_per_token(gemma2_2b(), 8192),
            12.0 * 13 * 2048 * (t / 2 - (w - w * w / (2 * t))));
  EXPECT_EQ(flop_per_token(all, 2048), flop_per_token(gemma2_2b(), 2048));
}

// Of eight experts a token meets two: 12.9 of 46.7 billion parameters, as published.
TEST(ParameterTable, CountsFlopOfTheExpertsThatATokenMeets) {
  const double expert = 3.0 * 4096 * 14336;
  const double block = 4096.0 * 4096 * 2.5 + 2 * expert + 8 * 4096 + 2 * 4096;
  const double n = 32 * block + 4096 + 32000.0 * 4096;
  EXPECT_EQ(n + 32000.0 * 4096, 12'879'925'248);
  EXPECT_EQ(flop_per_token(mixtral_8x7b(), 8192), 6 * n + 6.0 * 32 * 4096 * 8192);
  // What is frozen has no gradients of its own, and adapters are few.
  ModelConfig adapted = mixtral_8x7b();
  adapted.adapter = {.rank = 1, .targets = {"*.attention.q.weight"}};
  EXPECT_EQ(flop_per_token(adapted, 8192), 4 * n + 6.0 * 32 * 2 * 4096 + 6.0 * 32 * 4096 * 8192);
  // Below the lowest layer that is trained there is no backward.
  adapted.adapter.targets = {"block.31.attention.q.weight"};
  EXPECT_EQ(flop_per_token(adapted, 8192),
            2 * 31 * block + 4 * (n - 31 * block) + 6.0 * 2 * 4096 + 68.0 * 4096 * 8192);
  ModelConfig frozen = mixtral_8x7b();
  frozen.frozen = {"vocabulary", "block.?", "block.30", "final_norm"};
  EXPECT_EQ(flop_per_token(frozen, 8192),
            6 * n - 4 * 10 * block - 2 * (block + 4096) + (6.0 * 32 - 4 * 10) * 4096 * 8192);
  frozen = gpt2_124m();  // whose head's product goes back beside whatever is trained
  frozen.frozen = {"vocabulary", "positions", "block.0"};
  const double all = flop_per_token(gpt2_124m(), 1024), table = 50257.0 * 768;
  EXPECT_EQ(flop_per_token(frozen, 1024), all - 2 * table - 4 * 7'087'872.0 - 8.0 * 768 * 512);
  ModelConfig few = mixtral_8x7b();
  few.experts.every = 4, few.experts.first = 4;  // layers 7, 11, ..., 31
  EXPECT_EQ(few.experts_before(32), 7);
  EXPECT_EQ(few.experts_before(8), 1);
  const double dense = 7 * (2 * expert + 8 * 4096) + 25 * expert;
  EXPECT_EQ(flop_per_token(few, 8192) - 6.0 * 32 * 4096 * 8192,
            6 * (32 * (4096.0 * 4096 * 2.5 + 2 * 4096) + dense + 4096 + 32000.0 * 4096));
}

TEST(ParameterTable, CountsFlopOfValuesOfAnotherWidth) {
  ModelConfig c = deepseek_v2_lite();
  c.experts = {};
  const double met =
      static_cast<double>(parameter_count(model_units(c))) - 102400.0 * 2048;  // no look-ups
  // 16 heads of 27 layers: products of 192 columns with keys and of 128 with values, half of 4096
  // of which a query sees, forward and twice that on the way back.
  EXPECT_EQ(flop_per_token(c, 4096), 6 * met + 3 * 27 * 16 * 2.0 * (192 + 128) * 2048);
}

// Trap 53. By hand, for 1024 tokens of GPT-2 124M: a block multiplies with 4 C^2 + 8 C^2 weights
// and has 13 C of biases and norms; 12 of them, the final norm and the head make N = 123 653 376.
// 6 N + 6 * 12 layers * 768 * 1024 for causal attention.
TEST(ParameterTable, CountsFlopATokenAsByHand) {
  const double n = 12 * (12.0 * 768 * 768 + 13 * 768) + 2 * 768 + 50257.0 * 768;
  EXPECT_EQ(n, 123'653'376.0);
  EXPECT_EQ(flop_per_token(gpt2_124m(), 1024), 6 * n + 56'623'104.0);
  EXPECT_EQ(flop_per_token(gpt2_124m(), 1024), 798'543'360.0);
  // Untied: the look-up's matrix is not multiplied with, the head's is. 32 blocks of
  // C (C + 2 C / 4 + C) + 3 C F + 2 C, a norm, a head.
  const double block = 4096.0 * 4096 * 2.5 + 3.0 * 4096 * 14336 + 2 * 4096;
  const double llama = 32 * block + 4096 + 128256.0 * 4096;
  EXPECT_EQ(flop_per_token(llama_8b(), 8192), 6 * llama + 6.0 * 32 * 4096 * 8192);
}

TEST(ParameterTable, ProjectionsIntoTheResidualStreamStartSmaller) {
  ModelConfig c = test::gpt2_like();
  c.layers = 3;
  const auto expect = [&](InitScale init, std::string_view name,
                          const std::array<double, 3>& divisors) {
    c.init = init;
    std::size_t layer = 0;
    for (const UnitDesc& unit : model_units(c)) {
      for (const ParamDesc& p : unit.params) {
        if (!p.name.ends_with(name)) continue;
        EXPECT_DOUBLE_EQ(p.init_std, static_cast<double>(c.init_std) / divisors.at(layer++))
            << p.name;
      }
    }
    EXPECT_EQ(layer, 3);
  };
  const double two = std::sqrt(2.0), six = std::sqrt(6.0);
  for (const char* name : {"attention.out.weight", "mlp.down.weight"}) {
    expect(InitScale::scaled, name, {six, six, six});
    expect(InitScale::depth, name, {two, 2, six});
    expect(InitScale::plain, name, {1, 1, 1});
  }
  for (const char* name : {"attention.q.weight", "mlp.up.weight"})
    expect(InitScale::depth, name, {1, 1, 1});
}

TEST(ParameterTable, TyingChangesTheCountByTheHead) {
  for (ModelConfig c : {test::gpt2_like(), test::llama_like()}) {
    c.tied_embeddings = true;
    const std::int64_t tied = parameter_count(model_units(c));
    c.tied_embeddings = false;
    EXPECT_EQ(parameter_count(model_units(c)), tied + c.vocab * c.hidden);
  }
}

TEST(ParameterTable, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const auto& unit : model_units(test::gpt2_like())) {
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const std::string& name = unit.params[i].name;
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_EQ(unit.index_of(name.substr(unit.name.size() + 1)), i);
    }
  }
  EXPECT_THROW(model_units(test::gpt2_like())[0].index_of("bias"), InternalError);
}

// Trap 22: stored rows are padded to 64 on every layout; counts do not see it.
TEST(ParameterTable, VocabularyIsPaddedInMemoryOnly) {
  const auto units = model_units(test::gpt2_like());
  const ParamDesc& p = units[0].params[0];
  EXPECT_EQ(p.shape[0], 37);
  EXPECT_EQ(p.stored_rows, 64);
  EXPECT_EQ(p.elements(), 37 * 16);
  EXPECT_EQ(p.stored_elements(), 64 * 16);
}

}  // namespace
}  // namespace tessera::model
