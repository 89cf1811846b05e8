#include "train/saves/saver.hpp"

#include <unistd.h>

#include <chrono>

#include "core/thread.hpp"

namespace tessera::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Lowers this thread's priority (on Linux, niceness is a thread's own). Beside a step that uses
/// all cores, a save then takes about 3 % of them, the share of nice 15; where a core is free, it
/// has that core.
void give_way() { [[maybe_unused]] const int niceness = ::nice(15); }

}  // namespace

/// Runs the work on a thread; a rank that has none is done at once. The thread gives way to
/// training only when it writes a snapshot: a save of the live state has no step beside it.
void Saver::start(Phase phase, std::function<void()> work) {
  phase_ = phase;
  error_ = nullptr;
  done_ = !work;
  if (!work) return;
  thread_ = start_thread("save", [this, work = std::move(work)] {
    if (from_ == ModelState::From::snapshot) give_way();
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
    done_.store(true, std::memory_order_release);
  });
}

void Saver::make_directory(io::CheckpointHeader header) {
  TESSERA_CHECK(!active(), "a save is still under way");
  header_ = std::move(header);
  began_ = now();
  std::string temporary;
  control_.together([&] {
    if (control_.rank() == 0) temporary = io::begin_checkpoint(directory_, header_.step).string();
  });
  temporary_ = control_.broadcast(temporary);
}

void Saver::open(const ModelState& state, io::CheckpointHeader header) {
  writer_.reset();
  make_directory(std::move(header));
  tile_error_ = nullptr;
  control_.together([&] { writer_.emplace(temporary_, control_.rank(), state.pieces()); });
}

std::unique_ptr<streams::Task> Saver::save_tile(const ModelState& state, const plan::Op& op,
                                                const plan::SaveTile& tile) {
  TESSERA_CHECK(writer_, "a tile without a checkpoint");
  if (tile_error_) return nullptr;
  try {
    return writers_.start([this, &state, &op, tile] {
      try {
        state.save(*writer_, op, tile);
      } catch (...) {
        tile_error_ = std::current_exception();
      }
    });
  } catch (const Error&) {  // no thread is to be had
    tile_error_ = std::current_exception();
    return nullptr;
  }
}

void Saver::begin(const ModelState& state, ModelState::From from, io::CheckpointHeader header) {
  if (!writer_) make_directory(std::move(header));
  from_ = from;
  result_ = {.path = {}, .step = header_.step};
  start(Phase::write, [this, &state] {
    if (tile_error_) std::rethrow_exception(tile_error_);
    if (!writer_) writer_.emplace(temporary_, control_.rank(), state.pieces());
    state.save(*writer_, from_);
    part_ = writer_->finish();
  });
}

void Saver::end_thread() {
  if (thread_.joinable()) thread_.join();
  writer_.reset();
  tile_error_ = nullptr;
}

void Saver::abandon() {
  end_thread();
  phase_ = Phase::none;
}

void Saver::commit(const std::vector<std::string>& texts, std::int64_t applied_updates) {
  std::vector<io::RankPart> parts;
  for (const auto& text : texts) parts.push_back(io::rank_part_from_text(text));
  for (const auto& part : parts) result_.bytes += part.file_bytes;
  before_commit_();
  result_.path = io::commit_checkpoint(temporary_, header_, parts);
  result_.seconds = now() - began_;
  try {
    io::prune_checkpoints(directory_, keep_, keep_every_, applied_updates);
  } catch (const Error& e) {
    result_.not_pruned = e.what();
  }
}

std::optional<SaveResult> Saver::advance(std::int64_t applied_updates) {
  TESSERA_CHECK(active(), "no save is under way");
  const Phase ended = std::exchange(phase_, Phase::none);
  end_thread();
  control_.together([&] {
    if (error_) std::rethrow_exception(error_);
  });
  if (ended == Phase::commit) return result_;
  auto parts = control_.gather(to_text(part_));
  std::function<void()> work;
  if (control_.rank() == 0)
    work = [this, parts = std::move(parts), applied_updates] { commit(parts, applied_updates); };
  start(Phase::commit, std::move(work));
  return std::nullopt;
}

}  // namespace tessera::train
