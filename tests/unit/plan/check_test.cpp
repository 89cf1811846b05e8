// Plans that were broken on purpose are rejected.
#include <gtest/gtest.h>

#include <random>

#include "plan/ir/lives.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/proof/check.hpp"
#include "plan/proof/meetings.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

TEST(Check, RejectsAFrozenUnitThatIsUpdatedAndATrainedOneThatIsNot) {
  for (const bool trained : {true, false}) {
    Case c = make_case(1, 2, 2, ReduceWhen::step);
    c.inputs.model.units[3].traits.trained = trained;
    Plan plan = make_plan(c.inputs, c.shape, {});
    plan.shares[3].trained = !trained;
    EXPECT_THROW(check(plan), InternalError);
  }
}

// A hop that is missing, or that is among others, makes no whole.
TEST(Check, RejectsHopsThatMakeNoWhole) {
  int broken = 0;
  for (const bool dealt : {false, true}) {
    for (const int stage : {0, 2, 3}) {
      Case c = make_case(stage, 6, 2, ReduceWhen::micro);
      c.inputs.layout.node_of = {0, 0, 0, 1, 1, 1};
      if (dealt) c.inputs.layout.node_of = {0, 1, 0, 1, 0, 1};
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 2});
      EXPECT_NO_THROW(check(plan));
      for (std::size_t i = 0; i < plan.ops.size(); ++i) {
        const auto* call = std::get_if<comm::CollectiveCall>(&plan.ops[i].call);
        if (call == nullptr || !among_of(*call)) continue;
        const auto expect_broken = [&](auto&& change) {
          Plan wrong = plan;
          std::visit(
              [&](auto& collective) {
                if constexpr (requires { collective.among, collective.blocks; }) change(collective);
              },
              std::get<comm::CollectiveCall>(wrong.ops[i].call));
          EXPECT_THROW(check(wrong), InternalError)
              << "stage " << stage << ", " << call_name(plan.ops[i].call) << " " << i << " of "
              << plan.ops.size();
          ++broken;
        };
        expect_broken([](auto& x) { x.among = {}; });
        expect_broken([](auto& x) { x.among.ranks.first += 1; });
        expect_broken([](auto& x) {
          x.among.ranks.stride = x.among.ranks.stride == 1 ? 2 : 1;
          x.among.ranks.first = 2;
        });
        expect_broken([](auto& x) { x.blocks = x.blocks == 1 ? 2 : 1; });
      }
    }
  }
  EXPECT_GT(broken, 100);
}

// Hops that would make up the whole, had this rank been another one.
TEST(Check, RejectsGathersAmongOthers) {
  Case c = make_case(3, 6, 2, ReduceWhen::micro);
  c.inputs.layout.node_of = {0, 0, 0, 1, 1, 1};
  Plan plan = make_plan(c.inputs, c.shape, {.data = 3});
  EXPECT_NO_THROW(check(plan));
  int hops = 0;
  for (Op& op : plan.ops) {
    auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    auto* gather = call == nullptr ? nullptr : std::get_if<comm::AllGather>(call);
    if (gather == nullptr || !gather->among) continue;
    RankGroup& ranks = gather->among.ranks;
    ranks.first = ranks.stride == 1 ? 0 : 3;  // where 3 and 0 were right
    ++hops;
  }
  EXPECT_GT(hops, 4);
  EXPECT_THROW(check(plan), InternalError);
}

// An update in two passes: each element has both, in this order, and the second is by the sums over
// all ranks of the tensor that the element is of.
TEST(Check, RejectsSumsOverTensorsThatAreNotWhole) {
  for (const int stage : {0, 1, 3}) {
    for (const Location where : {Location::device, Location::host}) {
      Case c = make_case(stage, 2, 2, ReduceWhen::step);
      c.inputs.optimizer = optim::lamb();
      c.inputs.offload.optimizer = where;
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
      ASSERT_NO_THROW(check(plan));
      int collectives = 0, first = 0, second = 0;
      for (std::size_t i = 0; i < plan.ops.size(); ++i) {
        const bool sums = plan.ops[i].kind == OpKind::tensor_sums;
        const bool is_collective = std::holds_alternative<comm::CollectiveCall>(plan.ops[i].call);
        collectives += sums && is_collective ? 1 : 0;
        Plan wrong = plan;
        auto* call = std::get_if<kernels::KernelCall>(&wrong.ops[i].call);
        auto* update = call == nullptr ? nullptr : std::get_if<kernels::OptimizerUpdate>(call);
        if (sums && is_collective) {
          wrong.ops[i].kind = OpKind::norm;
          EXPECT_THROW(check(wrong), InternalError) << "sums of one rank";
        } else if (update != nullptr && update->rule == kernels::UpdateRule::lamb_moments) {
          ++first;
          if (!update->sums) continue;  // of elements that another rank counts
          update->sums = {};
          EXPECT_THROW(check(wrong), InternalError) << "elements that nobody counts";
        } else if (update != nullptr && where == Location::device && stage > 0) {
          ++second;
          auto& words = update->sums;
          words.data += (offset_of(words) == 0 ? 1 : -1) * words.span_bytes();
          EXPECT_THROW(check(wrong), InternalError) << "sums of another tensor";
        }
      }
      EXPECT_EQ(collectives, 1);
      EXPECT_GT(first, 0);
      EXPECT_EQ(second > 0, where == Location::device && stage > 0);
    }
  }
}

TEST(Check, RejectsAPlanWithAnyWaitTakenAway) {
  // The waits are the fewest: each one is needed, so without it two operations race.
  std::mt19937 random(2);
  int removed = 0;
  for (int i = 0; i < 12; ++i) {
    Case c = random_case(random);
    divide_experts(c, random);
    divide_sequences(c, random);
    const Plan plan = make_plan(c.inputs, c.shape, {});
    for (std::size_t o = 0; o < plan.ops.size(); ++o) {
      for (std::size_t w = 0; w < plan.ops[o].waits.size(); ++w) {
        Plan broken = plan;
        broken.ops[o].waits.erase(broken.ops[o].waits.begin() + static_cast<std::ptrdiff_t>(w));
        EXPECT_THROW(check(broken), InternalError) << "op " << o << " wait " << w;
        ++removed;
      }
    }
  }
  EXPECT_GT(removed, 100);
}

TEST(Check, RejectsAPlanThatForgetsWork) {
  const Case c = make_case(3, 2, 2, ReduceWhen::micro);
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  for (const OpKind kind :
       {OpKind::gather, OpKind::reduce_gradients, OpKind::load_batch, OpKind::update}) {
    const auto broken = without_each(plan, kind);
    EXPECT_FALSE(broken.empty());
    for (const Plan& b : broken) EXPECT_THROW(check(b), InternalError) << enum_word(kind);
  }
}

TEST(Check, RejectsWorkOfTheHostElsewhereOrLate) {
  const Case c = make_case(3, 2, 2, ReduceWhen::micro);
  const Plan plan = make_plan(c.inputs, c.shape, {});
  Plan not_loaded = plan, loads_nothing = plan, late = plan;
  not_loaded.ops[0].location = Location::device;
  EXPECT_THROW(check(not_loaded), InternalError);
  loads_nothing.ops.back().location = Location::host;
  EXPECT_THROW(check(loads_nothing), InternalError);
  std::swap(late.ops[1], late.ops[2]);
  ASSERT_TRUE(std::holds_alternative<LoadBatch>(late.ops[2].call));
  EXPECT_THROW(check(late), InternalError);
}

// An update under another name is an update.
TEST(Check, RejectsAnElementThatIsUpdatedTwice) {
  const Case c = make_case(1, 2, 1, ReduceWhen::step);
  const Plan plan = make_plan(c.inputs, c.shape, {});
  const auto update = std::ranges::find(plan.ops, OpKind::update, &Op::kind);
  ASSERT_NE(update, plan.ops.end());
  for (const OpKind kind : {OpKind::update, OpKind::kernel}) {
    Plan broken = plan;
    broken.ops.push_back(*update);
    broken.ops.back().kind = kind;
    EXPECT_THROW(check(broken), InternalError) << enum_word(kind);
  }
}

/// Changes an argument struct of the plan's calls, one call at a time.
template <typename Args, typename F>
std::vector<Plan> with_each(const Plan& plan, F&& change) {
  std::vector<Plan> all;
  for (std::size_t o = 0; o < plan.ops.size(); ++o) {
    Plan other = plan;
    visit_args(other.ops[o].call, [&](auto& args) {
      if constexpr (std::is_same_v<std::decay_t<decltype(args)>, Args>) {
        change(args);
        all.push_back(other);
      }
    });
  }
  return all;
}
void expect_rejected(const std::vector<Plan>& plans, const char* what) {
  EXPECT_FALSE(plans.empty()) << what;
  for (const Plan& plan : plans) EXPECT_THROW(check(plan), InternalError) << what;
}

// What goes to experts by node goes to the ranks of its hop, which this rank is one of.
TEST(Check, RejectsExchangesOfExpertsAmongOthers) {
  Case c = make_case(0, 4, 1, ReduceWhen::step);
  PlanInputs& in = c.inputs;
  give_experts(in, {.count = 4, .hidden = 8, .routing = {.choices = 2}}, 4, {0, 0, 1, 1});
  in.layout.expert_exchange = ExpertExchange::by_node;
  const Plan plan = make_plan(in, c.shape, {.data = 3});
  EXPECT_NO_THROW(check(plan));
  expect_rejected(with_each<comm::ExchangeRows>(plan, [](auto& x) { x.among.ranks.first = 0; }),
                  "an exchange of others");
  expect_rejected(with_each<comm::ExchangeRows>(plan, [](auto& x) { x.among = {}; }), "slots");
}

/// A plan of tallies and, where the head computes the logits of few tokens at a time, of losses in
/// pieces.
Plan tallied_plan(PlanPurpose purpose, std::int64_t tensor_rank) {
  Case c = make_case(1, 2, 2, ReduceWhen::step);
  c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
  c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
  c.inputs.logit_rows = 7;
  c.shape.purpose = purpose;
  c.shape.tallies = c.inputs.most_tallies = 3;
  return make_plan(c.inputs, c.shape, {.tensor = tensor_rank});
}
/// Takes out the calls of one kind, one at a time, or has each done twice.
template <typename Args>
std::vector<Plan> without_or_again(const Plan& plan) {
  std::vector<Plan> all;
  for (std::size_t o = 0; o < plan.ops.size(); ++o) {
    if (call_name(plan.ops[o].call) != Args::kName) continue;
    if (plan.ops[o].kind == OpKind::norm) continue;
    Plan without = plan, again = plan;
    without.ops[o].call = kernels::KernelCall{kernels::Fill{.out = plan.verdict}};
    again.ops[o + 1] = again.ops[o];
    all.push_back(without);
    all.push_back(again);
  }
  return all;
}

// Losses that are in no sum or twice in one, that are added before they are all there or to what is
// left of the step before; samples that count in others' tallies; and ranks that add the same ones.
TEST(Check, RejectsLossesThatGoAstray) {
  using kernels::ExactSum, kernels::ExactSums, kernels::Fill;
  for (const auto purpose : {PlanPurpose::evaluate, PlanPurpose::train}) {
    const Plan plan = tallied_plan(purpose, 0);
    EXPECT_NO_THROW(check(plan));
    expect_rejected(without_or_again<ExactSum>(plan), "the step's sum");
    expect_rejected(without_or_again<ExactSums>(plan), "tallies");
    expect_rejected(with_each<Fill>(plan, [&](Fill& f) { f.out = plan.verdict; }), "left over");
    expect_rejected(with_each<ExactSums>(plan,
                                         [&](ExactSums& s) {
                                           s.x = s.x.row_range(0, 1);
                                           s.into = s.into.range(0, 1);
                                         }),
                    "some of the samples");
    const auto batches =
        std::array{std::get<LoadBatch>(plan.ops[0].call), std::get<LoadBatch>(plan.ops[1].call)};
    expect_rejected(with_each<ExactSums>(plan,
                                         [&](ExactSums& s) {
                                           const bool first =
                                               s.into.data == batches[0].tallies.data;
                                           s.into = batches[first ? 1 : 0].tallies;
                                         }),
                    "tallies of others");
    expect_rejected(
        with_each<kernels::ClassifyLoss>(
            plan, [](kernels::ClassifyLoss& c) { c.targets.data += size_of(DType::i32); }),
        "losses of other targets");
    Plan of_other = tallied_plan(purpose, 1);
    EXPECT_NO_THROW(check(of_other));
    of_other.place.tensor = 0;
    EXPECT_THROW(check(of_other), InternalError);
  }
}

/// The same of pairs of answers, as training compares them; of their scores, where a sample has
/// one.
Plan paired_plan(PlanPurpose purpose, std::int64_t tensor_rank,
                 kernels::PreferenceTerms terms = {.kind = kernels::PreferenceKind::dpo,
                                                   .beta = 0.1F}) {
  Case c = make_case(1, 2, 2, ReduceWhen::step);
  c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
  if (!terms.relative()) {
    c.inputs.model.config.tied_embeddings = false;
    c.inputs.model.config.head = {.pooling = Pooling::last, .labels = 1};
    c.inputs.documents.separate = true;
  }
  c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
  c.inputs.logit_rows = terms.relative() ? 7 : 3;
  c.inputs.preference = terms;
  c.shape.purpose = purpose;
  c.shape.micro = 4;
  return make_plan(c.inputs, c.shape, {.tensor = tensor_rank});
}

// Pairs that are not compared, or by the losses or references of others; and what is said of them
// that is in no sum, or twice in one.
TEST(Check, RejectsPairsThatGoAstray) {
  using kernels::ExactSum, kernels::PreferenceLoss;
  for (const auto purpose : {PlanPurpose::evaluate, PlanPurpose::train}) {
    const Plan plan = paired_plan(purpose, 0);
    EXPECT_NO_THROW(check(plan));
    EXPECT_EQ(targets_of(plan), plan.group(MeshGroup::data).size * 2 * 2) << "pairs";
    expect_rejected(without_or_again<ExactSum>(plan), "the step's sums");
    expect_rejected(without_or_again<PreferenceLoss>(plan), "losses of pairs");
    const auto batches =
        std::array{std::get<LoadBatch>(plan.ops[0].call), std::get<LoadBatch>(plan.ops[1].call)};
    expect_rejected(with_each<PreferenceLoss>(plan,
                                              [&](PreferenceLoss& p) {
                                                const bool first =
                                                    p.reference.data == batches[0].reference.data;
                                                p.reference = batches[first ? 1 : 0].reference;
                                              }),
                    "references of others");
    if (purpose == PlanPurpose::train) {
      expect_rejected(
          with_each<kernels::ClassifyGradient>(
              plan, [](kernels::ClassifyGradient& g) { g.scale = g.scale.range(0, 1); }),
          "targets without their slopes");
    }
    EXPECT_NO_THROW(check(paired_plan(purpose, 1)));
  }
}

// Targets that the model drew: judged by the advantages of others, or not, or in no gradient.
TEST(Check, RejectsDrawnTargetsThatGoAstray) {
  using kernels::PolicyLoss;
  const auto plan_of = [](PlanPurpose purpose, std::int64_t tensor_rank, bool values = false) {
    Case c = make_case(1, 2, 2, ReduceWhen::step);
    c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
    c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
    c.inputs.logit_rows = 7;
    c.inputs.policy = {.terms = kernels::PolicyTerms{.low = 0.2F, .high = 0.2F, .kl = 0.1F},
                       .weighted = true,
                       .drawn_before = true};
    if (values) {
      c.inputs.model.config.head.values = true;
      c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
      c.inputs.policy->terms->kl = 0;
      c.inputs.policy->value = {.weight = 0.1F, .clip = 0.2F};
    }
    c.shape.purpose = purpose;
    return make_plan(c.inputs, c.shape, {.tensor = tensor_rank});
  };
  const Plan plan = plan_of(PlanPurpose::train, 0);
  EXPECT_NO_THROW(check(plan));
  EXPECT_NO_THROW(check(plan_of(PlanPurpose::train, 1)));
  expect_rejected(without_or_again<PolicyLoss>(plan), "losses of drawn targets");
  const auto batches =
      std::array{std::get<LoadBatch>(plan.ops[0].call), std::get<LoadBatch>(plan.ops[1].call)};
  expect_rejected(with_each<PolicyLoss>(plan,
                                        [&](PolicyLoss& p) {
                                          const bool first =
                                              p.advantages.data == batches[0].advantages.data;
                                          p.advantages = batches[first ? 1 : 0].advantages;
                                        }),
                  "advantages of others");
  expect_rejected(with_each<PolicyLoss>(plan, [](PolicyLoss& p) { p.drawn = p.reference; }),
                  "what the reference says in place of when it was drawn");
  expect_rejected(with_each<PolicyLoss>(plan, [](PolicyLoss& p) { p.drawn = {}; }),
                  "what is loaded and not looked at");
  expect_rejected(with_each<PolicyLoss>(plan, [](PolicyLoss& p) { p.statistics = {}; }),
                  "what is not said of how far the model has moved");
  expect_rejected(without_or_again<kernels::ExactSum>(plan), "the step's sums");
  expect_rejected(with_each<kernels::ClassifyGradient>(
                      plan, [](kernels::ClassifyGradient& g) { g.scale = g.scale.range(0, 1); }),
                  "targets without their slopes");
  using kernels::ValueLoss;
  const Plan valued = plan_of(PlanPurpose::train, 0, true);
  EXPECT_NO_THROW(check(valued));
  EXPECT_NO_THROW(check(plan_of(PlanPurpose::train, 1, true)));
  expect_rejected(without_or_again<ValueLoss>(valued), "losses of values");
  expect_rejected(with_each<ValueLoss>(valued, [](ValueLoss& v) { v.returns = v.drawn; }),
                  "values when drawn in place of what came of them");
  expect_rejected(with_each<ValueLoss>(valued, [](ValueLoss& v) { v.drawn = {}; }),
                  "values when drawn that are not looked at");
  const Plan of_text = plan_of(PlanPurpose::evaluate, 0);
  EXPECT_NO_THROW(check(of_text));
  EXPECT_FALSE(std::get<LoadBatch>(of_text.ops[0].call).advantages);
}

// Of a critic, which has no other losses.
TEST(Check, RejectsValuesAloneThatGoAstray) {
  using kernels::ValueLoss;
  for (const std::int64_t tensor_rank : {0, 1}) {
    Case c = make_case(1, 2, 2, ReduceWhen::step);
    c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
    c.inputs.model.config.head.labels = 1;
    c.inputs.model.config.tied_embeddings = false;
    c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
    c.inputs.policy = {.value = kernels::ValueTerms{.weight = 1, .clip = 0.2F},
                       .weighted = true,
                       .drawn_before = true};
    const Plan plan = make_plan(c.inputs, c.shape, {.tensor = tensor_rank});
    const auto& batch = std::get<LoadBatch>(plan.ops[0].call);
    EXPECT_TRUE(batch.returns && batch.weights && batch.drawn_values);
    EXPECT_FALSE(batch.advantages || batch.drawn_losses || batch.reference_losses);
    EXPECT_FALSE(plan.statistics);
    expect_rejected(without_or_again<ValueLoss>(plan), "losses of values");
    expect_rejected(with_each<ValueLoss>(plan, [](ValueLoss& v) { v.returns = v.drawn; }),
                    "values when drawn in place of what came of them");
    if (tensor_rank == 0) {
      expect_rejected(
          with_each<ValueLoss>(plan, [](ValueLoss& v) { v.write = kernels::Write::add; }),
          "losses that are added to nothing");
      expect_rejected(without_or_again<kernels::ExactSum>(plan), "the step's sums");
    }
  }
}

// Documents whose scores are not made, or compared beside what a reference model says.
TEST(Check, RejectsScoresThatGoAstray) {
  constexpr kernels::PreferenceTerms kTerms{.kind = kernels::PreferenceKind::reward, .beta = 1};
  for (const auto purpose : {PlanPurpose::evaluate, PlanPurpose::train}) {
    const Plan plan = paired_plan(purpose, 0, kTerms);
    EXPECT_NO_THROW(check(plan));
    EXPECT_EQ(targets_of(plan), plan.group(MeshGroup::data).size * 2 * 2) << "pairs";
    expect_rejected(without_or_again<kernels::Score>(plan), "scores");
    expect_rejected(without_or_again<kernels::PreferenceLoss>(plan), "losses of pairs");
    if (purpose == PlanPurpose::train)
      expect_rejected(without_or_again<kernels::ScoreGradient>(plan), "gradients of scores");
    const View targets = std::get<LoadBatch>(plan.ops[0].call).targets;
    expect_rejected(with_each<kernels::PreferenceLoss>(
                        plan, [&](kernels::PreferenceLoss& p) { p.reference = targets; }),
                    "a reference that nobody has loaded");
    EXPECT_NO_THROW(check(paired_plan(purpose, 1, kTerms)));
  }
}

// Questions of multiple choice, and what a reference model says, are of targets.
TEST(MakePlan, OfTargetsHasTheStateOfOneOfPairs) {
  Case c = make_case(3, 2, 2, ReduceWhen::micro);
  c.inputs.preference = {.kind = kernels::PreferenceKind::ipo, .beta = 1};
  c.shape.purpose = PlanPurpose::evaluate;
  const Plan of_pairs = make_plan(c.inputs, c.shape, {});
  c.shape.of_targets = true;
  const Plan of_targets = make_plan(c.inputs, c.shape, {});
  EXPECT_EQ(of_targets.arena(ArenaId::state), of_pairs.arena(ArenaId::state));
  EXPECT_TRUE(of_pairs.statistics);
  EXPECT_FALSE(of_targets.statistics);
  EXPECT_GT(targets_of(of_targets), targets_of(of_pairs));
}

// Biases that stay, move twice, by another layer's choices, by those of this rank alone, or
// whatever the verdict is.
TEST(Check, RejectsBiasesThatBalanceByOtherChoices) {
  Case c = make_case(2, 2, 2, ReduceWhen::step);
  c.inputs.model.config.bias = false;
  c.inputs.model.config.experts = {
      .count = 4, .hidden = 8, .balance = kernels::BalanceBy::bias, .routing = {.choices = 2}};
  c.inputs.model.units = model::model_units(c.inputs.model.config);
  c.inputs.balance_rate = 0.5F;
  for (const DType compute : {DType::f32, DType::bf16}) {
    c.inputs.numerics.compute = compute;
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    EXPECT_NO_THROW(check(plan));
    using kernels::BalanceExperts;
    expect_rejected(without_or_again<BalanceExperts>(plan), "each layer's biases once");
    for (std::int64_t layer = 0; layer < c.inputs.model.config.layers; ++layer) {
      const View other = plan.choices.row_range(layer, 1).range(0, 4);
      std::int64_t as_they_are = 0;
      for (const Plan& changed :
           with_each<BalanceExperts>(plan, [&](BalanceExperts& b) { b.choices = other; })) {
        try {
          check(changed);
          ++as_they_are;
        } catch (const InternalError&) {
        }
      }
      EXPECT_EQ(as_they_are, 1) << "of the layer itself";
    }
    expect_rejected(with_each<BalanceExperts>(
                        plan, [&](BalanceExperts& b) { b.verdict = plan.scalars.range(0, 2); }),
                    "the verdict");
    std::vector<View> biases;
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::balance)
        biases.push_back(std::get<BalanceExperts>(std::get<kernels::KernelCall>(op.call)).kept);
    }
    ASSERT_EQ(std::ssize(biases), c.inputs.model.config.layers);
    Plan crossed = plan;
    for (Op& op : crossed.ops) {
      visit_args(op.call, [&](auto& args) {
        if constexpr (std::is_same_v<std::decay_t<decltype(args)>, BalanceExperts>)
          args.kept = biases.back(), biases.pop_back();
      });
    }
    EXPECT_THROW(check(crossed), InternalError) << "each layer's own";
    for (const std::string_view before : {"all_reduce_words", "verdict"}) {
      Plan early = plan;
      const auto first = std::ranges::find_if(
          early.ops, [&](const Op& op) { return call_name(op.call) == before; });
      const auto balance = std::ranges::find(early.ops, OpKind::balance, &Op::kind);
      ASSERT_LT(first, balance) << before;
      std::rotate(first, balance, balance + 1);
      EXPECT_THROW(check(early), InternalError) << before;
    }
  }
}

// Choices that are not counted, twice, where other layers' are, or again where they are computed
// again; and ranks that count the same ones.
TEST(Check, RejectsChoicesThatGoAstray) {
  Case c = make_case(1, 2, 2, ReduceWhen::step);
  c.inputs.model.config.bias = false;
  c.inputs.model.config.experts = {.count = 4, .hidden = 8, .routing = {.choices = 2}};
  c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
  c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
  c.inputs.recompute = Recompute::full;
  const Plan plan = make_plan(c.inputs, c.shape, {});
  EXPECT_NO_THROW(check(plan));
  using kernels::CountChoices;
  expect_rejected(without_or_again<CountChoices>(plan), "the step's counts");
  expect_rejected(with_each<CountChoices>(plan,
                                          [&](CountChoices& count) {
                                            const View first = plan.choices.row_range(0, 1);
                                            const bool of_first = count.counts.data == first.data;
                                            const View other =
                                                plan.choices.row_range(of_first ? 1 : 0, 1);
                                            count.counts = other.range(0, 4);
                                            count.dropped = other.range(4, 1);
                                          }),
                  "choices of other layers");
  expect_rejected(with_each<CountChoices>(
                      plan, [&](CountChoices& count) { count.dropped = plan.choices.range(0, 1); }),
                  "what is dropped");
  Plan uncleared = plan;
  for (Op& op : uncleared.ops) {
    visit_args(op.call, [&](auto& args) {
      if constexpr (std::is_same_v<std::decay_t<decltype(args)>, kernels::Fill>)
        if (args.out.data == plan.choices.data) args.out = plan.words.range(WordLayout::loss, 1);
    });
  }
  EXPECT_THROW(check(uncleared), InternalError);
  Plan swapped = plan;
  for (Op& op : swapped.ops) {
    visit_args(op.call, [&](auto& args) {
      if constexpr (std::is_same_v<std::decay_t<decltype(args)>, CountChoices>) {
        const bool first = args.counts.data == plan.choices.row_range(0, 1).data,
                   second = args.counts.data == plan.choices.row_range(1, 1).data;
        if (!first && !second) return;
        const View other = plan.choices.row_range(first ? 1 : 0, 1);
        args.counts = other.range(0, 4), args.dropped = other.range(4, 1);
      }
    });
  }
  EXPECT_THROW(check(swapped), InternalError);
  Plan again = plan;
  for (Op& op : again.ops) op.again = op.again || call_name(op.call) == CountChoices::kName;
  EXPECT_THROW(check(again), InternalError);
  Plan of_other = make_plan(c.inputs, c.shape, {.tensor = 1});
  EXPECT_NO_THROW(check(of_other));
  of_other.place.tensor = 0;
  EXPECT_THROW(check(of_other), InternalError);
}

/// What each of these calls has of a whole is where it belongs: not a block further, or before.
template <typename Args>
void expect_chunks_in_place(const Plan& plan, View Args::*of) {
  for (const std::int64_t elements : {-32, 32}) {
    expect_rejected(with_each<Args>(plan,
                                    [&](Args& a) {
                                      View& v = a.*of;
                                      v.data += elements * size_of(v.type);
                                    }),
                    "a chunk elsewhere");
  }
}

// Slots that nobody sent, that go to the wrong ranks or owners, are added twice or read as what
// they are not.
TEST(Check, RejectsBlocksThatGoAstray) {
  using comm::AllToAll;
  using kernels::Quantize, kernels::RequantizeSum, kernels::SumQuantized;
  for (const std::vector<int>& nodes : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}}) {
    Case c = make_case(2, 4, 2, ReduceWhen::micro);
    c.inputs.layout.node_of = nodes;
    test::travel_in_blocks(c.inputs, {}, {{.type = kernels::BlockType::int4, .block = 32}});
    c.inputs.numerics.chunk_bytes = kSmallChunk;
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    expect_rejected(without_each(plan, OpKind::reduce_gradients), "without an op");
    expect_rejected(with_each<AllToAll>(plan, [](AllToAll& a) { --a.ranks.count; }), "fewer ranks");
    expect_rejected(
        with_each<AllToAll>(plan, [](AllToAll& a) { a.ranks.stride = 3 - a.ranks.stride; }),
        "other ranks");
    expect_rejected(with_each<AllToAll>(plan, [](AllToAll& a) { a.ranks = {2, 2, 1}; }), "others");
    expect_rejected(with_each<RequantizeSum>(plan, [](RequantizeSum& a) { a.format.block = 64; }),
                    "another block");
    expect_rejected(with_each<SumQuantized>(
                        plan, [](SumQuantized& a) { a.format.type = kernels::BlockType::int8; }),
                    "another type");
    if (nodes[1] == 0) {
      expect_rejected(with_each<Quantize>(plan,
                                          [](Quantize& a) {
                                            a.x.shape = {1, 4, a.x.cols()};
                                            a.code = a.code.reshaped({4, 1, a.code.cols()});
                                          }),
                      "slots in rank order");
    }
    expect_chunks_in_place<Quantize>(plan, &Quantize::x);
    expect_chunks_in_place<SumQuantized>(plan, &SumQuantized::out);
  }
}

// What the first rounding of each gradient loses goes into that of the next step, if this one is
// applied; whatever of that a plan lacks is noticed.
TEST(Check, RejectsErrorsThatAreLost) {
  using kernels::Convert, kernels::Quantize;
  for (const ReduceWhen reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    Case c = make_case(2, 4, 2, reduce);
    c.inputs.layout.node_of = {0, 0, 1, 1};
    test::travel_in_blocks(c.inputs, {}, {{.type = kernels::BlockType::int4, .block = 32}});
    c.inputs.numerics.error_feedback = true;
    c.inputs.numerics.chunk_bytes = kSmallChunk;
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    expect_chunks_in_place<Quantize>(plan, &Quantize::lost);
    const auto units = std::ranges::count_if(
        c.inputs.model.units, [](const auto& unit) { return unit.traits.block > 0; });
    EXPECT_EQ(std::ranges::count(plan.ops, OpKind::errors, &Op::kind), units);
    expect_rejected(without_each(plan, OpKind::errors), "without an op");
    const auto without_feedback = [](Quantize& q) { q.error = q.lost = q.scalars = {}; };
    expect_rejected(with_each<Quantize>(plan, without_feedback), "without feedback");
    expect_rejected(with_each<Quantize>(plan, [&](Quantize& q) { q.scalars = plan.verdict; }),
                    "another loss scale");
    Plan none = plan;
    std::erase_if(none.ops, [](const Op& op) { return op.kind == OpKind::errors; });
    for (Op& op : none.ops) {
      auto* call = std::get_if<kernels::KernelCall>(&op.call);
      if (auto* q = call == nullptr ? nullptr : std::get_if<Quantize>(call)) without_feedback(*q);
    }
    expect_rejected({none}, "without any");
    expect_rejected(with_each<Quantize>(plan,
                                        [](Quantize& q) {
                                          if (q.error)
                                            q.error = {};
                                          else
                                            q.error = q.lost;
                                        }),
                    "errors of another step");
    std::vector<Plan> early;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      if (plan.ops[i].kind != OpKind::errors) continue;
      early.push_back(plan);
      auto& call = std::get<kernels::KernelCall>(early.back().ops[i].call);
      std::get<Convert>(call).verdict = {};
    }
    expect_rejected(early, "whether or not the step is applied");
  }
}

// Checkpoints, and what completes the last step, have the sums of all ranks' errors.
TEST(Check, RejectsErrorsThatAreNotSummed) {
  for (const PlanPurpose purpose : {PlanPurpose::train_snapshot, PlanPurpose::flush}) {
    for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 0, 1, 1}}) {
      Case c = make_case(2, 4, 2, ReduceWhen::step);
      c.inputs.layout.node_of = nodes;
      test::travel_in_blocks(c.inputs, {}, {{.type = kernels::BlockType::int4, .block = 32}});
      c.inputs.numerics.error_feedback = true;
      c.inputs.state_for = PlanPurpose::train_snapshot;
      c.shape = purpose == PlanPurpose::flush ? flush_after(c.shape.compression) : c.shape;
      c.shape.purpose = purpose;
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
      const auto of_sums = [&](auto&& spoil) {  // each sum of errors, spoilt
        std::vector<Plan> all;
        for (std::size_t i = 0; i < plan.ops.size(); ++i) {
          const auto* call = std::get_if<comm::CollectiveCall>(&plan.ops[i].call);
          if (plan.ops[i].kind != OpKind::errors || call == nullptr) continue;
          all.push_back(plan);
          auto& spoilt = std::get<comm::CollectiveCall>(all.back().ops[i].call);
          spoil(std::get<comm::ReduceScatter>(spoilt));
        }
        EXPECT_FALSE(all.empty());
        return all;
      };
      expect_rejected(without_each(plan, OpKind::errors), "without an op");
      expect_rejected(of_sums([](auto& r) { r.write = kernels::Write::add; }), "added");
      expect_rejected(of_sums([](auto& r) { r.shard = r.shard.range(0, r.shard.elements() / 2); }),
                      "half");
      expect_rejected(of_sums([](auto& r) { r.full = r.full.range(0, r.full.elements() / 2); }),
                      "of half");
      if (!nodes.empty()) {
        expect_rejected(of_sums([](auto& r) { r.among.ranks.first ^= 1; }), "of other ranks");
      }
    }
  }
}

TEST(Check, RejectsParametersThatAreNotGathered) {
  Case c = make_case(3, 4, 2, ReduceWhen::micro);
  test::travel_in_blocks(c.inputs, {{.block = 32}}, {});
  c.inputs.numerics.chunk_bytes = kSmallChunk;
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  expect_rejected(without_each(plan, OpKind::gather), "without an op");
  expect_rejected(
      with_each<kernels::SumQuantized>(plan, [](kernels::SumQuantized& a) { a.format.block = 64; }),
      "another block");
  expect_chunks_in_place<kernels::Quantize>(plan, &kernels::Quantize::x);
  expect_chunks_in_place<kernels::SumQuantized>(plan, &kernels::SumQuantized::out);
}

TEST(Check, RejectsBuffersThatShareBytesWhileBothAreAlive) {
  const Case c = make_case(3, 2, 1, ReduceWhen::micro);
  const Plan plan = make_plan(c.inputs, c.shape, {});
  const auto lives = buffer_lives(plan);
  int moved = 0;
  for (std::size_t a = 0; a < plan.buffers.size(); ++a) {
    for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
      // b moves onto a, which is made before b and read after b was made. (Gradients fill bit by
      // bit: their first bytes may well lie where nobody looks any more.)
      const bool both = !plan.buffers[a].persistent && !plan.buffers[b].persistent &&
                        lives[b].end >= 0 && lives[a].begin < lives[b].begin &&
                        lives[b].begin < lives[a].end &&
                        plan.buffers[a].purpose == BufferPurpose::activations &&
                        plan.buffers[b].purpose != BufferPurpose::gradients;
      if (!both || plan.buffers[a].offset + plan.buffers[b].bytes > plan.arena(ArenaId::step))
        continue;
      Plan broken = plan;
      broken.buffers[b].offset = plan.buffers[a].offset;
      EXPECT_THROW(check(broken), InternalError)
          << plan.buffers[a].name << ", " << plan.buffers[b].name;
      ++moved;
    }
  }
  EXPECT_GT(moved, 20);
}

// What travels as blocks has the same bytes, and goes the same way, on all ranks.
TEST(Check, RejectsRanksWithOtherBlocks) {
  Case c = make_case(3, 4, 1, ReduceWhen::micro);
  c.inputs.layout.node_of = {0, 0, 1, 1};
  test::travel_in_blocks(c.inputs, {{.block = 32}}, {{.block = 32}});
  const auto hash = [&] { return plan_hash(make_plan(c.inputs, c.shape, {})); };
  const Case same = c;
  const auto first = hash();
  c.inputs.numerics.weight_blocks->block = 256;
  EXPECT_THROW(check_together(std::array{first, hash()}), InternalError);
  c = same;
  c.inputs.numerics.gradient_blocks->type = kernels::BlockType::int4;
  EXPECT_THROW(check_together(std::array{first, hash()}), InternalError);
  c = same;
  c.inputs.layout.node_of = {0, 1, 0, 1};
  EXPECT_THROW(check_together(std::array{first, hash()}), InternalError);
  c = same;
  EXPECT_NO_THROW(check_together(std::array{first, hash()}));
}

TEST(Check, RejectsRanksThatDisagree) {
  const Case a = make_case(3, 2, 1, ReduceWhen::micro);
  Case b = a;
  b.inputs.sharding.prefetch = 3;
  const std::vector<std::uint64_t> hashes{plan_hash(make_plan(a.inputs, a.shape, {})),
                                          plan_hash(make_plan(b.inputs, b.shape, {.data = 1}))};
  // Another prefetch distance merges other residences, so the collectives differ.
  EXPECT_THROW(check_together(hashes), InternalError);
}

}  // namespace
}  // namespace tessera::plan
