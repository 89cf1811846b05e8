// What decks say of ZeRO's traffic and what they leave open.
#include "setup/traffic.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/inputs.hpp"
#include "setup/shapes.hpp"
#include "unit/deck/deck_text.hpp"

namespace tessera::setup {
namespace {

using deck::QuantizedGradients, deck::QuantizedWeights, deck::Secondary;

TEST(CheckTraffic, SaysWhereNodesHaveNoSecondaryShards) {
  const auto refusal = [](const std::vector<std::string>& sets, const std::vector<int>& node_of) {
    std::vector<std::string> all = {"zero.stage=3", "zero.secondary=node"};
    all.insert(all.end(), sets.begin(), sets.end());
    try {
      check_traffic(deck::small_deck(all), node_of);
      return std::string();
    } catch (const DeckError& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(refusal({}, {0, 0, 1, 1}), "");
  EXPECT_EQ(refusal({}, {0, 1, 0, 1}), "");
  EXPECT_EQ(refusal({}, {0, 1, 2, 3}), "");  // one rank a node
  EXPECT_EQ(refusal({"parallel.ranks_per_node=2"}, {0, 0, 0, 0}), "");
  EXPECT_NE(refusal({}, {0, 0, 0, 0}).find("are on one node (give a number"), std::string::npos);
  EXPECT_NE(refusal({}, {0, 0, 0, 1}).find("as many data ranks on every node"), std::string::npos);
  EXPECT_NE(refusal({"parallel.pipeline=2"}, {0, 0, 1, 1}).find("the 2 data ranks of a group"),
            std::string::npos);
  EXPECT_NE(refusal({"zero.stage=2"}, {0, 0, 1, 1}).find("at stage 3 only"), std::string::npos);
}

const std::vector<std::string> kAllOpen = {"zero.stage=3", "zero.secondary=auto",
                                           "zero.quantize.weights=auto",
                                           "zero.quantize.gradients=auto"};
const std::vector<int> kTwoNodes = {0, 0, 1, 1};

std::vector<std::string> with(std::vector<std::string> more) {
  std::vector<std::string> all = kAllOpen;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(OpenTraffic, HasEveryFormThatHasAnEffect) {
  const auto forms = [](const std::vector<std::string>& sets, const std::vector<int>& node_of) {
    return open_traffic(deck::small_deck(sets), node_of);
  };
  const auto all = forms(kAllOpen, kTwoNodes);
  ASSERT_EQ(all.size(), 8);
  EXPECT_EQ(all.front(), Traffic{});
  const Traffic most{.secondary = Secondary::node,
                     .weights = QuantizedWeights::int8,
                     .gradients = QuantizedGradients::int4};
  EXPECT_EQ(all.back(), most);
  EXPECT_EQ(forms(kAllOpen, {0, 0, 0, 0}).size(), 4) << "no secondary shards on one node";
  EXPECT_EQ(forms(kAllOpen, {0, 0, 0, 1}).size(), 4) << "nor on uneven ones";
  EXPECT_EQ(forms(kAllOpen, {0}).size(), 1) << "one rank sends nothing";
  EXPECT_EQ(forms(with({"zero.stage=2"}), kTwoNodes).size(), 2) << "gradients alone";
  EXPECT_EQ(forms(with({"precision.gradients=bf16"}), kTwoNodes).size(), 4)
      << "gradients travel as the deck says";
  EXPECT_EQ(forms(with({"run.reproducible=layout", "run.threads=1"}), kTwoNodes).size(), 2)
      << "nothing is rounded";
  for (const Traffic& form : forms(with({"zero.quantize.weights=int8"}), kTwoNodes))
    EXPECT_EQ(form.weights, QuantizedWeights::int8) << "is not open";
}

TEST(OpenTraffic, IsNoError) {
  for (const auto& more : std::vector<std::vector<std::string>>{
           {}, {"zero.stage=0"}, {"precision.gradients=bf16"}, {"zero.quantize.chunk=8192"}}) {
    for (const std::vector<int>& node_of : std::vector<std::vector<int>>{{0}, {0, 0}, {0, 0, 1}})
      check_traffic(deck::small_deck(with(more)), node_of);
  }
}

TEST(SetTraffic, LeavesADeckThatCanBeReadAgain) {
  const auto loaded =
      deck::small_deck(with({"zero.quantize.error_feedback=true", "zero.quantize.block=128"}));
  for (const Traffic& form : open_traffic(loaded, kTwoNodes)) {
    deck::Deck settled = loaded.deck;
    set_traffic(settled, form);
    EXPECT_FALSE(leaves_traffic_open(settled));
    const deck::Deck again = deck::parse_deck(to_toml(settled), "settled").deck;
    EXPECT_EQ(again, settled);
    const bool rounds = form.gradients != QuantizedGradients::none;
    EXPECT_EQ(again.zero.quantize.error_feedback, rounds);
    const bool blocks = rounds || form.weights != QuantizedWeights::none;
    EXPECT_EQ(again.zero.quantize.block, blocks ? 128 : 256);
  }
}

class NoScratch : public kernels::Device {
 public:
  std::int64_t scratch_bytes(const kernels::KernelCall&) const override { return 0; }
  void run(const kernels::KernelCall&) override { FAIL() << "a simulation ran a kernel"; }
};

/// Of a machine whose nodes are joined by links of so many bytes/s, and whose kernels for blocks
/// take so many.
using Fits = std::function<bool(const plan::ArenaBytes&)>;
TrafficChoice chosen(
    double link, double blocks, const Fits& fits = [](const plan::ArenaBytes&) { return true; }) {
  const auto loaded = deck::small_deck(with({"model.hidden=96", "batch.global=4"}));
  const NoScratch device;
  const deck::Machine machine = deck::parse_machine(fmt::format(R"(ranks_per_node = 2
memory_rate = 1e10
[gemm]
n = [64]
f32 = [1e11]
[kernel.f32]
quantize = {0}
sum_quantized = {0}
requantize_sum = {0}
[link.intra]
latency = 1e-6
rate = 1e10
[link.inter]
latency = 1e-6
rate = {1}
)",
                                                                blocks, link),
                                                    "m.toml");
  const auto inputs_of = [&](const deck::Deck& settled) {
    EXPECT_FALSE(leaves_traffic_open(settled));
    return plan_inputs(settled, training_shapes(settled, 4), kTwoNodes, {.device = device});
  };
  return choose_traffic(loaded.deck, open_traffic(loaded, kTwoNodes), inputs_of, fits, machine);
}

TEST(Prefetch, IsFartherWhereGpusGatherAcrossNodes) {
  const auto found = [](std::vector<std::string> sets, const std::vector<int>& node_of, bool nccl) {
    return prefetch_of(deck::small_deck(sets).deck, node_of, nccl);
  };
  EXPECT_EQ(found({"zero.stage=3"}, kTwoNodes, true), 2);
  EXPECT_EQ(found({"zero.stage=3"}, kTwoNodes, false), 1) << "CPUs";
  EXPECT_EQ(found({"zero.stage=2"}, kTwoNodes, true), 1) << "nothing is gathered ahead of use";
  EXPECT_EQ(found({"zero.stage=3"}, {0, 0, 0, 0}, true), 1) << "one node";
  EXPECT_EQ(found({"zero.stage=3", "parallel.ranks_per_node=2"}, {0, 0, 0, 0}, true), 2);
  EXPECT_EQ(found({"zero.stage=3", "parallel.pipeline=2"}, kTwoNodes, true), 1)
      << "the data ranks of a stage are on one node";
  for (const int given : {0, 1, 5}) {
    EXPECT_EQ(found({"zero.stage=3", fmt::format("zero.prefetch={}", given)}, kTwoNodes, true),
              given);
  }
}

// What a plan needs is that of the deck that says so.
TEST(Prefetch, IsInTheMemoryThatIsPlanned) {
  const NoScratch device;
  const auto bytes = [&](std::vector<std::string> sets, bool nccl) {
    sets.insert(sets.end(), {"zero.stage=3", "model.layers=6"});
    const deck::Deck deck = deck::small_deck(sets).deck;
    const auto shapes = training_shapes(deck, 4);
    const auto inputs = plan_inputs(deck, shapes, kTwoNodes, {.device = device, .nccl = nccl});
    return plan::device_bytes(largest_arenas(inputs, shapes).front());
  };
  EXPECT_EQ(bytes({}, true), bytes({"zero.prefetch=2"}, true));
  EXPECT_GT(bytes({}, true), bytes({"zero.prefetch=1"}, true));
  EXPECT_EQ(bytes({}, false), bytes({"zero.prefetch=1"}, false));
}

TEST(ChooseTraffic, SwitchesOnWhatPays) {
  const TrafficChoice slow = chosen(1e6, 1e10);
  ASSERT_EQ(slow.tried.size(), 8);
  EXPECT_EQ(slow.chosen, slow.tried.back().traffic) << "all of it, where links are slow";
  EXPECT_LT(slow.tried.back().step, 0.4 * slow.tried.front().step) << "a quarter of the bytes";
  EXPECT_EQ(chosen(1e12, 1e6).chosen, Traffic{}) << "nothing, where kernels are";
  EXPECT_EQ(chosen(1e12, 1e10).chosen, Traffic{}) << "nothing, where both are fast";
}

TEST(ChooseTraffic, PassesOverWhatDoesNotFit) {
  std::vector<std::int64_t> asked;
  const auto all = chosen(1e6, 1e10, [&](const plan::ArenaBytes& bytes) {
    asked.push_back(plan::device_bytes(bytes));
    return true;
  });
  ASSERT_EQ(asked.size(), 1) << "of the best alone";
  const std::int64_t most = asked.front();
  const TrafficChoice less = chosen(
      1e6, 1e10, [&](const plan::ArenaBytes& bytes) { return plan::device_bytes(bytes) != most; });
  EXPECT_NE(less.chosen, all.chosen);
  EXPECT_NE(less.chosen, Traffic{});
  EXPECT_FALSE(less.tried.back().fits);
  const TrafficChoice none = chosen(1e6, 1e10, [](const plan::ArenaBytes&) { return false; });
  EXPECT_EQ(none.chosen, Traffic{}) << "what it lacks is said when memory is taken";
  for (const auto& t : none.tried) EXPECT_FALSE(t.fits);
}

TEST(ExplainTraffic, NamesKeysAndTimes) {
  const auto loaded = deck::small_deck(kAllOpen);
  deck::Machine machine;
  machine.inter = deck::Link{.latency = 1e-5, .rate = 1.25e8};
  const auto forms = open_traffic(loaded, kTwoNodes);
  TrafficChoice choice{
      .tried = {{.traffic = forms.front(), .step = 2}, {.traffic = forms.back(), .step = 0.5}},
      .chosen = forms.back()};
  EXPECT_EQ(explain(loaded.deck, choice, machine),
            "\"auto\" makes zero.secondary = \"node\", zero.quantize.weights = \"int8\", "
            "zero.quantize.gradients = \"int4\": at 0.125 GB/s a rank between nodes, a step is "
            "predicted to take 500 ms, and 2000 ms with zero.secondary = \"none\", "
            "zero.quantize.weights = \"none\", zero.quantize.gradients = \"none\"");
  const auto says = [&](const std::string& text) {
    const std::string told = explain(loaded.deck, choice, machine);
    EXPECT_NE(told.find(text), std::string::npos) << told;
  };
  choice.tried.back().step = 1.99;
  choice.chosen = forms.front();
  says("take 2000 ms, and 1990 ms with zero.secondary = \"node\"");
  says("no form is 2 % shorter");
  choice.tried.back().fits = false;
  says(
      "; with zero.secondary = \"node\", zero.quantize.weights = \"int8\", "
      "zero.quantize.gradients = \"int4\" it would not fit memory");
  choice.tried.pop_back();
  says("nothing else can be used with this deck on these ranks");
}

}  // namespace
}  // namespace tessera::setup
