// Plans of long steps, in which some micro-batches stand for others: what runs is what a plan of
// all of them does.
#include "plan/passes/repeat.hpp"

#include <random>

#include "plan/ir/runs.hpp"
#include "plan/passes/place_waits.hpp"
#include "tests/unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

/// A plan in which every micro-batch is there.
Plan whole_plan(const Case& c, const MeshPlace& place) {
  Plan plan = unordered_plan(c.inputs, c.shape, place);
  place_waits(plan);
  check(plan);
  return plan;
}

bool is_take(const Op& op) { return kernel_of<kernels::TakeRow>(op) != nullptr; }
/// What a step does, in its order, but for where bytes are and how tokens come there.
std::vector<std::string> work_of(const Plan& plan) {
  const BufferId next = [&] {
    for (const Op& op : plan.ops)
      if (const auto* take = kernel_of<kernels::TakeRow>(op)) return buffer_of(take->next);
    return BufferId{-1};
  }();
  std::vector<std::string> work;
  for (const Op& op : plan.ops) {
    const auto* fill = kernel_of<kernels::Fill>(op);
    if (is_take(op) || (fill != nullptr && buffer_of(fill->out) == next)) continue;
    std::string text = fmt::format(
        "{} {} {} unit {} micro-batch {} visit {} again {}", enum_word(op.kind), call_name(op.call),
        enum_word(op.stream), op.unit, op.micro_batch, op.micro_batch < 0 ? 0 : op.visit, op.again);
    each_view(op.call, [&](const View& v, kernels::Access access) {
      text += fmt::format(" {}{}", v.elements(), static_cast<int>(access));
    });
    work.push_back(std::move(text));
  }
  return work;
}

/// Whether all stages' plans repeat; what they do is proved, alone and together.
bool expect_same_step(const Case& c) {
  bool all_repeat = true;
  std::vector<Meetings> meetings;
  for (std::int64_t p = 0; p < c.inputs.layout.mesh.pipeline; ++p) {
    const MeshPlace place{.data = c.inputs.layout.mesh.data - 1, .pipeline = p};
    const Plan plan = make_plan(c.inputs, c.shape, place), all = unrolled(plan);
    EXPECT_EQ(std::ssize(all.ops), runs_of(plan));
    EXPECT_NO_THROW(check(all));
    const Plan whole = whole_plan(c, place);
    const auto work = work_of(all), expected = work_of(whole);
    const auto differ = std::ranges::mismatch(work, expected);
    EXPECT_TRUE(differ.in1 == work.end() && differ.in2 == expected.end())
        << "stage " << p << ": " << (differ.in1 == work.end() ? "nothing" : *differ.in1)
        << "\n  for " << (differ.in2 == expected.end() ? "nothing" : *differ.in2);
    EXPECT_EQ(plan_hash(all), plan_hash(plan));
    EXPECT_EQ(total_flop(plan), total_flop(whole));
    EXPECT_EQ(total_wire_bytes(plan).intra, total_wire_bytes(whole).intra);
    EXPECT_EQ(total_wire_bytes(plan).inter, total_wire_bytes(whole).inter);
    meetings.push_back(meetings_of(plan));
    EXPECT_EQ(to_bytes(meetings.back()), to_bytes(meetings_of(whole)));
    if (!plan.repeat) all_repeat = false;
    // Buffers that keep their places leave gaps in some layouts; the tokens of all micro-batches
    // are there either way.
    EXPECT_LE(plan.arena(ArenaId::step), whole.arena(ArenaId::step) * 5 / 4 + 4096);
    EXPECT_EQ(plan.arena(ArenaId::state), whole.arena(ArenaId::state));
  }
  EXPECT_NO_THROW(check_pipeline(meetings));
  return all_repeat;
}

// Trap: a step of hundreds of micro-batches must not need hundreds of times the plan.
TEST(Repeat, MakesPlansOfLongStepsSmall) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const ReduceWhen reduce : {ReduceWhen::step, ReduceWhen::micro}) {
      for (const std::int64_t prefetch : {0, 1, 3}) {
        SCOPED_TRACE(fmt::format("stage {}, {}, prefetch {}", stage, enum_word(reduce), prefetch));
        Case c = make_case(stage, 3, 200 + stage, reduce);
        c.inputs.sharding.prefetch = prefetch;
        EXPECT_TRUE(expect_same_step(c));
        const auto ops = [&](std::int64_t micro_batches) {
          c.shape.micro_batches = micro_batches;
          return make_plan(c.inputs, c.shape, {}).ops.size();
        };
        // Loads apart, of which there is one a micro-batch.
        EXPECT_EQ(ops(1000) - ops(200), 800);
      }
    }
  }
}

TEST(Repeat, KeepsWhatALayoutDoes) {
  std::mt19937 random(7);
  int repeat = 0, may = 0;
  for (int i = 0; i < 60; ++i) {
    Case c = random_case(random);
    c.shape.micro_batches = 150 + i % 17;
    if (c.inputs.layout.pipeline.virtual_stages > 1) c.shape.micro_batches = 160;
    if (!scheduled_at_first(c.inputs, c.shape)) continue;
    SCOPED_TRACE(fmt::format("case {}", i));
    // Of GPipe's schedule the forwards of all micro-batches come first.
    const bool alike = c.inputs.layout.pipeline.schedule != PipelineSchedule::gpipe ||
                       c.shape.purpose == PlanPurpose::evaluate;
    const bool repeats = expect_same_step(c);
    may += alike ? 1 : 0;
    repeat += alike && repeats ? 1 : 0;
    EXPECT_TRUE(alike || !repeats);
  }
  EXPECT_GT(may, 20);
  EXPECT_GE(repeat * 10, may * 9) << may;
}

TEST(Repeat, IsNotOfStepsThatGoOnDifferently) {
  const auto repeats = [](const std::function<void(Case&)>& change) {
    Case c = make_case(2, 2, 200, ReduceWhen::step);
    change(c);
    return make_plan(c.inputs, c.shape, {}).repeat.has_value();
  };
  EXPECT_TRUE(repeats([](Case&) {}));
  EXPECT_FALSE(repeats([](Case& c) { c.shape.micro_batches = 60; })) << "a short step";
  EXPECT_FALSE(repeats([](Case& c) {
    c.inputs.numerics.layout_mode = true, c.shape.micro_batches = 256;
  })) << "a tree over all micro-batches";
}

/// A plan that repeats, and where.
Plan repeated_plan(int stage = 3) {
  Case c = make_case(stage, 2, 203, ReduceWhen::micro);
  return make_plan(c.inputs, c.shape, {.data = 1});
}

TEST(Repeat, IsProved) {
  const Plan plan = repeated_plan();
  ASSERT_TRUE(plan.repeat);
  const Repeat& r = *plan.repeat;
  EXPECT_NO_THROW(check(plan));
  const auto rejected = [&](const std::function<void(Plan&)>& damage) {
    Plan broken = plan;
    damage(broken);
    EXPECT_THROW(check(broken), InternalError);
  };
  rejected([](Plan& p) { ++p.repeat->times; });
  rejected([](Plan& p) { p.repeat.reset(); });
  rejected([](Plan& p) { --p.repeat->ops; });
  rejected([](Plan& p) { ++p.repeat->micro_batches; });
  rejected([](Plan& p) { p.repeat->first = static_cast<OpId>(p.ops.size()); });
  rejected([](Plan& p) { p.repeat->first = -1; });
  rejected([](Plan& p) { ++p.scheduled; });
  // What is in order in the plan, but would not be in a third run.
  int waits = 0;
  for (OpId i = r.second(); i < r.end(); ++i) {
    if (plan.op(i).waits.empty()) continue;
    ++waits;
    rejected([&](Plan& p) { p.ops[static_cast<std::size_t>(i)].waits.clear(); });
  }
  EXPECT_GT(waits, 10);
  rejected([&](Plan& p) { p.ops[static_cast<std::size_t>(r.second() + 2)].waits.push_back(0); });
  // Another micro-batch than the next, or one twice.
  std::vector<std::size_t> takes;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    if (is_take(plan.ops[i])) takes.push_back(i);
  ASSERT_GT(takes.size(), 20U);
  rejected([&](Plan& p) {
    kernels::TakeRow take = *kernel_of<kernels::TakeRow>(p.ops[takes[3]]);
    take.x = take.x.row_range(1, take.x.rows() - 1);
    p.ops[takes[3]].call = kernels::KernelCall{take};
  });
}

// The memory of the second copy is that of the first, byte for byte.
TEST(Repeat, NeedsTheSameAddresses) {
  const Plan plan = repeated_plan();
  ASSERT_TRUE(plan.repeat);
  int moved = 0;
  for (OpId i = plan.repeat->second(); i < plan.repeat->end(); ++i) {
    for (const BufferUse& use : uses_of(plan.op(i))) {
      const Buffer& b = plan.buffer(use.buffer);
      const auto uses_it = [&](const Op& op) {
        return std::ranges::count(uses_of(op), use.buffer, &BufferUse::buffer) > 0;
      };
      if (std::any_of(plan.ops.begin(), plan.ops.begin() + plan.repeat->second(), uses_it))
        continue;
      Plan broken = plan;
      broken.buffer(use.buffer).offset = broken.arena(arena_of(b));  // where nothing is
      broken.arena_bytes[arena_of(b)] += b.bytes;
      EXPECT_THROW(check(broken), InternalError);
      ++moved;
    }
    if (moved > 40) break;
  }
  EXPECT_GT(moved, 40);
}

TEST(Repeat, NumbersRunsInTheirOrder) {
  const Plan plan = repeated_plan();
  ASSERT_TRUE(plan.repeat);
  const Plan all = unrolled(plan);
  std::vector<std::int64_t> ran(plan.ops.size());
  for (std::int64_t i = 0; i < runs_of(plan); ++i) {
    const OpRun run = run_at(plan, i);
    EXPECT_EQ(number_of(plan, run), i);
    EXPECT_EQ(micro_batch_of(plan, run), all.op(static_cast<OpId>(i)).micro_batch);
    ++at(ran, run.op);
    std::vector<OpId> waits;
    for (const OpId id : plan.op(run.op).waits)
      waits.push_back(static_cast<OpId>(awaited(plan, run, id)));
    EXPECT_EQ(waits, all.op(static_cast<OpId>(i)).waits);
    for (const OpId id : waits) EXPECT_LT(id, i);
  }
  for (OpId i = 0; i < std::ssize(plan.ops); ++i) EXPECT_EQ(at(ran, i), times_of(plan, i));
}

}  // namespace
}  // namespace tessera::plan
