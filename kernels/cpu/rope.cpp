// Rotary positions on the CPU: checks arguments, divides their table and rows over the team.
#include "kernels/common/rope.hpp"

#include "kernels/cpu/documents.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

std::int64_t scratch_bytes(const Rope& a, const Context&) {
  return a.positions() * a.turned() * size_of(DType::f32);
}

void run(const Rope& a, const Context& context) {
  check(a);
  check_position_rows(a.documents, a.x.extent(1), a.positions());
  const Turns turns = turns_of(a);
  auto* table = reinterpret_cast<float*>(a.scratch.data);
  parallel_ranges(context.threads, turn_runs(turns.first, turns.tokens), 1, [&](Range runs) {
    for (std::int64_t i = 0; i < turns.dim / 2; ++i) {
      for (std::int64_t run = runs.begin; run < runs.end; ++run) turn_run(turns, run, i, table);
    }
  });
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.rope(a, table, rows); });
}

}  // namespace tessera::kernels::cpu
