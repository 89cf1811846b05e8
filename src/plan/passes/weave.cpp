#include "plan/passes/weave.hpp"

#include <algorithm>
#include <map>

namespace tessera::plan {
namespace {

/// Whether an op exchanges tokens, or what was made of them: much, unlike how many there are.
bool exchanges_rows(const Op& op) {
  const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
  return op.kind == OpKind::experts && std::holds_alternative<comm::ExchangeRows>(*call);
}

/// The end of the turn that begins with op `at`: behind the next exchange of rows.
std::size_t end_of_turn(const std::vector<Op>& ops, std::size_t at, std::size_t end) {
  while (at < end && !exchanges_rows(ops[at])) ++at;
  return std::min(at + 1, end);
}

/// Ops of [first, second) and [second, end) in turns.
void weave_two(std::vector<Op>& ops, std::size_t first, std::size_t second, std::size_t end) {
  if (second == end) return;
  const std::int32_t later = ops[second].visit - ops[first].visit;
  for (std::size_t i = second; i < end; ++i) ops[i].visit -= later;
  std::vector<Op> woven;
  woven.reserve(end - first);
  std::size_t at[] = {first, second};
  const std::size_t ends[] = {second, end};
  while (at[0] < ends[0] || at[1] < ends[1]) {
    for (int i = 0; i < 2; ++i) {
      for (const std::size_t turn = end_of_turn(ops, at[i], ends[i]); at[i] < turn; ++at[i])
        woven.push_back(std::move(ops[at[i]]));
    }
  }
  std::ranges::move(woven, ops.begin() + static_cast<std::ptrdiff_t>(first));
}

/// Visits have numbers without gaps.
void number_visits(std::vector<Op>& ops) {
  std::map<std::int32_t, std::int32_t> numbers;
  for (const Op& op : ops) numbers.try_emplace(op.visit);
  std::int32_t next = numbers.empty() ? 0 : numbers.begin()->first;
  for (auto& [visit, number] : numbers) number = next++;
  for (Op& op : ops) op.visit = numbers.at(op.visit);
}

}  // namespace

bool goes_in_pairs(const PlanInputs& in, const PlanShape& shape) {
  const bool one_part = in.layout.mesh.pipeline * in.layout.pipeline.virtual_stages == 1;
  return in.layout.overlap_experts && one_part && shape.purpose > PlanPurpose::evaluate &&
         shape.micro_batches > 1;
}

std::int64_t schedule_round(const PlanInputs& in) {
  return in.layout.overlap_experts ? 2 * in.layout.mesh.pipeline : in.layout.mesh.pipeline;
}

std::vector<PipelineAction> paired_actions(std::int64_t micro_batches) {
  using enum PipelineAction::Kind;
  std::vector<PipelineAction> actions;
  for (std::int64_t k = 0; k < micro_batches; k += 2) {
    for (const PipelineAction::Kind kind : {forward, backward}) {
      for (std::int64_t m = k; m < std::min(k + 2, micro_batches); ++m)
        actions.push_back({.kind = kind, .micro_batch = m});
    }
  }
  return actions;
}

void weave(Plan& plan, const std::vector<std::size_t>& begins) {
  const auto begin = [&](std::size_t i) { return i < begins.size() ? begins[i] : plan.ops.size(); };
  const std::size_t pairs = begins.size() / 4 * 4;  // forwards and backwards of two micro-batches
  for (std::size_t i = 0; i < pairs; i += 2)
    weave_two(plan.ops, begin(i), begin(i + 1), begin(i + 2));
  number_visits(plan.ops);
}

}  // namespace tessera::plan
