#include "support/lockstep.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <optional>

namespace tessera::test {

namespace {

/// Fills everything that a call declares as written with NaN before it runs. Otherwise a read that
/// does not wait for the call could find the same values there from an earlier one, and a write
/// that does not wait for a read could happen to leave the bytes as they were.
class Forgetful : public comm::Group {
 public:
  explicit Forgetful(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}
  std::int64_t rank() const override { return group_->rank(); }
  const comm::GroupShape& shape() const override { return group_->shape(); }
  std::unique_ptr<streams::Task> start(const comm::CollectiveCall& call) override {
    std::visit(
        [](const auto& args) {
          args.visit(args, [&args](const View& written, kernels::Access access) {
            if (!written || access != kernels::Access::write) return;
            std::vector<std::pair<std::byte*, std::byte*>> kept;
            args.visit(args, [&kept](const View& other, kernels::Access of_other) {
              if (other && of_other != kernels::Access::write)
                kept.emplace_back(other.data, other.data + other.span_bytes());
            });
            std::ranges::sort(kept);
            std::byte* from = written.data;
            std::byte* const end = from + written.span_bytes();
            for (const auto& [first, last] : kept) {
              if (last <= from || first >= end) continue;
              std::fill(from, std::max(from, first), std::byte{0xff});
              from = last;
            }
            std::fill(std::min(from, end), end, std::byte{0xff});
          });
        },
        call);
    return group_->start(call);
  }

 private:
  std::shared_ptr<comm::Group> group_;
};

}  // namespace

/// A rank's streams, and the fiber that its work runs on.
class Lockstep::Rank : public streams::TaskStreams {
 public:
  Rank(Lockstep& of, std::int64_t rank) : of_(of), rank_(rank) {}
  ~Rank() override { of_.ranks_[static_cast<std::size_t>(rank_)] = nullptr; }

  // Called on the fiber. Others may move wherever a thread of the rank's own would let them.
  streams::Event enqueue(std::size_t stream, std::vector<streams::Event> waits,
                         std::function<std::unique_ptr<streams::Task>()> start) override {
    lanes_[stream].queue.push_back({std::move(waits), std::move(start)});
    const streams::Event event{stream, ++queued_[stream]};
    yield();
    return event;
  }
  streams::Event complete(std::size_t stream) override {
    const streams::Event event{stream, done_[stream] = ++queued_[stream]};
    yield();
    return event;
  }
  streams::Event last(std::size_t stream) const override { return {stream, queued_[stream]}; }
  bool wait(streams::Event event) override {
    const bool had_to = !is_done(event);
    awaited_ = event;
    yield();
    awaited_.reset();
    if (error_) std::rethrow_exception(error_);
    return had_to;
  }

  void wait_until(std::function<bool()> until) {
    until_ = std::move(until);
    yield();
    until_ = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

  // Called by the scheduler.
  void begin(std::function<void()> work);
  bool returned() const { return returned_; }
  bool may_run() const {
    return !returned_ && (error_ || ((!awaited_ || is_done(*awaited_)) && (!until_ || until_())));
  }
  void run() {
    begun_ = true;
    of_.running_ = this;
    of_.scheduler_.switch_to(fiber_);
    of_.running_ = nullptr;
  }
  /// Unwinds the fiber.
  void abandon(const std::string& reason) {
    abandoned_ = true;
    if (begun_ && !returned_) run();
    wrong_ = reason;
  }
  bool may_advance(std::size_t stream) const;
  void advance(std::size_t stream);
  /// A message of this rank has moved.
  void wake() {
    for (Lane& lane : lanes_) lane.idle = false;
  }
  const std::string& wrong() const { return wrong_; }
  std::string whereabouts() const;

 private:
  struct Item {
    std::vector<streams::Event> waits;
    std::function<std::unique_ptr<streams::Task>()> start;
  };
  struct Lane {
    std::deque<Item> queue;
    std::unique_ptr<streams::Task> task;
    bool idle = false;  // until a message moves
  };
  struct Abandoned {};

  bool is_done(const streams::Event& e) const { return done_[e.stream] >= e.count; }
  void yield() {
    fiber_.switch_to(of_.scheduler_);
    if (abandoned_) throw Abandoned{};
  }
  void work_through();
  static void enter(void* rank);

  static constexpr std::size_t kStackBytes = std::size_t{1} << 20;

  Lockstep& of_;
  std::int64_t rank_;
  std::array<Lane, kStreams> lanes_;
  std::array<std::int64_t, kStreams> queued_{}, done_{};
  std::exception_ptr error_;  // of a lane; none of them moves after it
  std::unique_ptr<std::byte[]> stack_ = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Fiber fiber_;
  std::function<void()> work_;
  std::optional<streams::Event> awaited_;
  std::function<bool()> until_;
  bool begun_ = false, returned_ = false, abandoned_ = false;
  std::string wrong_;
};

void Lockstep::Rank::begin(std::function<void()> work) {
  work_ = std::move(work);
  begun_ = returned_ = false;
  fiber_.prepare(&Rank::enter, this, stack_.get(), kStackBytes);
}

void Lockstep::Rank::work_through() {
  try {
    work_();
  } catch (const Abandoned&) {
    // abandon() knows why
  } catch (const std::exception& e) {
    wrong_ = e.what();
  }
  returned_ = true;
}

void Lockstep::Rank::enter(void* rank) {
  auto* self = static_cast<Rank*>(rank);
  self->work_through();
  self->fiber_.switch_to(self->of_.scheduler_);  // which comes back to none that has returned
}

bool Lockstep::Rank::may_advance(std::size_t stream) const {
  const Lane& lane = lanes_[stream];
  if (error_ || lane.idle) return false;
  if (lane.task) return true;
  if (lane.queue.empty()) return false;
  const auto& waits = lane.queue.front().waits;
  return std::all_of(waits.begin(), waits.end(), [this](const auto& e) { return is_done(e); });
}

void Lockstep::Rank::advance(std::size_t stream) {
  Lane& lane = lanes_[stream];
  // A disk wakes nobody. What it begins in one move it has done in the next.
  const bool on_disk = stream == static_cast<std::size_t>(Stream::disk_read) ||
                       stream == static_cast<std::size_t>(Stream::disk_write);
  try {
    if (!lane.task) {
      lane.task = lane.queue.front().start();
      lane.queue.pop_front();
      if (lane.task && on_disk) return;
    }
    if (lane.task) {
      streams::Progress progress = lane.task->advance();
      while (on_disk && progress == streams::Progress::idle) {
        std::this_thread::yield();
        progress = lane.task->advance();
      }
      lane.idle = progress == streams::Progress::idle;
      if (progress != streams::Progress::done) return;
      lane.task.reset();
    }
    ++done_[stream];
  } catch (...) {
    error_ = std::current_exception();
  }
}

std::string Lockstep::Rank::whereabouts() const {
  if (!wrong_.empty()) return fmt::format("rank {} failed ({})", rank_, wrong_);
  if (returned_) return fmt::format("rank {} has returned", rank_);
  if (until_ && !until_()) return fmt::format("rank {} waits for other ranks", rank_);
  if (!awaited_ || is_done(*awaited_)) return fmt::format("rank {} may not run", rank_);
  return fmt::format("rank {} waits for op {} of its stream {}, {} are complete", rank_,
                     awaited_->count, enum_word(static_cast<Stream>(awaited_->stream)),
                     done_[awaited_->stream]);
}

Lockstep::Lockstep(std::int64_t ranks, comm::Sends sends)
    : ranks_(static_cast<std::size_t>(ranks)), networks_(sends) {}

train::Groups Lockstep::groups(const plan::PlanInputs& inputs, std::int64_t rank) {
  train::Groups groups = networks_.groups(inputs, rank);
  for (const plan::ChannelRow& row : plan::kChannelRows) {
    auto& group = groups[row.channel];
    const plan::ChannelRow& shared = shared_with(inputs.layout.mesh, row);
    if (shared.channel != row.channel) {
      group = groups[shared.channel];
    } else if (group) {
      group = std::make_shared<Forgetful>(std::move(group));
    }
  }
  return groups;
}

std::unique_ptr<streams::TaskStreams> Lockstep::streams(std::int64_t rank) {
  auto made = std::make_unique<Rank>(*this, rank);
  ranks_[static_cast<std::size_t>(rank)] = made.get();
  return made;
}

void Lockstep::wait(std::function<bool()> until) { running_->wait_until(std::move(until)); }

void Lockstep::pause() {
  if (std::this_thread::get_id() != thread_ || running_ == nullptr || undisturbed_ ||
      std::uncaught_exceptions() > 0)  // a fiber that is unwound comes to its end at once
    return;
  running_->wait_until(nullptr);
}

void Lockstep::undisturbed(const std::function<void()>& work) {
  undisturbed_ = true;
  work();
  undisturbed_ = false;
}

std::vector<Lockstep::Move> Lockstep::possible() {
  using What = Move::What;
  std::vector<Move> moves;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto rank = static_cast<std::int64_t>(r);
    if (ranks_[r]->may_run()) moves.push_back({.what = What::rank_runs, .rank = rank});
    for (std::size_t s = 1; s < kStreams; ++s) {
      if (!ranks_[r]->may_advance(s)) continue;
      moves.push_back(
          {.what = What::stream_advances, .rank = rank, .stream = static_cast<Stream>(s)});
    }
  }
  for (const auto& [channel, word] : EnumWords<Channel>::table) {
    for (const auto& m : networks_.of(channel).under_way()) {
      if (!m.may_be_taken && !m.may_be_delivered) continue;
      moves.push_back({.what = m.may_be_taken ? What::message_leaves : What::message_arrives,
                       .rank = m.message.sender,
                       .channel = channel,
                       .peer = m.message.receiver,
                       .number = m.message.number});
    }
  }
  std::erase_if(moves, prevented_);
  return moves;
}

// Each seed has its own fast and slow ranks, streams and links. Otherwise all would stay close
// together, and rare orders would remain rare.
std::uint64_t Lockstep::weight(const Move& move) const {
  const bool message = move.what >= Move::What::message_leaves;
  const std::size_t kind = message ? kStreams + static_cast<std::size_t>(move.channel)
                                   : static_cast<std::size_t>(move.stream);
  return weights_[static_cast<std::size_t>(move.rank) * kKinds + kind];
}

Lockstep::Move Lockstep::pick(const std::vector<Move>& moves) {
  std::uint64_t total = 0;
  for (const Move& move : moves) total += weight(move);
  std::uint64_t left = random_() % total;
  std::size_t i = 0;
  while (left >= weight(moves[i])) left -= weight(moves[i++]);
  return moves[i];
}

void Lockstep::make(const Move& move) {
  trace_.push_back(move);
  Rank& rank = *ranks_[static_cast<std::size_t>(move.rank)];
  const comm::Loopback::Message message{.sender = static_cast<int>(move.rank),
                                        .receiver = static_cast<int>(move.peer),
                                        .number = move.number};
  switch (move.what) {
    case Move::What::rank_runs: rank.run(); break;
    case Move::What::stream_advances: rank.advance(static_cast<std::size_t>(move.stream)); break;
    case Move::What::message_leaves:
      networks_.of(move.channel).take(message);
      rank.wake();
      break;
    case Move::What::message_arrives:
      networks_.of(move.channel).deliver(message);
      ranks_[static_cast<std::size_t>(move.peer)]->wake();
      break;
  }
}

std::string Lockstep::deadlock(std::uint64_t seed) {
  std::string text =
      fmt::format("deadlock with seed {}: nothing can move after {} moves", seed, trace_.size());
  for (const Rank* rank : ranks_) text += "; " + rank->whereabouts();
  for (const auto& [channel, word] : EnumWords<Channel>::table) {
    for (const auto& m : networks_.of(channel).under_way()) {
      text += fmt::format("; message {} of rank {} to rank {} on {} is {}", m.message.number,
                          m.message.sender, m.message.receiver, word,
                          !m.sent     ? "awaited, not sent"
                          : m.awaited ? "sent and awaited"
                                      : "sent, not awaited");
    }
  }
  return text;
}

std::vector<std::string> Lockstep::run(std::uint64_t seed,
                                       const std::function<void(std::int64_t rank)>& work) {
  constexpr std::array<std::uint64_t, 3> kWeights = {1, 8, 64};
  thread_ = std::this_thread::get_id();
  undisturbed_ = false;
  random_.seed(seed);
  weights_.assign(ranks_.size() * kKinds, 0);
  for (auto& w : weights_) w = kWeights[random_() % kWeights.size()];
  trace_.clear();
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    ranks_[r]->begin([&work, r] { work(static_cast<std::int64_t>(r)); });
  for (auto moves = possible(); !moves.empty(); moves = possible()) make(pick(moves));
  const bool stuck =
      std::any_of(ranks_.begin(), ranks_.end(), [](const Rank* r) { return !r->returned(); });
  const std::string report = stuck ? deadlock(seed) : "";
  std::vector<std::string> wrong;
  for (Rank* rank : ranks_) {
    if (!rank->returned()) rank->abandon(report);
    wrong.push_back(rank->wrong());
  }
  return wrong;
}

}  // namespace tessera::test
