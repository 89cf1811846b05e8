// Stages that must find each other: what their plans have in common, and plans that do not fit.
#include "plan/proof/meetings.hpp"

#include "plan/prediction/survey.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

Case three_stages() {
  Case c = make_case(0, 1, 4, ReduceWhen::step);
  c.inputs.layout.mesh.pipeline = 3;
  return c;
}

std::vector<Plan> stages_of(const Case& c) {
  std::vector<Plan> all;
  for (std::int64_t p = 0; p < c.inputs.layout.mesh.pipeline; ++p)
    all.push_back(make_plan(c.inputs, c.shape, {.pipeline = p}));
  return all;
}

std::int64_t prove(const std::vector<Plan>& plans) {
  std::vector<Meetings> all;
  for (const Plan& plan : plans) all.push_back(from_bytes(to_bytes(meetings_of(plan))));
  return check_pipeline(all);
}

Op& first_of(Plan& plan, OpKind kind) { return *std::ranges::find(plan.ops, kind, &Op::kind); }

template <typename T>
T& call_of(Op& op) {
  return std::get<T>(std::get<comm::CollectiveCall>(op.call));
}

TEST(Meetings, OfStagesThatFit) {
  const Case c = three_stages();
  // Each micro-batch crosses two boundaries twice; both ends add up the tied gradient and gather
  // it; all add words.
  EXPECT_EQ(prove(stages_of(c)), 4 * 2 * 2 + 2 + 1);
}

TEST(Meetings, OfStagesThatDoNotFit) {
  const Case c = three_stages();
  auto missing = stages_of(c);  // a message that is never sent: the first op of its kind
  std::erase_if(missing[0].ops,
                [n = 0](const Op& op) mutable { return op.kind == OpKind::send && n++ == 0; });
  for (Op& op : missing[0].ops) op.waits.clear();  // numbers of ops have changed
  EXPECT_THROW(prove(missing), InternalError);
  auto shorter = stages_of(c);
  call_of<comm::Receive>(first_of(shorter[1], OpKind::receive)).data.shape[0] = 1;
  EXPECT_THROW(prove(shorter), InternalError);
  auto another_type = stages_of(c);
  call_of<comm::Receive>(first_of(another_type[1], OpKind::receive)).data.type = DType::bf16;
  EXPECT_THROW(prove(another_type), InternalError);
  auto elsewhere = stages_of(c);
  call_of<comm::Send>(first_of(elsewhere[0], OpKind::send)).peer = 2;
  EXPECT_THROW(prove(elsewhere), InternalError);
  auto nowhere = stages_of(c);
  call_of<comm::Send>(first_of(nowhere[0], OpKind::send)).peer = 3;
  EXPECT_THROW(prove(nowhere), InternalError);
  auto tied = stages_of(c);
  call_of<comm::ReduceScatter>(first_of(tied[2], OpKind::tie_gradients)).full.shape[0] -= 32;
  EXPECT_THROW(prove(tied), InternalError);
}

// Every message has its partner, but stage 0 would send first and stage 1 would have it receive
// first: streams of their own do not help where a GPU runs messages one after another.
TEST(Meetings, ThatWaitForEachOther) {
  const auto message = [](const comm::CollectiveCall& call, Stream stream, std::int32_t peer) {
    return Meeting{.elements = 8,
                   .peer = peer,
                   .stream = stream,
                   .group = MeshGroup::pipeline,
                   .call = static_cast<std::uint8_t>(call.index())};
  };
  std::vector<Meetings> stages = {
      {message(comm::Send{}, Stream::send_forward, 1),
       message(comm::Receive{}, Stream::receive_backward, 1)},
      {message(comm::Receive{}, Stream::receive_forward, 0),
       message(comm::Send{}, Stream::send_backward, 0)},
  };
  EXPECT_EQ(check_pipeline(stages), 2);
  std::swap(stages[1][0], stages[1][1]);
  EXPECT_THROW(check_pipeline(stages), InternalError);
}

TEST(Survey, ProvesPipelines) {
  const Case c = three_stages();
  EXPECT_EQ(
      survey(c.inputs, std::span(&c.shape, 1), distinct_places(c.inputs), one_device()).meetings,
      prove(stages_of(c)));
}

}  // namespace
}  // namespace tessera::plan
