// Losses of tokens that the model drew, on a GPU: checks arguments, launches the kernel, a thread a
// target.
#include "kernels/common/policy.hpp"

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

template <typename Targets>
struct PolicyRun {
  Targets all;
  __device__ __forceinline__ void operator()(std::int64_t, std::int64_t t, int) const {
    all.finish(t);
  }
};

}  // namespace

void run(const PolicyLoss& a, const Context& context) {
  map<1>(context, a.kName, PolicyRun<PolicyTargets>{targets_of(a)}, 1, a.target_losses.elements());
}

void run(const ValueLoss& a, const Context& context) {
  map<1>(context, a.kName, PolicyRun<ValueTargets>{targets_of(a)}, 1, a.values.elements());
}

}  // namespace tessera::kernels::cuda
