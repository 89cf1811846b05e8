// One rank of each kind stands for all.
#include "plan/prediction/survey.hpp"

#include "plan/ir/print.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

/// The most of any rank, each by itself.
struct Most {
  comm::WireBytes sent;
  ArenaBytes arenas{};
  double flop = 0;

  void add(const comm::WireBytes& of_rank, const ArenaBytes& arenas_of_rank, double flop_of_rank) {
    sent = {.intra = std::max(sent.intra, of_rank.intra),
            .inter = std::max(sent.inter, of_rank.inter)};
    arenas = most_of(arenas, arenas_of_rank);
    flop = std::max(flop, flop_of_rank);
  }
};

Most most_of_all_ranks(const Case& c) {
  Most all;
  for (std::int64_t r = 0; r < c.inputs.layout.mesh.size(); ++r) {
    const Plan plan = make_plan(c.inputs, c.shape, c.inputs.layout.mesh.place_of(r));
    all.add(total_wire_bytes(plan), plan.arena_bytes, total_flop(plan));
  }
  return all;
}

Most surveyed(const Case& c) {
  Most all;
  for (const RankFigures& f :
       survey(c.inputs, std::span(&c.shape, 1), distinct_places(c.inputs), one_device()).ranks)
    all.add(f.sent(), f.ledger.arenas, f.flop);
  return all;
}

void expect_all_kinds(const Case& c) {
  const Most got = surveyed(c), want = most_of_all_ranks(c);
  EXPECT_EQ(got.sent.intra, want.sent.intra);
  EXPECT_EQ(got.sent.inter, want.sent.inter);
  EXPECT_EQ(got.arenas, want.arenas);
  EXPECT_EQ(got.flop, want.flop);
}

// On nodes of 3 ranks, of 8 data ranks with 2 tensor ranks each the third and the sixth are alone
// on theirs: they send most to other nodes.
TEST(Survey, FindsWhatAnyRankNeedsMostOfOnUnevenNodes) {
  Case c = make_case(1, 8, 2, ReduceWhen::step);
  c.inputs.layout.mesh.tensor = c.inputs.layout.tensor_chunks = 2;
  c.inputs.model.units = model::model_units(c.inputs.model.config, 2);
  for (int r = 0; r < 16; ++r) c.inputs.layout.node_of.push_back(r / 3);
  expect_all_kinds(c);
}

TEST(Survey, FindsWhatAnyRankNeedsMostOfOnRandomLayouts) {
  std::mt19937 random(9);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    Case c = random_case(random);
    divide_experts(c, random);
    divide_sequences(c, random);
    c.inputs.layout.nccl = random() % 3 == 0;
    if (random() % 2 == 0) {  // ranks on nodes in no order
      for (int& node : c.inputs.layout.node_of) node = static_cast<int>(random() % 3);
    }
    expect_all_kinds(c);
  }
}

// Of a run with steps of several shapes, what the largest needs of each arena.
TEST(Survey, HasTheArenasOfEachShape) {
  Case c = make_case(2, 4, 2, ReduceWhen::step);
  std::vector<PlanShape> shapes(3, c.shape);
  shapes[1].sequence = shapes[2].sequence = 4;
  shapes[2].micro_batches *= 2;
  const Survey all = survey(c.inputs, shapes, distinct_places(c.inputs), one_device());
  ASSERT_FALSE(all.ranks.empty());
  for (const RankFigures& f : all.ranks) {
    ASSERT_EQ(f.arenas.size(), 3U);
    ArenaBytes most{};
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Plan plan = make_plan(c.inputs, shapes[i], f.place);
      EXPECT_EQ(f.arenas[i], plan.arena_bytes);
      most = most_of(most, plan.arena_bytes);
    }
    EXPECT_EQ(f.ledger.arenas, most);
    EXPECT_EQ(f.ledger.of(BufferPurpose::activations),
              make_ledger(make_plan(c.inputs, shapes[0], f.place)).of(BufferPurpose::activations));
    EXPECT_EQ(f.flop, total_flop(make_plan(c.inputs, shapes[0], f.place)));
  }
}

TEST(Survey, PlansFewOfManyRanks) {
  Case c = make_case(3, 4096, 1, ReduceWhen::step);
  for (int r = 0; r < 4096; ++r) c.inputs.layout.node_of.push_back(r / 8);
  EXPECT_LE(distinct_places(c.inputs).size(), 3U);
}

}  // namespace
}  // namespace tessera::plan
