#include "train/saver.hpp"

#include <chrono>

#include "core/thread.hpp"

namespace tessera::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Saver::begin(const ModelState& state, ModelState::From from, CheckpointHeader header) {
  TESSERA_CHECK(!active_, "a save is still under way");
  header_ = std::move(header);
  began_ = now();
  std::string temporary;
  control_.together([&] {
    if (control_.rank() == 0) temporary = begin_checkpoint(directory_, header_.step).string();
  });
  temporary_ = control_.broadcast(temporary);
  active_ = true;
  done_ = false;
  error_ = nullptr;
  thread_ = start_thread("save", [this, &state, from] {
    try {
      CheckpointWriter writer(temporary_, control_.rank(), state.pieces());
      state.save(writer, from);
      part_ = writer.finish();
    } catch (...) {
      error_ = std::current_exception();
    }
    done_.store(true, std::memory_order_release);
  });
}

void Saver::abandon() {
  if (thread_.joinable()) thread_.join();
  active_ = false;
}

SaveResult Saver::finish() {
  TESSERA_CHECK(active_, "no save is under way");
  thread_.join();
  active_ = false;
  control_.together([&] {
    if (error_) std::rethrow_exception(error_);
  });
  SaveResult result{.path = {}, .step = header_.step};
  const auto texts = control_.gather(to_text(part_));
  control_.together([&] {
    if (control_.rank() != 0) return;
    std::vector<RankPart> parts;
    for (const auto& text : texts) parts.push_back(rank_part_from_text(text));
    for (const auto& part : parts) result.bytes += part.file_bytes;
    result.path = commit_checkpoint(temporary_, header_, parts);
  });
  result.seconds = now() - began_;
  if (control_.rank() == 0) result.not_pruned = prune();
  return result;
}

std::string Saver::prune() const {
  try {
    prune_checkpoints(directory_, keep_, keep_every_);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace tessera::train
