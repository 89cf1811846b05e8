// Activations on the CPU: checks arguments, divides elements over the team.
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
void run(const Activate& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.activate(a, rows); });
}

void run(const ActivateBackward& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.activate_backward(a, rows); });
}

}  // namespace tessera::kernels::cpu
