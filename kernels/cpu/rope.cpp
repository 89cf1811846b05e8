// Rotary positions on the CPU: checks arguments, divides their table and rows over the team.
#include "kernels/common/rope.hpp"

#include "kernels/cpu/cached.hpp"
#include "kernels/cpu/documents.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

std::int64_t scratch_bytes(const Rope& a, const Context&) {
  return a.tables() * a.positions() * a.turned() * size_of(DType::f32);
}

/// Cosines and sines of each sample's own positions.
static void make_tables(const Rope& a, const Turns& all, float* tables, int threads) {
  const auto* cached = reinterpret_cast<const CachedSample*>(a.cached.data);
  parallel_ranges(threads, a.tables(), 1, [&](Range samples) {
    for (std::int64_t b = samples.begin; b < samples.end; ++b) {
      const Turns turns = turns_of(all, a.scaling, cached[b]);
      const std::int64_t runs = turn_runs(turns.first, turns.tokens);
      for (std::int64_t i = 0; i < turns.dim / 2; ++i) {
        for (std::int64_t run = 0; run < runs; ++run)
          turn_run(turns, run, i, tables + b * turns.tokens * turns.dim);
      }
    }
  });
}

void run(const Rope& a, const Context& context) {
  check_position_rows(a.documents, a.x.extent(1), a.positions());
  const Turns turns = turns_of(a);
  auto* table = reinterpret_cast<float*>(a.scratch.data);
  if (a.cached) {
    check_cached_rows(a.cached, a.x.extent(1));
    make_tables(a, turns, table, context.threads);
  } else {
    parallel_ranges(context.threads, turn_runs(turns.first, turns.tokens), 1, [&](Range runs) {
      for (std::int64_t i = 0; i < turns.dim / 2; ++i) {
        for (std::int64_t run = runs.begin; run < runs.end; ++run) turn_run(turns, run, i, table);
      }
    });
  }
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.rope(a, table, rows); });
}

}  // namespace tessera::kernels::cpu
