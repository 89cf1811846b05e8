// tessera bench checkpoint: saving and loading beside plain I/O of the same bytes.
#include <algorithm>

#include "core/bytes.hpp"
#include "kernels/cpu/device.hpp"
#include "setup/inputs.hpp"
#include "setup/shapes.hpp"
#include "train/saves/saver.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

/// Seconds of plain I/O and of ours, taken in pairs whose first alternates: what else the machine
/// does meets both alike.
class Comparison {
 public:
  /// All ranks together; `prepare` before each of the two, not timed.
  template <typename Prepare, typename Raw, typename Ours>
  void add(const comm::Control& control, Prepare&& prepare, Raw&& raw, Ours&& ours) {
    const auto seconds = [&](auto& work) {
      control.together(prepare);
      return seconds_together(control, [&] { control.together(work); });
    };
    const bool raw_first = raw_.size() % 2 == 0;
    if (raw_first) raw_.push_back(seconds(raw));
    ours_.push_back(seconds(ours));
    if (!raw_first) raw_.push_back(seconds(raw));
    shares_.push_back(raw_.back() / ours_.back());
  }
  double raw() const { return median(raw_); }
  double ours() const { return median(ours_); }
  /// The median of the pairs' shares.
  double share() const { return median(shares_); }

 private:
  static double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  std::vector<double> raw_, ours_, shares_;
};

std::int64_t bytes_of(const train::ModelState& state) {
  std::int64_t bytes = 0;
  for (const io::Piece& piece : state.pieces()) bytes += piece.box.elements() * size_of(piece.type);
  return bytes;
}

struct Comparisons {
  Comparison writes, reads;
};

/// Saves the state and loads it again, each time beside a file of `own` bytes.
Comparisons compare(const BenchOptions& o, const train::Job& job,
                    const std::filesystem::path& directory, train::ModelState& state,
                    io::CheckpointHeader header, std::int64_t own) {
  const comm::Control& control = job.control;
  train::Saver saver(control, directory / "checkpoints", 1, 0, [] {});
  const auto raw = directory / fmt::format("raw_{}", job.mpi.rank());
  std::filesystem::path path;
  Comparisons all;
  for (header.step = 0; header.step < o.repeats; ++header.step) {
    control.together([&] {  // freeing space is not timed
      io::remove_tree(raw);
      if (control.rank() == 0) io::remove_tree(path);
      io::sync_directory(directory);
    });
    all.writes.add(
        control, [] {}, [&] { write_raw(raw, own); },
        [&] {
          saver.begin(state, train::ModelState::From::live, header);
          std::optional<train::SaveResult> saved;
          while (!saved) saved = saver.advance(0);
          path = saved->path;
        });
    path = control.broadcast(path.string());
    all.reads.add(
        control, [&] { forget(directory); }, [&] { read_raw(raw, own); },
        [&] {
          io::Checkpoint checkpoint = io::Checkpoint::open(path);
          state.load(checkpoint);
        });
  }
  control.barrier();  // nobody uses the directory any more
  return all;
}

void print_rows(const Comparisons& all, std::string_view run, std::int64_t total) {
  const auto row = [&](const char* name, double seconds, double share) {
    print_row(name, run, seconds, static_cast<double>(total) / seconds / 1e9, "GB/s", share);
  };
  row("sequential write", all.writes.raw(), 1);
  row("save", all.writes.ours(), all.writes.share());
  row("sequential read", all.reads.raw(), 1);
  row("load", all.reads.ours(), all.reads.share());
}

}  // namespace

/// Saves and loads the state of a deck, against plain sequential writes and reads of as many bytes,
/// one file a rank, on the same disk. Writes end with fsync; reads find nothing in the page cache.
void bench_checkpoint(const BenchOptions& o, const train::Job& job) {
  const comm::Control& control = job.control;
  const BenchDirectory directory(o, control);
  const deck::LoadedDeck loaded = bench_deck(o, control);
  const auto device = kernels::make_cpu_device({.threads = 1});
  const Mesh mesh = setup::mesh_of(loaded.deck, job.mpi.size());
  const MeshPlace place = mesh.place_of(job.mpi.rank());
  const auto shapes = setup::training_shapes(loaded.deck, mesh.batch_ranks());
  auto inputs = setup::plan_inputs(loaded.deck, shapes, job.mpi.node_of(), {.device = *device});
  inputs.offload = {};                          // checkpoints know nothing of it
  inputs.state_for = plan::PlanPurpose::train;  // saved from the live state, not from snapshots
  const std::int64_t bytes = train::ModelState::arena_bytes(inputs, place)[plan::ArenaId::state];
  control.together([&] { memory::check_available(bytes, job.mpi.job().local); });
  memory::HostTier tier;
  train::Arenas arenas;
  arenas[plan::ArenaId::state] = std::make_unique<memory::Arena>("state", tier, bytes);
  train::ModelState state(inputs, place, arenas);
  state.set_parameters(train::initial_values(static_cast<std::uint64_t>(loaded.deck.run.seed)));

  io::CheckpointHeader header;
  header.deck = to_toml(loaded.deck);
  header.layout = setup::layout_of(inputs);
  const auto total = static_cast<std::int64_t>(control.sum(static_cast<double>(bytes_of(state))));
  const Comparisons all = compare(o, job, directory.path(), state, header, total / job.mpi.size());
  if (control.rank() != 0) return;
  fmt::print("# {}; {:.2f} GB, fsync included; medians of {}\n", count_text(job.mpi.size(), "rank"),
             static_cast<double>(total) / 1e9, o.repeats);
  print_rows(all, loaded.deck.run.name, total);
}

}  // namespace tessera::verbs
