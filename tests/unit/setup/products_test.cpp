// Decks whose products cannot have fp8 operands are refused on every machine, by the key at fault.

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "setup/products.hpp"

namespace tessera::setup {
namespace {

constexpr const char* kDeck = R"([run]
steps = 1
[model]
layers = 1
heads = 4
hidden = 64
vocab = 65
context = 48
[data]
train = ["tokens"]
[batch]
global = 8
[optimizer]
lr = 1e-3
[precision]
matmul = "fp8"
)";

std::string refusal(const std::vector<std::string>& sets) {
  const deck::LoadedDeck loaded = deck::parse_deck(kDeck, "deck.toml", sets);
  try {
    setup::check_products(loaded);
    return "";
  } catch (const DeckError& error) {
    return error.what();
  }
}

TEST(CheckProducts, TakesWhatIsEven) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({"parallel.tensor=2"}), "");
  EXPECT_EQ(refusal({"parallel.tensor=4"}), "");
  EXPECT_EQ(refusal({"batch.sequence=24", "batch.micro=2"}), "");
  EXPECT_EQ(refusal({"model.vocab=1"}), "") << "the head keeps its type";
  // 2 heads and a kv head of 8 are 16 + 2 x 8 columns on each of two ranks.
  EXPECT_EQ(refusal({"model.head_dim=8", "model.kv_heads=2", "parallel.tensor=2"}), "");
  // On four, a whole kv head of 8 is a product of its own.
  EXPECT_NE(refusal({"model.head_dim=8", "model.kv_heads=2", "parallel.tensor=4"}), "");
  EXPECT_EQ(refusal({"model.ffn_hidden=40", "precision.matmul=same"}), "");
}

TEST(CheckProducts, NamesKeyValueAndRemedy) {
  EXPECT_EQ(refusal({"batch.sequence=24", "batch.micro=2", "batch.curriculum={table=[[0, 8]]}"}),
            "");
  EXPECT_EQ(refusal({"batch.sequence=24", "batch.micro=2",
                     "batch.curriculum={table=[[0, 8], [5, 12], [7, 20]]}"}),
            "--set #3: precision.matmul = \"fp8\" needs multiples of 16, but batch.micro x the "
            "length from step 5 on = 2 x 12 is 24 (give a multiple of 8 as the lengths of "
            "batch.curriculum, or "
            "precision.matmul = \"same\")");
  EXPECT_EQ(refusal({"batch.sequence=12", "batch.micro=2"}),
            "--set #1: precision.matmul = \"fp8\" needs multiples of 16, but batch.micro x "
            "batch.sequence = 2 x 12 is 24 (give a multiple of 8 as batch.sequence, or "
            "precision.matmul = \"same\")");
  EXPECT_EQ(refusal({"model.ffn_hidden=96", "parallel.tensor=4"}),
            "--set #1: precision.matmul = \"fp8\" needs multiples of 16, but the part of "
            "model.ffn_hidden = 96, part 0 of parallel.tensor = 4, is 24 (give a multiple of 64 as "
            "model.ffn_hidden, or precision.matmul = \"same\")");
  EXPECT_EQ(refusal({"model.ffn_hidden=96", "run.reproducible=layout", "run.reproducible_tensor=4",
                     "run.threads=1"})
                    .find("part 0 of run.reproducible_tensor = 4,") == std::string::npos,
            false);
  EXPECT_EQ(refusal({"model.head_dim=8", "model.hidden=64", "parallel.tensor=4"}),
            "--set #1: precision.matmul = \"fp8\" needs multiples of 16, but the columns of 1 head "
            "and 1 kv head of model.head_dim = 8, part 0 of parallel.tensor = 4, is 8 (give a "
            "multiple of 16 as model.head_dim, or precision.matmul = \"same\")");
  EXPECT_EQ(
      refusal({"model.hidden=72", "model.head_dim=16"}),
      "--set #1: precision.matmul = \"fp8\" needs multiples of 16, but model.hidden is 72 (give "
      "a multiple of 16 as model.hidden, or precision.matmul = \"same\")");
}

TEST(CheckProducts, OfLatents) {
  const auto with = [](std::initializer_list<std::string> more) {
    std::vector<std::string> sets{"model.family=deepseek_v2", "model.ffn_hidden=128",
                                  "model.kv_latent=32",       "model.q_latent=64",
                                  "model.rope_dim=32",        "model.head_dim=48",
                                  "parallel.tensor=2"};
    sets.insert(sets.end(), more);
    return refusal(sets);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"model.rope_dim=16"}),
            "--set #8: precision.matmul = \"fp8\" needs multiples of 16, but model.rope_dim = 16 "
            "over 2 parts is 8 (give a multiple of 32 as model.rope_dim, or precision.matmul = "
            "\"same\")");
  for (const auto& [set, problem] :
       {std::pair{"model.kv_latent=16", "model.kv_latent = 16 over 2 parts is 8"},
        {"model.q_latent=48", "model.q_latent = 48 over 2 parts is 24"},
        {"model.value_dim=4", "what 2 heads of model.value_dim = 4 have is 8"},
        {"model.head_dim=36", "what 2 heads of model.head_dim = 36 have is 72"}})
    EXPECT_NE(with({set}).find(problem), std::string::npos) << with({set});
}

TEST(CheckProducts, FindsEveryKeyAtOnce) {
  const std::string all =
      refusal({"model.hidden=40", "model.ffn_hidden=40", "model.head_dim=3", "batch.sequence=7"});
  for (const char* key : {"model.hidden is 40", "model.ffn_hidden = 40", "model.head_dim = 3",
                          "batch.sequence = 1 x 7 is 7"})
    EXPECT_NE(all.find(key), std::string::npos) << key << " in " << all;
}

// Uneven shares: what one rank has may be even where another's is not.
TEST(CheckProducts, LooksAtEveryShare) {
  EXPECT_NE(refusal({"model.heads=3", "model.head_dim=8", "parallel.tensor=2"}), "");
  EXPECT_EQ(
      refusal({"model.heads=3", "model.head_dim=16", "parallel.tensor=2", "model.ffn_hidden=96"}),
      "")
      << "one head and two";
  EXPECT_NE(
      refusal({"model.heads=3", "model.head_dim=16", "parallel.tensor=2", "model.ffn_hidden=80"}),
      "");
}

}  // namespace
}  // namespace tessera::setup
