#include "plan/make_plan.hpp"

#include <algorithm>
#include <span>

#include "core/exact_sum.hpp"
#include "plan/check.hpp"
#include "plan/layers.hpp"

namespace tessera::plan {

model::TensorCut tensor_cut(const PlanInputs& in, const MeshPlace& place) {
  return {.chunks = std::max(in.tensor_chunks, in.mesh.tensor),
          .ranks = in.mesh.tensor,
          .rank = place.tensor};
}

comm::GroupShape group_shape(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const std::int64_t rank = in.mesh.rank_of(place);
  const auto members = in.mesh.members(rank, group);
  const auto size = static_cast<std::int64_t>(members.size());
  comm::GroupShape shape{.size = size, .local = size, .nodes = 1};
  if (!in.node_of.empty()) shape = comm::group_shape(members, in.node_of, static_cast<int>(rank));
  if (in.nccl) {
    shape.carrier =
        shape.nodes > 1 && !in.any_layout ? comm::Carrier::nccl_sums : comm::Carrier::nccl;
  }
  return shape;
}

comm::Route gradient_route(const PlanInputs& in, const MeshPlace& place) {
  std::vector<int> nodes;
  for (const int r : in.mesh.members(in.mesh.rank_of(place), MeshGroup::data))
    nodes.push_back(in.node_of.empty() ? 0 : in.node_of[static_cast<std::size_t>(r)]);
  return comm::route_of(nodes, place.data);
}

void set_place(Plan& plan, const PlanInputs& in, const MeshPlace& place) {
  plan.place = place;
  for (std::size_t g = 0; g < kMeshGroups; ++g)
    plan.groups[g] = group_shape(in, place, static_cast<MeshGroup>(g));
}

namespace {

DeckError too_long(const PlanShape& shape) {
  return DeckError(
      fmt::format("a step of {} micro-batches is too long for one plan: raise batch.micro or use "
                  "more ranks",
                  shape.micro_batches));
}

/// A micro-batch's visit of a unit takes about 50 KB of plan.
constexpr std::int64_t kMostVisits = 1 << 18;

}  // namespace

BufferId add_buffer(Plan& plan, std::string name, Purpose purpose, std::int64_t bytes,
                    bool persistent) {
  if (std::ssize(plan.buffers) >= kMostBuffers) throw too_long(plan.shape);
  plan.buffers.push_back({.name = std::move(name), .purpose = purpose, .persistent = persistent});
  const auto id = static_cast<BufferId>(plan.buffers.size()) - 1;
  enlarge_buffer(plan, id, bytes);
  return id;
}

void enlarge_buffer(Plan& plan, BufferId id, std::int64_t bytes) {
  Buffer& b = plan.buffers[static_cast<std::size_t>(id)];
  b.bytes = std::max(b.bytes, bytes);
  if (bytes >> kOffsetBits == 0) return;
  throw DeckError(fmt::format(
      "{} has {} bytes, but one buffer at most {}: lower batch.micro or use more tensor ranks",
      b.name, bytes, std::int64_t{1} << kOffsetBits));
}

View Staging::view(Plan& plan, std::int64_t bytes) {
  if (id_ < 0) id_ = add_buffer(plan, name_, Purpose::staging, 0);
  enlarge_buffer(plan, id_, bytes);
  return buffer_view(id_, DType::u8, bytes);
}

View buffer_view(BufferId id, DType type, std::int64_t elements) {
  return View(symbolic(id), type, {elements});
}

void Insertions::apply(std::vector<Op>& ops) {
  std::vector<At*> order;  // an op is hundreds of bytes: sort where they are
  for (At& at : inserted_) order.push_back(&at);
  std::stable_sort(order.begin(), order.end(),
                   [](const At* a, const At* b) { return a->position < b->position; });
  auto from = ops.size();
  ops.resize(from + order.size());
  auto to = ops.size();
  for (auto next = order.rbegin(); next != order.rend(); ++next) {
    while (from > (*next)->position) ops[--to] = std::move(ops[--from]);
    ops[--to] = std::move((*next)->op);
  }
  inserted_.clear();
}

namespace {

/// State beside the parameters, in f32.
struct StateRow {
  const char* name;
  Purpose purpose;
  View UnitState::*view;
  PlanPurpose since;  // the first purpose that needs it
};
constexpr std::array kOwnedState = {
    StateRow{"master", Purpose::master, &UnitState::master, PlanPurpose::train},
    StateRow{"adam_m", Purpose::optimizer, &UnitState::m, PlanPurpose::train},
    StateRow{"adam_v", Purpose::optimizer, &UnitState::v, PlanPurpose::train},
};
constexpr std::array kSnapshots = {
    StateRow{"snapshot of master", Purpose::snapshot, &UnitState::snapshot_master,
             PlanPurpose::train_snapshot},
    StateRow{"snapshot of adam_m", Purpose::snapshot, &UnitState::snapshot_m,
             PlanPurpose::train_snapshot},
    StateRow{"snapshot of adam_v", Purpose::snapshot, &UnitState::snapshot_v,
             PlanPurpose::train_snapshot},
};

}  // namespace

std::vector<Range> counted_ranges(const PlanInputs& in, const Plan& plan, std::size_t unit,
                                  const zero::UnitLayout& layout) {
  // The last stage's copy of a tied matrix is the first stage's.
  if (on_both_ends(in, unit) && plan.place.pipeline > 0) return {};
  return zero::counted(layout, layout.shard_of(plan.place.data), tensor_cut(in, plan.place));
}

std::vector<UnitState> add_state(Plan& plan, const PlanInputs& in) {
  const auto flat = [&](const model::UnitDesc& unit, const char* what, Purpose purpose, DType type,
                        std::int64_t elements) {
    return buffer_view(add_buffer(plan, fmt::format("{} {}", unit.name, what), purpose,
                                  elements * size_of(type), true),
                       type, elements);
  };
  static_assert(WordLayout::norm == kExactSumWords && WordLayout::flags == 2 * kExactSumWords);
  plan.words = buffer_view(add_buffer(plan, "words", Purpose::control, WordLayout::count * 8, true),
                           DType::i64, WordLayout::count);
  const auto scalars = static_cast<std::int64_t>(kernels::StepScalar::count);
  plan.scalars = buffer_view(add_buffer(plan, "scalars", Purpose::control, scalars * 4, true),
                             DType::f32, scalars);
  const auto fields = static_cast<std::int64_t>(kernels::VerdictField::count);
  plan.verdict = buffer_view(add_buffer(plan, "verdict", Purpose::control, fields * 4, true),
                             DType::f32, fields);

  const std::int64_t data = in.mesh.data;
  const bool several = data > 1;
  const model::TensorCut cut = tensor_cut(in, plan.place);
  const auto held = held_units(in, plan.place.pipeline);
  std::vector<UnitState> states(in.units.size());
  plan.shares.resize(in.units.size());
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!held[u]) continue;
    const auto& unit = in.units[u];
    UnitState& s = states[u];
    s.held = true;
    s.layout = zero::unit_layout(unit, data, cut);
    const Range slice = s.layout.shard_of(plan.place.data);
    plan.shares[u].shard = s.layout.shard;
    for (const Range& part : counted_ranges(in, plan, u, s.layout))
      plan.shares[u].counted += part.count();
    s.owned = several && in.stage >= 1 ? slice : Range{0, s.layout.padded};
    if (several && in.stage == 3) {
      s.own_shard = flat(unit, "parameters", Purpose::parameters, in.compute, s.layout.shard);
    } else {
      s.parameters = flat(unit, "parameters", Purpose::parameters, in.compute, s.layout.padded);
      s.own_shard = s.parameters.range(slice.begin, slice.count());
    }
    (in.compute == DType::f32 ? s.master : s.copy) = s.owned == slice ? s.own_shard : s.parameters;
    const auto add = [&](std::span<const StateRow> rows, std::int64_t elements) {
      for (const StateRow& row : rows) {
        if (row.since <= in.state_for && !(s.*row.view))
          s.*row.view = flat(unit, row.name, row.purpose, DType::f32, elements);
      }
    };
    add(kOwnedState, s.owned.count());
    add(kSnapshots, slice.count());
  }
  return states;
}

/// What the host gives a step comes first, so that nothing after it waits for the host.
static void load_batches(Plan& plan, const std::vector<LoadBatch>& batches) {
  Insertions insertions;
  for (std::size_t k = 0; k < batches.size(); ++k) {
    insertions.before(0, {.kind = OpKind::load_batch,
                          .micro_batch = static_cast<std::int32_t>(k),
                          .call = batches[k],
                          .waits = {}});
  }
  insertions.apply(plan.ops);
}

/// Recorded operations bring their scratch along; those that passes added get it here.
static void add_scratch(Plan& plan, const kernels::Device& device) {
  for (Op& op : plan.ops) {
    auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    if (kernel == nullptr) continue;
    std::visit(
        [&](auto& args) {
          const std::int64_t bytes = args.scratch ? 0 : device.scratch_bytes(args);
          if (bytes == 0) return;
          args.scratch =
              buffer_view(add_buffer(plan, "scratch", Purpose::scratch, bytes), DType::u8, bytes);
        },
        *kernel);
  }
}

void check_length(const PlanInputs& in, const PlanShape& shape) {
  // Some stage has that many units.
  if (shape.micro_batches * ceil_div(std::ssize(in.units), in.mesh.pipeline) > kMostVisits)
    throw too_long(shape);
}

Plan unproved_plan(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  TESSERA_CHECK(shape.purpose <= in.state_for, "a plan that needs more state than there is");
  check_length(in, shape);
  Plan plan;
  plan.shape = shape;
  set_place(plan, in, place);
  const auto states = add_state(plan, in);
  const Scheduled scheduled = schedule(plan, in, states);
  residency(plan, in, states, scheduled);
  if (shape.purpose != PlanPurpose::evaluate) {
    const auto gradients = grad_reduce(plan, in, states, scheduled);
    optimizer_step(plan, in, states, gradients);
  } else {
    plan.ops.push_back({.kind = OpKind::norm,
                        .stream = Stream::reduce,
                        .group = MeshGroup::world,
                        .call = comm::CollectiveCall{comm::AllReduceWords{.words = plan.words}},
                        .waits = {}});
  }
  load_batches(plan, scheduled.batches);
  add_scratch(plan, *in.device);
  place_buffers(plan);
  place_waits(plan);
  return plan;
}

Plan make_plan(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  Plan plan = unproved_plan(in, shape, place);
  check(plan);
  return plan;
}

}  // namespace tessera::plan
