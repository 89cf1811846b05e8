// Channels: each collective of a plan has one, and channels share a group of ranks only where their
// operations follow one another on every rank.
#include "plan/ir/channels.hpp"

#include <gtest/gtest.h>

#include "plan/ir/plan.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

/// Of two nodes, each with two of the ranks that have the same experts.
Case experts_on_nodes() {
  Case c = make_case(3, 8, 1, ReduceWhen::step);
  PlanInputs& in = c.inputs;
  in.model.config.bias = false;
  in.model.config.experts = {.count = 4, .hidden = 8, .routing = {.choices = 2}};
  in.layout.mesh.experts = 2;
  in.layout.node_of = {0, 0, 0, 0, 1, 1, 1, 1};
  in.model.units = model::model_units(in.model.config, 1, {.expert_ranks = true});
  return c;
}

TEST(Channels, EachCollectiveHasOne) {
  std::mt19937 random{6};
  std::array<int, kChannels> seen{};
  for (int i = 0; i < 61; ++i) {
    Case c = i < 60 ? random_case(random) : experts_on_nodes();
    divide_sequences(c, random);
    for (std::int64_t r = 0; r < c.inputs.layout.mesh.size(); ++r) {
      const Plan plan = whole_plan(c.inputs, c.shape, c.inputs.layout.mesh.place_of(r));
      for (const Op& op : plan.ops) {
        if (!std::holds_alternative<comm::CollectiveCall>(op.call)) continue;
        int carriers = 0;
        for (const ChannelRow& row : kChannelRows) {
          if (!row.carries(op.group, op.stream)) continue;
          ++carriers, ++seen[static_cast<std::size_t>(row.channel)];
        }
        ASSERT_EQ(carriers, 1) << enum_word(op.group) << " on " << enum_word(op.stream);
      }
    }
  }
  for (const ChannelRow& row : kChannelRows)
    EXPECT_GT(seen[static_cast<std::size_t>(row.channel)], 0) << row.name;
}

Channel shared(const Mesh& mesh, Channel channel) {
  return shared_with(mesh, row_of(channel)).channel;
}

TEST(Channels, ShareAGroupOfTheSameRanksAndStreams) {
  const Mesh data{.data = 4}, pipeline{.pipeline = 2}, deep{.pipeline = 3}, tensor{.tensor = 2},
      all{.tensor = 2, .data = 2, .pipeline = 2};
  EXPECT_EQ(shared(data, Channel::world), Channel::reduce);
  EXPECT_EQ(shared(pipeline, Channel::world), Channel::ends);
  EXPECT_EQ(shared(deep, Channel::world), Channel::world);
  EXPECT_EQ(shared(all, Channel::world), Channel::world);
  // Gathers go on beside reductions, messages down beside those up, tensor ranks beside all.
  EXPECT_EQ(shared(data, Channel::gather), Channel::gather);
  EXPECT_EQ(shared(data, Channel::reduce), Channel::reduce);
  EXPECT_EQ(shared(pipeline, Channel::forward), Channel::forward);
  EXPECT_EQ(shared(pipeline, Channel::backward), Channel::backward);
  EXPECT_EQ(shared(tensor, Channel::tensor), Channel::tensor);
}

// A group that is made for words alone has less of a GPU: bulk data never shares it.
TEST(Channels, OnlyWordsShareAGroupOfAnotherKind) {
  for (std::int64_t t = 1; t <= 4; ++t) {
    for (std::int64_t d = 1; d <= 4; ++d) {
      for (std::int64_t p = 1; p <= 4; ++p) {
        const Mesh mesh{.tensor = t, .data = d, .pipeline = p};
        for (const ChannelRow& row : kChannelRows) {
          if (!has_several(mesh, row)) continue;
          const ChannelRow& group = shared_with(mesh, row);
          EXPECT_TRUE(group.traffic == row.traffic || row.traffic == comm::Traffic::words)
              << row.name << " over " << group.name << " on " << to_string(mesh);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::plan
