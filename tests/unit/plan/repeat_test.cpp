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
Plan ordered_whole_plan(const Case& c, const MeshPlace& place) {
  Plan plan = whole_plan(c.inputs, c.shape, place);
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
    const Plan whole = ordered_whole_plan(c, place);
    const auto work = work_of(all), expected = work_of(whole);
    const auto differ = std::ranges::mismatch(work, expected);
    EXPECT_TRUE(differ.in1 == work.end() && differ.in2 == expected.end())
        << "stage " << p << ": " << (differ.in1 == work.end() ? "nothing" : *differ.in1)
        << "\n  for " << (differ.in2 == expected.end() ? "nothing" : *differ.in2);
    // Data ranks have what they exchange at the same places.
    MeshPlace first = place;
    first.data = 0;
    EXPECT_EQ(plan_hash(make_plan(c.inputs, c.shape, first)), plan_hash(plan));
    EXPECT_EQ(total_flop(plan), total_flop(whole));
    EXPECT_EQ(total_wire_bytes(plan).intra, total_wire_bytes(whole).intra);
    EXPECT_EQ(total_wire_bytes(plan).inter, total_wire_bytes(whole).inter);
    meetings.push_back(meetings_of(plan));
    EXPECT_EQ(to_bytes(meetings.back()), to_bytes(meetings_of(whole)));
    if (!plan.repeat) all_repeat = false;
    // Buffers that keep their places leave gaps in some layouts, and fewer in most.
    EXPECT_LE(plan.arena(ArenaId::step), whole.arena(ArenaId::step) * 9 / 8);
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

// Only what is planned takes memory, beside a load of each micro-batch.
TEST(Repeat, LetsStepsBeLongerThanAPlan) {
  Case c = make_case(1, 2, 100'000, ReduceWhen::step);
  EXPECT_FALSE(is_too_long(c.inputs, c.shape));
  EXPECT_TRUE(make_plan(c.inputs, c.shape, {}).repeat);
  EXPECT_THROW(whole_plan(c.inputs, c.shape, {}), DeckError);
  c.inputs.numerics.layout_mode = true;
  EXPECT_TRUE(is_too_long(c.inputs, c.shape));
  EXPECT_THROW(make_plan(c.inputs, c.shape, {}), DeckError);
  c.inputs.numerics.layout_mode = false;
  c.shape.micro_batches = std::int64_t{1} << 18;
  EXPECT_TRUE(is_too_long(c.inputs, c.shape));
  EXPECT_THROW(placed_plan(c.inputs, c.shape, {}), DeckError);
}

TEST(Repeat, KeepsWhatALayoutDoes) {
  std::mt19937 random(7);
  int may = 0;
  for (int i = 0; i < 60; ++i) {
    Case c = random_case(random);
    c.shape.micro_batches = 150 + i % 17;
    if (c.inputs.layout.pipeline.virtual_stages > 1) c.shape.micro_batches = 160;
    if (!scheduled_at_first(c.inputs, c.shape)) continue;
    SCOPED_TRACE(fmt::format("case {}", i));
    ++may;
    EXPECT_TRUE(expect_same_step(c));
  }
  EXPECT_GT(may, 20);
}

TEST(Repeat, IsNotOfStepsThatGoOnDifferently) {
  const auto repeats = [](const std::function<void(Case&)>& change) {
    Case c = make_case(2, 2, 200, ReduceWhen::step);
    change(c);
    return make_plan(c.inputs, c.shape, {}).repeat.has_value();
  };
  EXPECT_TRUE(repeats([](Case&) {}));
  EXPECT_FALSE(repeats([](Case& c) { c.shape.micro_batches = 56; })) << "a short step";
  EXPECT_FALSE(repeats([](Case& c) {
    c.inputs.numerics.layout_mode = true, c.shape.micro_batches = 256;
  })) << "a tree over all micro-batches";
  const auto of_gpipe = [](PlanPurpose purpose) {
    return [purpose](Case& c) {
      c.inputs.layout.pipeline.schedule = PipelineSchedule::gpipe;
      c.shape.purpose = purpose;
    };
  };
  EXPECT_FALSE(repeats(of_gpipe(PlanPurpose::train))) << "all forwards come first";
  EXPECT_TRUE(repeats(of_gpipe(PlanPurpose::evaluate)));
}

/// A plan that repeats, and where.
Plan repeated_plan(int stage = 3) {
  Case c = make_case(stage, 2, 203, ReduceWhen::micro);
  return make_plan(c.inputs, c.shape, {.data = 1});
}

/// A damaged plan is refused, for a reason that has these words.
void expect_rejected(const Plan& plan, const std::function<void(Plan&)>& damage,
                     const char* why = "") {
  Plan broken = plan;
  damage(broken);
  try {
    check(broken);
    ADD_FAILURE() << "nothing " << why;
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
  }
}

TEST(Repeat, IsProved) {
  const Plan plan = repeated_plan();
  ASSERT_TRUE(plan.repeat);
  const Repeat& r = *plan.repeat;
  EXPECT_NO_THROW(check(plan));
  const auto rejected = [&](const std::function<void(Plan&)>& damage, const char* why = "") {
    expect_rejected(plan, damage, why);
  };
  rejected([](Plan& p) { ++p.repeat->times; });
  rejected([](Plan& p) { p.repeat.reset(); });
  rejected([](Plan& p) { --p.repeat->ops; });
  rejected([](Plan& p) { ++p.repeat->micro_batches; });
  rejected([](Plan& p) { p.repeat->first = static_cast<OpId>(p.ops.size()); });
  rejected([](Plan& p) { p.repeat->first = -1; });
  rejected([](Plan& p) { ++p.scheduled; });
  // What is in order in the plan, but not what the first copy does: only the comparison sees it.
  constexpr const char* kNotTwice = "is not there a second time";
  int waits = 0;
  for (OpId i = r.second(); i < r.end(); ++i) {
    const Op& op = plan.op(i);
    if (op.waits.empty()) continue;
    // A later op of the same stream, which is over no sooner.
    const OpId wait = op.waits.front();
    for (OpId later = wait + 1; later < i; ++later) {
      if (plan.op(later).stream != plan.op(wait).stream) continue;
      ++waits;
      rejected([&](Plan& p) { p.ops[static_cast<std::size_t>(i)].waits.front() = later; },
               kNotTwice);
      break;
    }
  }
  EXPECT_GT(waits, 3);
  const auto second = static_cast<std::size_t>(r.second());
  rejected([&](Plan& p) { p.ops[second + 2].waits.push_back(0); }, kNotTwice);
  rejected([&](Plan& p) { p.ops[second + 2].again = !p.ops[second + 2].again; }, kNotTwice);
  rejected([&](Plan& p) { ++p.ops[second + 2].micro_batch; }, kNotTwice);
}

TEST(Repeat, TakesEveryMicroBatchInItsTurn) {
  const Plan plan = repeated_plan();
  std::vector<std::size_t> takes;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    if (is_take(plan.ops[i])) takes.push_back(i);
  ASSERT_GT(takes.size(), 20U);
  const auto rejected = [&](const std::function<void(Plan&)>& damage, const char* why = "") {
    expect_rejected(plan, damage, why);
  };
  const kernels::TakeRow take = *kernel_of<kernels::TakeRow>(plan.ops[takes[3]]);
  const auto in_place_of = [&](std::size_t op, const kernels::KernelCall& call) {
    return [op, call](Plan& p) { p.ops[op].call = call; };
  };
  kernels::TakeRow other = take;
  other.x = take.x.row_range(1, take.x.rows() - 1);
  rejected(in_place_of(takes[3], other));
  other = take;
  other.next = plan.words.range(0, 1);
  rejected(in_place_of(takes[3], other));
  // The first one again, in the beginning and in both copies of what repeats.
  const kernels::Fill clear{.out = take.next};
  rejected(in_place_of(takes[2], clear));
  rejected([&](Plan& p) {
    const auto first = static_cast<std::size_t>(p.repeat->first),
               second = static_cast<std::size_t>(p.repeat->second());
    p.ops[first + 1].call = p.ops[second + 1].call = kernels::KernelCall{clear};
  });
  // As scratch, of which nothing else is known.
  int scratches = 0;
  for (std::size_t i = takes[3]; i < takes[4]; ++i) {
    auto call = plan.ops[i].call;
    visit_args(call, [&](auto& args) {
      if constexpr (requires { args.scratch; }) {
        if (!args.scratch) return;
        args.scratch = take.next;
        ++scratches;
        rejected([&](Plan& p) { p.ops[i].call = call; }, "changes which micro-batch is the next");
      }
    });
  }
  EXPECT_GT(scratches, 0);
  rejected(in_place_of(takes[2], kernels::Fill{.out = take.x.row_range(7, 1)}));
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* fill = kernel_of<kernels::Fill>(plan.ops[i]);
    if (fill == nullptr || buffer_of(fill->out) != buffer_of(take.next)) continue;
    rejected(in_place_of(i, kernels::Fill{.out = plan.words.range(0, 1)}));
  }
  rejected([](Plan& p) { std::swap(p.ops[0].call, p.ops[1].call); });
  rejected([](Plan& p) { std::swap(p.ops[0].micro_batch, p.ops[1].micro_batch); });
}

// Of 16 stages with two parts each micro-batches go in rounds of 16.
TEST(Repeat, WaitsUntilAScheduleComesRound) {
  Case c = make_case(1, 2, 0, ReduceWhen::step);
  c.inputs.model.config.layers = 32;
  c.inputs.model.units = model::model_units(c.inputs.model.config);
  c.inputs.layout.mesh.pipeline = 16;
  c.inputs.layout.pipeline = {.schedule = PipelineSchedule::interleaved, .virtual_stages = 2};
  c.shape.micro_batches = 1024;
  for (const std::int64_t stage : {0, 7, 15}) {
    const Plan plan = make_plan(c.inputs, c.shape, {.pipeline = stage});
    ASSERT_TRUE(plan.repeat) << "stage " << stage;
    EXPECT_EQ(plan.repeat->micro_batches % 16, 0);
    EXPECT_NO_THROW(check(unrolled(plan)));
  }
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
