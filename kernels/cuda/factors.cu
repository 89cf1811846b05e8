// Factors of tensors in 1-bit LAMB on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/factors.cuh"

#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const AverageTrust& a, const Context& context) {
  launch(on(context, a.kName, a.average.elements(), 32), average_trust_kernel,
         a.sums.as<std::int64_t>(), a.average.as<float>(), a.verdict.as<float>(), a.beta3,
         a.trust_min, a.trust_max);
}

void run(const MomentRatio& a, const Context& context) {
  constexpr int V = kRun<float>;
  const std::int64_t n = a.moment.elements();
  const auto flat = [&](const View& v) { return v.range(0, n); };
  const MomentRatioArrays arrays{
      .gradient = a.gradient.as<float>(),
      .frozen = a.frozen.as<float>(),
      .verdict = a.verdict.as<float>(),
      .moment = a.moment.as<float>(),
      .largest = reinterpret_cast<std::int64_t*>(a.largest.data),
      .beta2 = a.beta2,
      .n = n,
      .wide = wide<V>({flat(a.gradient), flat(a.moment), flat(a.frozen)})};
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(ceil_div(n, V), kRatioTeam.block()),
                                                     32 * context.multiprocessors);
  launch(on(context, a.kName, blocks, kRatioTeam.block()), moment_ratio_kernel, arrays);
}

void run(const FollowRatio& a, const Context& context) {
  const std::int64_t n = a.ratio.elements();
  launch(on(context, a.kName, ceil_div(n, kFollowThreads), kFollowThreads), follow_ratio_kernel,
         a.largest.as<std::int64_t>(), a.ratio.as<float>(), a.verdict.as<float>(), a.threshold,
         a.r_min, a.r_max, n);
}

}  // namespace tessera::kernels::cuda
