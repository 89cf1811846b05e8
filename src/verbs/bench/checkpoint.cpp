#include <limits>

#include "kernels/cpu/device.hpp"
#include "train/saver.hpp"
#include "train/setup.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
/// Saves and loads the state of a deck, against plain sequential writes and reads of as many bytes,
/// one file a rank, on the same disk. Writes end with fsync.
void bench_checkpoint(const BenchOptions& o, const train::Job& job) {
  const comm::Control& control = job.control;
  const BenchDirectory directory(o, control);
  const deck::LoadedDeck loaded = bench_deck(o, control);
  const auto device = kernels::make_cpu_device({.threads = 1});
  const Mesh mesh = train::mesh_of(loaded.deck, job.mpi.size());
  const MeshPlace place = mesh.place_of(job.mpi.rank());
  const auto shapes = train::training_shapes(loaded.deck, mesh.data);
  auto inputs = train::plan_inputs(loaded.deck, shapes, job.mpi.node_of(), *device);
  inputs.state_for = plan::PlanPurpose::train;  // saved from the live state, not from snapshots
  const std::int64_t bytes = train::ModelState::arena_bytes(inputs, place);
  control.together([&] { memory::check_available(bytes, job.mpi.job().local); });
  const memory::Arena arena("state", memory::Tier::device, bytes);
  train::ModelState state(inputs, place, arena);
  state.set_parameters(train::initial_values(static_cast<std::uint64_t>(loaded.deck.run.seed)));

  train::Saver saver(control, directory.path() / "checkpoints", 1, 0);
  CheckpointHeader header;
  header.deck = to_toml(loaded.deck);
  header.layout = train::layout_of(inputs);
  const auto raw = directory.path() / fmt::format("raw_{}", job.mpi.rank());
  double save = std::numeric_limits<double>::max(), load = save, write = save, read = save;
  std::int64_t total = 0, own = 0;
  for (std::int64_t i = 0; i < o.repeats; ++i) {
    header.step = i;
    std::filesystem::path path;
    save = std::min(save, seconds_together(control, [&] {
                      saver.begin(state, train::ModelState::From::live, header);
                      std::optional<train::SaveResult> saved;
                      while (!saved) saved = saver.advance();
                      path = saved->path, total = saved->bytes;
                    }));
    path = control.broadcast(path.string());
    total = control.max(total);
    own = total / job.mpi.size();
    keep_fastest(write, control, [&] { write_raw(raw, own); });
    control.together([&] { forget(directory.path()); });
    keep_fastest(load, control, [&] {
      Checkpoint checkpoint = Checkpoint::open(path);
      state.load(checkpoint);
    });
    keep_fastest(read, control, [&] { read_raw(raw, own); });
  }
  control.barrier();  // nobody uses the directory any more
  if (control.rank() != 0) return;
  const auto row = [&](const char* name, double seconds, double limit) {
    print_row(name, loaded.deck.run.name, seconds, static_cast<double>(total) / seconds / 1e9,
              "GB/s", limit / seconds);
  };
  fmt::print("# {} ranks; {:.2f} GB, fsync included; fastest of {}\n", job.mpi.size(),
             static_cast<double>(total) / 1e9, o.repeats);
  row("sequential write", write, write);
  row("save", save, write);
  row("sequential read", read, read);
  row("load", load, read);
}

}  // namespace tessera::verbs
