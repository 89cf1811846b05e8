// Pooling on the CPU: checks arguments, divides results over the team.
#include "kernels/cpu/documents.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const Pool& a, const Context& context) {
  check_document_rows(a.documents, a.x.extent(1));
  parallel_ranges(context.threads, a.out.elements(), 64,
                  [&](Range elements) { context.hot.pool(a, elements); });
}

void run(const PoolBackward& a, const Context& context) {
  check_document_rows(a.documents, a.d_x.extent(1));
  parallel_ranges(context.threads, a.d_x.rows(), 1,
                  [&](Range rows) { context.hot.pool_backward(a, rows); });
}

}  // namespace tessera::kernels::cpu
