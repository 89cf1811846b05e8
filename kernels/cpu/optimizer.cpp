// The verdict and the optimizer's update on the CPU: checks arguments, divides elements over the
// team.
#include <algorithm>

#include "kernels/common/optimizer_steps.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const Verdict& a, const Context&) {
  check(a);
  std::int64_t squares[kExactSumWords];
  std::copy_n(a.squares.as<std::int64_t>(), kExactSumWords, squares);
  const VerdictNumbers v = verdict_of(
      squares, a.scalars.as<float>()[static_cast<int>(StepScalar::unscale)], a.clip_norm);
  auto* verdict = a.verdict.as<float>();
  verdict[static_cast<int>(VerdictField::apply)] = v.apply;
  verdict[static_cast<int>(VerdictField::coefficient)] = v.coefficient;
}

void run(const OptimizerUpdate& a, const Context& context) {
  check(a);
  parallel_ranges(context.threads, a.gradient.elements(), 4096,
                  [&](Range elements) { context.hot.update(a, elements); });
}

}  // namespace tessera::kernels::cpu
