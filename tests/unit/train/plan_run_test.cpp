// What plans compute: the bits of the eager path, under every recomputation policy.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "kernels/cpu/device.hpp"
#include "support/eager_model.hpp"
#include "support/plan_run.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::test {
namespace {

using model::ModelConfig;

struct Setting {
  const char* name;
  ModelConfig config;
  DType compute;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    ModelConfig gpt2 = gpt2_like(), llama = llama_like();
    gpt2.dropout = llama.dropout = model::same_dropout(0.2F);
    all.push_back({"gpt2", gpt2, compute});
    all.push_back({"llama", llama, compute});
    llama.tied_embeddings = true;
    llama.dropout = {};
    all.push_back({"llama tied, no dropout", llama, compute});
    ModelConfig olmo2 = olmo2_like(), gpt_neox = gpt_neox_like();
    olmo2.dropout = gpt_neox.dropout = {.embedding = 0.1F, .attention = 0.2F, .residual = 0.3F};
    all.push_back({"qwen", qwen_like(), compute});
    all.push_back({"olmo2", olmo2, compute});
    all.push_back({"gpt_neox", gpt_neox, compute});
    ModelConfig gptj = gptj_like();
    gptj.dropout = gpt_neox.dropout;
    all.push_back({"gptj", gptj, compute});
    all.push_back({"gemma2", gemma2_like(), compute});
    ModelConfig mixtral = mixtral_like();
    mixtral.dropout = gpt_neox.dropout;
    mixtral.experts.jitter = 0.3F;
    all.push_back({"mixtral", mixtral, compute});
    all.push_back({"balanced", balanced_like(), compute});
    ModelConfig latent = latent_like();
    latent.dropout = gpt_neox.dropout;
    all.push_back({"latent", latent, compute});
    latent.latent.q = 0;
    all.push_back({"latent keys and values", latent, compute});
    ModelConfig bert = bert_like(), classifier = classifier_like();
    bert.dropout = classifier.dropout = model::same_dropout(0.2F);
    all.push_back({"bert", bert, compute});
    all.push_back({"classifier", classifier, compute});
  }
  return all;
}

/// Equal bits, so that NaN equals itself and -0 differs from 0.
testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size())
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], 4) != 0)
      return testing::AssertionFailure() << a[i] << " and " << b[i] << " at " << i;
  }
  return testing::AssertionSuccess();
}

constexpr std::int64_t kMicro = 2, kSequence = 7;

StepShown planned(const Setting& s, kernels::Device& device, Recompute policy,
                  std::int64_t micro_batches = 1, const plan::OffloadInputs& offload = {}) {
  auto inputs = plan_inputs_of(s.config, device, s.compute);
  inputs.recompute = policy;
  inputs.offload = offload;
  PlanRun run(inputs, device,
              {.sequence = kSequence, .micro = kMicro, .micro_batches = micro_batches});
  run.state().set_parameters(test_values(11));
  return run.step(40, {.lr = 0});
}

TEST(PlanRun, HasTheBitsOfTheEagerPath) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    const StepShown step = planned(s, *device, Recompute::none);
    EagerModel eager(s.config, s.compute, 5, *device, test_values(11));
    const double targets = static_cast<double>(kMicro * s.config.targets_of(kSequence));
    const auto expected = eager.backward(batch_of(s.config, 40, kMicro, kSequence),
                                         static_cast<float>(1.0 / targets));
    EXPECT_TRUE(same_bits(step.gradients, expected.trained));
    double loss = 0;
    for (float x : expected.losses) loss += x;  // sums of 14 f32 are exact in double, or nearly
    EXPECT_NEAR(step.loss, loss, 14 * 0x1p-53 * loss);
    EXPECT_TRUE(step.applied);
  }
}

// Traps 11 to 13: what is divided by is how many targets count in the whole batch, wherever they
// are: in one micro-batch or several, in samples of which some have none, some one.
TEST(PlanRun, DividesByTheTargetsThatCount) {
  const auto device = kernels::make_cpu_device({});
  for (const DType compute : {DType::f32, DType::bf16}) {
    const ModelConfig config = gpt2_like();
    auto inputs = plan_inputs_of(config, *device, compute);
    inputs.optimizer = optim::sgd({.momentum = 0});
    constexpr double kLr = 0.25;
    const auto of = [&](std::int64_t micro, std::int64_t micro_batches, std::int64_t first) {
      PlanRun run(inputs, *device,
                  {.sequence = kSequence, .micro = micro, .micro_batches = micro_batches});
      run.state().set_parameters(test_values(11));
      StepShown step = run.step(first, {.lr = kLr, .masked = true});
      step.gradients.clear();  // what became of the weights tells more
      for (const plan::UnitState& s : run.state().units()) {
        const auto weights = run.values(s.kept[0].live);
        step.gradients.insert(step.gradients.end(), weights.begin(), weights.end());
      }
      return step;
    };
    for (const auto [micro, micro_batches, first] :
         {std::array<std::int64_t, 3>{4, 1, 40}, {1, 4, 40}, {1, 1, 42}, {1, 1, 41}}) {
      SCOPED_TRACE(
          fmt::format("{} x {} from {} in {}", micro, micro_batches, first, to_string(compute)));
      const StepShown step = of(micro, micro_batches, first);
      const TokenBatch batch =
          batch_of(config, first, micro * micro_batches, kSequence, {.masked = true});
      ASSERT_EQ(step.targets, batch.counted());
      ASSERT_EQ(step.targets, first == 40 ? step.targets : first == 42 ? 1 : 0);
      EagerModel eager(config, compute, 5, *device, test_values(11));
      const double count = std::max<double>(1, static_cast<double>(step.targets));
      const auto expected = eager.backward(batch, static_cast<float>(1 / count));
      double loss = 0, squares = 0;
      for (float x : expected.losses) loss += x;
      EXPECT_NEAR(step.loss, loss, 28 * 0x1p-53 * loss);
      for (float g : expected.trained) squares += static_cast<double>(g) * g;
      EXPECT_TRUE(step.applied);
      // A gradient was divided by all targets, then multiplied by their share: in the logits'
      // gradient, which is rounded to the compute type, that is another rounding, and all that
      // follows is as far from what it would be without.
      const double u = compute == DType::f32 ? 0x1p-24 : 0x1p-8, norm = std::sqrt(squares);
      const double bound = 16 * u * norm;
      EXPECT_NEAR(step.norm, norm, bound);
      for (std::size_t i = 0; i < expected.trained.size(); ++i) {
        const double moved = (eager.parameters[i] - step.gradients[i]) / kLr;
        ASSERT_NEAR(moved, expected.trained[i],
                    bound + 4 * 0x1p-24 * std::abs(eager.parameters[i]) / kLr)
            << i;
      }
    }
  }
}

// Documents that are separate: the bits of the eager path, which computes with the same ones.
TEST(PlanRun, KeepsDocumentsApartAsTheEagerPathDoes) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    auto inputs = plan_inputs_of(s.config, *device, s.compute);
    inputs.documents = {.separate = true, .positions = true};
    PlanRun run(inputs, *device, {.sequence = kSequence, .micro = kMicro, .micro_batches = 1});
    run.state().set_parameters(test_values(11));
    const StepShown step = run.step(40, {.lr = 0});
    EagerModel eager(s.config, s.compute, 5, *device, test_values(11));
    const auto expected = eager.backward(
        batch_of(s.config, 40, kMicro, kSequence, {.documents = true}),
        static_cast<float>(1.0 / static_cast<double>(kMicro * s.config.targets_of(kSequence))));
    EXPECT_TRUE(same_bits(step.gradients, expected.trained));
    EXPECT_FALSE(same_bits(step.gradients, planned(s, *device, Recompute::none).gradients));
  }
}

// Trap 28: what is computed again drops out the same elements and has the same bits.
TEST(PlanRun, RecomputationChangesNoBit) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    const StepShown none = planned(s, *device, Recompute::none, 2);
    for (Recompute policy : {Recompute::selective, Recompute::full}) {
      const StepShown again = planned(s, *device, policy, 2);
      EXPECT_EQ(again.loss, none.loss);
      EXPECT_EQ(again.norm, none.norm);
      EXPECT_TRUE(same_bits(again.gradients, none.gradients)) << enum_word(policy);
    }
  }
}

// What tensor ranks share out, on one rank: products, sums and gradients by chunks, with as many kv
// heads as chunks or fewer. Some 200 roundings along the longest path move a loss by 2^-24 of
// itself each, and so they do with gradients, which a few layers make some times larger.
TEST(PlanRun, ChunksChangeNoMoreThanRounding) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    if (s.compute != DType::f32 || s.config.qk_norm == QkNorm::whole) continue;
    const auto of_chunks = [&](std::int64_t chunks) {
      auto inputs = plan_inputs_of(s.config, *device, s.compute);
      inputs.numerics.layout_mode = true;
      inputs.layout.tensor_chunks = chunks;
      inputs.model.units = model::model_units(s.config, chunks);
      PlanRun run(inputs, *device, {.sequence = 8, .micro = kMicro, .micro_batches = 2});
      run.state().set_parameters(test_values(11));
      return run.step(40, {.lr = 0});
    };
    const StepShown one = of_chunks(1);
    for (const std::int64_t chunks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} in {} chunks", s.name, chunks));
      const StepShown cut = of_chunks(chunks);
      EXPECT_NEAR(cut.loss, one.loss, 200 * 0x1p-24 * one.loss);
      EXPECT_NEAR(cut.norm, one.norm, 8 * 200 * 0x1p-24 * one.norm);
    }
  }
}

// ZeRO-Infinity, activations: whatever is away when, and for how long.
TEST(PlanRun, ActivationsThatLeaveChangeNoBit) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full}) {
      const StepShown stay = planned(s, *device, policy, 2);
      for (const std::int64_t ahead : {0, 1, 3}) {
        const StepShown leave =
            planned(s, *device, policy, 2, {.activations = plan::Location::host, .ahead = ahead});
        EXPECT_EQ(leave.loss, stay.loss);
        EXPECT_EQ(leave.norm, stay.norm);
        EXPECT_TRUE(same_bits(leave.gradients, stay.gradients)) << enum_word(policy) << ahead;
      }
    }
  }
}

/// Steps of a run whose states live somewhere, and its state after them.
struct Trained {
  std::vector<StepShown> steps;
  std::vector<float> state;
};
Trained trained(const Setting& s, kernels::Device& device, const plan::OffloadInputs& offload) {
  plan::PlanInputs in = plan_inputs_of(s.config, device, s.compute);
  in.offload = offload;
  in.offload.tile = 1024;
  PlanRun run(in, device, plan::PlanShape{plan::PlanPurpose::train, kSequence, kMicro, 2});
  run.state().set_parameters(test_values(11));
  Trained t;
  for (std::int64_t k = 0; k < 3; ++k)
    t.steps.push_back(run.step(40 + 2 * kMicro * k, {.update = k + 1}));
  t.state = slice_of_state(run);
  return t;
}

// ZeRO-Offload and ZeRO-Infinity: wherever states live, and however early they are fetched. Of the
// three types in which each model is computed each has another look-ahead.
TEST(PlanRun, StatesThatLiveElsewhereChangeNoBit) {
  using plan::Location;
  const auto device = kernels::make_cpu_device({});
  const std::vector<Setting> all = settings();
  const std::int64_t models = std::ssize(all) / 3;
  ASSERT_EQ(std::ssize(all) % 3, 0);
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    const Setting& s = all[static_cast<std::size_t>(i)];
    const std::int64_t ahead =
        std::array{0, 1, 3}[static_cast<std::size_t>((i / models + i % models) % 3)];
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    const Trained stay = trained(s, *device, {});
    const auto expect_same = [&](const plan::OffloadInputs& offload) {
      SCOPED_TRACE(
          fmt::format("parameters {}, gradients {}, optimizer {}, activations {}, ahead {}",
                      enum_word(offload.parameters), enum_word(offload.gradients),
                      enum_word(offload.optimizer), enum_word(offload.activations), offload.ahead));
      const Trained leave = trained(s, *device, offload);
      EXPECT_TRUE(same_bits(leave.state, stay.state));
      for (std::size_t k = 0; k < stay.steps.size(); ++k) {
        EXPECT_EQ(leave.steps[k].loss, stay.steps[k].loss);
        EXPECT_EQ(leave.steps[k].norm, stay.steps[k].norm);
        EXPECT_TRUE(same_bits(leave.steps[k].gradients, stay.steps[k].gradients));
      }
    };
    for (const Location tier : {Location::host, Location::disk}) {
      expect_same({.parameters = tier, .ahead = ahead});
      expect_same({.gradients = tier, .ahead = ahead});
      expect_same({.optimizer = tier, .ahead = ahead});
      expect_same({.activations = tier, .ahead = ahead});
      expect_same({.parameters = tier,
                   .gradients = tier,
                   .optimizer = tier,
                   .activations = tier,
                   .ahead = ahead,
                   .device_is_host = ahead != 1});
    }
    expect_same({.gradients = Location::host, .optimizer = Location::disk});
    expect_same({.parameters = Location::disk, .optimizer = Location::host});
  }
}

/// The gradient of each unit, in turn, out of what updates read of those that are trained.
std::vector<std::vector<float>> by_unit(PlanRun& run, const std::vector<float>& gradients) {
  std::vector<std::vector<float>> units;
  auto at = gradients.begin();
  for (const auto& s : run.state().units()) {
    const auto n = s.trained ? s.layout.padded : 0;
    units.emplace_back(at, at + n);
    at += n;
  }
  EXPECT_EQ(at, gradients.end());
  return units;
}

/// One step of a model in which some units are frozen.
struct Frozen {
  Frozen(const Setting& s, kernels::Device& device, Recompute policy,
         const std::vector<std::size_t>& units, std::optional<model::Storage> stored = {}) {
    auto inputs = plan_inputs_of(s.config, device, s.compute);
    inputs.recompute = policy;
    for (const std::size_t u : units) {
      model::UnitTraits& traits = inputs.model.units[u].traits;
      traits.trained = false, traits.stored = stored;
    }
    PlanRun run(inputs, device, {.sequence = kSequence, .micro = kMicro, .micro_batches = 2});
    run.state().set_parameters(test_values(11));
    const StepShown step = run.step(40, {.lr = 0.1});
    loss = step.loss;
    gradients = by_unit(run, step.gradients);
    for (const auto& unit : run.state().units()) parameters.push_back(run.values(unit.parameters));
  }
  double loss = 0;
  std::vector<std::vector<float>> gradients, parameters;  // after the step
};

TEST(PlanRun, AFrozenUnitStaysAndChangesNoBitOfTheOthers) {
  const auto device = kernels::make_cpu_device({});
  for (const Setting& s : settings()) {
    if (s.compute == DType::f16) continue;
    const Frozen none(s, *device, Recompute::none, {});
    auto untouched = plan_inputs_of(s.config, *device, s.compute);
    const std::size_t units = untouched.model.units.size();
    PlanRun initial(untouched, *device,
                    {.sequence = kSequence, .micro = kMicro, .micro_batches = 1});
    initial.state().set_parameters(test_values(11));
    std::vector<std::vector<std::size_t>> choices{{}};  // the last: all
    for (std::size_t u = 0; u < units; ++u) {
      choices.push_back({u});
      choices[0].push_back(u);
      choices.push_back({});
      for (std::size_t other = 0; other < units; ++other) {
        if (other != u) choices.back().push_back(other);
      }
    }
    for (const Recompute policy : {Recompute::none, Recompute::selective, Recompute::full}) {
      for (const auto& choice : choices) {
        SCOPED_TRACE(fmt::format("{} in {}, {}, frozen {}", s.name, to_string(s.compute),
                                 enum_word(policy), fmt::join(choice, " ")));
        const Frozen some(s, *device, policy, choice);
        EXPECT_EQ(some.loss, none.loss);
        for (std::size_t u = 0; u < units; ++u) {
          const bool frozen = std::ranges::count(choice, u) > 0;
          EXPECT_TRUE(
              same_bits(some.gradients[u], frozen ? std::vector<float>() : none.gradients[u]))
              << u;
          const auto& unit = initial.state().units()[u];
          EXPECT_TRUE(same_bits(some.parameters[u], frozen ? widened(initial.real(unit.parameters))
                                                           : none.parameters[u]))
              << u;
        }
      }
    }
  }
}

// A checkpoint is written from snapshots, also of what no step changes.
TEST(PlanRun, FrozenUnitsAreInSnapshots) {
  const auto device = kernels::make_cpu_device({});
  auto inputs = plan_inputs_of(gpt2_like(), *device, DType::bf16);
  inputs.state_for = plan::PlanPurpose::train_snapshot;
  inputs.model.units[2].traits.trained = false;
  PlanRun run(inputs, *device,
              {.purpose = plan::PlanPurpose::train_snapshot,
               .sequence = kSequence,
               .micro = kMicro,
               .micro_batches = 1});
  run.state().set_parameters(test_values(11));
  const std::vector<float> before = slice_of_state(run);
  run.step(40, {.lr = 0.1});
  EXPECT_TRUE(same_bits(slice_of_state(run, Kept::snapshot), before));
  EXPECT_FALSE(same_bits(slice_of_state(run), before));
}

// What bf16 reads of parameters that are kept in f32 is what it keeps of them itself.
TEST(PlanRun, FrozenParametersAreConvertedFromTheTypeThatTheyAreKeptIn) {
  const auto device = kernels::make_cpu_device({});
  const Setting s{"gpt2", gpt2_like(), DType::bf16};
  const std::vector<std::size_t> block{2};
  const Frozen own(s, *device, Recompute::none, block);
  const Frozen wider(s, *device, Recompute::none, block, model::Storage{.type = DType::f32});
  EXPECT_EQ(wider.loss, own.loss);
  for (std::size_t u = 0; u < own.gradients.size(); ++u)
    EXPECT_TRUE(same_bits(wider.gradients[u], own.gradients[u])) << u;
  EXPECT_FALSE(same_bits(wider.parameters[2], own.parameters[2])) << "nothing was rounded";
}

// Dropout that does nothing would pass the tests above.
TEST(PlanRun, DropoutChangesTheLoss) {
  const auto device = kernels::make_cpu_device({});
  Setting s = settings()[0];
  const double with = planned(s, *device, Recompute::none).loss;
  s.config.dropout = {};
  EXPECT_NE(planned(s, *device, Recompute::none).loss, with);
}

// Trap 11: K micro-batches of B sequences are one of K B. Sums are taken in another order only: at
// most some 200 roundings along the longest path, each 2^-24 of what the sum is made of.
TEST(PlanRun, MicroBatchesAddUp) {
  const auto device = kernels::make_cpu_device({});
  Setting s = settings()[0];
  for (float dropout : {0.0F, 0.2F}) {
    s.config.dropout = model::same_dropout(dropout);
    const StepShown apart = planned(s, *device, Recompute::none, 2);
    auto inputs = plan_inputs_of(s.config, *device, DType::f32);
    PlanRun run(inputs, *device, {.sequence = kSequence, .micro = 2 * kMicro, .micro_batches = 1});
    run.state().set_parameters(test_values(11));
    const StepShown together = run.step(40, {.lr = 0});
    EXPECT_NEAR(apart.loss, together.loss, 200 * 0x1p-24 * together.loss);
    ASSERT_EQ(apart.gradients.size(), together.gradients.size());
    for (std::size_t i = 0; i < apart.gradients.size(); ++i) {
      EXPECT_NEAR(apart.gradients[i], together.gradients[i], 200 * 0x1p-24 * together.norm);
    }
  }
}

TEST(PlanRun, NamesTheOpThatFails) {
  const auto device = kernels::make_cpu_device({});
  PlanRun run(plan_inputs_of(gpt2_like(), *device, DType::f32), *device,
              {.sequence = kSequence, .micro = kMicro, .micro_batches = 2});
  run.state().set_parameters(test_values(11));
  const auto message = message_of<InternalError>([&] { run.step(40, {.unknown_token_in = 1}); });
  EXPECT_TRUE(message.starts_with("kernel embed of vocabulary, micro-batch 1: ")) << message;
}

}  // namespace
}  // namespace tessera::test
