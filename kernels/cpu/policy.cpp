// Losses of tokens that the model drew, on the CPU: checks arguments, divides targets over the
// team.
#include "kernels/common/policy.hpp"

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

template <typename Targets>
void finish(const Targets& all, std::int64_t count, const Context& context) {
  constexpr std::int64_t kGrain = 1 << 12;
  parallel_ranges(context.threads, count, kGrain, [&](Range some) {
    for (std::int64_t t = some.begin; t < some.end; ++t) all.finish(t);
  });
}

}  // namespace

void run(const PolicyLoss& a, const Context& context) {
  finish(targets_of(a), a.target_losses.elements(), context);
}

void run(const ValueLoss& a, const Context& context) {
  finish(targets_of(a), a.values.elements(), context);
}

}  // namespace tessera::kernels::cpu
