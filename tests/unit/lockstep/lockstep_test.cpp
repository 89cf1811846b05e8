// Whole jobs of several ranks under any order of streams and messages: the bits of a plain run, or
// a report that names the seed.
#include "support/lockstep.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kernels/cpu/device.hpp"
#include "plan/ir/print.hpp"
#include "plan/passes/place_waits.hpp"
#include "plan/proof/check.hpp"
#include "streams/background.hpp"
#include "support/blocks.hpp"
#include "support/plan_run.hpp"
#include "support/sanitized.hpp"
#include "train/guards/non_finite.hpp"

namespace tessera::test {
namespace {

struct Case {
  Mesh mesh{.data = 2};
  model::ModelConfig config = gpt2_like();
  DType compute = DType::f32;
  plan::PipelineRule pipeline = {};
  std::optional<kernels::BlockFormat> gradient_blocks = {};
  DType accumulate = DType::f32;
  bool dealt = false;  // ranks go to nodes in turns
  int stage = 3;
  ReduceWhen reduce = ReduceWhen::step;
  std::int64_t prefetch = 1, micro_batches = 2;
  comm::Sends sends = comm::Sends::buffered;
  std::vector<std::string> frozen = {};            // units
  std::optional<model::Storage> stored = {};       // how they are kept
  std::optional<kernels::BlockFormat> codes = {};  // of frozen matrices beside adapters
  plan::OffloadInputs offload = {};
  std::int64_t tiles = 1;
  int per_node = 0;  // ranks; 0: one, or two of those whose gradients travel as blocks
  std::optional<std::int64_t> secondary = {};
  bool error_feedback = false;  // and rounding at random
  /// Momentum travels as signs, of 1-bit Adam or 1-bit LAMB.
  plan::Compression compression = plan::Compression::none;
  bool lamb = false;
  plan::DocumentInputs documents = {};
  bool masked = false;  // targets
  kernels::LossTerms loss_terms = {};
  ContextKind context = ContextKind::gather;
  std::optional<optim::Optimizer> optimizer = {};  // else AdamW
  std::int64_t first_length = 0;  // of the first step's sequences, where it is another one
};

std::string name_of(const Case& c) {
  return fmt::format(
      "{} data x {} pipeline x {} tensor, {}, {}, stage {}, reduce every {}, prefetch {}, {} "
      "micro-batches, {} sends",
      c.mesh.data, c.mesh.pipeline, c.mesh.tensor, tessera::to_string(c.compute),
      enum_word(c.pipeline.schedule), c.stage, enum_word(c.reduce), c.prefetch, c.micro_batches,
      c.sends == comm::Sends::buffered ? "buffered" : "synchronous");
}

/// With matrices of low rank beside all those of layers, which are frozen.
model::ModelConfig with_adapters(model::ModelConfig config) {
  config.adapter = {.rank = 2, .targets = {"*"}};
  return config;
}
constexpr model::Storage kKeptInF32{.type = DType::f32};

plan::PlanInputs inputs_of(const Case& c, kernels::Device& device) {
  auto inputs = plan_inputs_of(c.config, device, c.compute);
  inputs.sharding.stage = c.stage;
  inputs.sharding.reduce = c.reduce;
  inputs.sharding.prefetch = c.prefetch;
  inputs.offload = c.offload;
  inputs.documents = c.documents;
  inputs.loss_terms = c.loss_terms;
  if (c.optimizer) inputs.optimizer = *c.optimizer;
  inputs.optimizer.clip_norm = 0.5;
  inputs.layout.mesh = c.mesh;
  inputs.layout.context = {.kind = c.context, .shares = c.mesh.context};
  inputs.layout.tensor_chunks = c.mesh.tensor * c.tiles;
  travel_in_blocks(inputs, {}, c.gradient_blocks, c.tiles);
  if (c.codes)
    inputs.model.units = model::model_units(c.config, inputs.layout.tensor_chunks,
                                            {.tiles = c.tiles, .codes = c.codes});
  inputs.numerics.error_feedback = inputs.numerics.stochastic = c.error_feedback;
  if (c.compression != plan::Compression::none) {
    // With an epsilon for which no second moment of 0 is too small.
    inputs.optimizer = c.lamb ? optim::onebit_lamb({.eps = 1, .block = 32})
                              : optim::onebit_adam({.eps = 1, .block = 32});
    inputs.numerics.error_feedback = true;
  }
  inputs.numerics.chunk_bytes = 1024;  // several a unit
  for (model::UnitDesc& unit : inputs.model.units) {
    if (std::ranges::count(c.frozen, unit.name) > 0)
      unit.traits.trained = false, unit.traits.stored = c.stored;
  }
  inputs.layout.pipeline = c.pipeline;
  // Each rank on a node of its own, which makes staging small; but blocks go over nodes of two.
  const int per_node = c.per_node > 0      ? c.per_node
                       : c.gradient_blocks ? 2
                                           : 1,
            nodes = static_cast<int>(c.mesh.size()) / per_node;
  for (int r = 0; r < c.mesh.size(); ++r)
    inputs.layout.node_of.push_back(c.dealt ? r % nodes : r / per_node);
  inputs.balance_rate = 0.125F;  // where there are biases
  inputs.numerics.accumulate = c.accumulate;
  if (c.stage == 3 && c.secondary) inputs.sharding.secondary = {.ranks = *c.secondary};
  return inputs;
}

plan::PlanShape shape_of(const Case& c) {
  return {.purpose = plan::PlanPurpose::train,
          .sequence = c.mesh.context > 1 ? 8 : 6,
          .micro = 1,
          .micro_batches = c.micro_batches,
          .compression = c.compression};
}

/// The plan of the first step of a curriculum, which is in the memory of the others.
std::vector<plan::Plan> shorter(const Case& c, const plan::PlanInputs& inputs,
                                const MeshPlace& place) {
  if (c.first_length == 0) return {};
  plan::PlanShape shape = shape_of(c);
  shape.sequence = c.first_length;
  return {plan::make_plan(inputs, shape, place)};
}

/// The numbers of its first step.
StepNumbers numbers_of(const Case& c) {
  return {.masked = c.masked, .plan = c.first_length > 0 ? 1U : 0U};
}

/// What one rank's training computed: loss and norm of each step, and its slice of the state.
struct Outcome {
  std::vector<double> numbers;
  std::vector<float> state;
  bool operator==(const Outcome&) const = default;
};

testing::AssertionResult same_bits(const std::vector<Outcome>& ranks,
                                   const std::vector<Outcome>& expected) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto differ = [r](const char* what, const auto& a, const auto& b) {
      const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
      return testing::AssertionFailure()
             << what << " of rank " << r << " differ from element " << at.first - a.begin()
             << " on: " << *at.first << ", not " << *at.second;
    };
    if (ranks[r].numbers != expected[r].numbers)
      return differ("losses and norms", ranks[r].numbers, expected[r].numbers);
    if (ranks[r].state != expected[r].state)
      return differ("states", ranks[r].state, expected[r].state);
  }
  return testing::AssertionSuccess();
}

Outcome train(PlanRun& run, const StepNumbers& numbers = {}) {
  Outcome outcome;
  run.state().set_parameters(test_values(11));
  for (int t = 1; t <= 2; ++t) {
    StepNumbers of_step = numbers;
    of_step.update = t;
    if (t > 1) of_step.plan = 0;
    const StepShown step = run.step(100 * t, of_step);
    outcome.numbers.insert(outcome.numbers.end(), {step.loss, step.norm});
  }
  outcome.state = slice_of_state(run);
  return outcome;
}

/// As in production, but for messages that are moved from memory to memory: a thread a rank, beside
/// it the thread of its background streams, and whatever order the machine makes of them.
std::vector<Outcome> plain_run(const Case& c) {
  Networks networks;
  const std::int64_t ranks = c.mesh.size();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::atomic<std::int64_t> left = ranks;
  std::vector<std::thread> threads;
  for (std::int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto device = kernels::make_cpu_device({});
      const auto inputs = inputs_of(c, *device);
      const MeshPlace place = c.mesh.place_of(r);
      PlanRun run(inputs, *device, plan::make_plan(inputs, shape_of(c), place),
                  networks.groups(inputs, r), std::make_unique<streams::BackgroundStreams>(),
                  shorter(c, inputs, place));
      outcomes[static_cast<std::size_t>(r)] = train(run, numbers_of(c));
      --left;
    });
  }
  while (left > 0) {
    for (const auto& [channel, word] : EnumWords<Channel>::table) {
      comm::Loopback& network = networks.of(channel);
      for (const auto& m : network.under_way()) {
        if (m.may_be_taken) network.take(m.message);
        if (m.may_be_delivered) network.deliver(m.message);
      }
    }
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

/// A job in lockstep, which can be run again as long as nothing went wrong.
class Job {
 public:
  /// `change` is applied to the plan of each rank.
  explicit Job(
      const Case& c, const std::function<void(plan::Plan& plan)>& change = [](plan::Plan&) {})
      : lockstep_(c.mesh.size(), c.sends),
        device_(kernels::make_cpu_device({})),
        numbers_(numbers_of(c)) {
    const auto inputs = inputs_of(c, *device_);
    for (std::int64_t r = 0; r < c.mesh.size(); ++r) {
      plan::Plan plan = plan::make_plan(inputs, shape_of(c), c.mesh.place_of(r));
      change(plan);
      runs_.push_back(std::make_unique<PlanRun>(inputs, *device_, std::move(plan),
                                                lockstep_.groups(inputs, r), lockstep_.streams(r),
                                                shorter(c, inputs, c.mesh.place_of(r))));
    }
  }
  /// What went wrong on each rank.
  std::vector<std::string> run(std::uint64_t seed, const StepNumbers& of_rank_1 = {}) {
    outcomes_.assign(runs_.size(), {});
    return lockstep_.run(seed, [&](std::int64_t r) {
      const auto rank = static_cast<std::size_t>(r);
      StepNumbers numbers = r == 1 ? of_rank_1 : StepNumbers{};
      numbers.masked = numbers_.masked, numbers.plan = numbers_.plan;
      outcomes_[rank] = train(*runs_[rank], numbers);
    });
  }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  Lockstep& lockstep() { return lockstep_; }
  const PlanRun& rank(std::int64_t r) const { return *runs_[static_cast<std::size_t>(r)]; }
  PlanRun& rank(std::int64_t r) { return *runs_[static_cast<std::size_t>(r)]; }

 private:
  Lockstep lockstep_;
  std::unique_ptr<kernels::Device> device_;
  StepNumbers numbers_;
  std::vector<std::unique_ptr<PlanRun>> runs_;
  std::vector<Outcome> outcomes_;
};

std::vector<std::string> nothing_wrong(const Case& c) {
  return std::vector<std::string>(static_cast<std::size_t>(c.mesh.size()));
}

struct Layout {
  const char* name;
  Case c;     // the stage and what follows it are varied
  int seeds;  // of each variant
  friend void PrintTo(const Layout& c, std::ostream* to) { *to << c.name; }
};

plan::OffloadInputs all_on(plan::Location tier, std::int64_t ahead) {
  return {.parameters = tier,
          .gradients = tier,
          .optimizer = tier,
          .activations = tier,
          .ahead = ahead,
          .tile = 64,
          .device_is_host = ahead > 0};
}

// A plan in which some micro-batches stand for others does what one of all of them does.
TEST(Lockstep, MicroBatchesThatRepeatHaveTheBitsOfAll) {
  const plan::PipelineRule zero_bubble{.schedule = PipelineSchedule::zero_bubble};
  const plan::PipelineRule interleaved{.schedule = PipelineSchedule::interleaved,
                                       .virtual_stages = 2};
  model::ModelConfig deep = llama_like();
  deep.layers = 4;
  const std::vector<Case> cases = {
      {.mesh = {.data = 2}, .prefetch = 2},
      {.mesh = {.data = 2}, .reduce = ReduceWhen::micro},
      {.mesh = {.data = 2, .pipeline = 2}, .stage = 1},
      {.mesh = {.pipeline = 2}, .compute = DType::bf16, .pipeline = zero_bubble},
      {.mesh = {.tensor = 2}, .config = llama_like()},
      {.mesh = {.data = 2},
       .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::int8, .block = 32},
       .error_feedback = true},
      {.mesh = {.data = 2}, .offload = all_on(plan::Location::host, 1)},
      {.mesh = {.pipeline = 2}, .config = deep, .pipeline = interleaved, .frozen = {"block.1"}},
      {.mesh = {.data = 4}, .per_node = 2, .secondary = 2}};
  for (Case c : cases) {
    // Longer than the shortest step that repeats, by a number that is no multiple.
    const std::int64_t parts = c.mesh.pipeline * c.pipeline.virtual_stages;
    c.micro_batches = 64 + 8 * parts + (parts > 2 ? 12 : 11);
    SCOPED_TRACE(name_of(c));
    std::int64_t repeat = 0;
    Job few(c, [&](plan::Plan& plan) { repeat += plan.repeat ? 1 : 0; });
    EXPECT_EQ(repeat, c.mesh.size());
    ASSERT_EQ(few.run(1), nothing_wrong(c));
    const auto device = kernels::make_cpu_device({});
    const auto inputs = inputs_of(c, *device);
    Job all(c, [&](plan::Plan& plan) {
      plan = plan::whole_plan(inputs, shape_of(c), plan.place);
      plan::place_waits(plan);
      plan::check(plan);
    });
    ASSERT_EQ(all.run(1), nothing_wrong(c));
    EXPECT_TRUE(same_bits(few.outcomes(), all.outcomes()));
  }
}

std::vector<Layout> layouts() {
  model::ModelConfig deep = llama_like();
  deep.layers = 4;
  const plan::PipelineRule interleaved{.schedule = PipelineSchedule::interleaved,
                                       .virtual_stages = 2},
      zero_bubble{.schedule = PipelineSchedule::zero_bubble};
  return {
      {"Data2", {.mesh = {.data = 2}}, 3},
      {"Data3Bf16", {.mesh = {.data = 3}, .compute = DType::bf16}, 3},
      {"Data4Llama", {.mesh = {.data = 4}, .config = llama_like()}, 3},
      {"Data4Int4",
       {.mesh = {.data = 4},
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::int4, .block = 32}},
       3},
      {"Tensor2Data2LlamaInt4",
       {.mesh = {.tensor = 2, .data = 2},
        .config = llama_like(),
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::int4, .block = 32},
        .error_feedback = true},
       1},
      {"Data4Int8Bf16SumsDealt",
       {.mesh = {.data = 4},
        .compute = DType::bf16,
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::int8, .block = 32},
        .accumulate = DType::bf16,
        .dealt = true},
       1},
      {"Data4OneBit",
       {.mesh = {.data = 4},
        .compute = DType::bf16,
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::sign, .block = 32},
        .stage = 2,
        .compression = plan::Compression::on},
       2},
      {"Data4OneBitLambBegins",
       {.mesh = {.data = 4},
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::sign, .block = 32},
        .stage = 2,
        .compression = plan::Compression::begins,
        .lamb = true},
       1},
      {"Pipeline2Tensor2Data2OneBitAllOnDisk",
       {.mesh = {.tensor = 2, .data = 2, .pipeline = 2},
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::sign, .block = 32},
        .stage = 1,
        .offload = all_on(plan::Location::disk, 1),
        .compression = plan::Compression::on,
        .lamb = true},
       1},
      {"Data4Muon", {.mesh = {.data = 4}, .optimizer = optim::muon()}, 1},
      {"Pipeline2Tensor2MuonByHeadsBf16",
       {.mesh = {.tensor = 2, .pipeline = 2},
        .config = llama_like(),
        .compute = DType::bf16,
        .optimizer = optim::muon({.by_heads = true})},
       1},
      {"Tensor2Data2LambBf16",
       {.mesh = {.tensor = 2, .data = 2}, .compute = DType::bf16, .optimizer = optim::lamb()},
       1},
      {"Pipeline2Data2LambAveraged",
       {.mesh = {.data = 2, .pipeline = 2}, .optimizer = optim::with_ema(optim::lamb(), 0.9)},
       1},
      {"Data3Lion", {.mesh = {.data = 3}, .optimizer = optim::lion()}, 1},
      {"Data2SgdMomentsInBf16",
       {.mesh = {.data = 2}, .optimizer = optim::sgd({.nesterov = true, .moments = DType::bf16})},
       1},
      {"Tensor2", {.mesh = {.tensor = 2}}, 6},
      {"Tensor2Data2LlamaBf16",
       {.mesh = {.tensor = 2, .data = 2}, .config = llama_like(), .compute = DType::bf16},
       1},
      {"Tensor2Data2Qwen", {.mesh = {.tensor = 2, .data = 2}, .config = qwen_like()}, 1},
      {"Tensor2Data2Mixtral", {.mesh = {.tensor = 2, .data = 2}, .config = mixtral_like()}, 1},
      {"Tensor2Pipeline2DeepSeekBf16",
       {.mesh = {.tensor = 2, .pipeline = 2}, .config = balanced_like(), .compute = DType::bf16},
       1},
      {"Pipeline2Data2MixtralZeroBubble",
       {.mesh = {.data = 2, .pipeline = 2}, .config = mixtral_like(), .pipeline = zero_bubble},
       1},
      {"Tensor2GptNeoxBf16",
       {.mesh = {.tensor = 2}, .config = gpt_neox_like(), .compute = DType::bf16},
       1},
      {"Tensor2Pipeline2Gemma2",
       {.mesh = {.tensor = 2, .pipeline = 2}, .config = gemma2_like()},
       1},
      {"Pipeline2Data2Olmo2ZeroBubble",
       {.mesh = {.data = 2, .pipeline = 2}, .config = olmo2_like(), .pipeline = zero_bubble},
       1},
      {"Tensor2Pipeline2Bert", {.mesh = {.tensor = 2, .pipeline = 2}, .config = bert_like()}, 1},
      {"Tensor2Data2ClassifierBf16",
       {.mesh = {.tensor = 2, .data = 2}, .config = classifier_like(), .compute = DType::bf16},
       1},
      {"Pipeline2Data2ClassifierZeroBubble",
       {.mesh = {.data = 2, .pipeline = 2}, .config = classifier_like(), .pipeline = zero_bubble},
       1},
      {"Pipeline2Data2", {.mesh = {.data = 2, .pipeline = 2}}, 2},
      {"Pipeline2Data2ZeroBubble",
       {.mesh = {.data = 2, .pipeline = 2}, .config = llama_like(), .pipeline = zero_bubble},
       2},
      {"Pipeline2InterleavedBf16",
       {.mesh = {.pipeline = 2}, .config = deep, .compute = DType::bf16, .pipeline = interleaved},
       15},
      {"Pipeline4", {.mesh = {.pipeline = 4}, .config = deep}, 15},
      {"Tensor2Pipeline2", {.mesh = {.tensor = 2, .pipeline = 2}}, 6},
      {"Data2Tensor2FrozenBf16KeptInF32",
       {.mesh = {.tensor = 2, .data = 2},
        .compute = DType::bf16,
        .frozen = {"vocabulary", "block.1"},
        .stored = kKeptInF32},
       1},
      {"Data4FrozenAsInt8BesideAdapters",
       {.mesh = {.data = 4},
        .config = with_adapters(llama_like()),
        .compute = DType::bf16,
        .codes = {{.type = kernels::BlockType::int8, .block = 16}},
        .per_node = 2,
        .secondary = 0},
       1},
      {"Data2Tensor2FrozenAsInt4OnHost",
       {.mesh = {.tensor = 2, .data = 2},
        .config = with_adapters(gpt2_like()),
        .codes = {{.type = kernels::BlockType::int4, .block = 32}},
        .offload = {.parameters = plan::Location::host, .ahead = 1},
        .tiles = 2},
       1},
      {"Data2FrozenAsInt4OnDisk",
       {.mesh = {.data = 2},
        .config = with_adapters(llama_like()),
        .compute = DType::bf16,
        .codes = {{.type = kernels::BlockType::int4, .block = 16}},
        .offload = all_on(plan::Location::disk, 1)},
       1},
      {"Pipeline2Data2FrozenFirstStage",
       {.mesh = {.data = 2, .pipeline = 2},
        .config = llama_like(),
        .pipeline = zero_bubble,
        .frozen = {"vocabulary", "block.0", "final_norm"}},
       1},
      {"Data2ActivationsOnHost",
       {.mesh = {.data = 2},
        .config = deep,
        .compute = DType::bf16,
        .offload = {.activations = plan::Location::host, .ahead = 1}},
       1},
      {"Pipeline2Data2ZeroBubbleActivationsOnHost",
       {.mesh = {.data = 2, .pipeline = 2},
        .config = deep,
        .pipeline = zero_bubble,
        .offload = {.activations = plan::Location::host, .ahead = 0}},
       1},
      {"Data2AllOnDisk", {.mesh = {.data = 2}, .offload = all_on(plan::Location::disk, 1)}, 1},
      {"Data2LlamaBf16AllOnHost",
       {.mesh = {.data = 2},
        .config = llama_like(),
        .compute = DType::bf16,
        .offload = all_on(plan::Location::host, 2)},
       1},
      {"Pipeline2Data2Bf16AllOnDisk",
       {.mesh = {.data = 2, .pipeline = 2},
        .compute = DType::bf16,
        .offload = all_on(plan::Location::disk, 2)},
       1},
      {"Pipeline2Data2ZeroBubbleAllOnHost",
       {.mesh = {.data = 2, .pipeline = 2},
        .config = llama_like(),
        .pipeline = zero_bubble,
        .offload = all_on(plan::Location::host, 0)},
       1},
      {"Data4Int8Bf16SumsAllOnDisk",
       {.mesh = {.data = 4},
        .compute = DType::bf16,
        .gradient_blocks = kernels::BlockFormat{.type = kernels::BlockType::int8, .block = 32},
        .accumulate = DType::bf16,
        .offload = all_on(plan::Location::disk, 0),
        .error_feedback = true},
       1},
      {"Data4NodesOf2Secondary",
       {.mesh = {.data = 4}, .config = deep, .per_node = 2, .secondary = 0},
       1},
      {"Data4DealtToNodesSecondaryBf16AllOnHost",
       {.mesh = {.data = 4},
        .config = deep,
        .compute = DType::bf16,
        .dealt = true,
        .offload = all_on(plan::Location::host, 1),
        .per_node = 2,
        .secondary = 0},
       1},
      {"Data3SecondaryOfOne", {.mesh = {.data = 3}, .secondary = 1}, 1},
      {"Data2Tiles2Bf16", {.mesh = {.data = 2}, .compute = DType::bf16, .tiles = 2}, 1},
      {"Pipeline2Tensor2LlamaTiles2AllOnDisk",
       {.mesh = {.tensor = 2, .pipeline = 2},
        .config = llama_like(),
        .offload = all_on(plan::Location::disk, 1),
        .tiles = 2},
       1},
      {"Context2Data2DocumentsMasked",
       {.mesh = {.data = 4, .context = 2},
        .documents = {.separate = true, .positions = true},
        .masked = true},
       1},
      {"Pipeline2Context2LlamaHeadsBf16",
       {.mesh = {.data = 2, .pipeline = 2, .context = 2},
        .config = llama_like(),
        .compute = DType::bf16,
        .context = ContextKind::heads},
       1},
      {"Data2Context4LlamaRingBf16",
       {.mesh = {.data = 8, .context = 4},
        .config = llama_like(),
        .compute = DType::bf16,
        .context = ContextKind::ring},
       1},
      {"Data2LongerInTheSecondStepBf16",
       {.mesh = {.data = 2}, .compute = DType::bf16, .first_length = 4},
       2},
      {"Pipeline2Tensor2LlamaLongerInTheSecondStep",
       {.mesh = {.tensor = 2, .pipeline = 2}, .config = llama_like(), .first_length = 2},
       1},
      {"Data4MaskedTargetsBf16", {.mesh = {.data = 4}, .compute = DType::bf16, .masked = true}, 1},
      {"Pipeline2Tensor2SeparateDocumentsMasked",
       {.mesh = {.tensor = 2, .pipeline = 2},
        .documents = {.separate = true, .positions = true},
        .masked = true},
       1},
      {"Tensor2SmoothedMaskedTargets",
       {.mesh = {.tensor = 2},
        .masked = true,
        .loss_terms = {.label_smoothing = 0.1F, .z_loss = 0.01F}},
       1},
      {"Data2FrozenBf16KeptInF32AllOnDisk",
       {.mesh = {.data = 2},
        .compute = DType::bf16,
        .frozen = {"vocabulary", "block.1"},
        .stored = kKeptInF32,
        .offload = all_on(plan::Location::disk, 1)},
       1},
  };
}

class Layouts : public testing::TestWithParam<Layout> {};

// Trap 30, among all else that ranks wait for: a send that is not complete before its receiver is
// there must not keep anyone from getting there.
TEST_P(Layouts, HaveTheBitsOfAPlainRunInAnyOrder) {
  std::uint64_t seed = 0;
  Case c = GetParam().c;
  const bool whole = c.compression != plan::Compression::none;
  const int stages = whole ? 2 : c.mesh.data > 1 ? 3 : 0;
  const bool few = kSanitized || c.offload.uses(plan::Location::disk);  // which take their time
  for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    c.reduce = reduce;
    for (c.micro_batches = 2; c.micro_batches <= (few ? 2 : 3); ++c.micro_batches) {
      c.stage = 0;
      Case stays = c;
      stays.offload = {};
      const auto expected = plain_run(stays);
      for (; c.stage <= stages; ++c.stage) {
        const int farthest = c.stage == 3 ? 2 : 0;  // only stage 3 gathers ahead
        for (c.prefetch = few ? farthest : 0; c.prefetch <= farthest; ++c.prefetch) {
          for (const auto sends : {comm::Sends::buffered, comm::Sends::synchronous}) {
            if (few && (sends == comm::Sends::buffered) != (c.stage % 2 == 0)) continue;
            c.sends = sends;
            SCOPED_TRACE(name_of(c));
            Job job(c);
            for (int i = 0; i < (kSanitized ? 1 : GetParam().seeds); ++i, ++seed) {
              ASSERT_EQ(job.run(seed), nothing_wrong(c));
              ASSERT_TRUE(same_bits(job.outcomes(), expected)) << "seed " << seed;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lockstep, Layouts, testing::ValuesIn(layouts()),
                         [](const auto& layout) { return std::string(layout.param.name); });

/// Every layout that keeps everything on the device, with everything elsewhere.
std::vector<Layout> offloaded_layouts() {
  std::vector<Layout> all;
  for (const Layout& layout : layouts()) {
    // A plan that begins to compress, and does the last update by gradients before, runs once.
    if (layout.c.offload.anything() || layout.c.compression == plan::Compression::begins) continue;
    for (const plan::Location tier : {plan::Location::host, plan::Location::disk}) {
      for (const std::int64_t ahead : {0, 1}) {
        all.push_back(layout);
        all.back().c.offload = all_on(tier, ahead);
        all.back().seeds = 1;
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, Layouts, testing::ValuesIn(offloaded_layouts()),
                         [](const auto& layout) {
                           const plan::OffloadInputs& offload = layout.param.c.offload;
                           return fmt::format("{}_{}_{}", layout.param.name,
                                              enum_word(offload.parameters), offload.ahead);
                         });

TEST(Lockstep, MakesTheMovesOfItsSeed) {
  const Case c{.mesh = {.data = 3}};
  Job job(c), again(c);
  ASSERT_EQ(job.run(5), nothing_wrong(c));
  const auto trace = job.lockstep().trace();
  ASSERT_EQ(job.run(6), nothing_wrong(c));
  EXPECT_NE(job.lockstep().trace(), trace);
  ASSERT_EQ(again.run(5), nothing_wrong(c));
  EXPECT_EQ(again.lockstep().trace(), trace);
}

TEST(Lockstep, ReportsADeadlockWithItsSeed) {
  using Move = Lockstep::Move;
  for (const Channel channel : {Channel::gather, Channel::reduce}) {
    const auto lost = [&](const Move& m) {
      return m.what == Move::What::message_arrives && m.channel == channel && m.rank == 0 &&
             m.peer == 1 && m.number == 3;
    };
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Case c{.mesh = {.data = 3}};
      std::vector<std::string> first;
      std::vector<Move> trace;
      for (int again = 0; again < 2; ++again) {
        Job job(c);
        job.lockstep().prevent(lost);
        const auto wrong = job.run(seed);
        for (const std::string& w : wrong) {
          EXPECT_NE(w.find(fmt::format("deadlock with seed {}:", seed)), std::string::npos) << w;
          EXPECT_NE(w.find(fmt::format("message 3 of rank 0 to rank 1 on {} is sent and awaited",
                                       enum_word(channel))),
                    std::string::npos)
              << w;
        }
        if (again == 0) first = wrong, trace = job.lockstep().trace();
        EXPECT_EQ(wrong, first);
        EXPECT_EQ(job.lockstep().trace(), trace);
      }
    }
  }
}

// A rank that has stopped: the others come to a halt too, and nobody's report blames them.
TEST(Lockstep, ReportsARankThatStopped) {
  Job job({.mesh = {.data = 3}});
  int moves = 0;
  job.lockstep().prevent([&](const Lockstep::Move& m) {
    return m.what == Lockstep::Move::What::rank_runs && m.rank == 2 && ++moves > 50;
  });
  for (const std::string& w : job.run(1))
    EXPECT_NE(w.find("rank 2 may not run"), std::string::npos) << w;
}

/// Whether op `at` comes after the gradient of the very activations that `sent` sends: their
/// receiver has had them.
bool answered(const std::vector<plan::Op>& ops, std::size_t at, const plan::Op& sent) {
  if (sent.stream != Stream::send_forward) return false;
  return std::any_of(
      ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at) + 1, [&](const plan::Op& op) {
        return op.stream == Stream::compute && std::ranges::any_of(op.waits, [&](plan::OpId w) {
                 const plan::Op& awaited = ops[static_cast<std::size_t>(w)];
                 return awaited.stream == Stream::receive_backward &&
                        awaited.micro_batch == sent.micro_batch;
               });
      });
}

/// Whether op `awaited` is complete before op `at` is queued, whatever that one waits for: compute
/// ops before it are, with all that they waited for.
bool complete_before(const std::vector<plan::Op>& ops, std::size_t at, plan::OpId awaited) {
  std::vector<bool> complete(at);
  std::array<bool, kStreams> stream{};  // complete up to here
  stream[static_cast<std::size_t>(Stream::compute)] = true;
  for (std::size_t i = at; i-- > 0;) {
    const auto s = static_cast<std::size_t>(ops[i].stream);
    stream[s] = complete[i] = complete[i] || stream[s];
    if (!complete[i]) continue;
    for (const plan::OpId w : ops[i].waits) complete[static_cast<std::size_t>(w)] = true;
  }
  return complete[static_cast<std::size_t>(awaited)];
}

// The check rejects a plan without any one of its waits (Check.RejectsAPlanWithAnyWaitTakenAway).
// Those for background work show in the bits too, whatever op they are taken from: some order of
// moves is wrong without them; but for sends that have been answered. On the CPU, where work is
// queued after the compute ops before it are done, waits for those cannot show, and none for what
// those had to wait for.
TEST(Lockstep, ShowsAnyMissingWaitForBackgroundWork) {
  constexpr std::uint64_t kSeeds = 100;
  std::vector<Case> cases = {{.mesh = {.tensor = 2}, .stage = 0},
                             {.mesh = {.pipeline = 2},
                              .pipeline = {.schedule = PipelineSchedule::zero_bubble},
                              .stage = 0}};
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro})
      cases.push_back({.stage = stage, .reduce = reduce});
  }
  for (const Case& c : cases) {
    const auto expected = plain_run(c);
    Job whole(c);
    int missing = 0;
    for (std::int64_t r = 0; r < c.mesh.size(); ++r) {
      const PlanRun& rank = whole.rank(r);
      if (rank.place().data != 0) continue;  // data ranks have one plan
      const auto& ops = rank.plan().ops;
      for (std::size_t o = 0; o < ops.size(); ++o) {
        for (std::size_t w = 0; w < ops[o].waits.size(); ++w) {
          const auto& awaited = ops[static_cast<std::size_t>(ops[o].waits[w])];
          if (awaited.stream == Stream::compute) continue;
          Job job(c, [&](plan::Plan& p) {
            if (p.place.tensor != rank.place().tensor ||
                p.place.pipeline != rank.place().pipeline) {
              return;
            }
            p.ops[o].waits.erase(p.ops[o].waits.begin() + static_cast<std::ptrdiff_t>(w));
            EXPECT_THROW(plan::check(p), InternalError);
          });
          if (answered(ops, o, awaited) || complete_before(ops, o, ops[o].waits[w]))
            continue;  // nothing can come between
          std::uint64_t seed = 0;
          while (seed < kSeeds && job.run(seed) == nothing_wrong(c) && job.outcomes() == expected)
            ++seed;
          EXPECT_LT(seed, kSeeds) << name_of(c) << ": " << plan::op_name(ops[o], rank.inputs())
                                  << " without its wait for "
                                  << plan::op_name(awaited, rank.inputs());
          ++missing;
        }
      }
    }
    EXPECT_GT(missing, 2) << name_of(c);
  }
}

/// What is still to come there is NaN until it is there.
void spoil_what_comes(const train::BoundPlan::BoundOp& op) {
  if (op.op->kind != plan::OpKind::fetch) return;
  plan::each_view(op.call, [](const View& v, kernels::Access access) {
    if (access == kernels::Access::read) return;
    std::fill_n(v.data, v.span_bytes(), std::byte{0xff});
  });
}

TEST(Lockstep, LooksForWhatIsNotFiniteOnlyWhereItIsThere) {
  memory::HostTier tier;
  for (const plan::Location where : {plan::Location::host, plan::Location::disk}) {
    const Case c{.stage = 2, .micro_batches = 3, .offload = all_on(where, 0)};
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      Job job(c);
      const auto wrong = job.lockstep().run(seed, [&](std::int64_t r) {
        PlanRun& run = job.rank(r);
        run.state().set_parameters(test_values(11));
        train::NonFiniteFinder finder(run.plan(), run.inputs(), tier);
        auto hooks = finder.hooks();
        hooks.before = [looks = hooks.before](const auto& op, const plan::OpRun& of) {
          spoil_what_comes(op);
          looks(op, of);
        };
        run.step(100, {}, nullptr, hooks);
        ASSERT_FALSE(finder.found())
            << "seed " << seed << ", rank " << r << ": " << finder.found()->tensor;
      });
      ASSERT_EQ(wrong, nothing_wrong(c));
    }
  }
}

/// Applies `spoil` to the first collective of this kind of rank 1's plan.
template <typename Collective>
auto on_rank_1(std::function<void(Collective&)> spoil) {
  return [spoil](plan::Plan& plan) {
    if (plan.place.data != 1) return;
    for (plan::Op& op : plan.ops) {
      auto* any = std::get_if<comm::CollectiveCall>(&op.call);
      auto* call = any == nullptr ? nullptr : std::get_if<Collective>(any);
      if (call != nullptr) return spoil(*call);
    }
  };
}

void expect_start(const std::string& text, const std::string& start) {
  EXPECT_EQ(text.substr(0, start.size()), start);
}

TEST(Lockstep, NamesTheOpThatFailsOnItsRank) {
  const Case c{.mesh = {.data = 3}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    {  // as a background op starts
      Job job(c, on_rank_1<comm::ReduceScatter>(
                     [](auto& call) { call.staging = call.staging.range(0, 16); }));
      const auto wrong = job.run(seed);
      expect_start(wrong[1], "reduce_gradients reduce_scatter of ");
      expect_start(wrong[0], fmt::format("deadlock with seed {}:", seed));
      EXPECT_NE(wrong[0].find("rank 1 failed (reduce_gradients"), std::string::npos) << wrong[0];
    }
    {  // while it is under way: the peers find that a message has another size
      Job job(c, on_rank_1<comm::AllGather>([](auto& call) {
                call.shard = call.shard.range(0, call.shard.elements() / 2);
              }));
      const auto wrong = job.run(seed);
      for (const std::string& w : wrong) {
        expect_start(w, "gather all_gather of ");
        EXPECT_NE(w.find("were expected"), std::string::npos) << w;
      }
    }
    {  // on the compute stream
      Job job(c);
      expect_start(job.run(seed, {.unknown_token_in = 1})[1], "kernel ");
    }
  }
}

}  // namespace
}  // namespace tessera::test
