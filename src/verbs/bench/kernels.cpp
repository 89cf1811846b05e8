#include "kernels/cpu/bench.hpp"

#include <omp.h>

#include "core/cores.hpp"
#include "kernels/cpu/device.hpp"
#include "train/setup.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

using Rows = std::vector<kernels::BenchRow>(kernels::Device&, const kernels::BenchOptions&);

/// On rank 0, with all cores that it may use.
void print_rows(const BenchOptions& o, const train::Job& job, Rows& rows, std::string_view shares) {
  if (job.mpi.rank() != 0) return;
  const int threads = train::thread_count({}, cores_each(std::array{own_cores()}));
  omp_set_num_threads(threads);
  const auto device = kernels::make_cpu_device({.threads = threads});
  fmt::print("# {} threads; {}\n", threads, shares);
  for (const auto& row :
       rows(*device, {.threads = threads, .repeats = static_cast<int>(o.repeats)})) {
    print_row(row.name, row.shape, row.ms / 1e3, row.rate, enum_word(row.unit), row.share);
  }
}

}  // namespace

void bench_kernels(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, kernels::bench_kernels,
             "matrix work as a share of a square product, the rest of the STREAM triad");
}

void bench_gemm(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, kernels::bench_gemm, "as a share of the largest square product");
}

void bench_attention(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, kernels::bench_attention, "as a share of a square product");
}

}  // namespace tessera::verbs
