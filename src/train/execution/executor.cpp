#include "train/execution/executor.hpp"

#include <algorithm>

#include "comm/self_group.hpp"
#include "core/math.hpp"
#include "plan/ir/print.hpp"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Tasks that are done together.
class Together : public streams::Task {
 public:
  explicit Together(std::vector<std::unique_ptr<streams::Task>> tasks) : tasks_(std::move(tasks)) {}

  streams::Progress advance() override {
    bool some = false;
    std::erase_if(tasks_, [&](const auto& task) {
      const streams::Progress made = task->advance();
      some = some || made != streams::Progress::idle;
      return made == streams::Progress::done;
    });
    if (tasks_.empty()) return streams::Progress::done;
    return some ? streams::Progress::some : streams::Progress::idle;
  }

 private:
  std::vector<std::unique_ptr<streams::Task>> tasks_;
};

/// Copies what is wanted of the bytes, neighbouring parts at once.
std::unique_ptr<streams::Task> start_copy(memory::Tier& tier, const plan::Copy& copy) {
  if (!copy.begins) return tier.start_copy(copy.from.data, copy.to.data, copy.from.span_bytes());
  const std::int64_t parts = copy.begins.cols() - 1, bytes = copy.from.span_bytes() / parts;
  const auto has_rows = [&](std::int64_t part) {
    const auto* begin = copy.begins.as<std::int32_t>() + part;
    for (std::int64_t i = 0; i < copy.begins.rows(); ++i, begin += parts + 1)
      if (begin[0] < begin[1]) return true;
    return false;
  };
  std::vector<std::unique_ptr<streams::Task>> tasks;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t first = i;
    while (i < parts && has_rows(i)) ++i;
    if (i == first) continue;
    auto task = tier.start_copy(copy.from.data + first * bytes, copy.to.data + first * bytes,
                                (i - first) * bytes);
    if (task) tasks.push_back(std::move(task));
  }
  return std::make_unique<Together>(std::move(tasks));
}

/// Runs `work`, a part of an op, and adds the op's name to what it throws.
template <typename Work>
auto within(const plan::Op& op, std::int32_t micro_batch, const plan::PlanInputs& inputs,
            Work&& work) {
  try {
    return work();
  } catch (Error& e) {
    e.add_context(op_name(op, inputs, micro_batch));
    throw;
  }
}

}  // namespace

View BoundPlan::real(const View& symbolic) const {
  View v = symbolic;
  const plan::Buffer& buffer = plan_.buffer(plan::buffer_of(symbolic));
  v.data = memory_[plan::arena_of(buffer)] + buffer.offset + plan::offset_of(symbolic);
  return v;
}

BoundPlan::BoundPlan(const plan::Plan& plan, const PlanMemory& memory)
    : plan_(plan), memory_(memory) {
  std::array<std::int64_t, kStreams> count{};
  std::vector<std::int64_t> position;
  ops_.resize(plan.ops.size());
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const plan::Op& op = plan.ops[i];
    BoundOp& bound = ops_[i];
    bound.op = &op;
    bound.call = op.call;
    plan::each_view(bound.call, [&](View& v, kernels::Access) {
      const auto& buffer = plan.buffer(plan::buffer_of(v));
      v = real(v);
      const plan::ArenaId arena = plan::arena_of(buffer);
      reach_[arena] = std::max(reach_[arena], v.data + v.span_bytes() - memory[arena]);
    });
    if (const auto* copy = std::get_if<plan::Copy>(&op.call)) {
      const auto location = [&](const View& v) { return plan.buffer(plan::buffer_of(v)).location; };
      const plan::Location from = location(copy->from), to = location(copy->to);
      if (from == plan::Location::disk || to == plan::Location::disk) {
        bound.carrier = plan::Location::disk;
      } else if (from == plan::Location::host && to == plan::Location::host) {
        bound.carrier = plan::Location::host;
      }
    }
    bound.by_host = bound.carrier != plan::Location::device || op.location == plan::Location::host;
    // Tokens are loaded before the device begins.
    of_device_ = of_device_ && (!bound.by_host || std::holds_alternative<plan::LoadBatch>(op.call));
    std::vector<plan::OpId> waits = op.waits;
    const auto fixed = std::ranges::stable_partition(
        waits, [&](plan::OpId id) { return counts_with_runs(plan, id); });
    bound.moving = waits.size() - fixed.size();
    for (plan::OpId id : waits) {
      const auto other = static_cast<std::size_t>(id);
      bound.waits.push_back({static_cast<std::size_t>(plan.ops[other].stream), position[other]});
    }
    position.push_back(++count[static_cast<std::size_t>(op.stream)]);
  }
  if (!plan.repeat) return;
  for (plan::OpId i = plan.repeat->first; i < plan.repeat->second(); ++i)
    ++repeated_[static_cast<std::size_t>(plan.op(i).stream)];
}

std::vector<streams::Event> BoundPlan::waits_of(plan::OpId op, std::int64_t before) const {
  const BoundOp& bound = at(ops_, op);
  std::vector<streams::Event> waits = bound.waits;
  for (std::size_t i = 0; i < bound.moving; ++i)
    waits[i].count += before * repeated_[waits[i].stream];
  return waits;
}

void StepTimes::add(const StepTimes& other) {
  total += other.total;
  compute.resize(std::max(compute.size(), other.compute.size()));
  for (std::size_t i = 0; i < other.compute.size(); ++i) compute[i] += other.compute[i];
  comm_exposed += other.comm_exposed;
  pipeline_exposed += other.pipeline_exposed;
  copy_exposed += other.copy_exposed;
  save_exposed += other.save_exposed;
  data_exposed += other.data_exposed;
  between += other.between;
  for_others += other.for_others;
}

comm::Group& Groups::of(const plan::Op& op) const {
  for (const plan::ChannelRow& row : plan::kChannelRows) {
    if (!row.carries(op.group, op.stream)) continue;
    const auto& group = groups_[static_cast<std::size_t>(row.channel)];
    TESSERA_CHECK(group, "an op of channel {}, which this rank is not in", row.name);
    return *group;
  }
  throw InternalError(fmt::format("no channel carries ops of group {} on stream {}",
                                  enum_word(op.group), enum_word(op.stream)));
}

Groups self_groups() {
  Groups groups;
  for (const plan::ChannelRow& row : plan::kChannelRows)
    groups[row.channel] = comm::make_self_group();
  return groups;
}

Groups make_groups(const plan::PlanInputs& in, std::int64_t rank, const MakeGroup& make) {
  Groups groups = self_groups();
  for (const plan::ChannelRow& row : plan::kChannelRows) {
    if (!is_used(in, row)) continue;
    const plan::ChannelRow& shared = shared_with(in.layout.mesh, row);
    groups[row.channel] =
        shared.channel != row.channel
            ? groups[shared.channel]
            : make(in.layout.mesh.members(rank, row.ranks),
                   group_shape(in, in.layout.mesh.place_of(rank), row.ranks), row.traffic);
  }
  return groups;
}

std::unique_ptr<streams::Task> Executor::start(const BoundPlan::BoundOp& bound) {
  const plan::Op& op = *bound.op;
  const plan::Call& call = bound.call;
  if (const auto* copy = std::get_if<plan::Copy>(&call))
    return start_copy(*tiers_[bound.carrier], *copy);
  if (const auto* kernel = std::get_if<kernels::KernelCall>(&call))
    return (bound.by_host ? beside_.on_host : beside_.on_device)(*kernel);
  if (const auto* tile = std::get_if<plan::SaveTile>(&call)) return hooks_.save(op, *tile);
  return groups_.of(op).start(std::get<comm::CollectiveCall>(call));
}

/// The task of an op beside compute; what it throws names the op.
class Executor::Named : public streams::Task {
 public:
  Named(Executor& executor, const BoundPlan::BoundOp& bound, const plan::OpRun& run,
        std::int32_t micro_batch)
      : op_(*bound.op), micro_batch_(micro_batch), inputs_(executor.inputs_) {
    task_ = within(op_, micro_batch_, inputs_, [&] {
      if (executor.hooks_.before) executor.hooks_.before(bound, run);
      return executor.start(bound);
    });
  }
  streams::Progress advance() override {
    if (!task_) return streams::Progress::done;
    return within(op_, micro_batch_, inputs_, [&] { return task_->advance(); });
  }

 private:
  const plan::Op& op_;
  std::int32_t micro_batch_;
  const plan::PlanInputs& inputs_;
  std::unique_ptr<streams::Task> task_;
};

std::vector<streams::Stretch> Executor::load_all(const BoundPlan& bound, const Loader& load,
                                                 Clock::time_point begin) {
  std::vector<streams::Stretch> all;
  std::vector<std::byte> host;
  for (const BoundPlan::BoundOp& first : bound.ops()) {
    const plan::Op* op = first.op;
    const auto* batch = std::get_if<plan::LoadBatch>(&first.call);
    if (batch == nullptr) break;  // loads come first
    all.push_back({.begin = seconds(begin, Clock::now())});
    within(*op, op->micro_batch, inputs_, [&] {
      host.assign(static_cast<std::size_t>(batch->row.cols()), std::byte{});
      plan::LoadBatch filled = *batch;
      filled.visit(filled, [&](View& v, kernels::Access) {
        if (v) v.data = host.data() + (v.data - batch->row.data);
      });
      load(op->micro_batch, filled);
      tier_.write(batch->row.data, host);
    });
    all.back().end = seconds(begin, Clock::now());
  }
  return all;
}

void Executor::issue(const BoundPlan& bound, const plan::OpRun& run, std::int64_t said,
                     Whereabouts::Running& running) {
  const BoundPlan::BoundOp& bound_op = at(bound.ops(), run.op);
  const plan::Op* op = bound_op.op;
  const plan::Call& call = bound_op.call;
  const std::int32_t micro_batch = micro_batch_of(bound.plan(), run);
  running.at(*op, micro_batch);
  streams::Work work{.stream = static_cast<std::size_t>(op->stream),
                     .waits = bound.waits_of(run.op, said),
                     .by_host = bound_op.by_host,
                     .part = static_cast<std::size_t>(op->unit + 1),
                     // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): a literal
                     .name = plan::call_name(call).data()};
  if (op->stream != Stream::compute) {
    return streams_.enqueue(std::move(work), [this, &bound_op, run, micro_batch] {
      return std::make_unique<Named>(*this, bound_op, run, micro_batch);
    });
  }
  streams_.run(work, [&] {
    if (hooks_.before) hooks_.before(bound_op, run);
    if (const auto* kernel = std::get_if<kernels::KernelCall>(&call))
      within(*op, micro_batch, inputs_, [&] { device_.run(*kernel); });
  });
  if (hooks_.after) hooks_.after(bound_op, run);
}

void Executor::issue(const BoundPlan& bound, Whereabouts::Running& running) {
  const plan::Plan& plan = bound.plan();
  const auto all = [&](plan::OpId begin, plan::OpId end, std::int64_t before, std::int64_t said) {
    for (plan::OpId i = begin; i < end; ++i) issue(bound, {i, before}, said, running);
  };
  const auto ops = static_cast<plan::OpId>(bound.ops().size());
  if (!plan.repeat) return all(0, ops, 0, 0);
  const plan::OpId begin = plan.repeat->second(), end = plan.repeat->end();
  all(0, begin, 0, 0);
  const std::int64_t times = streams_.begin_repeat(plan.repeat->times);
  for (std::int64_t i = 0; i < times; ++i) all(begin, end, i, i);
  streams_.end_repeat();
  all(end, ops, plan.repeat->times - 1, times - 1);
}

void Executor::write(const BoundPlan& bound, const StepInput& input) {
  const plan::Plan& plan = bound.plan();
  using Words = plan::WordLayout;
  TESSERA_CHECK(std::ssize(input.tally_targets) == plan.shape.tallies,
                "targets of {} tallies, in a step of {}", input.tally_targets.size(),
                plan.shape.tallies);
  std::vector<std::int64_t> words(input.flags.begin(), input.flags.end());
  words.push_back(input.targets);
  words.insert(words.end(), input.tally_targets.begin(), input.tally_targets.end());
  const View set = plan.words.range(Words::flags, std::ssize(words));
  tier_.write(bound.real(plan.scalars).data, std::as_bytes(std::span(input.scalars)));
  tier_.write(bound.real(set).data, std::as_bytes(std::span(words)));
}

void Executor::read(const BoundPlan& bound, StepOutput& output) {
  const plan::Plan& plan = bound.plan();
  output.tallies = plan.shape.tallies;
  output.words.resize(static_cast<std::size_t>(plan.words.elements()));
  tier_.read(bound.real(plan.words).data, std::as_writable_bytes(std::span(output.words)));
  const auto part = [&](const View& of, std::vector<std::int64_t>& into) {
    const std::int64_t first = (of.data - plan.words.data) / size_of(DType::i64);
    const auto begin = output.words.begin() + first;
    into.assign(begin, begin + of.elements());
  };
  if (plan.choices) part(plan.choices, output.choices);
  if (plan.statistics) part(plan.statistics, output.statistics);
  if (plan.confusion) {
    output.confusion.resize(static_cast<std::size_t>(plan.confusion.elements()));
    tier_.read(bound.real(plan.confusion).data,
               std::as_writable_bytes(std::span(output.confusion)));
    for (std::int64_t& count : output.confusion) count /= plan.group(MeshGroup::tensor).size;
  }
  std::array<float, static_cast<std::size_t>(kernels::VerdictField::count)> verdict{};
  tier_.read(bound.real(plan.verdict).data, std::as_writable_bytes(std::span(verdict)));
  output.applied = verdict[static_cast<std::size_t>(kernels::VerdictField::apply)] != 0;
}

StepOutput Executor::run(const BoundPlan& bound, const StepInput& input, const Loader& load,
                         const Hooks& hooks, StepProfile* profile) {
  const auto begin = Clock::now();
  hooks_ = hooks;
  Whereabouts::Running running(whereabouts_, inputs_);
  write(bound, input);
  const auto loads = load_all(bound, load, begin);
  const double before = seconds(begin, Clock::now());
  if (streams_.begin(
          {.key = &bound,
           .works = static_cast<std::size_t>(runs_of(bound.plan())),
           .timing = profile != nullptr ? streams::Timing::works : streams::Timing::parts,
           .repeatable = bound.of_device() && !hooks.before && !hooks.after}))
    issue(bound, running);
  const streams::Times spent = streams_.finish();

  StepOutput output;
  read(bound, output);
  StepTimes& times = output.times;
  times.compute = spent.parts;
  for (const StreamRow& row : kStreamRows) {
    const double waited = spent.waited[index_of(row.stream)];
    const bool transfers = row.counts == StreamCounts::transfer;
    (transfers ? times.copy_exposed : times.comm_exposed) += waited;
    if (row.counts == StreamCounts::pipeline) times.pipeline_exposed += waited;
  }
  times.save_exposed = spent.waited[index_of(Stream::copy)];
  for (const streams::Stretch& l : loads) times.data_exposed += l.end - l.begin;
  times.total = seconds(begin, Clock::now());
  if (profile == nullptr) return output;
  *profile = {.begin = begin, .seconds = times.total, .ops = {}};
  for (std::size_t i = 0; i < spent.works.size(); ++i) {
    const streams::Stretch& w = spent.works[i];
    profile->ops.push_back(i < loads.size() ? plan::OpTime{loads[i].begin, loads[i].end}
                                            : plan::OpTime{before + w.begin, before + w.end});
  }
  return output;
}

}  // namespace tessera::train
