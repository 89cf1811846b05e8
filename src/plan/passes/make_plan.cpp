#include "plan/passes/make_plan.hpp"

#include <map>

#include "plan/passes/buffers.hpp"
#include "plan/passes/from_codes.hpp"
#include "plan/passes/grad_reduce.hpp"
#include "plan/passes/on_demand.hpp"
#include "plan/passes/optimizer_step.hpp"
#include "plan/passes/place_buffers.hpp"
#include "plan/passes/place_waits.hpp"
#include "plan/passes/repeat.hpp"
#include "plan/passes/residency.hpp"
#include "plan/passes/schedule.hpp"
#include "plan/passes/tiers.hpp"
#include "plan/proof/check.hpp"

namespace tessera::plan {

namespace {

/// A micro-batch's visit of a unit takes about 50 KB of plan. What the host loads of a micro-batch
/// counts as one, also where its visits are not planned, because others repeat.
constexpr std::int64_t kMostVisits = 1 << 18;

/// Whether a plan for so many of the step's micro-batches, with the loads of all, is too large.
bool is_too_large(const PlanInputs& in, const PlanShape& shape, std::int64_t micro_batches) {
  PlanShape planned = shape;
  planned.micro_batches = micro_batches;
  return visits_of(in, planned) + shape.micro_batches > kMostVisits;
}

/// The host loads the tokens of all micro-batches, a few megabytes, before anything else: so no op
/// of the step waits for the host.
void load_batches(Plan& plan, const std::vector<LoadBatch>& batches) {
  Insertions insertions;
  for (std::size_t k = 0; k < batches.size(); ++k) {
    insertions.before(0, {.kind = OpKind::load_batch,
                          .location = Location::host,
                          .micro_batch = static_cast<std::int32_t>(k),
                          .call = batches[k],
                          .waits = {}});
  }
  insertions.apply(plan.ops);
}

/// Recorded operations have their scratch already; those that passes have added get it here. Ops of
/// compute have scratch of their own, whose bytes serve for other things before and after. Each
/// other stream has one for all of its ops: so none waits for an op of another stream to be done
/// with it.
void add_scratch(Plan& plan, const kernels::Device& device) {
  std::map<Stream, Staging> beside;
  const auto scratch = [&](Stream stream, std::int64_t bytes) {
    if (stream == Stream::compute)
      return Staging("scratch", BufferPurpose::scratch).view(plan, bytes);
    return beside.try_emplace(stream, "scratch", BufferPurpose::scratch)
        .first->second.view(plan, bytes);
  };
  for (Op& op : plan.ops) {
    auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    if (kernel == nullptr) continue;
    std::visit(
        [&](auto& args) {
          const std::int64_t bytes = args.scratch ? 0 : device.scratch_bytes(args);
          if (bytes == 0) return;
          args.scratch = scratch(op.stream, bytes);
        },
        *kernel);
  }
}

/// What trains or evaluates. Returns what the host loads for it.
std::vector<LoadBatch> add_step(Plan& plan, const PlanInputs& in,
                                const std::vector<UnitState>& states) {
  Scheduled scheduled = schedule(plan, in, states);
  residency(plan, in, states, scheduled);
  if (plan.shape.purpose > PlanPurpose::evaluate) {
    const auto gradients = grad_reduce(plan, in, states, scheduled);
    optimizer_step(plan, in, states, gradients);
    return std::move(scheduled.loaded);
  }
  if (plan.shape.purpose == PlanPurpose::generate) {
    multiply_from_codes(plan, in);
    return std::move(scheduled.loaded);
  }
  for (const View& words : {plan.words, plan.confusion}) {
    if (!words) continue;
    plan.ops.push_back({.kind = OpKind::norm,
                        .stream = Stream::reduce,
                        .group = MeshGroup::world,
                        .call = comm::CollectiveCall{comm::AllReduceWords{.words = words}},
                        .waits = {}});
  }
  return std::move(scheduled.loaded);
}

}  // namespace

std::int64_t visits_of(const PlanInputs& in, const PlanShape& shape) {
  return shape.micro_batches * ceil_div(std::ssize(in.model.units), in.layout.mesh.pipeline);
}

bool is_too_long(const PlanInputs& in, const PlanShape& shape) {
  return is_too_large(in, shape, scheduled_at_first(in, shape).value_or(shape.micro_batches));
}

namespace {

/// A plan for so many of the step's micro-batches, whose buffers have no places yet.
Plan plan_of(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place,
             std::int64_t micro_batches) {
  TESSERA_CHECK(shape.purpose <= in.state_for, "a plan that needs more state than there is");
  Plan plan;
  plan.shape = shape;
  plan.scheduled = micro_batches;
  plan.rows_of_micro_batch = in.rows(shape).batch;
  plan.targets_of_micro_batch = in.counted_losses(shape);
  set_place(plan, in, place);
  const auto states = add_state(plan, in);
  std::vector<LoadBatch> batches;
  if (shape.purpose == PlanPurpose::flush) {
    flush(plan, in, states);
  } else {
    batches = add_step(plan, in, states);
  }
  tiers(plan, in);
  fetch_on_demand(plan, in);
  load_batches(plan, batches);
  add_scratch(plan, *in.device);
  return plan;
}

/// The plan of a long step in which some micro-batches stand for others; nothing where none repeat.
std::optional<Plan> repeated_plan(const PlanInputs& in, const PlanShape& shape,
                                  const MeshPlace& place) {
  const auto first = scheduled_at_first(in, shape);
  if (!first) return std::nullopt;
  const auto some = [&](std::int64_t micro_batches) {
    Plan plan = plan_of(in, shape, place, micro_batches);
    place_buffers(plan, counterparts(plan, least_repeated(in)));
    place_waits(plan);
    return plan;
  };
  Plan plan = some(*first);
  std::optional<Repeat> repeat = find_repeat(plan, least_repeated(in), *first / 2);
  if (!repeat) return std::nullopt;
  const std::int64_t all = shape.micro_batches, each = repeat->micro_batches;
  if (const std::int64_t more = (all - *first) % each; more > 0) {
    plan = some(*first + more);
    repeat = find_repeat(plan, each, each);
    if (!repeat) return std::nullopt;
  }
  repeat->times = 1 + (all - plan.scheduled) / each;
  if (!goes_on_alike(in, plan, *repeat)) return std::nullopt;
  plan.repeat = repeat;
  return plan;
}

}  // namespace

Plan whole_plan(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  if (is_too_large(in, shape, shape.micro_batches)) throw too_long(shape);
  Plan plan = plan_of(in, shape, place, shape.micro_batches);
  place_buffers(plan);
  return plan;
}

Plan placed_plan(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  if (is_too_long(in, shape)) throw too_long(shape);
  std::optional<Plan> repeated = repeated_plan(in, shape, place);
  return repeated ? *std::move(repeated) : whole_plan(in, shape, place);
}

Plan make_plan(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  Plan plan = placed_plan(in, shape, place);
  if (!plan.repeat) place_waits(plan);
  check(plan);
  return plan;
}

}  // namespace tessera::plan
