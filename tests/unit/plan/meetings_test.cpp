// Stages that must find each other: what their plans have in common, and plans that do not fit.
#include "plan/meetings.hpp"

#include "plan/survey.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

Case three_stages() {
  Case c = make_case(0, 1, 4, ReduceWhen::step);
  c.inputs.mesh.pipeline = 3;
  return c;
}

std::vector<Plan> stages_of(const Case& c) {
  std::vector<Plan> all;
  for (std::int64_t p = 0; p < c.inputs.mesh.pipeline; ++p)
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

// Every message has its partner, but stage 0 sends the first only once it has what stage 1 makes of
// it.
TEST(Meetings, ThatWaitForEachOther) {
  std::vector<Meetings> all;
  for (const Plan& plan : stages_of(three_stages())) all.push_back(meetings_of(plan));
  ASSERT_EQ(all[0].front().stream, Stream::send_forward);
  EXPECT_NO_THROW(check_pipeline(all));
  all[0].front().needs[static_cast<std::size_t>(Stream::receive_backward)] = 1;
  EXPECT_THROW(check_pipeline(all), InternalError);
}

// What a stage's compute ops wait for holds its later messages up, and nothing else does.
TEST(Meetings, NeedWhatLeadsToThem) {
  const Case c = three_stages();
  const Meetings middle = meetings_of(stages_of(c)[1]);
  const auto needs = [&](Stream stream, std::size_t number, Stream of) {
    for (const Meeting& m : middle) {
      if (m.stream == stream && number-- == 0) return m.needs[static_cast<std::size_t>(of)];
    }
    return std::int32_t{-1};
  };
  for (std::size_t k = 0; k < 4; ++k) {
    const auto own = static_cast<std::int32_t>(k);
    EXPECT_EQ(needs(Stream::send_forward, k, Stream::receive_forward), own + 1);
    EXPECT_EQ(needs(Stream::send_forward, k, Stream::send_forward), own);
    EXPECT_EQ(needs(Stream::send_backward, k, Stream::receive_backward), own + 1);
  }
}

TEST(Survey, ProvesPipelines) {
  const Case c = three_stages();
  EXPECT_EQ(
      survey(c.inputs, std::span(&c.shape, 1), distinct_places(c.inputs), one_device()).meetings,
      prove(stages_of(c)));
}

}  // namespace
}  // namespace tessera::plan
