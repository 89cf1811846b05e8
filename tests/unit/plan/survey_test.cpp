// One rank of each kind stands for all.
#include "plan/survey.hpp"

#include "plan/print.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

comm::WireBytes most(comm::WireBytes a, const comm::WireBytes& b) {
  return {.intra = std::max(a.intra, b.intra), .inter = std::max(a.inter, b.inter)};
}

comm::WireBytes most_of_all_ranks(const Case& c) {
  comm::WireBytes all;
  for (std::int64_t r = 0; r < c.inputs.mesh.size(); ++r)
    all = most(all, total_wire_bytes(make_plan(c.inputs, c.shape, c.inputs.mesh.place_of(r))));
  return all;
}

comm::WireBytes surveyed(const Case& c) {
  comm::WireBytes all;
  for (const RankFigures& f :
       survey(c.inputs, std::span(&c.shape, 1), distinct_places(c.inputs), one_device()).ranks)
    all = most(all, f.sent());
  return all;
}

void expect_all_kinds(const Case& c) {
  const comm::WireBytes got = surveyed(c), want = most_of_all_ranks(c);
  EXPECT_EQ(got.intra, want.intra);
  EXPECT_EQ(got.inter, want.inter);
}

// On nodes of 3 ranks, of 8 data ranks with 2 tensor ranks each the third and the sixth are alone
// on theirs: they send most to other nodes.
TEST(Survey, FindsTheRankThatSendsMostOnUnevenNodes) {
  Case c = make_case(1, 8, 2, ReduceWhen::step);
  c.inputs.mesh.tensor = c.inputs.tensor_chunks = 2;
  c.inputs.units = model::model_units(c.inputs.config, 2);
  for (int r = 0; r < 16; ++r) c.inputs.node_of.push_back(r / 3);
  expect_all_kinds(c);
}

TEST(Survey, FindsTheRankThatSendsMostOnRandomLayouts) {
  std::mt19937 random(9);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    Case c = random_case(random);
    c.inputs.nccl = random() % 3 == 0;
    if (random() % 2 == 0) {  // ranks on nodes in no order
      for (int& node : c.inputs.node_of) node = static_cast<int>(random() % 3);
    }
    expect_all_kinds(c);
  }
}

TEST(Survey, PlansFewOfManyRanks) {
  Case c = make_case(3, 4096, 1, ReduceWhen::step);
  for (int r = 0; r < 4096; ++r) c.inputs.node_of.push_back(r / 8);
  EXPECT_LE(distinct_places(c.inputs).size(), 3U);
}

}  // namespace
}  // namespace tessera::plan
