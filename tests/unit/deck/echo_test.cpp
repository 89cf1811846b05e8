// The resolved echo, the generated reference, the shipped decks, and random damage to decks.
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "deck/presets.hpp"
#include "deck/ranks.hpp"
#include "deck/schema.hpp"
#include "deck_text.hpp"

namespace tessera::deck {
namespace {

namespace fs = std::filesystem;

const fs::path kInputs = fs::path(TESSERA_SOURCE_DIR) / "inputs";

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Echo, ParsesBackToTheSameDeck) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"model.preset=llama_8b", "model.kv_heads=2", "zero.stage=3", "run.epochs=1.5",
       "run.tokens=9007199254740993"},
      {"adapter.kind=rslora", "adapter.rank=4", "adapter.alpha=8.0", "adapter.dropout=0.1",
       "adapter.targets=[\"block.0.*\", \"*.mlp.up.weight\"]", "frozen.type=int4",
       "frozen.block=32"},
      {"model.bias=false", "moe.experts=6", "moe.top_k=1", "moe.scores=sigmoid", "moe.groups=3",
       "moe.group_top=2", "moe.scale=2.5", "parallel.experts=3"},
      {"parallel.context=4", "parallel.context_kind=heads", "zero.reduce=micro"},
      {"run.reproducible=layout", "run.threads=1", "run.reproducible_context=4",
       "parallel.context=2"},
      {"run.resume='a \"path\"\\with\u00e9'", "run.time_limit='1-02:03:04'", "run.seed=0"},
      {"memory.device=3GiB", "batch.ramp=[[1, 4], [100, 8]]", "batch.lr_scaling=sqrt",
       "schedule.warmup_epochs=0.1", "schedule.kind=inverse_sqrt", "schedule.step_epochs=0.3"},
      {"batch.curriculum={start=4, steps=9, round=4, kind=\"root\", degree=3}",
       "schedule.by=tokens"},
      {"batch.curriculum={table=[[0, 8], [7, 16]], cut=\"anew\"}"},
      {"optimizer.groups=[{match=\"a\", lr_factor=0.1}, {match=\"\\\"\", weight_decay=3}]"},
      {"optimizer.lr=0.1", "optimizer.betas=[0.1, 0.30000000000000004]", "schedule.min_lr=5e-324",
       "precision.loss_scale=65536", "schedule.kind=step", "schedule.step_size=3"},
      {"task.kind=ipo", "task.beta=0.30000000000000004", "task.reference=\"a b.json\"",
       "batch.micro=2", "model.init_from=hf"},
      {"task.kind=reward", "task.label_smoothing=0.125", "batch.micro=2"},
      {"task.kind=grpo", "task.mean=tokens", "task.scale_rewards=false", "rollout.samples=4",
       "rollout.tokens=9", "rollout.slots=3", "rollout.cache_tokens=4096", "offload.cache=host",
       "rollout.chat=auto", "rollout.keep_every=7", "reward.kind=command",
       "reward.command=[\"a b\", \"\\\"\"]", "reward.timeout=0.1", "model.init_from=hf"},
      {"data.train=[\"tab\\there\\u0001\\n\"]", "data.validation=[\"a\", \"b*\"]"}};
  for (const auto& sets : variants) {
    const Deck deck = small_deck(sets).deck;
    const std::string echo = to_toml(deck);
    const Deck again = parse_deck(echo, "resolved.toml").deck;
    EXPECT_EQ(again, deck) << echo;
    EXPECT_EQ(to_toml(again), echo);
  }
}

// What a family implies can be said by the deck itself, with experts and without, in groups or not.
TEST(Echo, OfAnyFamilyIsADeck) {
  const std::vector<std::vector<std::string>> shapes = {
      {},
      {"moe.experts=4", "moe.top_k=2", "model.bias=false"},
      {"moe.experts=4", "moe.top_k=2", "model.bias=false", "moe.groups=2"},
      {"moe.experts=4", "moe.top_k=1", "model.bias=false", "moe.groups=4"}};
  for (const auto& [family, word] : EnumWords<Family>::table) {
    if (family == Family::bert || family == Family::roberta) continue;  // without next tokens
    for (std::vector<std::string> set : shapes) {
      SCOPED_TRACE(fmt::format("{} with {}", word, fmt::join(set, ", ")));
      set.insert(set.end(), {fmt::format("model.family={}", word), "model.ffn_hidden=96"});
      const LoadedDeck loaded = small_deck(set);
      EXPECT_EQ(parse_deck(to_toml(loaded.deck), "echo.toml").deck, loaded.deck);
    }
  }
}

TEST(Echo, NamesEveryKey) {
  const std::string echo = to_toml(small_deck().deck);
  for (const SchemaRow& row : schema_rows()) expect_contains(echo, std::string(row.key));
  expect_contains(echo, "# decay_steps is unset: the run's length less the warm-up\n");
  expect_contains(echo, "[zero.quantize]\nweights = \"none\"\n");
  expect_contains(echo, "# prefetch is unset: 2 where stage 3 gathers between GPUs across nodes");
  expect_contains(to_toml(small_deck({"zero.prefetch=3"}).deck), "\nprefetch = 3\n");
}

TEST(Echo, RunDirectorySubstitutesTheName) {
  EXPECT_EQ(run_directory(small_deck({"run.name=a", "run.dir=\"x/{name}/{name}\""}).deck), "x/a/a");
  EXPECT_EQ(run_directory(small_deck({"run.name=\"{name}\""}).deck), "runs/{name}");
}

// The reference says the defaults of each optimizer in words.
TEST(Reference, NamesTheDefaultsOfOptimizers) {
  for (const SchemaRow& row : schema_rows()) {
    for (const auto& [optimizer, word] : EnumWords<OptimizerName>::table) {
      for (const ImpliedKey& key : optimizer_keys(optimizer)) {
        if (key.name != row.name) continue;
        EXPECT_NE(row.rules.unset.find(word), std::string::npos) << row.name << " of " << word;
        EXPECT_NE(row.rules.unset.find(value_text(key.value)), std::string::npos) << row.name;
      }
    }
  }
}

TEST(Reference, IsWhatTheSchemaSays) {
  const fs::path path = kInputs / "README.md";
  if (std::getenv("TESSERA_UPDATE_GOLDEN")) std::ofstream(path) << schema_markdown();
  EXPECT_EQ(contents(path), schema_markdown())
      << "run this test with TESSERA_UPDATE_GOLDEN=1 to write inputs/README.md anew";
}

TEST(Inputs, EveryDeckLoadsAtItsSize) {
  const std::pair<const char*, std::int64_t> decks[] = {
      {"quickstart_gpt", 2},   {"gpt2_124m", 8},        {"gpt2_350m", 8},
      {"gpt2_774m", 16},       {"qwen3_0.6b", 16},      {"gemma2_2b", 64},
      {"pythia_160m", 8},      {"gpt2_1.5b", 32},       {"gpt2_1.5b_laptop", 1},
      {"llama_1b", 16},        {"llama_3b", 64},        {"llama_7b", 64},
      {"llama_8b", 128},       {"gpt_18b", 384},        {"gpt_138b", 384},
      {"gpt_10b", 32},         {"gpt_1t", 512},         {"onebit_adam", 4},
      {"imdb_classifier", 2},  {"bert_large", 1},       {"moe_quickstart", 2},
      {"mixtral_8x7b", 128},   {"qwen3_30b_a3b", 128},  {"llama_8b_lora", 8},
      {"llama_8b_qlora", 1},   {"llama_8b_128k", 8},    {"llama_8b_sft", 16},
      {"llama_8b_reward", 16}, {"deepseek_v2_lite", 64}};
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(kInputs)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".toml" && !name.starts_with("base_")) ++files;
  }
  EXPECT_EQ(files, std::size(decks));
  for (const auto& [name, ranks] : decks) {
    const LoadedDeck loaded = load_deck((kInputs / (std::string(name) + ".toml")).string());
    EXPECT_EQ(loaded.deck.run.name, name);
    EXPECT_NO_THROW(check_ranks(loaded, ranks));
    EXPECT_EQ(parse_deck(to_toml(loaded.deck), "resolved.toml").deck, loaded.deck);
  }
}

// Whatever bytes a deck holds, it is accepted or refused with a DeckError.
TEST(Fuzz, OnlyDeckErrorsEscape) {
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return std::size_t{random()} % n; };
  const std::string seed = to_toml(small_deck({"batch.ramp=[[1, 4], [100, 8]]"}).deck);
  const std::string_view pieces[] = {"[",
                                     "]",
                                     "{",
                                     "}",
                                     "=",
                                     "\"",
                                     "'",
                                     "\n",
                                     ".",
                                     "-",
                                     "1e999",
                                     "-0",
                                     "nan",
                                     "\xff",
                                     "\\u0000",
                                     "[[",
                                     "]]",
                                     "9223372036854775807",
                                     "-9223372036854775808",
                                     "0x7f",
                                     "true",
                                     "\"\"\"",
                                     "#",
                                     "include = [\"deck.toml\"]",
                                     "1979-05-27T07:32:00Z",
                                     "[model]",
                                     "\\",
                                     "\r",
                                     "[1,[2,[3]]]"};
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text[at] = static_cast<char>(below(256)); break;
        case 1: text.erase(at, 1 + below(20)); break;
        case 2: text.insert(at, pieces[below(std::size(pieces))]); break;
        default: text.insert(at, text.substr(below(text.size()), below(40)));
      }
    }
    try {
      check_ranks(parse_deck(text, "fuzz.toml"), 1 + static_cast<std::int64_t>(below(9)));
      ++accepted;
    } catch (const DeckError&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 3000);
}

TEST(Fuzz, DeepNestingIsRefused) {
  EXPECT_NE(refusal("x = " + std::string(100000, '[') + std::string(100000, ']')), "");
  std::string dotted = "a";
  for (int i = 0; i < 200000; ++i) dotted += ".a";
  expect_contains(refusal(dotted + " = 1\n"), "too many dotted keys");
  expect_contains(refusal("x = '\\' # '\n[" + dotted + "]\n"), "too many dotted keys");
  expect_contains(refusal_of("run.name={" + dotted + " = 1}"), "too many dotted keys");
  expect_contains(refusal(dotted.substr(0, 2001) + " = 1\n"), "unknown section [a]");
  const std::string many_dots(100000, '.');
  EXPECT_EQ(refusal(std::string(kSmallDeck) + "#" + many_dots + "\n[run.x]\n").find("dotted"),
            std::string::npos);
  EXPECT_EQ(refusal_of("data.validation=[\"\\\"" + many_dots + "\", '\"" + many_dots + "']"), "");
}

}  // namespace
}  // namespace tessera::deck
