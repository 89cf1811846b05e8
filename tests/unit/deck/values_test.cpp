// Types, ranges, availability and defaults of single keys.
#include <algorithm>
#include <clocale>
#include <locale>

#include "deck/codec.hpp"
#include "deck/schema.hpp"
#include "deck_text.hpp"

namespace tessera::deck {
namespace {

TEST(Values, DefaultsOfTheFamilyAreDefinite) {
  const Deck gpt2 = small_deck().deck;
  EXPECT_EQ(gpt2.model.norm, NormKind::layernorm);
  EXPECT_EQ(gpt2.model.position, PositionKind::learned);
  EXPECT_EQ(gpt2.model.activation, ActivationKind::gelu);
  EXPECT_TRUE(gpt2.model.bias);
  EXPECT_TRUE(gpt2.model.tied_embeddings);
  EXPECT_EQ(gpt2.model.kv_heads, 4);
  EXPECT_EQ(gpt2.model.head_dim, 8);
  EXPECT_EQ(gpt2.model.ffn_hidden, 128);
  EXPECT_EQ(gpt2.batch.sequence, 16);

  const Deck llama = small_deck({"model.family=llama", "model.ffn_hidden=96"}).deck;
  EXPECT_EQ(llama.model.norm, NormKind::rmsnorm);
  EXPECT_EQ(llama.model.position, PositionKind::rope);
  EXPECT_EQ(llama.model.activation, ActivationKind::swiglu);
  const auto of = [](const char* family) {
    return small_deck(
               {fmt::format("model.family={}", family), "model.ffn_hidden=96", "model.window=8"})
        .deck.model;
  };
  EXPECT_TRUE(of("qwen2").qkv_bias && !of("qwen2").bias);
  EXPECT_EQ(of("qwen3").qk_norm, QkNorm::head);
  EXPECT_EQ(of("olmo2").qk_norm, QkNorm::whole);
  EXPECT_EQ(of("olmo2").norm_placed, NormPlacement::after);
  EXPECT_EQ(of("gpt_neox").block, BlockForm::parallel);
  EXPECT_EQ(of("gpt_neox").rotary_share, 0.25);
  EXPECT_EQ(of("gptj").block, BlockForm::parallel_one_norm);
  EXPECT_EQ(of("gptj").rope_pairs, RopePairs::neighbours);
  EXPECT_TRUE(of("gptj").head_bias && of("gptj").bias && !of("gptj").attention_bias);
  EXPECT_EQ(of("gemma2").attention_soft_cap, 50);
  EXPECT_EQ(of("gemma2").logit_soft_cap, 30);
  EXPECT_EQ(of("gemma2").global_every, 2);
  EXPECT_EQ(of("gemma3").rope_local_theta, 10000);
  EXPECT_EQ(of("qwen3").norm_eps, 1e-5);
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    const bool third = std::string_view(family) == "deepseek_v3";
    const auto experts = [&](const char* top_k) {
      return small_deck({fmt::format("model.family={}", family), "model.ffn_hidden=96",
                         "moe.experts=4", top_k, "moe.groups=2", "moe.group_top=2"})
          .deck.model;
    };
    EXPECT_EQ(experts("moe.top_k=2").norm_eps, 1e-6);
    EXPECT_EQ(experts("moe.top_k=2").moe.normalize, third);
    EXPECT_FALSE(experts("moe.top_k=1").moe.normalize);
    EXPECT_EQ(experts("moe.top_k=2").moe.group_score,
              third ? GroupScore::two_largest : GroupScore::largest);
  }
  EXPECT_TRUE(of("gemma3").scaled_embeddings && of("gemma3").tied_embeddings);
  const ModelSection bert =
      small_deck({"model.family=bert", "task.kind=mlm", "task.mask_token=1"}).deck.model;
  EXPECT_EQ(bert.attention, AttentionMask::bidirectional);
  EXPECT_EQ(bert.norm_placed, NormPlacement::sum);
  EXPECT_TRUE(bert.embedding_norm && bert.bias && bert.tied_embeddings);
  EXPECT_FALSE(llama.model.bias);
  EXPECT_FALSE(llama.model.tied_embeddings);
  EXPECT_EQ(llama.model.ffn_hidden, 96);
}

TEST(Values, ReduceFollowsTheStageUnlessSet) {
  EXPECT_EQ(small_deck({"zero.stage=1"}).deck.zero.reduce, ReduceWhen::step);
  EXPECT_EQ(small_deck({"zero.stage=2"}).deck.zero.reduce, ReduceWhen::micro);
  EXPECT_EQ(small_deck({"zero.stage=3", "zero.reduce=step"}).deck.zero.reduce, ReduceWhen::step);
}

TEST(Values, WordsOrValues) {
  EXPECT_EQ(std::get<Resume>(small_deck({"run.resume=must"}).deck.run.resume), Resume::must);
  EXPECT_EQ(std::get<std::string>(small_deck({"run.resume=runs/a/step_1"}).deck.run.resume),
            "runs/a/step_1");
  EXPECT_EQ(std::get<double>(small_deck({"precision.loss_scale=1024"}).deck.precision.loss_scale),
            1024.0);
  EXPECT_EQ(std::get<Bytes>(small_deck({"memory.device=12GiB"}).deck.memory.device).count,
            std::int64_t{12} << 30);
  EXPECT_EQ(std::get<Bytes>(small_deck({"memory.device=4096"}).deck.memory.device).count, 4096);
}

TEST(Values, DurationsAndSizes) {
  EXPECT_EQ(parse_seconds("01:02:03"), 3723);
  EXPECT_EQ(parse_seconds("2-00:00:01"), 172801);
  EXPECT_EQ(parse_bytes("1 TiB"), std::int64_t{1} << 40);
  EXPECT_EQ(parse_bytes("32GB"), 32'000'000'000);
  EXPECT_EQ(parse_bytes("0B"), 0);
  for (const char* bad : {"", ":", "1:2", "1:60:00", "1:00:60", "1:00:00x", "-1:00:00", "1-",
                          "9223372036854775807-00:00:00", "9223372036854775807:00:00",
                          "99999999999999999999:00:00"}) {
    EXPECT_FALSE(parse_seconds(bad)) << bad;
  }
  for (const char* bad : {"", "GiB", "12", "12Gb", "-1GiB", "1.5GiB", "8388608TiB",
                          "99999999999999999999B", "1GiB "}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
  EXPECT_EQ(small_deck({"run.time_limit=\"00:10:00\""}).deck.run.time_limit->count, 600);
  EXPECT_EQ(small_deck({"run.time_limit=90"}).deck.run.time_limit->count, 90);
}

// The bad values of the acceptance suite: each is refused with a place and a hint.
TEST(Values, BadOnesAreRefusedWithPlaceAndHint) {
  const auto edited = [](const std::string& section, const std::string& line) {
    return std::string(kSmallDeck) + (section == "optimizer" ? "" : "[" + section + "]\n") + line;
  };
  EXPECT_EQ(refusal(edited("optimizer", "learning_rate = 0.001\n")),
            "deck.toml:19:1: unknown key optimizer.learning_rate (did you mean optimizer.lr?)");
  EXPECT_EQ(refusal(edited("zero", "stage = 4\n")),
            "deck.toml:20:9: zero.stage = 4 must be an integer, 0 to 3");
  EXPECT_EQ(refusal(edited("zero", "stge = 3\n")),
            "deck.toml:20:1: unknown key zero.stge (did you mean zero.stage?)");
  EXPECT_EQ(refusal(edited("parallel", "tensor = 50\n")),
            "deck.toml:20:10: parallel.tensor = 50 is more than model.heads = 4 (at most 4)");
  EXPECT_EQ(refusal(edited("precision", "compute = \"fp8\"\n")),
            "deck.toml:20:11: precision.compute = \"fp8\" must be one of f32|bf16|f16");
  EXPECT_EQ(refusal(edited("offload", "optimizer = \"ssd\"\n")),
            "deck.toml:20:13: offload.optimizer = \"ssd\" must be one of none|host|nvme");
  EXPECT_EQ(refusal_of("optimizer.lr=fast"),
            "--set #1: optimizer.lr = \"fast\" must be a number, > 0 as an f32");
  EXPECT_EQ(refusal_of("optimizer.lr=-1.0"),
            "--set #1: optimizer.lr = -1.0 must be a number, > 0 as an f32");
  EXPECT_EQ(refusal_of("batch.sequence=100000"),
            "--set #1: batch.sequence = 100000 is more than model.context = 16 (at most 16)");
}

TEST(Values, WrongTypesAndRanges) {
  expect_contains(refusal_of("optimizer.lr=nan"), "optimizer.lr = nan must be a number");
  expect_contains(refusal_of("optimizer.lr=inf"), "must be a number");
  expect_contains(refusal_of("run.tokens=3e9"), "must be an integer, >= 1 (write 3000000000)");
  expect_contains(refusal_of("data.train=tokens"), "must be a list, each a string");
  expect_contains(refusal_of("optimizer.betas=[0.9]"), "must be a list of 2, each a number");
  expect_contains(refusal_of("optimizer.betas=[0.9, 1]"), ">= 0 and < 1");
  expect_contains(refusal_of("data.shuffle=1"), "must be true or false");
  expect_contains(refusal_of("zero.reduce=mikro"), "(did you mean \"micro\"?)");
  expect_contains(refusal_of("run.name=1979-05-27"), "run.name = (a date) must be a string");
  expect_contains(refusal_of("run.steps={a = 1}"), "run.steps = {a = 1} must be an integer");
  for (const auto& [group, problem] :
       {std::pair{"{lr_factor = 2}", "match is missing: a pattern of names"},
        {"{match = \"a\", lr = 2}", "lr is no key of a group"},
        {"{match = \"a\", lr_facter = 2}", "no key of a group (did you mean lr_factor?)"},
        {"{match = \"a\", lr_factor = -1}", "lr_factor = -1 must be a number >= 0"},
        {"{match = \"a\", lr_factor = 1e39}", "lr_factor = 1e+39 must be a number >= 0 as an f32"},
        {"{match = 3}", "match = 3 must be a string"},
        {"{match = \"\"}", "match = \"\" must be a string: it is empty"},
        {"\"a\"", "\"a\" is no table"}}) {
    expect_contains(refusal_of(fmt::format("optimizer.groups=[{}]", group)), problem);
  }
  expect_contains(refusal_of("run.dir=\"\""), "run.dir = \"\" must be a string");
  expect_contains(refusal_of("run.time_limit=later"), "\"hh:mm:ss\"");
  expect_contains(refusal_of("run.steps=oops"), "must be an integer");
  expect_contains(refusal_of("model.hidden=1000000000000000000"), "1 to 65536");
  expect_contains(refusal_of("run.steps=99999999999999999999"), "run.steps");
}

// What updates and kernels count in f32 must not vanish there, nor become infinite or 1.
TEST(Values, MustHoldAsTheTypeInWhichTheyAreUsed) {
  expect_contains(refusal_of("optimizer.eps=1e-60"), "must be a number, > 0 as an f32");
  EXPECT_EQ(refusal_of("optimizer.eps=1e-40"), "");
  expect_contains(refusal_of("optimizer.betas=[0.9, 0.99999999]"), ">= 0 and < 1 as an f32");
  expect_contains(refusal_of("optimizer.ema=0.99999999"), ">= 0 and < 1 as an f32");
  EXPECT_EQ(refusal_of("optimizer.ema=0.9999999"), "");
  for (const char* key : {"optimizer.lr", "optimizer.weight_decay", "schedule.warmup_start_lr",
                          "model.norm_eps", "model.init_std", "precision.loss_scale"}) {
    expect_contains(refusal_of(fmt::format("{}=1e39", key)), "as an f32");
    EXPECT_EQ(refusal_of(fmt::format("{}=1e38", key)), "") << key;
  }
}

// In layout mode tiles must not change how the head's gradient is summed.
TEST(Values, TilesLeaveTheLogitsOfLayoutModeAsTheyAre) {
  EXPECT_EQ(small_deck().deck.memory.logits, 4096);
  EXPECT_EQ(small_deck({"zero.tiles=2"}).deck.memory.logits, std::nullopt);
  EXPECT_EQ(small_deck({"zero.tiles=2", "run.reproducible=layout", "run.reproducible_tensor=2",
                        "run.threads=1"})
                .deck.memory.logits,
            4096);
}

TEST(Values, WhatIsNotBuiltIsSaid) {
  EXPECT_EQ(refusal(kSmallDeck, {"checkpoint.verify=false"}),
            "--set #1: checkpoint.verify = false is not available in this version (only true)");
  EXPECT_EQ(refusal(kSmallDeck, {"zero.secondary=4"}), "");
}

TEST(Values, FaultsAreParsedAndReadBack) {
  const auto fault_of = [](const std::string& text) {
    const auto deck = small_deck({"fault.inject=[\"" + text + "\"]"}).deck;
    EXPECT_EQ(parse_deck(to_toml(deck), "again").deck, deck);
    return deck.fault.inject.at(0);
  };
  EXPECT_EQ(fault_of("kill rank=1 step=5"), (Fault{.kind = FaultKind::kill, .rank = 1, .step = 5}));
  EXPECT_EQ(fault_of("  nan   tensor=block.0.mlp.up.weight rank=0  step=4 ").tensor,
            "block.0.mlp.up.weight");
  const Fault eio = fault_of("eio rank=0 step=6 call=write path=checkpoints/step_ nth=3 count=2");
  EXPECT_EQ(eio, (Fault{.kind = FaultKind::eio,
                        .rank = 0,
                        .step = 6,
                        .call = IoCall::write,
                        .path = "checkpoints/step_",
                        .nth = 3,
                        .count = 2}));
  EXPECT_EQ(to_text(eio), "eio rank=0 step=6 call=write path=checkpoints/step_ nth=3 count=2");
  EXPECT_EQ(to_text(fault_of("short_transfer step=2 rank=0 count=1")),
            "short_transfer rank=0 step=2");
  EXPECT_EQ(fault_of("slow_disk rank=0 step=1 ms=20 call=sync").ms, 20);
  EXPECT_EQ(fault_of("eio rank=0 step=0").step, 0);
}

TEST(Values, BadFaultsAreRefusedWithWhatIsAllowed) {
  const auto refused = [](const std::string& text) {
    return refusal_of("fault.inject=[\"kill rank=0 step=1\", \"" + text + "\"]");
  };
  expect_contains(refused("kil rank=1 step=5"),
                  "\"kil rank=1 step=5\": \"kil\" is no kind of fault (did you mean kill?); there "
                  "are kill|stop|");
  expect_contains(refused("kill rank=1"), "kill needs rank, step");
  expect_contains(refused("kill rank=1 step=0"), "step=0: kill happens in a step, from 1 on");
  expect_contains(refused("kill rank=1 stp=5"),
                  "\"stp=5\" (did you mean step?): kill takes key=value with rank, step");
  expect_contains(refused("kill rank=1 step=5 step=6"), "step is given twice");
  expect_contains(refused("kill rank=1 step=5x"), "step must be a number");
  expect_contains(refused("kill rank=99999999999999999999 step=5"), "rank must be a number");
  expect_contains(refused("nan rank=1 step=5 tensor="), "tensor must be a parameter's name");
  expect_contains(refused("kill rank=1 step=5 ms=3"), "kill takes key=value with rank, step");
  expect_contains(refused("eio rank=1 step=5 call=wirte"),
                  "call must be open|size|resize|allocate|queue|read");
  expect_contains(refused(""), "is no kind of fault");
  expect_contains(refused("kill  step=1 rank=0"), "has \"kill rank=0 step=1\" twice");
  expect_contains(refusal_of("fault.inject=[3]"), "must be a list, each a fault like");
  expect_contains(refusal(std::string(kSmallDeck) + "[fault]\nkill = 3\n"),
                  "deck.toml:20:1: unknown key fault.kill (keys of [fault]: inject)");
}

TEST(Values, DefaultsAreWithinTheRules) {
  const Deck deck;
  for (const SchemaRow& row : schema_rows()) {
    EXPECT_TRUE(row.is_built(deck)) << row.name;
    const bool derived = row.rules.required || !row.rules.unset.empty();
    EXPECT_TRUE(derived || row.within_limits(deck)) << row.name;
    EXPECT_TRUE(!row.field.get(deck).unset() || !row.rules.unset.empty()) << row.name;
  }
}

struct CommaForPoint : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// Trap 58: numbers do not depend on the locale.
TEST(Values, NumbersIgnoreTheLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new CommaForPoint));
  std::setlocale(LC_NUMERIC, "de_DE.UTF-8");  // where the machine has it
  const Deck deck = small_deck({"optimizer.lr=1234.5678", "run.tokens=1_000_000"}).deck;
  const std::string echo = to_toml(deck);
  std::locale::global(before);
  std::setlocale(LC_NUMERIC, "C");
  EXPECT_EQ(deck.optimizer.lr, 1234.5678);
  expect_contains(echo, "lr = 1234.5678\n");
  expect_contains(echo, "tokens = 1000000\n");
}

}  // namespace
}  // namespace tessera::deck
