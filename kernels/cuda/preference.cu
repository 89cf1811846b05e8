// Losses of pairs on a GPU: checks arguments, launches the kernel.
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/preference.cuh"

namespace tessera::kernels::cuda {

void run(const PreferenceLoss& a, const Context& context) {
  check(a);
  const std::int64_t pairs = a.target_losses.rows() / 2;
  const Pairs all{.target_losses = a.target_losses.as<float>(),
                  .targets = a.targets.as<std::int32_t>(),
                  .reference = a.reference.as<double>(),
                  .scale = a.scale ? a.scale.as<float>() : nullptr,
                  .losses = a.losses.as<float>(),
                  .slopes = a.slopes ? a.slopes.as<float>() : nullptr,
                  .statistics = a.statistics.as<float>(),
                  .tokens = a.target_losses.cols(),
                  .pairs = pairs,
                  .terms = a.terms};
  launch(on(context, a.kName, pairs, kPairThreads), preference_loss_kernel, all);
}

}  // namespace tessera::kernels::cuda
