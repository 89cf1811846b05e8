// tessera bench kernels, gemm and attention: the speed of operations on this rank's back end.
#include "core/cores.hpp"
#include "setup/threads.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

using Rows = std::vector<backend::BenchRow>(const backend::Backend&, const backend::BenchOptions&);

/// On rank 0: its GPU, or all cores that it may use.
void print_rows(const BenchOptions& o, const train::Job& job, Rows& rows, std::string_view shares) {
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  const auto backend = bench_backend(o, job, threads);
  if (job.mpi.rank() != 0) return;
  fmt::print("# {}; {}\n", backend.name, shares);
  for (const auto& row : rows(backend, backend::usual_bench(backend, threads, o.repeats)))
    print_row(row.name, row.shape, row.ms / 1e3, row.rate, enum_word(row.unit), row.share);
}

}  // namespace

void bench_kernels(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, backend::bench_kernels,
             "matrix work as a share of a square product, the rest of the first row");
}

void bench_gemm(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, backend::bench_gemm, "as a share of the largest square product");
}

void bench_attention(const BenchOptions& o, const train::Job& job) {
  print_rows(o, job, backend::bench_attention, "as a share of a square product");
}

}  // namespace tessera::verbs
