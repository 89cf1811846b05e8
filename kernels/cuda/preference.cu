// Losses of pairs on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/preference.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const PreferenceLoss& a, const Context& context) {
  const std::int64_t pairs = a.target_losses.rows() / 2;
  const Pairs all{.target_losses = a.target_losses.as<float>(),
                  .targets = a.targets.as<std::int32_t>(),
                  .reference = a.reference ? a.reference.as<double>() : nullptr,
                  .scale = a.scale ? a.scale.as<float>() : nullptr,
                  .losses = a.losses.as<float>(),
                  .slopes = a.slopes ? a.slopes.as<float>() : nullptr,
                  .statistics = a.statistics.as<float>(),
                  .tokens = a.target_losses.cols(),
                  .pairs = pairs,
                  .terms = a.terms};
  launch(on(context, a.kName, pairs, kPairThreads), preference_loss_kernel, all);
}

void run(const Score& a, const Context& context) {
  with_type(a.logits.type, [&]<typename T>() {
    const ScoreRun<T> body{rows_of<T>(a.logits), a.targets.as<std::int32_t>(),
                           a.losses.as<float>()};
    map<1>(context, a.kName, body, 1, a.logits.rows());
  });
}

void run(const ScoreGradient& a, const Context& context) {
  with_type(a.logits.type, [&]<typename T>() {
    const ScoreGradientRun<T> body{a.slopes.as<float>(), rows_of<T>(a.logits)};
    map<1>(context, a.kName, body, a.logits.rows(), a.logits.cols());
  });
}

}  // namespace tessera::kernels::cuda
