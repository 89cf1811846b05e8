// The verdict and the optimizer's update on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/optimizer.cuh"

#include "kernels/common/optimizer_steps.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/exact_sum.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Verdict& a, const Context& context) {
  check(a);
  launch(on(context, a.kName, 1, 32), verdict_kernel, a.squares.as<std::int64_t>(),
         a.scalars.as<float>(), a.clip_norm, a.verdict.as<float>());
}

void run(const OptimizerUpdate& a, const Context& context) {
  check(a);
  const auto launched = [&]<typename Step, typename M, typename G, typename P>() {
    constexpr int V = kRun<G, P>, S = Step::kStates;
    const std::int64_t n = a.master.elements();
    const auto flat = [&](const View& v) { return v ? v.range(0, n) : View(); };
    bool alike = wide<V>({flat(a.gradient), flat(a.master), flat(a.average), flat(a.parameter)});
    for (const View& v : a.state) alike = alike && wide<V>({flat(v)});
    UpdateArrays<M, G, P, S> arrays{.gradient = reinterpret_cast<const G*>(a.gradient.data),
                                    .master = a.master.as<float>(),
                                    .state = {},
                                    .average = reinterpret_cast<float*>(a.average.data),
                                    .parameter = reinterpret_cast<P*>(a.parameter.data),
                                    .scalars = a.scalars.as<float>(),
                                    .verdict = a.verdict.as<float>(),
                                    .sums = reinterpret_cast<std::int64_t*>(a.sums.data),
                                    .settings = a.settings,
                                    .n = n,
                                    .wide = alike};
    for (int s = 0; s < S; ++s) arrays.state[s] = a.state[static_cast<std::size_t>(s)].as<M>();
    if constexpr (pass_of(Step::kRule) == UpdatePass::first) {
      launch(on(context, a.name().data(),
                std::min<std::int64_t>(ceil_div(n, kExactWarps * kExactTile),
                                       8 * context.multiprocessors),
                32 * kExactWarps),
             first_update_kernel<Step, M, G, P>, arrays);
      if (a.sums)
        launch(on(context, a.name().data(), kTensorWords / kExactSumWords, 32),
               exact_normalise_kernel, arrays.sums);
    } else {
      launch(on(context, a.name().data(),
                std::min<std::int64_t>(ceil_div(ceil_div(n, V), kUpdateThreads),
                                       32 * context.multiprocessors),
                kUpdateThreads),
             update_kernel<Step, M, G, P>, arrays);
    }
  };
  with_step(a.rule, [&]<typename Step>() {
    with_state_type(a.state[0].type, [&]<typename M>() {
      with_type(a.gradient.type, [&]<typename G>() {
        if constexpr (pass_of(Step::kRule) == UpdatePass::first) {
          launched.template operator()<Step, M, G, float>();  // it makes no parameter
        } else {
          with_type(a.parameter.type, [&]<typename P>() {  // an absent one counts as f32
            launched.template operator()<Step, M, G, P>();
          });
        }
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
