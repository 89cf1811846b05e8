// tessera bench machine: the rates of this machine, as a machine file.
#include <limits>

#include "backend/machine.hpp"
#include "core/version.hpp"
#include "setup/threads.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kDiskBytes = std::int64_t{256} << 20;  // a rank

struct DiskRates {
  double write = 0, read = 0;
};

/// Rates of a node: all its ranks at once, a file each.
DiskRates measure_disk(const BenchOptions& o, const train::Job& job) {
  const BenchDirectory directory(o, job.control);
  const auto path = directory.path() / fmt::format("raw_{}", job.mpi.rank());
  double write = std::numeric_limits<double>::max(), read = write;
  for (std::int64_t i = 0; i < o.repeats; ++i) {
    keep_fastest(write, job.control, [&] { write_raw(path, kDiskBytes); });
    job.control.together([&] { forget(directory.path()); });
    keep_fastest(read, job.control, [&] { read_raw(path, kDiskBytes); });
  }
  job.control.barrier();  // nobody uses the directory any more
  const auto bytes = static_cast<double>(kDiskBytes * job.mpi.job().local);
  return {.write = bytes / write, .read = bytes / read};
}

}  // namespace

/// Prints a machine file (slurm/machines/README.md). All ranks measure at once, as they train.
void bench_machine(const BenchOptions& o, const train::Job& job) {
  const int threads = setup::thread_count({}, job.mpi.cores());
  const auto backend = bench_backend(o, job, threads);
  deck::Machine machine = backend::measure_machine(backend, {job.mpi, job.control},
                                                   {.threads = threads, .repeats = o.repeats});
  const DiskRates disk = measure_disk(o, job);
  machine.disk_write = disk.write, machine.disk_read = disk.read;
  if (job.control.rank() != 0) return;
  fmt::print("# Measured by tessera {} ({}) bench machine on {}, {}.\n{}", kVersion, kCommit,
             comm::host_name(), backend.name, deck::to_text(machine));
}

}  // namespace tessera::verbs
