#include "train/executor.hpp"

#include <algorithm>

#include "comm/self_group.hpp"
#include "plan/print.hpp"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Does a part of an op; what it throws names the op.
template <typename Work>
auto within(const plan::Op& op, const plan::PlanInputs& inputs, Work&& work) {
  try {
    return work();
  } catch (Error& e) {
    e.add_context(op_name(op, inputs));
    throw;
  }
}

}  // namespace

View BoundPlan::real(const View& symbolic) const {
  View v = symbolic;
  const plan::Buffer& buffer = plan_.buffers[static_cast<std::size_t>(plan::buffer_of(symbolic))];
  std::byte* arena = plan::arena_of(buffer) == plan::ArenaId::state ? memory_.state : memory_.step;
  v.data = arena + buffer.offset + plan::offset_of(symbolic);
  return v;
}

BoundPlan::BoundPlan(const plan::Plan& plan, const PlanMemory& memory)
    : plan_(plan), memory_(memory) {
  std::array<std::int64_t, plan::kStreams> count{};
  std::vector<std::int64_t> position;
  for (const plan::Op& op : plan.ops) {
    BoundOp bound{.op = &op, .call = op.call, .waits = {}};
    plan::each_view(bound.call, [&](View& v, kernels::Access) {
      const auto& buffer = plan.buffers[static_cast<std::size_t>(plan::buffer_of(v))];
      v = real(v);
      const bool state = plan::arena_of(buffer) == plan::ArenaId::state;
      const std::int64_t end = v.data + v.span_bytes() - (state ? memory.state : memory.step);
      std::int64_t& reach = state ? reach_.state : reach_.step;
      reach = std::max(reach, end);
    });
    for (plan::OpId id : op.waits) {
      const auto other = static_cast<std::size_t>(id);
      bound.waits.push_back({static_cast<std::size_t>(plan.ops[other].stream), position[other]});
    }
    position.push_back(++count[static_cast<std::size_t>(op.stream)]);
    ops_.push_back(std::move(bound));
  }
}

void StepTimes::add(const StepTimes& other) {
  total += other.total;
  compute.resize(std::max(compute.size(), other.compute.size()));
  for (std::size_t i = 0; i < other.compute.size(); ++i) compute[i] += other.compute[i];
  comm_exposed += other.comm_exposed;
  pipeline_exposed += other.pipeline_exposed;
  copy_exposed += other.copy_exposed;
  data_exposed += other.data_exposed;
}

comm::Group& Groups::of(const plan::Op& op) const {
  const auto& group = [&]() -> const std::unique_ptr<comm::Group>& {
    switch (op.group) {
      case MeshGroup::world: return world;
      case MeshGroup::data: return op.stream == plan::Stream::gather ? gather : reduce;
      case MeshGroup::tensor: return tensor;
      case MeshGroup::ends: return ends;
      case MeshGroup::pipeline: break;
    }
    const bool down =
        op.stream == plan::Stream::send_forward || op.stream == plan::Stream::receive_forward;
    return down ? forward : backward;
  }();
  TESSERA_CHECK(group, "an op of a group that this rank is not in");
  return *group;
}

Groups self_groups() {
  const auto self = [] { return comm::make_self_group(); };
  return {.world = self(),
          .gather = self(),
          .reduce = self(),
          .tensor = self(),
          .forward = self(),
          .backward = self(),
          .ends = self()};
}

std::unique_ptr<memory::Task> Executor::start(const plan::Op& op, const plan::Call& call) {
  if (const auto* copy = std::get_if<plan::Copy>(&call))
    return memory::make_copy_task(copy->from.data, copy->to.data, copy->from.span_bytes());
  return groups_.of(op).start(std::get<comm::CollectiveCall>(call));
}

/// An op of a background stream from its start on: what it throws names it, and its times are noted
/// where there is a profile.
class Executor::BackgroundOp : public memory::Task {
 public:
  BackgroundOp(Executor& executor, const BoundPlan::BoundOp& bound, StepProfile* profile,
               std::size_t index)
      : op_(*bound.op), inputs_(executor.inputs_), profile_(profile), index_(index) {
    if (profile_ != nullptr) time().begin = seconds(profile_->begin, Clock::now());
    task_ = within(op_, inputs_, [&] { return executor.start(op_, bound.call); });
  }
  memory::Progress advance() override {
    const auto progress = within(op_, inputs_, [&] { return task_->advance(); });
    if (profile_ != nullptr && progress == memory::Progress::done)
      time().end = seconds(profile_->begin, Clock::now());
    return progress;
  }

 private:
  plan::OpTime& time() { return profile_->ops[index_]; }

  const plan::Op& op_;
  const plan::PlanInputs& inputs_;
  StepProfile* profile_;
  std::size_t index_;
  std::unique_ptr<memory::Task> task_;
};

StepTimes Executor::run(const BoundPlan& bound, const Loader& load, const Hooks& hooks,
                        StepProfile* profile) {
  const auto begin = Clock::now();
  if (profile != nullptr) *profile = {.begin = begin, .ops = {bound.ops().size(), plan::OpTime{}}};
  StepTimes times;
  std::array<std::int64_t, plan::kStreams> base{};
  for (std::size_t s = 0; s < plan::kStreams; ++s) base[s] = streams_.last(s).count;
  const auto wait = [&](memory::Event event) {
    const auto from = Clock::now();
    if (!streams_.wait(event)) return;
    const double waited = seconds(from, Clock::now());
    const auto stream = static_cast<plan::Stream>(event.stream);
    (stream == plan::Stream::copy ? times.copy_exposed : times.comm_exposed) += waited;
    if (stream >= plan::Stream::send_forward) times.pipeline_exposed += waited;
  };

  Whereabouts::Running running(whereabouts_, inputs_);
  for (std::size_t i = 0; i < bound.ops().size(); ++i) {
    const BoundPlan::BoundOp& bound_op = bound.ops()[i];
    const auto& [op, call, relative_waits] = bound_op;
    running.at(*op);
    if (hooks.before) hooks.before(bound_op);
    std::vector<memory::Event> waits = relative_waits;
    for (memory::Event& e : waits) e.count += base[e.stream];
    const auto stream = static_cast<std::size_t>(op->stream);
    if (op->stream != plan::Stream::compute) {
      streams_.enqueue(stream, std::move(waits), [this, &bound_op, profile, i] {
        return std::make_unique<BackgroundOp>(*this, bound_op, profile, i);
      });
      continue;
    }
    for (const memory::Event& e : waits) wait(e);
    const auto from = Clock::now();
    const auto* batch = std::get_if<plan::LoadBatch>(&call);
    within(*op, inputs_, [&, op = op, &call = call] {
      batch != nullptr ? load(op->micro_batch, *batch)
                       : device_.run(std::get<kernels::KernelCall>(call));
    });
    const auto to = Clock::now();
    const double spent = seconds(from, to);
    if (profile != nullptr) profile->ops[i] = {seconds(begin, from), seconds(begin, to)};
    if (hooks.after) hooks.after(bound_op);
    if (batch != nullptr) {
      times.data_exposed += spent;
    } else {
      const auto unit = static_cast<std::size_t>(op->unit + 1);
      if (times.compute.size() <= unit) times.compute.resize(unit + 1);
      times.compute[unit] += spent;
    }
    streams_.complete(stream);
  }
  for (std::size_t s = 1; s < plan::kStreams; ++s) wait(streams_.last(s));
  times.total = seconds(begin, Clock::now());
  if (profile != nullptr) profile->seconds = times.total;
  return times;
}

}  // namespace tessera::train
