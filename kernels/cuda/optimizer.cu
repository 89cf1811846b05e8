#include "kernels/cuda/optimizer.cuh"

#include "kernels/common/contracts.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Verdict& a, const Context& context) {
  check(a);
  launch(on(context, a.kName, 1, 32), verdict_kernel, a.squares.as<std::int64_t>(),
         a.scalars.as<float>(), a.clip_norm, a.verdict.as<float>());
}

void run(const AdamUpdate& a, const Context& context) {
  check(a);
  with_type(a.gradient.type, [&]<typename G>() {
    with_type(a.parameter.type, [&]<typename P>() {  // an absent one counts as f32
      constexpr int V = kRun<G, P>;
      const std::int64_t n = a.gradient.elements();
      const auto flat = [&](const View& v) { return v ? v.range(0, n) : View(); };
      const AdamArrays<G, P> arrays{.gradient = a.gradient.as<G>(),
                                    .master = a.master.as<float>(),
                                    .m = a.m.as<float>(),
                                    .v = a.v.as<float>(),
                                    .parameter = reinterpret_cast<P*>(a.parameter.data),
                                    .scalars = a.scalars.as<float>(),
                                    .verdict = a.verdict.as<float>(),
                                    .settings = {a.beta1, a.beta2, a.eps, a.decay, a.decay_kind},
                                    .n = n,
                                    .wide = wide<V>({flat(a.gradient), flat(a.master), flat(a.m),
                                                     flat(a.v), flat(a.parameter)})};
      launch(on(context, a.kName,
                std::min<std::int64_t>(ceil_div(ceil_div(n, V), kAdamThreads),
                                       32 * context.multiprocessors),
                kAdamThreads),
             adam_kernel<G, P>, arrays);
    });
  });
}

}  // namespace tessera::kernels::cuda
