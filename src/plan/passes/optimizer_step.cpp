#include "plan/passes/optimizer_step.hpp"

#include <map>

#include "core/exact_sum.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/hops.hpp"
#include "plan/passes/matrices.hpp"
#include "plan/passes/tensor_table.hpp"
#include "plan/passes/updates.hpp"

namespace tessera::plan {

namespace {

/// By buffer, the position behind the last op that writes gradients there; 0: none does.
std::vector<std::size_t> ends_of_gradients(const Plan& plan) {
  std::vector<std::size_t> ends(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      const bool gradients = plan.buffer(use.buffer).purpose == BufferPurpose::gradients;
      if (gradients && use.access != kernels::Access::read) at(ends, use.buffer) = i + 1;
    }
  }
  return ends;
}

/// A gradient that is to leave the device enters the norm before it does: where in the plan, and in
/// which visit. `end`: the position behind the op that completes it. Compute goes on for a visit,
/// so that it need not wait for the reduction.
std::pair<std::size_t, std::int32_t> before_it_leaves(const Plan& plan, const PlanInputs& in,
                                                      std::size_t end) {
  std::size_t position = end;
  std::int32_t visit = position > 0 ? plan.ops[position - 1].visit : 0;
  visit += static_cast<std::int32_t>(std::min<std::int64_t>(1, in.offload.ahead));
  while (position < plan.ops.size() && plan.ops[position].visit <= visit) ++position;
  return {position, visit};
}

/// Every element of the gradient enters the norm once: each rank adds the elements that it counts,
/// exactly, and the words are summed over all ranks.
void add_norm(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
              const std::vector<SummedGradient>& gradients) {
  const View squares = plan.words.range(WordLayout::norm, kExactSumWords);
  Insertions insertions;
  const bool leave = in.offload.gradients != Location::device;
  const auto ends = leave ? ends_of_gradients(plan) : std::vector<std::size_t>();
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    const View& slice = gradients[u].slice;
    const auto [position, visit] = leave ? before_it_leaves(plan, in, at(ends, buffer_of(slice)))
                                         : std::pair{plan.ops.size(), -1};
    const std::int64_t first = states[u].slice.begin;
    for (const Range& part : counted_ranges(in, plan, u, states[u].layout)) {
      Op norm =
          op_of(OpKind::norm, Stream::compute, u,
                kernels::KernelCall{kernels::ExactSum{
                    .x = slice.range(part.begin - first, part.count()), .accumulator = squares}});
      norm.visit = visit;
      insertions.before(position, std::move(norm));
    }
  }
  insertions.apply(plan.ops);
  plan.ops.push_back(op_of(OpKind::norm, Stream::reduce, kAllUnits,
                           comm::CollectiveCall{comm::AllReduceWords{.words = plan.words}}));
  plan.ops.back().group = MeshGroup::world;
  plan.ops.push_back(op_of(
      OpKind::norm, Stream::compute, kAllUnits,
      kernels::KernelCall{kernels::Verdict{.squares = squares,
                                           .targets = plan.words.range(WordLayout::targets, 1),
                                           .scalars = plan.scalars,
                                           .verdict = plan.verdict,
                                           .all_targets = targets_of(plan),
                                           .clip_norm = in.optimizer.clip_norm}}));
}

/// What balances experts follows what all ranks have chosen in the step, if it is applied; at once,
/// also where updates are deferred.
void add_balance(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  std::int64_t layers = 0;  // so far, of those that have experts
  for (std::size_t u = 0; u < states.size(); ++u) {
    const model::UnitDesc& unit = in.model.units[u];
    if (unit.has("mlp.router.weight")) ++layers;
    if (plan.shares[u].balance < 0) continue;
    const std::int64_t experts = in.model.config.experts.count;
    plan.ops.push_back(op_of(OpKind::balance, Stream::compute, u,
                             kernels::KernelCall{kernels::BalanceExperts{
                                 .choices = plan.choices.row_range(layers - 1, 1).range(0, experts),
                                 .kept = states[u].parameters.range(0, experts),
                                 .verdict = plan.verdict,
                                 .by = *unit.traits.balances,
                                 .rate = in.balance_rate}}));
  }
}

/// An update, and of which flat elements.
struct Update {
  Op op;
  Range elements;
};

/// What a rank updates of a unit, in its order: neighbours with the same terms together, or tensor
/// by tensor. To each belongs the padding that follows it, which is 0.
std::vector<Piece> pieces_of(const PlanInputs& in, const TensorTable& sums, std::size_t unit,
                             const UnitState& s) {
  std::vector<Piece> pieces;
  const auto& layout = s.layout.pieces;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const Range owned = intersect(with_padding(s.layout, i), s.owned);
    if (owned.empty()) continue;
    const model::ParamDesc& p = in.model.units[unit].params[layout[i].parameter];
    const auto terms = in.optimizer.terms_of(p.name, kind_of(in.model.units[unit], p));
    if (terms.orthogonal) continue;  // passes/matrices updates them
    const bool apart = in.optimizer.words_per_tensor > 0;
    if (!apart && !pieces.empty() && pieces.back().terms == terms &&
        pieces.back().elements.end == owned.begin) {
      pieces.back().elements.end = owned.end;
    } else {
      pieces.push_back({.elements = owned,
                        .terms = terms,
                        .sums = sums.of(unit, layout[i].parameter),
                        .parameter = layout[i].parameter});
    }
  }
  return pieces;
}

/// Whether updates are by momentum that has travelled compressed. A deferred one is of the step
/// before, after which the first such step comes.
bool updates_by_momentum(const Plan& plan, const PlanInputs& in) {
  const Compression last_by_gradients =
      in.offload.updates() ? Compression::begins : Compression::none;
  return plan.shape.compression > last_by_gradients;
}

constexpr const char* kTensorSums = "sums over tensors";
/// What the first of two passes adds up for each tensor.
std::int64_t words_of(const Plan& plan, const PlanInputs& in) {
  return updates_by_momentum(plan, in) ? 0 : in.optimizer.words_per_tensor;
}

/// The updates of a trained unit; of two passes the second.
std::vector<Update> updates_of(const Plan& plan, const PlanInputs& in, std::size_t unit,
                               const UnitState& s, const View& gradient, const TensorTable& sums) {
  const optim::Pass& pass =
      updates_by_momentum(plan, in) ? in.optimizer.momentum->update : in.optimizer.update;
  std::vector<Update> updates;
  for (Piece piece : pieces_of(in, sums, unit, s)) {
    for (const Range& tile : tiles_of(in, s, piece.elements)) {
      piece.elements = tile;
      updates.push_back({update_op(plan, in, unit, s, gradient, piece, pass), tile});
    }
  }
  return updates;
}

/// The first passes of all updates, from the clearing of their sums to these over all ranks; none
/// where updates have one pass. `gradients`: the owned ones, by unit.
std::vector<Op> first_passes(const Plan& plan, const PlanInputs& in,
                             const std::vector<UnitState>& states, const TensorTable& sums,
                             const std::vector<View>& gradients) {
  std::vector<Op> ops;
  if (!sums) return ops;
  ops.push_back(op_of(OpKind::tensor_sums, Stream::compute, kAllUnits,
                      kernels::KernelCall{kernels::Fill{.out = sums.all()}}));
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    const auto counted = counted_ranges(in, plan, u, states[u].layout);
    for (const Piece& piece : pieces_of(in, sums, u, states[u])) {
      for (const auto& [elements, of] : split_by(piece.elements, counted)) {
        Piece part = piece;
        if (!of) part.sums = {};  // others count them
        for (const Range& tile : tiles_of(in, states[u], elements)) {
          part.elements = tile;
          ops.push_back(
              update_op(plan, in, u, states[u], gradients[u], part, in.optimizer.first_pass));
        }
      }
    }
  }
  ops.push_back(op_of(OpKind::tensor_sums, Stream::reduce, kAllUnits,
                      comm::CollectiveCall{comm::AllReduceWords{.words = sums.all()}}));
  ops.back().group = MeshGroup::world;
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (const auto factor = average_trust(plan, in, u, states[u], sums)) ops.push_back(*factor);
  }
  return ops;
}

/// What a checkpoint takes of a tile: of rows that are saved so, this rank's elements.
std::vector<Op> saves_of(const Plan& plan, const PlanInputs& in, std::size_t unit,
                         const UnitState& s, Range tile) {
  std::vector<Op> ops;
  if (plan.shape.purpose != PlanPurpose::train_snapshot) return ops;
  const auto rows = kept_tensors(in);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto& [live, snapshot, elements] = s.kept[r];
    const Range mine = intersect(intersect(tile, s.slice), elements);
    if (!rows[r].saved || !saved_in_tiles(plan, s.kept[r]) || mine.empty()) continue;
    const Range kept = s.kept_in(s.kept[r], mine);
    ops.push_back(op_of(OpKind::snapshot, Stream::copy, unit,
                        SaveTile{.from = live.range(kept.begin, kept.count()),
                                 .row = r,
                                 .first = mine.begin,
                                 .count = mine.count()}));
    ops.back().location = in.offload.saves_at();
  }
  return ops;
}

void add_updates(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                 const std::vector<SummedGradient>& gradients) {
  const TensorTable sums(plan, in, kTensorSums, words_of(plan, in));
  std::vector<View> owned;  // updates by momentum read none
  for (const SummedGradient& gradient : gradients)
    owned.push_back(updates_by_momentum(plan, in) ? View{} : gradient.owned);
  for (Op& op : first_passes(plan, in, states, sums, owned)) plan.ops.push_back(std::move(op));
  for (MatrixOp& m : matrix_updates(plan, in, states, owned)) plan.ops.push_back(std::move(m.op));
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    for (Update& update : updates_of(plan, in, u, states[u], owned[u], sums))
      plan.ops.push_back(std::move(update.op));
  }
}

/// Before which ops of [begin, end] to do `count` things, so that as much is computed before each.
std::vector<std::size_t> spread(const Plan& plan, std::size_t begin, std::size_t end,
                                std::size_t count) {
  double all = 0, done = 0;
  for (std::size_t i = begin; i < end; ++i) all += flop_of(plan.ops[i]);
  std::vector<std::size_t> positions;
  std::size_t at = begin;
  for (std::size_t k = 0; k < count; ++k) {
    const double wanted = all * static_cast<double>(k + 1) / static_cast<double>(count);
    while (at < end && done < wanted) done += flop_of(plan.ops[at++]);
    positions.push_back(at);
  }
  return positions;
}

/// The first of visits that are numbered after all there are, and so far from them that nothing
/// stays from one to the other.
std::int32_t visits_apart(const Plan& plan, const PlanInputs& in) {
  std::int32_t last = 0;
  for (const Op& op : plan.ops) last = std::max(last, op.visit);
  return last + static_cast<std::int32_t>(in.offload.ahead) + 2;
}

/// The updates of the step before, each unit's before its parameters are first wanted, beside the
/// forward of the layers before it; behind each what a checkpoint takes of it. Each is a visit of
/// its own. The first passes of updates that have two come before all else.
void add_deferred_updates(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  std::int32_t visit = visits_apart(plan, in);
  Insertions insertions;
  const auto add = [&](std::size_t position, std::vector<Op> ops) {
    for (Op& op : ops) {
      op.visit = visit;
      insertions.before(position, std::move(op));
    }
    visit += ops.empty() ? 0 : 1;
  };
  for (std::size_t u = 0; u < states.size(); ++u) {  // what is frozen is saved at once
    const UnitState& s = states[u];
    if (!s.held || s.trained) continue;
    for (const Range& tile : tiles_of(in, s, s.slice)) add(0, saves_of(plan, in, u, s, tile));
  }
  const TensorTable sums(plan, in, kTensorSums, words_of(plan, in));
  std::vector<View> gradients;
  for (const UnitState& s : states) gradients.push_back(s.gradient);
  for (Op& op : first_passes(plan, in, states, sums, gradients)) {
    if (op.kind == OpKind::update) op.visit = visit++;
    insertions.before(0, std::move(op));
  }
  for (MatrixOp& m : matrix_updates(plan, in, states, gradients)) {
    const auto unit = static_cast<std::size_t>(m.op.unit);
    std::vector<Op> ops;
    if (!m.moved.empty()) ops = saves_of(plan, in, unit, states[unit], m.moved);
    const bool apart = m.op.kind == OpKind::update;
    ops.insert(ops.begin(), std::move(m.op));
    if (apart) {
      add(0, std::move(ops));
    } else {
      insertions.before(0, std::move(ops.front()));
    }
  }
  std::size_t begin = 0;
  for (const auto& [unit, end] : first_uses(plan, states)) {
    const UnitState& s = states[unit];
    auto updates = updates_of(plan, in, unit, s, s.gradient, sums);
    const auto positions = spread(plan, begin, end, updates.size());
    for (std::size_t k = 0; k < updates.size(); ++k) {
      std::vector<Op> ops = saves_of(plan, in, unit, s, updates[k].elements);
      ops.insert(ops.begin(), std::move(updates[k].op));
      add(positions[k], std::move(ops));
    }
    begin = end;
  }
  insertions.apply(plan.ops);
}

/// What the next step needs to do this step's update.
void keep_scalars(Plan& plan) {
  plan.ops.push_back(
      op_of(OpKind::norm, Stream::compute, kAllUnits,
            kernels::KernelCall{kernels::Convert{.x = plan.scalars, .out = plan.update_scalars}}));
}

/// A checkpoint of the state that the step before has left is copied while this step computes:
/// behind the updates that belong to it, if they are in this plan. Nothing need say that later
/// updates wait for the copies: they write what the copies read, so place_waits finds it.
void add_snapshots(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  std::vector<std::size_t> updated(states.size());  // behind which op
  for (std::size_t i = 0; i < plan.ops.size() && in.offload.updates(); ++i) {
    if (plan.ops[i].kind == OpKind::update) at(updated, plan.ops[i].unit) = i + 1;
  }
  const auto rows = kept_tensors(in);
  Insertions insertions;
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (s.kept.empty() || !s.kept[r].snapshot) continue;
      const Range saved = s.kept_in(s.kept[r], saved_of(rows[r], s, r));
      const View from = s.kept[r].live.range(saved.begin, saved.count());
      insertions.before(updated[u],
                        op_of(OpKind::snapshot, Stream::copy, u, Copy{from, s.kept[r].snapshot}));
    }
  }
  insertions.apply(plan.ops);
}

/// A step that is applied leaves what its roundings have lost to the next one; a visit for each
/// unit.
void keep_errors(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                 const std::vector<SummedGradient>& gradients) {
  std::int32_t visit = visits_apart(plan, in);
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!gradients[u].lost) continue;
    plan.ops.push_back(
        op_of(OpKind::errors, Stream::compute, u,
              kernels::KernelCall{kernels::Convert{
                  .x = gradients[u].lost, .out = states[u].errors, .verdict = plan.verdict}}));
    plan.ops.back().visit = visit++;
  }
}

/// A step that is applied moves momentum, and what else follows from its gradients; visits for each
/// unit.
void keep_momentum(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                   const std::vector<SummedGradient>& gradients) {
  Staging decoded("momentum on its way");
  std::int32_t visit = visits_apart(plan, in);
  std::vector<View> slices;
  for (const SummedGradient& gradient : gradients) slices.push_back(gradient.slice);
  for (Op& op : follow_moments(plan, in, states, slices, visit)) plan.ops.push_back(std::move(op));
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    const auto& [slice, owned, lost, way] = gradients[u];
    for (Op& op : keep_momentum(plan, in, u, states[u], owned, lost, way, decoded)) {
      op.visit = visit;
      plan.ops.push_back(std::move(op));
    }
    ++visit;
  }
}

/// What checkpoints have of errors: their sums over data ranks, and of compressed momentum those of
/// its mean with them, as the step before has left them; a visit for each unit.
void sum_errors(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  RoutesOfUnits routes(in, plan.place);
  Staging whole("errors on their way"), sums("sums of errors in nodes"),
      of_node("errors of sums of nodes"),
      of_hops[] = {Staging("staging of errors"), Staging("staging of errors between nodes")};
  Insertions insertions;
  std::int32_t visit = visits_apart(plan, in);
  const auto add = [&](Op op) {
    op.visit = visit;
    insertions.before(0, std::move(op));
  };
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    if (!plan.shares[u].errors) continue;
    const MeshGroup sharers = in.model.units[u].traits.shared_by;
    const comm::Route& route = routes.of(u).sums;
    const auto floats = [&](Staging& staging, std::int64_t n) {
      return View(staging.view(plan, n * size_of(DType::f32)).data, DType::f32, {n});
    };
    const auto bytes = sum_staging(route, plan.group(sharers), DType::f32);
    const auto room = [&](std::size_t hop) { return of_hops[hop].view(plan, bytes[hop]); };
    const View full = floats(whole, s.layout.padded);
    const bool hops = bytes.size() > 1;
    add(op_of(OpKind::errors, Stream::reduce, u,
              kernels::KernelCall{kernels::Convert{.x = s.errors, .out = full}}));
    for (LegCall& call :
         reduce_over(route, {.full = full, .shard = s.error_sum, .staging = room(0)},
                     hops ? floats(sums, shards_between(route) * s.layout.shard) : View{},
                     hops ? room(1) : View{})) {
      Op sum = op_of(OpKind::errors, row_of(call.leg).of_reductions, u, std::move(call.call));
      sum.group = sharers;
      add(std::move(sum));
    }
    for (Op& op : add_errors_of_mean(plan, in, u, s, of_node, of_hops[1])) add(std::move(op));
    ++visit;
  }
  insertions.apply(plan.ops);
}

}  // namespace

void optimizer_step(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients) {
  add_norm(plan, in, states, gradients);
  add_balance(plan, in, states);
  if (plan.shape.compression != Compression::none) keep_momentum(plan, in, states, gradients);
  if (in.offload.updates()) {
    add_deferred_updates(plan, in, states);
    keep_scalars(plan);
  } else {
    add_updates(plan, in, states, gradients);
  }
  keep_errors(plan, in, states, gradients);
  if (plan.shape.purpose == PlanPurpose::train_snapshot) {
    add_snapshots(plan, in, states);
    sum_errors(plan, in, states);
  }
}

void flush(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states) {
  sum_errors(plan, in, states);
  if (!in.offload.updates()) return;
  add_deferred_updates(plan, in, states);
  plan.ops.push_back(op_of(OpKind::norm, Stream::compute, kAllUnits,
                           kernels::KernelCall{kernels::Fill{.out = plan.verdict}}));
}

}  // namespace tessera::plan
