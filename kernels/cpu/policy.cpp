// Losses of tokens that the model drew, on the CPU: checks arguments, divides targets over the
// team.
#include "kernels/common/policy.hpp"

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const PolicyLoss& a, const Context& context) {
  check(a);
  constexpr std::int64_t kGrain = 1 << 12;
  const PolicyTargets all = targets_of(a);
  parallel_ranges(context.threads, a.target_losses.elements(), kGrain, [&](Range some) {
    for (std::int64_t t = some.begin; t < some.end; ++t) all.finish(t);
  });
}

}  // namespace tessera::kernels::cpu
