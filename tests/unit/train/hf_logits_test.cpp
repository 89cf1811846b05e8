// Models of every family against transformers' logits: as training computes them, and as generation
// does, through the readers of model directories and of decks.
#include <gtest/gtest.h>

#include <cmath>

#include "io/hugging_face.hpp"
#include "kernels/cpu/device.hpp"
#include "setup/architecture.hpp"
#include "setup/inputs.hpp"
#include "support/eager_model.hpp"
#include "support/hf_data.hpp"
#include "train/generation/generator.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// What tests/data/make_hf.py has left of a model.
struct Reference {
  explicit Reference(const std::string& name)
      : file(data_path(name + ".logits.safetensors")), logits(read("logits")) {
    for (float token : read("tokens")) tokens.push_back(static_cast<std::int32_t>(token));
    vocab = std::ssize(logits) / std::ssize(tokens);
    sensitivity = read("sensitivity")[0];
    for (float x : logits) largest = std::max(largest, std::abs(static_cast<double>(x)));
  }

  std::vector<float> read(std::string_view tensor) const {
    const auto& entry = file.tensors().find(tensor)->second;
    std::vector<float> values(static_cast<std::size_t>(entry.elements));
    file.read(entry, 0, values);
    return values;
  }
  std::span<const float> row(std::int64_t token) const { return row_of(logits, token); }
  std::span<const float> row_of(std::span<const float> rows, std::int64_t i) const {
    return rows.subspan(static_cast<std::size_t>(i * vocab), static_cast<std::size_t>(vocab));
  }
  /// The logits after each part of tokens that come in parts; empty where these are rows of
  /// `logits`, because it does not matter how tokens come.
  std::vector<float> parts(std::string_view kind) const {
    return file.tensors().contains(kind) ? read(kind) : std::vector<float>{};
  }
  /// How far f32 may be from the exact logits. Products in f32 are exact products with weights that
  /// are changed relatively, by at most n 2^-24 for sums of n terms (Higham 2002, section 3.1),
  /// here 24 at most; norms, rotations, activations and softmax add a few roundings each to what is
  /// multiplied, some 40 in all between two products. Sensitivities are from random changes; the
  /// worst one may be some times as bad.
  double bound() const { return (24 + 40) * 0x1p-24 * 2 * sensitivity + 0x1p-23 * largest; }

  io::SafetensorsFile file;
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  std::int64_t vocab = 0;
  double sensitivity = 0, largest = 0;
};

/// A model directory as verbs open it.
struct Model {
  explicit Model(const std::string& name)
      : weights(io::HfModel::open(data_path(name))), config(config_of(name)) {}

  static model::ModelConfig config_of(const std::string& name) {
    const auto text = fmt::format(
        "run.steps = 1\nmodel.init_from = \"{}\"\ndata.train = [\"none\"]\nbatch.micro = 2\n"
        "batch.global = 2\noptimizer.lr = 1.0\n",
        data_path(name).string());
    const deck::Deck deck = deck::parse_deck(text, name, {}, setup::read_architecture).deck;
    model::ModelConfig config = setup::model_config(deck.model, deck.task);
    config.dropout = {};  // of training, in which logits are compared too
    return config;
  }

  train::ParameterSource source() const {
    return [this](const model::ParamDesc& p, Range range, std::span<float> out) {
      weights.read(p.name, range.begin, out);
    };
  }

  io::HfModel weights;
  model::ModelConfig config;
};

double cross_entropy(std::span<const float> logits, std::int32_t target) {
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x));
  return std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

class HfLogits : public ::testing::TestWithParam<const char*> {};

TEST_P(HfLogits, AreThoseOfTransformersInGeneration) {
  const Reference reference(GetParam());
  const Model model(GetParam());
  if (model.config.attention == AttentionMask::bidirectional)
    GTEST_SKIP() << "an encoder sees all tokens at once";
  if (model.config.head.labels > 0) GTEST_SKIP() << "its output is of a whole text";
  EXPECT_LT(reference.bound(), 2e-3 * reference.largest) << "nothing would be seen";
  const auto device = kernels::make_cpu_device({});
  const std::int64_t n = std::ssize(reference.tokens);
  for (const auto& [kind, cuts] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
           {"one_by_one", std::vector<std::int64_t>(static_cast<std::size_t>(n), 1)},
           {"whole", {n}},
           {"cut", {5, 1, n - 6}}}) {
    memory::HostTier tier;
    train::Generator generator(model.config, *device, tier, model.source());
    const std::vector<float> in_parts = reference.parts(kind);
    std::int64_t at = 0, part = 0;
    for (const std::int64_t count : cuts) {
      const auto logits = generator.advance(
          std::span(reference.tokens)
              .subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      at += count;
      const auto want =
          in_parts.empty() ? reference.row(at - 1) : reference.row_of(in_parts, part++);
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(logits[i], want[i], reference.bound()) << "token " << at - 1 << ", logit " << i;
    }
  }
}

TEST_P(HfLogits, AreThoseOfTransformersOfAWholeSample) {
  const Reference reference(GetParam());
  const Model model(GetParam());
  EXPECT_LT(reference.bound(), 2e-3 * reference.largest) << "nothing would be seen";
  const auto device = kernels::make_cpu_device({});
  memory::HostTier tier;
  train::Generator generator(model.config, *device, tier, model.source());
  for (int again = 0; again < 2; ++again) {
    const auto logits = generator.whole(reference.tokens);
    ASSERT_EQ(logits.size(), reference.logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      ASSERT_NEAR(logits[i], reference.logits[i], reference.bound()) << "logit " << i;
  }
}

TEST_P(HfLogits, AreThoseOfTransformersInTraining) {
  const Reference reference(GetParam());
  const Model model(GetParam());
  if (model.config.head.labels > 0) GTEST_SKIP() << "losses are of classes";
  const auto device = kernels::make_cpu_device({});
  EagerModel training(model.config, DType::f32, 1, *device, model.source());
  const std::int64_t n = std::ssize(reference.tokens);
  // Losses with every token as the target tell logits up to a constant.
  for (std::int32_t target = 0; target < reference.vocab; ++target) {
    TokenBatch batch{.batch = 1,
                     .sequence = n,
                     .tokens = reference.tokens,
                     .targets = std::vector(static_cast<std::size_t>(n), target),
                     .samples = {0}};
    const std::vector<float> losses = training.losses(batch);
    for (std::int64_t t = 0; t < n; ++t) {
      const double want = cross_entropy(reference.row(t), target);
      EXPECT_NEAR(losses[static_cast<std::size_t>(t)], want,
                  2 * reference.bound() + 0x1p-22 * std::abs(want))
          << "token " << t << ", target " << target;
    }
  }
}

// An offset that all experts' biases have in common changes no choice. Published models have
// offsets a hundred times as large as what is between biases, which bf16 would not keep.
TEST(RouterBias, IsNotRoundedWithOtherParameters) {
  const Reference of_tokens("glm4_moe");
  const Model m("glm4_moe");
  const auto device = kernels::make_cpu_device({.threads = 1});
  const auto logits = [&](float offset, float factor) {
    memory::HostTier tier;
    const auto source = [&](const model::ParamDesc& p, Range range, std::span<float> out) {
      m.source()(p, range, out);
      if (!p.name.ends_with(".router.bias")) return;
      for (float& x : out) x = offset + factor * x;
    };
    train::Generator generator(m.config, *device, tier, source, {.type = DType::bf16});
    const auto rows = generator.whole(of_tokens.tokens);
    return std::vector(rows.begin(), rows.end());
  };
  EXPECT_EQ(logits(64, 1), logits(0, 1));
  EXPECT_NE(logits(0, 0), logits(0, 1)) << "biases choose";
}

INSTANTIATE_TEST_SUITE_P(
    Models, HfLogits,
    ::testing::Values("llama3", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox", "gemma2",
                      "gemma3", "llama_yarn", "gpt_neox_sequential", "qwen2_windows",
                      "qwen3_windows", "gptj", "llama_dynamic", "bert", "roberta", "bert_classes",
                      "roberta_classes", "bert_tokens", "roberta_tokens", "llama_reward",
                      "gpt_neox_reward", "mixtral", "qwen3_moe", "qwen3_moe_sparse", "glm4_moe",
                      "glm4_moe_plain", "deepseek_v2", "deepseek_v2_groups", "deepseek_v3",
                      "deepseek_v3_plain", "peft_llama3", "peft_ranks", "peft_phi3", "peft_neox",
                      "peft_gpt2", "peft_dora", "peft_gpt2_dora"));

}  // namespace
}  // namespace tessera::test
