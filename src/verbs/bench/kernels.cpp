#include "kernels/cpu/bench.hpp"

#include <omp.h>

#include "core/cores.hpp"
#include "kernels/cpu/device.hpp"
#include "train/setup.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {

void bench_kernels(const BenchOptions& o, const train::Job& job) {
  if (job.mpi.rank() != 0) return;
  const int threads = train::thread_count({}, cores_each(std::array{own_cores()}));
  omp_set_num_threads(threads);
  const auto device = kernels::make_cpu_device({.threads = threads});
  fmt::print(
      "# {} threads; matrix work as a share of a square product, the rest of the STREAM triad\n",
      threads);
  for (const auto& row : kernels::bench_kernels(
           *device, {.threads = threads, .repeats = static_cast<int>(o.repeats)})) {
    print_row(row.name, row.shape, row.ms / 1e3, row.rate, enum_word(row.unit), row.share);
  }
}

}  // namespace tessera::verbs
