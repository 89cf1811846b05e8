#include "train/guards/fault_injection.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>
#include <sstream>
#include <thread>

#include "core/terminal.hpp"
#include "deck/names.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_reader.hpp"

namespace tessera::train {
namespace {

using deck::FaultKind;
namespace fs = std::filesystem;

/// Whether the fault goes on once it has begun. Such a fault happens again in every start.
bool lasts(FaultKind kind) { return kind == FaultKind::slow || kind == FaultKind::slow_disk; }

bool is_of_files(FaultKind kind) {
  return kind == FaultKind::eio || kind == FaultKind::enospc || kind == FaultKind::short_transfer ||
         kind == FaultKind::slow_disk;
}

fs::path spent_file(const fs::path& directory, std::int64_t rank) {
  return directory / "faults" / fmt::format("rank_{:05}", rank);
}

std::set<std::string> spent_before(const fs::path& directory, std::int64_t rank) {
  const fs::path path = spent_file(directory, rank);
  std::set<std::string> lines;
  if (!io::path_exists(path)) return lines;
  constexpr std::int64_t kLargest = 1 << 20;
  std::istringstream file(io::read_text(path, kLargest));
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

bool matches(const deck::Fault& fault, IoCall call, const fs::path& path, std::size_t bytes) {
  if (fault.call && *fault.call != call) return false;
  if (fault.kind == FaultKind::short_transfer && bytes < 2) return false;
  return path.string().find(fault.path) != std::string::npos;
}

/// The first operation that sums a unit's gradient, over ranks or into the norm, or joins momentum
/// to it. Backward has written all of the gradient before it, and nothing has read it yet.
const plan::Op& first_sum(const plan::Plan& plan, std::size_t unit) {
  return *std::ranges::find_if(plan.ops, [&](const plan::Op& op) {
    return op.unit == static_cast<std::int32_t>(unit) &&
           (plan::joins_momentum(op, op.call) != nullptr ||
            op.kind == plan::OpKind::reduce_gradients || op.kind == plan::OpKind::sum_gradients ||
            op.kind == plan::OpKind::norm);
  });
}

plan::BufferId gradient_of(const plan::Plan& plan, const plan::Op& sum) {
  for (const plan::BufferUse& use : plan::uses_of(sum)) {
    const plan::Buffer& buffer = plan.buffers[static_cast<std::size_t>(use.buffer)];
    if (buffer.purpose == plan::BufferPurpose::gradients) return use.buffer;
  }
  throw InternalError("a sum of gradients that reads none");
}

/// The mantissa's highest bit: flipping it changes a number by much, but neither its sign nor its
/// exponent.
int highest_mantissa_bit(DType type) {
  return type == DType::f32 ? 22 : type == DType::bf16 ? 6 : 9;
}

/// Keeps `mark` true while it lives.
struct Marked {
  explicit Marked(bool& m) : mark(m) { mark = true; }
  ~Marked() { mark = false; }
  bool& mark;
};

thread_local bool telling_here = false;  // this thread tells of a fault

void flip_bit(std::byte& byte, int bit) { byte ^= std::byte{1} << bit; }

}  // namespace

FaultInjection::FaultInjection(const deck::LoadedDeck& loaded, int rank, const fs::path& directory,
                               Engine& engine)
    : rank_(rank), directory_(directory), engine_(engine) {
  bool any_of_files = false;
  for (const deck::Fault& fault : loaded.deck.fault.inject) {
    planned_.push_back(
        {.fault = fault,
         .tensor = fault.tensor.empty() ? Tensor{} : find_tensor(loaded, fault),
         .spent = spent_before(directory, fault.rank).contains(printable(to_text(fault)))});
    any_of_files = any_of_files || (mine(planned_.back()) && is_of_files(fault.kind));
  }
  if (planned_.empty()) return;
  io::create_directories(directory / "faults");
  spent_.emplace(spent_file(directory, rank));
  io::sync_directory(directory / "faults");
  io::sync_directory(directory);
  report_ = Reporter(directory);
  if (!any_of_files) return;
  io::set_io_hook([this](IoCall call, const fs::path& path, std::size_t bytes) {
    return on_call(call, path, bytes);
  });
}

FaultInjection::~FaultInjection() { io::set_io_hook({}); }

FaultInjection::Tensor FaultInjection::find_tensor(const deck::LoadedDeck& loaded,
                                                   const deck::Fault& fault) const {
  const auto refuse = [&](const std::string& why) {
    return DeckError(fmt::format("{}: fault.inject has \"{}\", but {}",
                                 loaded.where("fault.inject"), to_text(fault), why));
  };
  const auto& units = engine_.inputs().model.units;
  std::vector<std::string_view> names;
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t p = 0; p < units[u].params.size(); ++p) {
      names.push_back(units[u].params[p].name);
      if (names.back() != fault.tensor) continue;
      if (fault.kind == FaultKind::flip && fault.rank == rank_ &&
          !engine_.unsettled_state().owned_part(u, p).view)
        throw refuse("the rank updates nothing of that tensor: name another rank");
      if (fault.rank == rank_ && !engine_.unsettled_state().units()[u].held)
        throw refuse("that tensor is on another pipeline stage: name a rank of it");
      if (fault.kind == FaultKind::nan && !units[u].traits.trained)
        throw refuse("that tensor is frozen: it has no gradient");
      return {u, p};
    }
  }
  const auto nearest = deck::nearest_name(fault.tensor, names);
  throw refuse(fmt::format("the model has no such tensor (did you mean {}?)",
                           nearest.empty() ? names.front() : nearest));
}

void FaultInjection::announce(Reporter& report) const {
  if (planned_.empty()) return;
  report.say("FAULTS    this run injects faults into itself (fault.inject):");
  for (const Planned& p : planned_) {
    report.say(fmt::format("          {}{}", printable(to_text(p.fault)),
                           p.spent ? " (has happened)" : ""));
    report.event({{"event", "fault"},
                  {"what", p.spent ? "spent" : "armed"},
                  {"fault", to_text(p.fault)},
                  {"rank", p.fault.rank}});
  }
}

void FaultInjection::tell(Planned& p) {
  const Marked telling(telling_here);  // which writes files too, and that never fails
  const std::lock_guard lock(telling_);
  p.spent = true;
  const std::string text = printable(to_text(p.fault));
  if (!lasts(p.fault.kind)) {
    spent_->write(text);
    spent_->sync();
  }
  report_.say(fmt::format("FAULT     in step {}: {}", step_.load(), text));
  report_.event({{"event", "fault"},
                 {"what", "injected"},
                 {"fault", text},
                 {"rank", rank_},
                 {"step", step_.load()}});
}

void FaultInjection::begin(std::int64_t step) {
  step_ = step;
  for (Planned& p : planned_) {
    // What a step has left is done by all ranks together.
    if (p.fault.kind == FaultKind::flip && step == p.fault.step) engine_.state();
    if (!mine(p) || is_of_files(p.fault.kind)) continue;  // those are of any thread
    if (p.fault.kind == FaultKind::slow && step >= p.fault.step) {
      if (!p.spent) tell(p);
      std::this_thread::sleep_for(std::chrono::milliseconds(p.fault.ms));
    }
    if (p.spent || step != p.fault.step) continue;
    switch (p.fault.kind) {
      case FaultKind::kill: tell(p), std::raise(SIGKILL); break;
      case FaultKind::stop: tell(p), std::raise(SIGSTOP); break;
      case FaultKind::flip: tell(p), flip_parameter(p); break;
      default: break;  // happens later
    }
  }
}

void FaultInjection::flip_parameter(const Planned& p) {
  const auto [part, tier] = engine_.state().owned_part(p.tensor.unit, p.tensor.parameter);
  const int bit = highest_mantissa_bit(part.type);
  std::byte byte{};
  tier->read(part.data + bit / 8, {&byte, 1});
  flip_bit(byte, bit % 8);
  tier->write(part.data + bit / 8, {&byte, 1});
}

Executor::Hooks FaultInjection::hooks(const PreparedPlan& prepared) {
  struct Poison {
    Planned* planned;
    const plan::Op* before;
    View element;
  };
  std::vector<Poison> poisons;
  bool any = false;  // of all ranks: they queue a step alike, with hooks or without
  for (Planned& p : planned_) {
    if (p.fault.kind != FaultKind::nan || step_ != p.fault.step) continue;
    any = true;
    const bool again = p.spent && p.step == step_;
    if (!mine(p) || (p.spent && !again)) continue;
    const plan::Op& sum = first_sum(prepared.plan(), p.tensor.unit);
    const DType type = engine_.inputs().numerics.accumulate;
    const plan::BufferId gradient = gradient_of(prepared.plan(), sum);
    const std::int64_t at =
        engine_.unsettled_state().units()[p.tensor.unit].layout.offset_of(p.tensor.parameter) *
            size_of(type) -
        prepared.plan().buffer(gradient).home_byte;
    const View element(plan::symbolic(gradient, at), type, {1});
    poisons.push_back({&p, &sum, prepared.bound.real(element)});
  }
  if (!any) return {};
  const auto poison_gradients = [this, poisons](const BoundPlan::BoundOp& op, const plan::OpRun&) {
    for (const Poison& poison : poisons) {
      if (poison.before != op.op) continue;
      if (!poison.planned->spent) tell(*poison.planned);
      poison.planned->step = step_;
      const std::vector<std::byte> nan(static_cast<std::size_t>(poison.element.span_bytes()),
                                       std::byte{0xff});  // of every type
      engine_.tier().write(poison.element.data, nan);
    }
  };
  return {.before = poison_gradients, .after = {}};
}

void FaultInjection::committed(std::int64_t step) {
  const fs::path checkpoint = io::checkpoint_path(directory_ / "checkpoints", step);
  for (Planned& p : planned_) {
    if (p.fault.kind != FaultKind::flip_file || !mine(p) || p.spent || step < p.fault.step)
      continue;
    tell(p);
    io::File file(checkpoint / io::rank_file_name(rank_), io::OpenMode::update);
    const io::Manifest manifest = io::read_manifest(checkpoint);
    const io::RankPart& part = manifest.parts[static_cast<std::size_t>(rank_)];
    const std::int64_t at = part.datasets.empty() ? file.size() / 2 : part.datasets.front().offset;
    std::byte byte{};
    file.read(at, {&byte, 1});
    flip_bit(byte, 0);
    file.write(at, {&byte, 1});
    file.close();
  }
}

io::IoVerdict FaultInjection::on_call(IoCall call, const fs::path& path, std::size_t bytes) {
  io::IoVerdict verdict;
  if (telling_here) return verdict;
  const std::lock_guard lock(mutex_);
  for (Planned& p : planned_) {
    const deck::Fault& fault = p.fault;
    if (!mine(p) || !is_of_files(fault.kind)) continue;
    const bool before = p.spent && p.calls == 0 && !lasts(fault.kind);  // in an earlier start
    if (before || step_ < fault.step || !matches(fault, call, path, bytes)) continue;
    ++p.calls;
    const bool hit = p.calls >= fault.nth && p.calls < fault.nth + fault.count;
    if (!hit && !lasts(fault.kind)) continue;
    if (!p.spent) tell(p);
    switch (fault.kind) {
      case FaultKind::eio: verdict.error = EIO; break;
      case FaultKind::enospc: verdict.error = ENOSPC; break;
      case FaultKind::short_transfer: verdict.at_most = bytes / 2; break;
      default: verdict.delay += std::chrono::milliseconds(fault.ms);
    }
  }
  return verdict;
}

}  // namespace tessera::train
