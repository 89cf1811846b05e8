#include "plan/ir/plan.hpp"

#include "core/hash.hpp"
#include "plan/ir/runs.hpp"

namespace tessera::plan {

std::int64_t targets_of(const Plan& plan) {
  const PlanShape& s = plan.shape;
  return plan.group(MeshGroup::data).size * s.micro_batches * plan.targets_of_micro_batch;
}

View tally_sums(const Plan& plan) {
  const std::int64_t tallies = plan.shape.tallies;
  return plan.words.range(WordLayout::tally_sums(tallies), tallies * kExactSumWords)
      .reshaped({tallies, kExactSumWords});
}

View statistic_words(const Plan& plan, std::int64_t statistic) {
  return plan.statistics.row_range(statistic, 1).reshaped({kExactSumWords});
}

const kernels::Blend* joins_momentum(const Op& op, const Call& call) {
  if (op.kind != OpKind::momentum) return nullptr;
  const auto* kernel = std::get_if<kernels::KernelCall>(&call);
  const auto* blend = kernel == nullptr ? nullptr : std::get_if<kernels::Blend>(kernel);
  return blend != nullptr && blend->scalars && blend->add > 0 ? blend : nullptr;
}

std::string_view call_name(const Call& call) {
  return visit_args(call, [](const auto& args) { return kernels::name_of_args(args); });
}

BufferUse use_of(const View& v, kernels::Access access) {
  const std::int64_t begin = offset_of(v);
  return {buffer_of(v), {begin, begin + v.span_bytes()}, access};
}

std::vector<BufferUse> uses_of(const Op& op) {
  std::vector<BufferUse> uses;
  uses.reserve(16);  // more than most ops have
  each_view(op.call,
            [&](const View& v, kernels::Access access) { uses.push_back(use_of(v, access)); });
  return uses;
}

comm::WireBytes wire_bytes_of(const Plan& plan, const Op& op) {
  const auto* collective = std::get_if<comm::CollectiveCall>(&op.call);
  return collective == nullptr ? comm::WireBytes{}
                               : comm::wire_bytes(*collective, plan.group(op.group));
}

double flop_of(const Op& op) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
  return kernel == nullptr ? 0 : kernels::flop_of(*kernel);
}

std::uint64_t plan_hash(const Plan& plan) {
  Hasher hash;
  hash.add(plan.shape.purpose)
      .add(plan.shape.sequence)
      .add(plan.shape.micro)
      .add(plan.shape.micro_batches)
      .add(plan.shape.tallies)
      .add(plan.shape.compression)
      .add(plan.shape.of_targets)
      .add(plan.shape.slots)
      .add(plan.shape.room)
      .add(plan.shape.pages);
  // What data ranks exchange lies at the same places, which depend on what repeats.
  hash.add(plan.scheduled);
  if (plan.repeat) hash.add(plan.repeat->micro_batches).add(plan.repeat->times);
  const std::int64_t runs = runs_of(plan);
  for (std::int64_t i = 0; i < runs; ++i) {
    const OpRun run = run_at(plan, i);
    const Op& op = plan.op(run.op);
    if (!std::holds_alternative<comm::CollectiveCall>(op.call))
      continue;  // the rest may differ with the shard
    hash.add(op.kind).add(op.stream).add(op.group).add(op.unit).add(micro_batch_of(plan, run));
    hash.add(call_name(op.call));
    visit_args(op.call, [&](const auto& args) {
      const View* staging = nullptr;  // its size may differ: it depends on a group's nodes
      if constexpr (requires { args.staging; }) staging = &args.staging;
      if constexpr (requires { args.send_counts; }) return void(hash.add(args.elements));
      args.visit(args, [&](const View& v, kernels::Access access) {
        if (v && &v != staging) hash.add(v.elements()).add(v.type).add(access);
      });
      if constexpr (requires { args.ranks; }) hash.add(args.ranks.count).add(args.ranks.stride);
      if constexpr (requires { args.among; })
        hash.add(args.among.ranks.count).add(args.among.ranks.stride);
      if constexpr (requires { args.blocks; }) hash.add(args.blocks);
      if constexpr (requires { args.of; }) hash.add(args.of);
    });
  }
  return hash.value();
}

}  // namespace tessera::plan
