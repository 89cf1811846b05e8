// Conditions over several keys, presets, model directories, ranks, and what resuming allows.
#include <algorithm>
#include <cmath>

#include "deck/curriculum.hpp"
#include "deck/ranks.hpp"
#include "deck/remarks.hpp"
#include "deck/resume.hpp"
#include "deck_text.hpp"

namespace tessera::deck {
namespace {

std::string without(std::string_view line) {
  std::string text(kSmallDeck);
  text.erase(text.find(line), line.size());
  return text;
}

TEST(Checks, ModelArithmetic) {
  expect_contains(refusal_of("model.heads=5"),
                  "model.hidden = 32 is not a multiple of model.heads");
  EXPECT_EQ(refusal(kSmallDeck, {"model.heads=5", "model.head_dim=8"}), "");
  expect_contains(refusal_of("model.kv_heads=3"), "model.kv_heads = 3 does not divide");
  expect_contains(refusal_of("model.kv_heads=8"), "model.kv_heads = 8 does not divide");
  expect_contains(refusal_of("model.family=llama"), "model.ffn_hidden is missing");
  expect_contains(refusal(kSmallDeck, {"model.position=rope", "model.head_dim=7"}), "is odd");
  expect_contains(refusal_of("parallel.pipeline=3"), "more than model.layers = 2");
}

TEST(Checks, KeysAboutPositionsAndWindowsAreNotInVain) {
  for (const auto& [sets, problem] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"model.rotary_share=0.5"}, "no effect without model.position = \"rope\""},
           {{"model.position=rope", "model.rotary_share=0.2"}, "turns 1 of model.head_dim = 8"},
           {{"model.rope_scaling=linear"}, "no effect without model.position = \"rope\""},
           {{"model.rope_factor=2"}, "no effect without model.rope_scaling"},
           {{"model.position=rope", "model.rope_scaling=linear", "model.rope_low_frequency=2"},
            "model.rope_low_frequency has no effect without model.rope_scaling = \"llama3\" or "
            "\"yarn\""},
           {{"model.position=rope", "model.rope_scaling=linear", "model.rope_magnitude=1.5"},
            "model.rope_magnitude has no effect without model.rope_scaling = \"yarn\""},
           {{"model.position=rope", "model.rope_scaling=yarn", "model.rope_factor=4"},
            "model.rope_original_context is missing: model.rope_scaling = \"yarn\""},
           {{"model.position=rope", "model.rope_scaling=llama3"},
            "model.rope_original_context is missing"},
           {{"model.position=rope", "model.rope_scaling=llama3", "model.rope_original_context=8",
             "model.rope_low_frequency=4"},
            "4 is not below model.rope_high_frequency = 4"},
           {{"model.position=rope", "model.rope_scaling=dynamic"},
            "model.rope_original_context is missing: model.rope_scaling = \"dynamic\""},
           {{"model.position=rope", "model.rope_scaling=dynamic", "model.rope_original_context=8",
             "model.rotary_share=0.25"},
            "where 2 columns of a head turn their only frequency is 1"},
           {{"model.position=rope", "model.rope_scaling=dynamic", "model.rope_original_context=8",
             "data.documents=separate"},
            "does not go with positions that documents begin anew"},
           {{"model.position=rope", "model.rope_scaling=dynamic", "model.rope_original_context=4",
             "data.positions=sequence", "task.kind=tokens", "task.labels=2", "batch.sequence=8"},
            "a document would have other frequencies beside padding than alone"},
           {{"task.kind=tokens", "task.pooling=none"}, "task.pooling has no effect with task.kind"},
           {{"model.position=rope", "model.rope_scaling=linear", "model.rope_original_context=8"},
            "no effect without model.rope_scaling = \"dynamic\", \"llama3\" or \"yarn\""},
           {{"model.global_every=2"}, "no effect without model.window"},
           {{"model.window=4", "model.rope_local_theta=5"}, "model.position = \"rope\""},
           {{"model.qkv_bias=true"}, "no effect without model.bias = false"},
           {{"model.scaled_embeddings=true"}, "only tokens are multiplied"}}) {
    expect_contains(refusal(kSmallDeck, sets), problem);
  }
  EXPECT_EQ(
      refusal(kSmallDeck, {"model.position=rope", "model.rotary_share=0.5",
                           "model.rope_scaling=linear", "model.rope_factor=2", "model.window=4",
                           "model.global_every=2", "model.rope_local_theta=5"}),
      "");
}

TEST(Checks, NormsOfTheWholeNeedAllHeadsOnARank) {
  EXPECT_EQ(refusal_of("model.qk_norm=whole"), "");
  for (const char* key : {"parallel.tensor", "zero.tiles"}) {
    expect_contains(refusal(kSmallDeck, {"model.qk_norm=whole", fmt::format("{}=2", key)}),
                    fmt::format("{} = 2 is not possible with model.qk_norm = \"whole\"", key));
    EXPECT_EQ(refusal(kSmallDeck, {"model.qk_norm=head", fmt::format("{}=2", key)}), "") << key;
  }
}

TEST(Checks, LatentsThatKeysAndValuesAreMadeOf) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets{"model.family=deepseek_v2", "model.ffn_hidden=16",
                                  "model.kv_latent=16", "model.rope_dim=2", "model.head_dim=6"};
    sets.insert(sets.end(), more.begin(), more.end());
    return refusal(kSmallDeck, sets);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"model.q_latent=8", "model.value_dim=5", "model.rope_scaling=yarn",
                  "model.rope_factor=4", "model.rope_original_context=4",
                  "model.rope_mscale_all_dim=0.7", "parallel.tensor=2"}),
            "");
  for (const auto& [sets, problem] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"model.rope_dim=3"},
            "model.rope_dim = 3 is not possible with model.kv_latent = 16: it is the number of "
            "columns that turn, in pairs, of the model.head_dim = 6 of each head (give an even "
            "number from 2 to 4)"},
           {{"model.rope_dim=0"}, "model.rope_dim = 0 is not possible"},
           {{"model.rope_dim=6"}, "model.rope_dim = 6 is not possible"},
           {{"model.position=learned"}, "model.position = \"learned\" is not possible with"},
           {{"model.rotary_share=0.5"}, "model.rope_dim says how many columns turn"},
           {{"model.kv_heads=1"}, "every head has keys of its own"},
           {{"model.bias=true"}, "its products have no biases (use false)"},
           {{"model.qkv_bias=true"}, "its products have no biases (leave it out)"},
           {{"model.qk_norm=head"}, "norms are of latents"},
           {{"model.q_latent=9", "parallel.tensor=2"},
            "model.q_latent = 9 does not divide over parallel.tensor x zero.tiles = 2"},
           {{"model.kv_latent=15", "zero.tiles=2", "zero.stage=3"},
            "model.kv_latent = 15 does not divide over parallel.tensor x zero.tiles = 2"},
           {{"run.reproducible=layout", "run.reproducible_tensor=4", "run.threads=1",
             "model.heads=4"},
            "model.rope_dim = 2 does not divide over run.reproducible_tensor = 4"},
           {{"model.rope_mscale_all_dim=1"}, "no effect without model.rope_scaling = \"yarn\""}}) {
    expect_contains(with(sets), problem);
  }
  for (const char* set : {"model.q_latent=8", "model.rope_dim=2", "model.value_dim=4"})
    expect_contains(refusal(kSmallDeck, {set}), "no effect without model.kv_latent");
}

TEST(Checks, AnswersThatTheModelDraws) {
  const std::vector<std::string> whole{"task.kind=grpo", "rollout.samples=4", "rollout.tokens=8",
                                       "model.init_from=hf"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> sets = whole;
    sets.insert(sets.end(), more);
    return refusal(kSmallDeck, sets);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"reward.kind=command", "reward.command=[\"judge\"]", "task.mean=tokens"}), "");
  expect_contains(refusal_of("task.kind=grpo"), "rollout.tokens is missing");
  expect_contains(refusal_of("task.kind=grpo"), "model.init_from is missing");
  for (const auto& [set, problem] :
       {std::pair{"rollout.samples=3", "give a multiple of rollout.samples = 3"},
        {"batch.ramp=[[5, 6]]", "batch.ramp: 6 answers are not 4 to each"},
        {"reward.kind=command", "reward.command is missing"},
        {"reward.command=[\"judge\"]", "has no effect with reward.kind = \"match\""},
        {"reward.timeout=5", "has no effect with reward.kind = \"match\""},
        {"task.z_loss=0.1", "does not go with task.kind = \"grpo\""},
        {"task.label_smoothing=0.1", "does not go with task.kind = \"grpo\""},
        {"data.validation=[\"a\"]", "does not go with task.kind = \"grpo\""},
        {"data.documents=joined", "does not go with task.kind = \"grpo\""},
        {"data.train=[{path=\"a.jsonl\", weight=1}]", "prompts are taken by turns"},
        {"model.dropout=0.1", "does not go with task.kind = \"grpo\""},
        {"guard.spike=warn", "does not go with task.kind = \"grpo\""},
        {"task.clip=[0.1, 0.1]", "has no effect with rollout.steps = 1"},
        {"optimizer.name=onebit_adam", "does not go with optimizer.name"}})
    expect_contains(with({set}), problem);
  expect_contains(with({"rollout.steps=4", "checkpoint.every=10"}),
                  "checkpoint.every = 10 does not go with rollout.steps = 4");
  EXPECT_EQ(with({"rollout.steps=3", "task.clip=[0.1, 0.3]"}), "") << "every is a multiple";
  expect_contains(with({"rollout.chat=auto", "rollout.field=text"}), "rollout.field has no effect");
  expect_contains(with({"rollout.cache_tokens=1"}), "a single sequence may have batch.sequence = ");
  expect_contains(with({"offload.cache=nvme"}), "must be one of none|host");
  EXPECT_EQ(with({"rollout.cache_tokens=100000", "offload.cache=host"}), "");
  expect_contains(with({"reward.kind=command", "reward.command=[\"judge\"]", "reward.field=sum"}),
                  "has no effect with reward.kind = \"command\"");
  for (const char* idle :
       {"task.kl=0.1", "task.clip=[0.1, 0.1]", "rollout.steps=2", "task.mean=tokens",
        "task.scale_rewards=false", "rollout.samples=4", "rollout.tokens=8", "rollout.slots=2",
        "rollout.cache_tokens=4096", "rollout.chat=auto", "rollout.field=text",
        "rollout.keep_every=1", "reward.kind=command", "reward.field=sum",
        "reward.command=[\"judge\"]", "reward.timeout=1"})
    expect_contains(refusal_of(idle), "has no effect with task.kind = \"lm\"");
}

TEST(Checks, NamesOfRuns) {
  for (const char* good : {"a", "größe 1", "small/seed_1", "a..b", "..."})
    EXPECT_EQ(refusal_of(fmt::format("run.name=\"{}\"", good)), "") << good;
  for (const char* out : {"..", "../a", "a/../../b", "/tmp/a"}) {
    expect_contains(refusal_of(fmt::format("run.name=\"{}\"", out)),
                    fmt::format("run.name = \"{}\" leads out of the directory of runs", out));
  }
  for (const char* key : {"run.name", "run.dir"}) {
    expect_contains(refusal_of(fmt::format("{}=\"\"", key)), "must be a string");
    for (const char* text : {"a\\nb", "a\\u001b[2J", "\\u009b", "\\u0000"}) {
      const std::string refused = refusal_of(fmt::format("{}=\"{}\"", key, text));
      expect_contains(refused, fmt::format("{} = \"", key));
      expect_contains(refused, "characters that cannot be shown");
      EXPECT_EQ(refused.find('\n'), std::string::npos) << "one line";
    }
  }
  EXPECT_EQ(refusal_of("run.dir=\"../elsewhere/{name}\""), "") << "stated as a path";
}

TEST(Checks, TypesOfProducts) {
  EXPECT_EQ(refusal_of("precision.matmul=tf32"), "");
  expect_contains(refusal(kSmallDeck, {"precision.matmul=tf32", "precision.compute=bf16"}),
                  "is of precision.compute = \"f32\"");
  EXPECT_EQ(refusal_of("precision.matmul=fp8"), "");
  EXPECT_EQ(refusal(kSmallDeck, {"precision.matmul=fp8", "precision.compute=bf16"}), "");
  EXPECT_EQ(
      refusal(kSmallDeck, {"precision.matmul=fp8", "precision.compute=f16"}),
      "--set #1: precision.matmul = \"fp8\" needs precision.compute = \"bf16\" or \"f32\": its "
      "scales do what loss scaling does for \"f16\"");
}

TEST(Checks, LengthsAndUnits) {
  expect_contains(refusal(without("steps = 10\n")), "give run.steps, run.epochs or run.tokens");
  EXPECT_EQ(refusal(without("steps = 10\n"), {"run.epochs=0.5"}), "");
  expect_contains(refusal(kSmallDeck, {"schedule.warmup_steps=1", "schedule.warmup_tokens=5"}),
                  "--set #2: schedule.warmup_tokens and schedule.warmup_steps (--set #1)");
  const Deck dropped = small_deck({"schedule.warmup_tokens=0", "schedule.warmup_steps=5"}).deck;
  EXPECT_FALSE(dropped.schedule.warmup_tokens);
  EXPECT_EQ(dropped.schedule.warmup_steps, 5);
  expect_contains(refusal(kSmallDeck, {"schedule.decay_epochs=1", "schedule.decay_steps=5"}),
                  "keep one");
  EXPECT_EQ(refusal(kSmallDeck, {"schedule.warmup_steps=100"}), "");  // longer than the run: legal
  expect_contains(refusal_of("schedule.kind=step"), "needs schedule.step_size");
  EXPECT_EQ(refusal(kSmallDeck, {"schedule.kind=step", "schedule.step_epochs=0.5"}), "");
  expect_contains(
      refusal(kSmallDeck, {"schedule.kind=step", "schedule.step_epochs=1", "schedule.step_size=5"}),
      "schedule.step_epochs and schedule.step_size (--set #3) say the same thing");
  expect_contains(refusal_of("schedule.step_epochs=0"), "must be a number, > 0");
  expect_contains(refusal_of("schedule.gamma=-0.5"), "must be a number, > 0 and <= 1");
  expect_contains(refusal_of("schedule.kind=inverse_sqrt"), "needs a warm-up");
  EXPECT_EQ(refusal(kSmallDeck, {"schedule.kind=inverse_sqrt", "schedule.warmup_tokens=5"}), "");
  expect_contains(refusal_of("schedule.min_lr=1"), "more than optimizer.lr");
  expect_contains(refusal_of("optimizer.trust=[0.1, 1]"), "optimizer.trust has no effect");
  expect_contains(refusal_of("data.train=[]"), "names no token file");
  expect_contains(refusal_of("evaluate.every=5"), "needs data.validation");
  expect_contains(refusal_of("batch.ramp=[[1, 2], [1, 4]]"), "steps must grow");
  EXPECT_EQ(refusal_of("batch.ramp=[[1, 2], [5, 4]]"), "");
  expect_contains(refusal_of("batch.lr_scaling=square"), "must be one of none|linear|sqrt");
  expect_contains(refusal_of("batch.lr_scaling=linear"), "has no effect without batch.ramp");
  EXPECT_EQ(refusal(kSmallDeck, {"batch.ramp=[[5, 4]]", "batch.lr_scaling=sqrt"}), "");
  // Who takes a file's ramp away need not take what scales with it.
  std::string scaled(kSmallDeck);
  scaled.insert(scaled.find("[optimizer]"), "ramp = [[5, 4]]\nlr_scaling = \"sqrt\"\n\n");
  EXPECT_EQ(refusal(scaled), "");
  EXPECT_EQ(refusal(scaled, {"batch.ramp=[]"}), "");
  expect_contains(refusal(scaled, {"batch.ramp=[]", "batch.lr_scaling=linear"}), "has no effect");
  expect_contains(
      refusal(kSmallDeck, {"model.context=2048", "batch.sequence=2048", "batch.micro=1048576"}),
      "batch.micro = 1048576 makes micro-batches of more than 2147483647 tokens (give at most "
      "1048575)");
  EXPECT_EQ(
      refusal(kSmallDeck, {"model.context=2048", "batch.sequence=2048", "batch.micro=1048575"}),
      "");
}

using Table = std::vector<LengthEntry>;

Table phases_of(const std::string& curriculum) {
  return phases(small_deck({"batch.curriculum=" + curriculum}).deck.batch);
}

// In step t the length is start + (end - start) f(t / steps), rounded down to a multiple of round.
TEST(Curriculum, GrowsFromStartToEnd) {
  EXPECT_EQ(phases(small_deck().deck.batch), (Table{{0, 16}}));
  EXPECT_EQ(phases_of("{}"), (Table{{0, 16}}));
  EXPECT_EQ(phases_of("{start=4, steps=12, round=4}"), (Table{{0, 4}, {4, 8}, {8, 12}, {12, 16}}));
  EXPECT_EQ(phases_of("{start=3, steps=10, end=9, round=4}"),
            (Table{{0, 3}, {2, 4}, {9, 8}, {10, 9}}));
  EXPECT_EQ(phases_of("{start=8, steps=5}"), (Table{{0, 8}, {5, 16}})) << "round is 8";
  EXPECT_EQ(phases_of("{start=16, steps=5}"), (Table{{0, 16}}));
  EXPECT_EQ(phases_of("{start=1, steps=1, round=1}"), (Table{{0, 1}, {1, 16}}));
  EXPECT_EQ(phases_of("{table=[[0, 2], [5, 16], [7, 4]]}"), (Table{{0, 2}, {5, 16}, {7, 4}}));
  for (const char* curriculum :
       {"{start=3, steps=37, round=2}", "{start=1, steps=9, round=1, end=14}",
        "{start=4, steps=100, round=4, kind=\"root\"}",
        "{start=2, steps=64, round=1, kind=\"root\", degree=3}"}) {
    const BatchSection batch =
        small_deck({std::string("batch.curriculum=") + curriculum}).deck.batch;
    const Curriculum& c = batch.curriculum;
    const Table all = phases(batch);
    for (std::int64_t t = 0; t <= 120; ++t) {
      const double degree = c.kind == Growth::root ? static_cast<double>(c.degree) : 1;
      const double grown =
          std::pow(static_cast<double>(t) / static_cast<double>(c.steps), 1 / degree);
      const auto whole = static_cast<std::int64_t>(
          static_cast<double>(c.start) + static_cast<double>(c.end - c.start) * grown + 1e-9);
      const std::int64_t want = t >= c.steps ? c.end : std::max(c.start, whole / c.round * c.round);
      const auto next = std::ranges::upper_bound(all, t, {}, &LengthEntry::step);
      EXPECT_EQ((next - 1)->length, want) << curriculum << " in step " << t;
    }
  }
}

TEST(Curriculum, BadOnesNameTheMemberAndTheRemedy) {
  const std::pair<const char*, const char*> bad[] = {
      {"5", "5 is no table"},
      {"{start=4}", "steps is missing (or give a table)"},
      {"{steps=4}", "start is missing (or give a table)"},
      {"{start=0, steps=4}", "start = 0 must be an integer, 1 to 1073741824"},
      {"{start=4, steps=4, rond=8}", "rond is no key of a curriculum (did you mean round?)"},
      {"{start=4, steps=4, kind=\"cubic\"}", "kind = \"cubic\" must be one of linear|root"},
      {"{start=4, steps=4, cut=\"new\"}", "cut = \"new\" must be one of truncate|anew"},
      {"{start=4, steps=4, degree=3}", "degree has no effect: kind is not \"root\""},
      {"{start=4, table=[[0, 4]]}", "table and start say the same thing: keep one"},
      {"{table=[]}", "table = [] must be [step, length] pairs"},
      {"{table=[[0, 4, 5]]}", "must be [step, length] pairs"},
      {"{table=[[1, 4]]}", "table begins with step 1 (the first pair is [0, length])"},
      {"{table=[[0, 4], [0, 8]]}", "table has step 0 after step 0 (steps must grow)"},
      {"{table=[[0, 0]]}", "table has the length 0 (at least 1)"},
      {"{table=[[0, 17]]}", "17 is more than batch.sequence = 16 (at most 16)"},
      {"{start=4, end=20, steps=4}", "end = 20 is more than batch.sequence = 16 (at most 16)"},
      {"{start=8, end=4, steps=4}", "start = 8 is more than end = 4 (exchange them)"}};
  for (const auto& [curriculum, text] : bad)
    expect_contains(refusal_of(std::string("batch.curriculum=") + curriculum), text);
  const auto long_deck = [&](const std::string& curriculum) {
    return refusal(kSmallDeck,
                   {"model.context=1024", "batch.sequence=1024", "batch.curriculum=" + curriculum});
  };
  expect_contains(long_deck("{start=64, steps=1000, round=8}"),
                  "has up to 121 lengths, each of which needs plans of its own (at "
                  "most 64: give round = 16 or more)");
  EXPECT_EQ(long_deck("{start=64, steps=1000, round=16}"), "");
}

// What batch.sequence must suit, each length must.
TEST(Curriculum, LengthsMustSuitTheLayout) {
  const std::vector<std::string> tensor = {"parallel.tensor=2",
                                           "batch.curriculum={start=4, steps=9, round=3}"};
  expect_contains(refusal(kSmallDeck, tensor),
                  "--set #2: batch.curriculum: the 9 tokens of sequences from step 4 on do not "
                  "divide over parallel.tensor = 2 (give multiples of 2 as start, end and round, "
                  "or parallel.sequence = false)");
  auto whole = tensor;
  whole.emplace_back("parallel.sequence=false");
  EXPECT_EQ(refusal(kSmallDeck, whole), "");
  expect_contains(
      refusal(kSmallDeck, {"run.reproducible=layout", "run.reproducible_tensor=4", "run.threads=1",
                           "batch.curriculum={table=[[0, 4], [3, 6]]}"}),
      "the 6 tokens of sequences from step 3 on do not divide over run.reproducible_tensor = 4 "
      "(give multiples of 4 as the lengths of table)");
}

// A deck may be tried with another optimizer, which has no use for all that it says of the first.
TEST(Checks, AnotherOptimizerLeavesOutWhatItDoesNotUse) {
  const std::string with_eps = std::string(kSmallDeck) + "eps = 1e-6\n";
  const OptimizerSection lion =
      parse_deck(with_eps, "a.toml", std::vector<std::string>{"optimizer.name=lion"})
          .deck.optimizer;
  EXPECT_FALSE(lion.eps.has_value());
  EXPECT_EQ(lion.betas, (std::array{0.9, 0.99}));
  expect_contains(refusal(with_eps, {"optimizer.name=lion", "optimizer.eps=1e-7"}),
                  "optimizer.eps has no effect");
}

TEST(Checks, AnotherOptimizerKeepsWhatItUsesAndThatIsSaid) {
  const auto remarks = [](const std::vector<std::string>& sets) {
    const std::string text =
        std::string(kSmallDeck) + "betas = [0.9, 0.999]\neps = 1e-6\nweight_decay = 0.3\n";
    return remarks_text(parse_deck(text, "a.toml", sets));
  };
  EXPECT_EQ(remarks({}), "");
  EXPECT_EQ(remarks({"optimizer.name=lamb"}),
            "note: a.toml:20:7: optimizer.eps = 1e-06 stays with --set optimizer.name=lamb, whose "
            "default is 1e-12\n");
  EXPECT_EQ(remarks({"optimizer.name=lamb", "optimizer.eps=1e-6"}), "") << "meant";
  EXPECT_EQ(remarks({"optimizer.name=lion"}),
            "note: a.toml:19:9: optimizer.betas = [0.9, 0.999] stays with --set "
            "optimizer.name=lion, whose default is [0.9, 0.99]\n");
  EXPECT_EQ(remarks({"optimizer.name=sgd"}), "");
}

TEST(Checks, WhatIsOffloaded) {
  EXPECT_EQ(refusal(kSmallDeck, {"offload.activations=host", "offload.ahead=0"}), "");
  expect_contains(refusal_of("offload.ahead=3"), "nothing is offloaded");
  expect_contains(refusal_of("offload.optimizer_share=0.5"), "offload.optimizer is \"none\"");
  EXPECT_EQ(refusal(kSmallDeck, {"offload.optimizer=host", "offload.optimizer_share=0.5"}), "");
  // A deck that offloads may be tried without.
  const std::string offloads =
      std::string(kSmallDeck) +
      "[offload]\noptimizer = \"host\"\noptimizer_share = 0.5\nahead = 3\n";
  EXPECT_EQ(refusal(offloads, {"offload.optimizer=none"}), "");
  expect_contains(refusal(offloads, {"offload.optimizer=none", "offload.ahead=2"}),
                  "nothing is offloaded");
  expect_contains(refusal(kSmallDeck, {"zero.tiles=5"}), "is more than model.heads");
  for (const char* key : {"parameters", "gradients", "optimizer", "activations"}) {
    const std::string set = fmt::format("offload.{}=nvme", key);
    expect_contains(refusal_of(set), "needs offload.nvme");
    EXPECT_EQ(refusal(kSmallDeck, {set, "offload.nvme=[\"/disk\"]"}), "");
  }
  EXPECT_EQ(refusal(kSmallDeck, {"offload.nvme=[\"/disk\"]"}), "");
  expect_contains(refusal_of("offload.block=5000"), "a multiple of 4096");
}

TEST(Checks, HowGradientsAndParametersTravel) {
  EXPECT_EQ(refusal(kSmallDeck, {"zero.stage=3", "zero.quantize.weights=int8"}), "");
  for (const char* gradients : {"zero.quantize.gradients=int8", "zero.quantize.gradients=int4"}) {
    EXPECT_EQ(refusal_of(gradients), "");
    expect_contains(refusal(kSmallDeck, {gradients, "precision.gradients=bf16"}),
                    "both say how gradients travel");
    expect_contains(refusal(kSmallDeck, {gradients, "run.reproducible=layout", "run.threads=1"}),
                    "needs zero.quantize.gradients = \"none\"");
  }
  for (const char* set : {"zero.quantize.gradients=int8", "zero.quantize.weights=int8"}) {
    EXPECT_EQ(refusal(kSmallDeck, {"zero.stage=3", "parallel.tensor=2", set}), "");
    EXPECT_EQ(refusal(kSmallDeck, {"zero.stage=3", "parallel.pipeline=2", set}), "");
  }
  for (const char* key : {"zero.quantize.error_feedback", "zero.quantize.stochastic"}) {
    const std::string set = std::string(key) + "=true";
    EXPECT_EQ(refusal(kSmallDeck, {"zero.quantize.gradients=int4", set.c_str()}), "");
    expect_contains(refusal_of(set.c_str()), std::string(key) + " has no effect");
  }
  for (const char* set : {"zero.quantize.chunk=2MiB", "zero.quantize.block=64"}) {
    EXPECT_EQ(refusal(kSmallDeck, {"zero.quantize.gradients=int4", set}), "");
    EXPECT_EQ(refusal(kSmallDeck, {"zero.stage=3", "zero.quantize.weights=int8", set}), "");
    expect_contains(refusal_of(set), " has no effect");
  }
  expect_contains(refusal(kSmallDeck, {"zero.quantize.gradients=int4", "zero.quantize.block=33"}),
                  "is odd");
}

/// Parameters by hand: embeddings, then norms, attention and feed-forward of each block.
std::int64_t parameters(const ModelSection& m) {
  const std::int64_t bias = m.bias ? 1 : 0;
  const std::int64_t norm = m.hidden * (m.norm == NormKind::layernorm ? 2 : 1);
  const std::int64_t q = m.heads * m.head_dim;
  const std::int64_t kv = m.kv_heads * m.head_dim;
  const std::int64_t attention =
      m.hidden * (q + 2 * kv) + bias * (q + 2 * kv) + q * m.hidden + bias * m.hidden;
  const std::int64_t matrices = m.activation == ActivationKind::swiglu ? 3 : 2;
  const std::int64_t dense =
      matrices * m.hidden * m.ffn_hidden + bias * ((matrices - 1) * m.ffn_hidden + m.hidden);
  const std::int64_t experts =
      m.moe.experts * (matrices * m.hidden * m.moe.ffn_hidden + m.hidden);  // and the router
  const std::int64_t ffn = m.moe.experts > 0 ? experts : dense;
  const std::int64_t qk_norms = m.qk_norm == QkNorm::head ? 2 * m.head_dim : 0;
  const std::int64_t ends = m.vocab * m.hidden * (m.tied_embeddings ? 1 : 2) +
                            (m.position == PositionKind::learned ? m.context * m.hidden : 0);
  return ends + m.layers * (2 * norm + attention + qk_norms + ffn) + norm;
}

TEST(Presets, HaveThePublishedParameterCounts) {
  const std::string text =
      "[run]\nsteps = 1\n[data]\ntrain = [\"t\"]\n[batch]\nglobal = 8\n[optimizer]\nlr = 1.0\n";
  const std::pair<const char*, std::int64_t> wanted[] = {
      {"gpt2_124m", 124439808},      {"gpt2_350m", 354823168},  {"gpt2_774m", 774030080},
      {"gpt2_1.5b", 1557611200},     {"llama_1b", 1235814400},  {"llama_3b", 3212749824},
      {"llama_8b", 8030261248},      {"llama2_7b", 6738415616}, {"mixtral_8x7b", 46702792704},
      {"qwen3_30b_a3b", 30532122624}};
  ASSERT_EQ(std::size(wanted), EnumWords<Preset>::table.size());
  for (const auto& [name, count] : wanted) {
    const std::vector<std::string> sets = {std::string("model.preset=\"") + name + '"'};
    EXPECT_EQ(parameters(parse_deck(text, "deck.toml", sets).deck.model), count) << name;
  }
}

TEST(Presets, YieldToExplicitKeys) {
  const LoadedDeck loaded = small_deck({"model.preset=gpt2_124m"});
  EXPECT_EQ(loaded.deck.model.layers, 2);
  EXPECT_EQ(loaded.deck.model.kv_heads, 4);
  EXPECT_EQ(loaded.deck.model.ffn_hidden, 128);
  EXPECT_TRUE(loaded.explicitly_set("model.layers"));
  EXPECT_FALSE(loaded.explicitly_set("model.rope_theta"));
  EXPECT_EQ(loaded.where("model.rope_theta"), "--set #1");
  expect_contains(refusal_of("model.preset=gpt2_1.6b"), "(did you mean \"gpt2_1.5b\"?)");
}

std::vector<ArchitectureKey> small_llama(const std::string& dir, const LoadedDeck&) {
  const std::string place = dir + "/config.json";
  return {{"model.family", std::string("llama"), place}, {"model.layers", std::int64_t{3}, place},
          {"model.heads", std::int64_t{4}, place},       {"model.hidden", std::int64_t{32}, place},
          {"model.ffn_hidden", std::int64_t{96}, place}, {"model.vocab", std::int64_t{65}, place},
          {"model.context", std::int64_t{16}, place},    {"model.norm_eps", 1e-6, place},
          {"model.tied_embeddings", true, place}};
}

const std::string kFromDirectory =
    "[run]\nsteps = 1\n[model]\ninit_from = \"hf\"\n[data]\ntrain = [\"t\"]\n[batch]\nglobal = 8\n"
    "[optimizer]\nlr = 1.0\n";

TEST(ModelDirectory, FixesTheArchitecture) {
  const LoadedDeck loaded = parse_deck(kFromDirectory, "deck.toml", {}, small_llama);
  EXPECT_EQ(loaded.deck.model.family, Family::llama);
  EXPECT_EQ(loaded.deck.model.norm, NormKind::rmsnorm);
  EXPECT_EQ(loaded.deck.model.norm_eps, 1e-6);
  EXPECT_TRUE(loaded.deck.model.tied_embeddings);
  EXPECT_FALSE(loaded.explicitly_set("model.layers"));
  EXPECT_EQ(loaded.where("model.layers"), "hf/config.json");
  // The resolved deck needs no directory any more.
  EXPECT_EQ(parse_deck(to_toml(loaded.deck), "resolved.toml").deck, loaded.deck);
}

TEST(ModelDirectory, DisagreementShowsBothSides) {
  EXPECT_EQ(refusal(kFromDirectory, {"model.layers=4"}, small_llama),
            "--set #1: model.layers = 4, but hf/config.json says 3 (remove the key, or "
            "model.init_from)");
  EXPECT_EQ(refusal(kFromDirectory, {"model.layers=3"}, small_llama), "");
  expect_contains(refusal(kFromDirectory, {"model.preset=gpt2_124m"}, small_llama), "keep one");
}

// Of training the deck's own word counts; one rate for all is a word for each.
TEST(ModelDirectory, DropoutIsTheDirectorysUnlessTheDeckSaysOtherwise) {
  const auto reader = [](const std::string& dir, const LoadedDeck& said) {
    std::vector<ArchitectureKey> keys = small_llama(dir, said);
    for (const char* key : {"model.dropout_embedding", "model.dropout_attention"})
      keys.push_back({key, 0.25, dir + "/config.json"});
    return keys;
  };
  const auto rates = [&](const std::vector<std::string>& sets) {
    const ModelSection m = parse_deck(kFromDirectory, "deck.toml", sets, reader).deck.model;
    return std::array{m.dropout_embedding, m.dropout_attention, m.dropout_residual};
  };
  EXPECT_EQ(rates({}), (std::array{0.25, 0.25, 0.0}));
  EXPECT_EQ(rates({"model.dropout_attention=0.5"}), (std::array{0.25, 0.5, 0.0}));
  EXPECT_EQ(rates({"model.dropout=0.1"}), (std::array{0.1, 0.1, 0.1}));
  EXPECT_EQ(rates({"model.dropout=0.1", "model.dropout_residual=0.2"}),
            (std::array{0.1, 0.1, 0.2}));
  expect_contains(refusal(kFromDirectory, {"model.dropout=1.5"}, reader), "model.dropout = 1.5");
}

TEST(ModelDirectory, OfAFreshHeadTheDeckMaySayOtherwise) {
  const auto reader = [](const std::string& dir, const LoadedDeck& said) {
    std::vector<ArchitectureKey> keys = small_llama(dir, said);
    keys.back() = {"model.tied_embeddings", false, dir + "/config.json"};
    const bool fixed = !said.explicitly_set("model.init_head");
    keys.push_back({"task.pooling", std::string("first"), dir + "/config.json", fixed});
    return keys;
  };
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets{"task.kind=classify", "task.labels=3"};
    sets.insert(sets.end(), more.begin(), more.end());
    return refusal(kFromDirectory, sets, reader);
  };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(
      text({"task.pooling=last"}),
      "--set #3: task.pooling = \"last\", but hf/config.json says \"first\" (remove the key, or "
      "model.init_from, or give model.init_head = \"fresh\")");
  EXPECT_EQ(text({"task.pooling=last", "model.init_head=fresh"}), "");
  EXPECT_EQ(
      refusal(kFromDirectory, {"model.init_head=fresh"}, small_llama),
      "--set #1: model.init_head has no effect without task.kind = \"classify\", \"tokens\" or "
      "\"reward\" (leave it out)");
}

TEST(ModelDirectory, HostileValuesAreLocated) {
  const auto hostile = [](const std::string& dir, const LoadedDeck& said) {
    std::vector<ArchitectureKey> keys = small_llama(dir, said);
    keys[2].value = std::int64_t{-4};
    return keys;
  };
  expect_contains(refusal(kFromDirectory, {}, hostile), "hf/config.json: model.heads = -4 must be");
}

TEST(ModelDirectory, ReadersErrorKeepsItsType) {
  const auto broken = [](const std::string&, const LoadedDeck&) -> std::vector<ArchitectureKey> {
    throw DataError("hf/config.json: no such file");
  };
  try {
    parse_deck(kFromDirectory, "deck.toml", {}, broken);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(),
                 "deck.toml:4:13: model.init_from (paths in decks are relative to the current "
                 "directory): hf/config.json: no such file");
  }
}

std::string ranks_refusal(const std::vector<std::string>& sets, std::int64_t ranks) {
  try {
    check_ranks(small_deck(sets), ranks);
    return "";
  } catch (const DeckError& error) {
    return error.what();
  }
}

// Trap 5: a global batch that does not divide is refused, with the nearest legal values.
TEST(Ranks, GlobalBatchMustDivide) {
  EXPECT_EQ(ranks_refusal({}, 1), "");
  EXPECT_EQ(ranks_refusal({}, 8), "");
  EXPECT_EQ(ranks_refusal({"batch.global=7"}, 2),
            "--set #1: batch.global = 7 is not a multiple of batch.micro x data ranks = 1 x 2 = 2 "
            "(nearest: 6 or 8; no batch.micro makes 7 legal on 2 data ranks)");
  EXPECT_EQ(ranks_refusal({"batch.global=24", "batch.micro=5"}, 2),
            "--set #1: batch.global = 24 is not a multiple of batch.micro x data ranks = 5 x 2 = "
            "10 (nearest: 20 or 30; with 24, batch.micro may be 1, 2, 3, 4, 6, 12)");
  expect_contains(ranks_refusal({"batch.micro=64"}, 2), "nearest: 128;");
  expect_contains(ranks_refusal({"batch.global=4294967296", "batch.micro=7"}, 1), "...");
}

TEST(Ranks, RampAndMesh) {
  const std::string message =
      ranks_refusal({"parallel.data=3", "batch.ramp=[[1, 4], [5, 6], [9, 8], [10, 9]]"}, 4);
  expect_contains(message, "parallel.data = 3, but 4 ranks / (tensor 1 x pipeline 1) leave 4");
  expect_contains(message, "batch.ramp = 6 is not");
  expect_contains(message, "batch.ramp = 9 is not");
  EXPECT_EQ(message.find("batch.ramp = 4"), std::string::npos);
  LoadedDeck loaded = small_deck();
  loaded.deck.parallel.tensor = 2;
  loaded.deck.parallel.pipeline = 2;
  EXPECT_NO_THROW(check_ranks(loaded, 8));
  EXPECT_THROW(check_ranks(loaded, 6), DeckError);
}

std::string quantized_refusal(const std::vector<std::string>& sets, std::int64_t ranks) {
  try {
    check_quantized(small_deck(sets), ranks);
    return "";
  } catch (const DeckError& error) {
    return error.what();
  }
}

TEST(Ranks, QuantizedTrafficThatDoesNotTravel) {
  const std::string weights = "zero.quantize.weights=int8",
                    gradients = "zero.quantize.gradients=int4", stage = "zero.stage=3";
  EXPECT_EQ(quantized_refusal({stage}, 1), "");
  EXPECT_EQ(quantized_refusal({stage, weights, gradients}, 2), "");
  EXPECT_EQ(quantized_refusal({gradients}, 2), "");
  EXPECT_EQ(quantized_refusal({"zero.stage=2", weights}, 2),
            "--set #2: zero.quantize.weights = \"int8\" has no effect: parameters are gathered at "
            "stage 3 only, not at zero.stage = 2 (set zero.stage = 3, or leave it at \"none\")");
  const std::string both = quantized_refusal({stage, weights, gradients}, 1);
  expect_contains(both, "zero.quantize.weights = \"int8\" has no effect: 1 rank / (");
  expect_contains(both, "zero.quantize.gradients = \"int4\" has no effect: 1 rank / (");
  expect_contains(quantized_refusal({stage, weights, "parallel.pipeline=2"}, 2),
                  "2 ranks / (tensor 1 x pipeline 2) leave one data rank");
}

TEST(Ranks, SecondaryShardsThatNobodyReads) {
  const std::string stage = "zero.stage=3", node = "zero.secondary=node";
  EXPECT_EQ(quantized_refusal({stage, node}, 4), "");
  EXPECT_EQ(quantized_refusal({stage, "zero.secondary=2"}, 4), "");
  EXPECT_EQ(quantized_refusal({stage, "zero.secondary=1"}, 4), "");
  expect_contains(quantized_refusal({"zero.stage=2", node}, 4), "gathered at stage 3 only");
  expect_contains(quantized_refusal({stage, node}, 1), "leave one data rank");
  expect_contains(quantized_refusal({stage, "zero.secondary=3"}, 8), "(give 1, 2, 4)");
  expect_contains(quantized_refusal({stage, "zero.secondary=8"}, 8), "(give 1, 2, 4)");
}

TEST(Ranks, LegalMicrosAreDivisors) {
  LoadedDeck loaded = small_deck({"batch.global=24"});
  EXPECT_EQ(legal_micros(loaded, 2), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 12}));
  loaded.deck.batch.ramp = {{.step = 5, .global = 8}};
  EXPECT_EQ(legal_micros(loaded, 2), (std::vector<std::int64_t>{1, 2, 4}));
  // One that is tried at a time would take hours.
  loaded = small_deck({"batch.global=4294967296"});
  EXPECT_EQ(legal_micros(loaded, 4).size(), 31U);
}

TEST(Resume, KeysAreFreeEventsOrRefused) {
  const Deck saved = small_deck().deck;
  EXPECT_TRUE(compare_for_resume(saved, saved).empty());
  Deck now = saved;
  now.run.seed = 2;
  now.run.steps = std::nullopt;
  now.model.layers = 3;
  now.batch.global = 16;
  now.precision.compute = Precision::bf16;
  now.optimizer.lr = 2e-3;
  now.zero.stage = 3;
  now.zero.quantize.gradients = QuantizedGradients::int4;
  const auto differences = compare_for_resume(saved, now);
  const std::vector<std::tuple<std::string, std::string, std::string, OnResume>> wanted = {
      {"run.steps", "10", "unset", OnResume::free},
      {"run.seed", "1", "2", OnResume::refused},
      {"model.layers", "2", "3", OnResume::architecture},
      {"batch.global", "8", "16", OnResume::event},
      {"optimizer.lr", "0.001", "0.002", OnResume::free},
      {"precision.compute", "\"f32\"", "\"bf16\"", OnResume::event},
      {"zero.stage", "0", "3", OnResume::free},
      {"zero.quantize.gradients", "\"none\"", "\"int4\"", OnResume::event}};
  ASSERT_EQ(differences.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(
        std::tie(differences[i].key, differences[i].saved, differences[i].now, differences[i].rule),
        wanted[i]);
  }
}

// Where the corpus is cut anew, batches and lengths say which tokens a sample has.
TEST(Resume, ACurriculumMayChangeUnlessItCutsAnew) {
  const Deck saved = small_deck({"batch.curriculum={start=4, steps=9, round=4}"}).deck;
  Deck now = saved;
  now.batch.curriculum.steps = 12;
  now.batch.global = 16;
  now.batch.ramp = {{.step = 5, .global = 32}};
  const auto rules = [](const Deck& before, const Deck& after) {
    std::vector<std::pair<std::string, OnResume>> all;
    for (const auto& d : compare_for_resume(before, after)) all.emplace_back(d.key, d.rule);
    return all;
  };
  using Rules = std::vector<std::pair<std::string, OnResume>>;
  EXPECT_EQ(rules(saved, now), (Rules{{"batch.global", OnResume::event},
                                      {"batch.ramp", OnResume::event},
                                      {"batch.curriculum", OnResume::event}}));
  now.batch.curriculum.cut = Cut::anew;
  EXPECT_EQ(rules(saved, now), (Rules{{"batch.global", OnResume::refused},
                                      {"batch.ramp", OnResume::refused},
                                      {"batch.curriculum", OnResume::refused}}));
}

// Of what sends fewer bytes, by counting: to heads go q, k, v and out, in backward also their
// gradients, and back; keys and values are gathered twice, and their gradients summed in f32.
TEST(Ranks, AutomaticContextSendsFewerBytes) {
  Deck deck = small_deck().deck;
  int with_heads = 0, with_keys = 0;
  for (const Precision compute : {Precision::f32, Precision::bf16}) {
    for (const std::int64_t ranks : {2, 4, 8}) {
      for (const std::int64_t kv : {8, 16, 32}) {
        deck.model.heads = 32, deck.model.kv_heads = kv;
        deck.precision.compute = compute;
        deck.parallel.context = ranks;
        const std::int64_t number = compute == Precision::f32 ? 4 : 2, q = 32;
        // Of a token, times the ranks: what leaves each of them.
        const std::int64_t operands = q + 2 * kv,
                           heads = (operands + q + (operands + 2 * q) + operands) * number *
                                   (ranks - 1),
                           keys = ranks * (ranks - 1) * (2 * 2 * kv * number + 2 * kv * 4);
        EXPECT_EQ(context_kind(deck), heads < keys ? ContextKind::heads : ContextKind::gather)
            << ranks << " ranks, " << kv << " kv heads";
        ++(heads < keys ? with_heads : with_keys);
      }
    }
  }
  EXPECT_GT(with_heads, 4);
  EXPECT_GT(with_keys, 4);
  deck.model.kv_heads = 12;
  EXPECT_EQ(context_kind(deck), ContextKind::gather) << "8 ranks do not divide 12 heads";
  deck.model.kv_heads = 32;
  deck.run.reproducible = Reproducible::layout;
  deck.run.reproducible_context = 8;
  EXPECT_EQ(context_kind(deck), ContextKind::gather) << "products of one shape on every layout";
}

// A directory's parameters of rotary scaling are those of its own kind.
TEST(ModelDirectory, ItsContextMayBeExtended) {
  const ArchitectureReader reader = [](const std::string&, const LoadedDeck&) {
    return std::vector<ArchitectureKey>{{"model.family", std::string("llama"), "hf"},
                                        {"model.context", std::int64_t{32}, "hf"},
                                        {"model.rope_scaling", std::string("llama3"), "hf"},
                                        {"model.rope_factor", 8.0, "hf"},
                                        {"model.rope_high_frequency", 4.0, "hf"},
                                        {"model.rope_original_context", std::int64_t{16}, "hf"},
                                        {"model.rope_pairs", std::string("halves"), "hf"}};
  };
  const std::string text = std::string(kSmallDeck) + "\n[parallel]\n";
  const auto load = [&](std::vector<std::string> sets) {
    sets.insert(sets.begin(), {"model.init_from=hf", "model.ffn_hidden=64"});
    return parse_deck(text, "deck.toml", sets, reader);
  };
  EXPECT_EQ(load({"model.context=32"}).deck.model.rope_high_frequency, 4);
  EXPECT_EQ(remarks_text(load({"model.context=32"})), "");
  const LoadedDeck yarn = load({"model.context=64", "model.rope_scaling=yarn",
                                "model.rope_factor=4", "model.rope_original_context=16"});
  EXPECT_EQ(yarn.deck.model.rope_high_frequency, 32);
  expect_contains(remarks_text(yarn), "model.context = 64 in place of 32, which hf says");
  EXPECT_NO_THROW(load({"model.context=32", "model.rope_scaling=none"}));
  EXPECT_THROW(load({"model.context=32", "model.rope_pairs=neighbours"}), DeckError);
  EXPECT_THROW(load({"model.context=64", "model.position=learned"}), DeckError);
}

}  // namespace
}  // namespace tessera::deck
