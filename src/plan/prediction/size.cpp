#include "plan/prediction/size.hpp"

#include "core/clock.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/passes/repeat.hpp"
#include "plan/passes/weave.hpp"

namespace tessera::plan {
namespace {

template <typename T>
std::int64_t held(const std::vector<T>& v) {
  return static_cast<std::int64_t>(v.size() * sizeof(T));
}
/// Short texts lie within the object that has them.
std::int64_t held(const std::string& text) {
  return text.size() > std::string().capacity() ? std::ssize(text) + 1 : 0;
}
std::int64_t held(const Op& op) {
  const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
  const auto* counts = call == nullptr ? nullptr : std::get_if<comm::AllToAllV>(call);
  return held(op.waits) +
         (counts == nullptr ? 0 : held(counts->send_counts) + held(counts->receive_counts));
}

PlanSize measured(const PlanInputs& in, PlanShape shape, std::int64_t micro_batches,
                  const MeshPlace& place) {
  shape.micro_batches = micro_batches;
  const auto begin = SteadyClock::now();
  const Plan plan = make_plan(in, shape, place);
  return {.operations = static_cast<double>(plan.ops.size()),
          .bytes = static_cast<double>(held_bytes(plan)),
          .seconds = seconds_since(begin)};
}

}  // namespace

std::int64_t held_bytes(const Plan& plan) {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(Plan)) + held(plan.ops) +
                       held(plan.buffers) + held(plan.shares);
  for (const Op& op : plan.ops) bytes += held(op);
  for (const Buffer& b : plan.buffers) bytes += held(b.name);
  for (const UnitShare& s : plan.shares) bytes += held(s.of_node_owners) + held(s.kept);
  return bytes;
}

PlanSize size_of_step(const PlanInputs& in, const PlanShape& shape, const MeshPlace& place) {
  const std::int64_t round = schedule_round(in), few = 4 * round, more = 8 * round;
  if (shape.micro_batches <= more || scheduled_at_first(in, shape))
    return measured(in, shape, shape.micro_batches, place);
  const PlanSize a = measured(in, shape, few, place), b = measured(in, shape, more, place);
  const double times =
      static_cast<double>(shape.micro_batches - more) / static_cast<double>(more - few);
  const auto continued = [&](double PlanSize::*of) { return b.*of + times * (b.*of - a.*of); };
  PlanSize size{.operations = continued(&PlanSize::operations),
                .bytes = continued(&PlanSize::bytes)};
  // Of times a difference would be mostly noise.
  size.seconds = b.seconds * size.operations / b.operations;
  return size;
}

}  // namespace tessera::plan
