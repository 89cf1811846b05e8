// Whole matrices at their homes: every rank sends what another expects, homes have as much to do,
// and the proof knows when a part is missing.
#include "plan/passes/matrices.hpp"

#include <gtest/gtest.h>

#include <map>

#include "plan/passes/place_waits.hpp"
#include "plan/prediction/survey.hpp"
#include "support/temporary_directory.hpp"
#include "tests/unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

struct Exchange {
  comm::AllToAllV call;
  bool home = false;  // else back
};

std::vector<Exchange> exchanges_of(const Plan& plan) {
  std::vector<Exchange> all;
  for (const Op& op : plan.ops) {
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    const auto* exchange = call == nullptr ? nullptr : std::get_if<comm::AllToAllV>(call);
    if (exchange == nullptr) continue;
    const View& data = exchange->send ? exchange->send : exchange->receive;
    all.push_back({*exchange, data && plan.buffer(buffer_of(data)).name.ends_with("directions")});
  }
  return all;
}

TEST(Matrices, AreSentAsTheyAreExpected) {
  std::mt19937 random(5);
  int compared = 0;
  for (int i = 0; i < 60; ++i) {
    Case c = random_case(random);
    c.inputs.optimizer = optim::muon({.by_heads = i % 2 == 0});
    c.inputs.state_for = std::max(c.inputs.state_for, PlanPurpose::train);
    c.shape.purpose = PlanPurpose::train;
    const Mesh& mesh = c.inputs.layout.mesh;
    const std::int64_t ranks = mesh.data * mesh.tensor;
    std::vector<std::vector<Exchange>> calls;
    for (std::int64_t r = 0; r < ranks; ++r)
      calls.push_back(exchanges_of(make_plan(c.inputs, c.shape, mesh.place_of(r))));
    for (std::size_t k = 0; k < calls[0].size(); ++k) {
      std::int64_t sent = 0;
      for (std::size_t from = 0; from < calls.size(); ++from) {
        ASSERT_EQ(calls[from].size(), calls[0].size());
        const comm::AllToAllV& call = calls[from][k].call;
        EXPECT_EQ(call.elements, calls[0][k].call.elements);
        for (std::size_t to = 0; to < calls.size(); ++to) {
          EXPECT_EQ(call.send_counts[to], calls[to][k].call.receive_counts[from]);
          sent += call.send_counts[to];
        }
        EXPECT_EQ(call.within + call.across + call.send_counts[from], call.send.elements());
        ++compared;
      }
      // What several ranks update goes back to each.
      const std::int64_t elements = calls[0][k].call.elements;
      if (calls[0][k].home) {
        EXPECT_EQ(sent, elements);
      } else {
        EXPECT_GE(sent, elements);
      }
    }
  }
  EXPECT_GT(compared, 200);
}

/// Where data ranks have, within their arena, what they gather and add up.
std::vector<std::int64_t> exchanged_places(const Plan& plan) {
  std::vector<std::int64_t> all;
  for (const Op& op : plan.ops) {
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    if (call == nullptr || op.group != MeshGroup::data) continue;
    visit_args(op.call, [&](const auto& args) {
      if constexpr (requires { args.full; })
        all.push_back(plan.buffer(buffer_of(args.full)).offset + offset_of(args.full));
    });
  }
  return all;
}

// Trap: homes need more or less scratch, and NCCL's registered memory has one layout.
TEST(Matrices, LeaveInPlaceWhatDataRanksExchange) {
  struct : ScratchSizes {
    std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
      const auto* product = std::get_if<kernels::LinearBackwardInput>(&call);
      return product == nullptr ? ScratchSizes::scratch_bytes(call) : 8 * product->d_x.elements();
    }
  } sizes;
  std::mt19937 random(11);
  int compared = 0;
  for (int i = 0; i < 150; ++i) {
    Case c = random_case(random);
    const Mesh& mesh = c.inputs.layout.mesh;
    if (mesh.data == 1) continue;
    SCOPED_TRACE(fmt::format("case {}", i));
    if (i % 3 > 0) c.inputs.optimizer = optim::muon({.by_heads = i % 3 == 1});
    c.inputs.state_for = std::max(c.inputs.state_for, PlanPurpose::train);
    c.shape.purpose = PlanPurpose::train;
    c.inputs.device = &sizes;
    c.inputs.layout.nccl = true;
    c.inputs.layout.node_of.assign(static_cast<std::size_t>(mesh.size()), 0);
    const auto first = exchanged_places(make_plan(c.inputs, c.shape, {}));
    for (std::int64_t data = 1; data < mesh.data; ++data)
      EXPECT_EQ(exchanged_places(make_plan(c.inputs, c.shape, {.data = data})), first);
    compared += static_cast<int>(first.size());
  }
  EXPECT_GT(compared, 1000);
}

TEST(Matrices, AreDealtEvenlyAndOnce) {
  Case c = make_case(1, 4, 1, ReduceWhen::step);
  model::ModelConfig& m = c.inputs.model.config;
  m.layers = 12, m.hidden = 64, m.ffn_hidden = 256, m.heads = m.kv_heads = 4, m.head_dim = 16;
  for (const std::int64_t tiles : {1, 2}) {
    for (const bool by_heads : {false, true}) {
      c.inputs.layout.tensor_chunks = tiles;
      c.inputs.model.units = model::model_units(m, tiles, {.tiles = tiles});
      c.inputs.optimizer = optim::muon({.by_heads = by_heads});
      const auto homes = matrix_homes(c.inputs, 0);
      EXPECT_EQ(std::ssize(homes), 12 * (by_heads ? 3 * 4 + 3 : 6));
      std::map<std::pair<std::string, std::int64_t>, int> times;
      std::vector<double> load(4);
      double all = 0;
      for (const MatrixHome& home : homes) {
        EXPECT_EQ(++(times[{home.parameter, home.row}]), 1);
        at(load, home.home) += home.flop, all += home.flop;
      }
      EXPECT_LT(*std::ranges::max_element(load), 1.05 * all / 4);
    }
  }
}

// What check looks at stands for all ranks, also where homes are uneven.
TEST(Matrices, NeedNoMoreMemoryThanCheckSays) {
  Case c = make_case(0, 1, 1, ReduceWhen::step);
  model::ModelConfig& m = c.inputs.model.config;
  m.layers = 4, m.hidden = 64, m.ffn_hidden = 256, m.heads = m.kv_heads = 4, m.head_dim = 16;
  for (const int stage : {0, 1, 3}) {
    for (const std::int64_t tensor : {1, 2}) {
      for (const std::int64_t data : {3, 4, 7}) {
        c.inputs.sharding.stage = stage;
        c.inputs.layout.mesh = {.tensor = tensor, .data = data, .pipeline = 2};
        c.inputs.layout.tensor_chunks = tensor;
        c.inputs.model.units = model::model_units(m, tensor);
        c.inputs.optimizer = optim::muon({.by_heads = data != 7});
        const auto most_of = [&](const std::vector<MeshPlace>& places) {
          ArenaBytes most{};
          for (const MeshPlace& place : places)
            most = plan::most_of(most, make_plan(c.inputs, c.shape, place).arena_bytes);
          return most;
        };
        std::vector<MeshPlace> all;
        for (std::int64_t r = 0; r < c.inputs.layout.mesh.size(); ++r)
          all.push_back(c.inputs.layout.mesh.place_of(r));
        const ArenaBytes needed = most_of(all), shown = most_of(distinct_places(c.inputs));
        for (const ArenaId arena : {ArenaId::state, ArenaId::step}) {
          EXPECT_LE(needed[arena], shown[arena])
              << "stage " << stage << ", " << to_string(c.inputs.layout.mesh);
        }
      }
    }
  }
}

TEST(Matrices, AreNotForgotten) {
  for (const int stage : {0, 1, 3}) {
    Case c = make_case(stage, 2, 1, ReduceWhen::step);
    c.inputs.optimizer = optim::muon();
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
    int directions = 0, moves = 0, exchanges = 0;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const auto* kernel = std::get_if<kernels::KernelCall>(&plan.ops[i].call);
      const auto* update =
          kernel == nullptr ? nullptr : std::get_if<kernels::OptimizerUpdate>(kernel);
      const bool exchange = plan.ops[i].kind == OpKind::matrices && kernel == nullptr;
      if (!exchange && update == nullptr) continue;
      Plan broken = plan;
      broken.ops[i].call = kernels::KernelCall{kernels::Fill{.out = plan.verdict}};
      if (exchange) {
        ++exchanges;
        broken.ops[i].stream = Stream::compute;
      } else if (update->rule == kernels::UpdateRule::muon_moment) {
        ++directions;
      } else if (update->rule == kernels::UpdateRule::muon) {
        ++moves;
      } else {
        continue;
      }
      EXPECT_THROW(check(broken), InternalError) << "op " << i;
    }
    EXPECT_GT(directions, 0);
    EXPECT_GT(moves, 0);
    EXPECT_GT(exchanges, 1);
    // Along its direction as it was made.
    Plan early = plan;
    const auto made = std::ranges::find_if(early.ops, [](const Op& op) {
      const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
      const auto* update =
          kernel == nullptr ? nullptr : std::get_if<kernels::OptimizerUpdate>(kernel);
      return update != nullptr && update->rule == kernels::UpdateRule::muon_moment &&
             update->direction;
    });
    Op moved = *made;
    auto& move = std::get<kernels::OptimizerUpdate>(std::get<kernels::KernelCall>(moved.call));
    move.rule = kernels::UpdateRule::muon;
    move.gradient = {};
    move.state = {};
    early.ops.insert(made + 1, std::move(moved));
    place_waits(early);
    const auto said = test::message_of<InternalError>([&] { check(early); });
    EXPECT_NE(said.find("updates by directions that no matrix was made of"), std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace tessera::plan
