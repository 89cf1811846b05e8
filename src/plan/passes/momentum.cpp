#include "plan/passes/momentum.hpp"

#include "plan/passes/blocks.hpp"
#include "plan/passes/updates.hpp"

namespace tessera::plan {

using kernels::KernelCall;

namespace {

/// The padding in a range of a unit's flat elements that shares blocks with elements, as ranges of
/// that range.
std::vector<Range> ragged_padding(const PlanInputs& in, std::size_t unit, const UnitState& s,
                                  const Range& range) {
  const std::int64_t block = in.numerics.gradient_blocks->block;
  std::vector<Range> padding;
  std::int64_t end = 0;  // of the elements before
  const auto add = [&](std::int64_t next) {
    const Range gap = intersect({end, std::min(next, round_up(end, block))}, range);
    if (!gap.empty()) padding.push_back({gap.begin - range.begin, gap.end - range.begin});
  };
  for (const auto& slice : zero::slices_in(in.model.units[unit], s.layout, {0, s.layout.padded})) {
    add(slice.flat);
    end = slice.flat + slice.part.elements();
  }
  add(s.layout.padded);
  return padding;
}

KernelCall cleared(const View& flat, const Range& padding) {
  return kernels::Fill{.out = flat.range(padding.begin, padding.count())};
}

}  // namespace

MomentumExchange::MomentumExchange(Plan& plan, const PlanInputs& in,
                                   const std::vector<UnitState>& states)
    : plan_(plan), in_(in), states_(states), route_(gather_route(in, plan.place)) {}

const UnitState::Kept& MomentumExchange::momentum_of(std::size_t unit) const {
  return states_[unit].state(in_.optimizer.momentum->row);
}

Calls MomentumExchange::join(std::size_t unit, const View& gradient) {
  const UnitState& s = states_[unit];
  const View& m = momentum_of(unit).live;
  Calls calls;
  if (plan_.shape.compression == Compression::begins && s.sharding.states)
    calls = gather_over(plan_, route_,
                        {.shard = m.range(s.slice.begin, s.slice.count()), .full = m}, momentum_);
  const std::int64_t size = s.layout.padded / s.layout.shard;
  const float beta = in_.optimizer.momentum->beta, ranks = static_cast<float>(size);
  calls.push_back({Leg::pack, KernelCall{kernels::Blend{.y = m,
                                                        .out = gradient,
                                                        .keep = 1 - beta,
                                                        .add = beta / ranks,
                                                        .scalars = plan_.scalars}}});
  return calls;
}

Calls MomentumExchange::send(std::size_t unit, const View& mean, MeanOnItsWay& way) {
  const UnitState& s = states_[unit];
  const kernels::BlockFormat& format = *in_.numerics.gradient_blocks;
  const std::int64_t n = mean.elements(), size = s.layout.padded / n, slot = format.bytes(n);
  const BufferId all = add_buffer(plan_, in_.model.units[unit].name + " momentum in blocks",
                                  BufferPurpose::staging, size * slot);
  way.codes = buffer_view(all, DType::u8, size * slot).reshaped({1, size, slot});
  way.lost_of_mean = lost_buffer(plan_, in_, unit, "errors of the mean", n);
  const View own(leaving_.next(plan_, slot).data, DType::u8, {1, 1, slot});
  const auto padding = ragged_padding(in_, unit, s, s.slice);
  Calls calls;
  for (const Range& p : padding) calls.push_back({Leg::unpack, cleared(mean, p)});
  calls.push_back(
      {Leg::pack, KernelCall{kernels::Quantize{.x = mean.reshaped({1, 1, n}),
                                               .code = own,
                                               .format = format,
                                               .error = s.mean_error.reshaped({1, 1, n}),
                                               .lost = way.lost_of_mean.reshaped({1, 1, n}),
                                               .scalars = plan_.scalars}}});
  for (LegCall& call : gather_over(plan_, route_, {.shard = own, .full = way.codes}, codes_))
    calls.push_back(std::move(call));
  const float beta = in_.optimizer.momentum->beta;
  const View own_momentum = momentum_of(unit).live.range(s.slice.begin, n);
  calls.push_back({Leg::unpack, KernelCall{kernels::SumQuantized{
                                    .code = own, .out = mean.reshaped({1, n}), .format = format}}});
  for (const Range& p : padding) calls.push_back({Leg::unpack, cleared(mean, p)});
  calls.push_back({Leg::unpack, KernelCall{kernels::Blend{.y = own_momentum,
                                                          .out = mean,
                                                          .keep = 1 / (1 - beta),
                                                          .add = -beta / (1 - beta),
                                                          .scalars = plan_.scalars}}});
  return calls;
}

std::vector<Op> keep_momentum(Plan& plan, const PlanInputs& in, std::size_t unit,
                              const UnitState& s, const View& gradient, const View& lost,
                              const MeanOnItsWay& way, Staging& decoded) {
  const optim::CompressedMomentum& momentum = *in.optimizer.momentum;
  std::vector<Op> ops;
  const auto add = [&](KernelCall call) {
    ops.push_back(op_of(OpKind::momentum, Stream::compute, unit, std::move(call)));
  };
  kernels::Blend moved{.y = gradient,
                       .out = s.state(momentum.row).live,
                       .keep = momentum.beta,
                       .add = 1 - momentum.beta,
                       .verdict = plan.verdict};
  if (way.codes) {
    const std::int64_t n = s.layout.padded, shard = s.layout.shard;
    moved.y = View(decoded.view(plan, n * size_of(DType::f32)).data, DType::f32, {n});
    moved.keep = 0, moved.add = 1;
    add(kernels::SumQuantized{.code = way.codes,
                              .out = moved.y.reshaped({n / shard, shard}),
                              .format = *in.numerics.gradient_blocks});
    for (const Range& p : ragged_padding(in, unit, s, {0, n}))
      add(cleared(moved.y, p)), add(cleared(lost, p));
    for (const Range& p : ragged_padding(in, unit, s, s.slice)) add(cleared(way.lost_of_mean, p));
    add(kernels::Convert{.x = way.lost_of_mean, .out = s.mean_error, .verdict = plan.verdict});
    if (s.node_error) {
      const std::int64_t nodes = s.node_error.elements() / shard, neighbours = n / shard / nodes;
      // Sums leave in the order of the nodes they are for.
      for (std::int64_t k = 0; k < nodes; ++k) {
        const std::int64_t owner = k * neighbours + plan.place.data % neighbours;
        for (const Range& p : ragged_padding(in, unit, s, s.layout.shard_of(owner)))
          add(cleared(way.lost_of_node.range(k * shard, shard), p));
      }
      add(kernels::Convert{.x = way.lost_of_node, .out = s.node_error, .verdict = plan.verdict});
    }
  }
  add(moved);
  return ops;
}

std::optional<Op> average_trust(const Plan& plan, const PlanInputs& in, std::size_t unit,
                                const UnitState& s, const TensorTable& sums) {
  if (!s.trained || !in.optimizer.momentum || !in.optimizer.momentum->factors) return std::nullopt;
  const optim::TensorFactors& factors = *in.optimizer.momentum->factors;
  return op_of(
      OpKind::tensor_sums, Stream::compute, unit,
      KernelCall{kernels::AverageTrust{.sums = sums.of_unit(unit),
                                       .average = s.state(factors.average).live,
                                       .verdict = plan.verdict,
                                       .beta3 = factors.beta3,
                                       .trust_min = static_cast<float>(factors.trust[0]),
                                       .trust_max = static_cast<float>(factors.trust[1])}});
}

namespace {

/// The running moments of a unit's shard, tensor by tensor.
std::vector<Op> moment_ratios(const Plan& plan, const PlanInputs& in, std::size_t unit,
                              const UnitState& s, const View& gradient,
                              const TensorTable& largest) {
  const optim::CompressedMomentum& momentum = *in.optimizer.momentum;
  const auto& [frozen, frozen_copy, frozen_of] = s.state(momentum.factors->frozen);
  const View& running = s.state(momentum.factors->running).live;
  const auto counted = counted_ranges(in, plan, unit, s.layout);
  std::vector<Op> ops;
  const auto& pieces = s.layout.pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (const auto& [part, of] :
         split_by(intersect(with_padding(s.layout, i), s.slice), counted)) {
      const std::int64_t n = part.count(), at = part.begin - s.slice.begin;
      ops.push_back(op_of(OpKind::momentum, Stream::compute, unit,
                          KernelCall{kernels::MomentRatio{
                              .gradient = gradient.range(at, n),
                              .moment = running.range(at, n),
                              .frozen = frozen.range(part.begin - frozen_of.begin, n),
                              .largest = of ? largest.of(unit, pieces[i].parameter) : View{},
                              .verdict = plan.verdict,
                              .beta2 = static_cast<float>(momentum.beta2)}}));
    }
  }
  return ops;
}

}  // namespace

std::vector<Op> follow_moments(Plan& plan, const PlanInputs& in,
                               const std::vector<UnitState>& states,
                               const std::vector<View>& gradients, std::int32_t& visit) {
  std::vector<Op> ops;
  if (!in.optimizer.momentum->factors) return ops;
  const optim::TensorFactors& factors = *in.optimizer.momentum->factors;
  const TensorTable largest(plan, in, "largest ratios of tensors", 1);
  const auto add = [&](std::size_t unit, Call call) {
    ops.push_back(op_of(OpKind::momentum, Stream::compute, unit, std::move(call)));
    ops.back().visit = visit;
  };
  add(kAllUnits, KernelCall{kernels::Fill{.out = largest.all()}});
  for (std::size_t u = 0; u < states.size(); ++u) {
    const UnitState& s = states[u];
    if (!s.trained) continue;
    ++visit;
    if (plan.shape.compression == Compression::begins) {
      const auto& [frozen, snapshot, of] = s.state(factors.frozen);
      add(u,
          KernelCall{kernels::Convert{.x = frozen.range(s.slice.begin - of.begin, s.slice.count()),
                                      .out = s.state(factors.running).live}});
    }
    for (Op& op : moment_ratios(plan, in, u, s, gradients[u], largest)) {
      op.visit = visit;
      ops.push_back(std::move(op));
    }
  }
  ++visit;
  ops.push_back(op_of(OpKind::momentum, Stream::reduce, kAllUnits,
                      comm::CollectiveCall{comm::AllReduceWords{
                          .words = largest.all(), .of = comm::AllReduceWords::Of::largest}}));
  ops.back().group = MeshGroup::world, ops.back().visit = visit;
  for (std::size_t u = 0; u < states.size(); ++u) {
    if (!states[u].trained) continue;
    add(u, KernelCall{kernels::FollowRatio{.largest = largest.of_unit(u),
                                           .ratio = states[u].state(factors.ratio).live,
                                           .verdict = plan.verdict,
                                           .threshold = factors.r_threshold,
                                           .r_min = factors.r_min,
                                           .r_max = factors.r_max}});
  }
  ++visit;
  return ops;
}

std::vector<Op> add_errors_of_mean(Plan& plan, const PlanInputs& in, std::size_t unit,
                                   const UnitState& s, Staging& of_node, Staging& arriving) {
  std::vector<Op> ops;
  const auto add = [&](Leg leg, Call call) {
    ops.push_back(op_of(OpKind::momentum, row_of(leg).of_reductions, unit, std::move(call)));
  };
  if (s.mean_error) {
    add(Leg::unpack, KernelCall{kernels::Convert{
                         .x = s.mean_error, .out = s.error_sum, .write = kernels::Write::add}});
  }
  if (s.node_error) {
    const comm::Route route = gradient_route(in, plan.place);
    const std::int64_t n = s.node_error.elements();
    const View sums(of_node.view(plan, n * size_of(DType::f32)).data, DType::f32, {n});
    const comm::GroupShape hop =
        shape_of(route.hops.back(), plan.group(in.model.units[unit].traits.shared_by));
    add(Leg::unpack, KernelCall{kernels::Convert{.x = s.node_error, .out = sums}});
    add(Leg::across, comm::CollectiveCall{comm::ReduceScatter{
                         .full = sums,
                         .shard = s.error_sum,
                         .staging = arriving.view(
                             plan, comm::reduce_scatter_staging(hop, DType::f32, DType::f32)),
                         .write = kernels::Write::add,
                         .among = route.hops.back()}});
  }
  return ops;
}

}  // namespace tessera::plan
