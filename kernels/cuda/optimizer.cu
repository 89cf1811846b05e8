// The verdict and the optimizer's update on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/optimizer.cuh"

#include "kernels/common/optimizer_steps.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/exact_sum.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Verdict& a, const Context& context) {
  const std::int64_t* targets = a.targets ? a.targets.as<std::int64_t>() : nullptr;
  launch(on(context, a.kName, 1, 32), verdict_kernel, a.squares.as<std::int64_t>(), targets,
         a.all_targets, a.scalars.as<float>(), a.clip_norm, a.verdict.as<float>());
}

namespace {

/// Of a step's rule, with state, gradients and parameters of these types.
template <typename Step, typename M, typename G, typename P>
void launch_update(const OptimizerUpdate& a, const Context& context) {
  constexpr int V = kRun<G, P>, S = Step::kStates;
  const std::int64_t n = a.master.elements();
  const auto flat = [&](const View& v) { return v ? v.range(0, n) : View(); };
  constexpr UpdatePass kPass = pass_of(Step::kRule);
  const View &along = kPass == UpdatePass::move ? a.direction : a.gradient,
             &made = kPass == UpdatePass::direct ? a.direction : a.parameter;
  bool alike = wide<V>({flat(along), flat(a.master), flat(a.average), flat(made)});
  for (const View& v : a.state) alike = alike && wide<V>({flat(v)});
  UpdateArrays<M, G, P, S> arrays{.along = reinterpret_cast<const G*>(along.data),
                                  .master = a.master.as<float>(),
                                  .state = {},
                                  .average = reinterpret_cast<float*>(a.average.data),
                                  .parameter = reinterpret_cast<P*>(made.data),
                                  .scalars = a.scalars.as<float>(),
                                  .verdict = a.verdict.as<float>(),
                                  .sums = reinterpret_cast<std::int64_t*>(a.sums.data),
                                  .settings = a.settings,
                                  .n = n,
                                  .wide = alike};
  FactorsOf<Step> factors;
  if constexpr (Step::kRule == UpdateRule::frozen_lamb)
    factors = {a.factors[0].as<float>(), a.factors[1].as<float>()};
  for (int s = 0; s < S; ++s) arrays.state[s] = a.state[static_cast<std::size_t>(s)].as<M>();
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(ceil_div(n, V), kUpdateThreads),
                                                     32 * context.multiprocessors);
  if constexpr (kPass == UpdatePass::move) {
    launch(on(context, a.name().data(), blocks, kUpdateThreads), move_kernel<Step, G, P>, arrays);
  } else if constexpr (kPass == UpdatePass::direct) {
    launch(on(context, a.name().data(), blocks, kUpdateThreads), direct_kernel<Step, M, G, P>,
           arrays);
  } else if constexpr (kPass == UpdatePass::first) {
    launch(on(context, a.name().data(),
              std::min<std::int64_t>(ceil_div(n, kExactWarps * kExactTile),
                                     8 * context.multiprocessors),
              32 * kExactWarps),
           first_update_kernel<Step, M, G, P>, arrays);
    if (a.sums)
      launch(on(context, a.name().data(), kTensorWords / kExactSumWords, 32),
             exact_normalise_kernel, arrays.sums);
  } else {
    launch(on(context, a.name().data(), blocks, kUpdateThreads), update_kernel<Step, M, G, P>,
           arrays, factors);
  }
}

}  // namespace

void run(const OptimizerUpdate& a, const Context& context) {
  // Absent views count as f32.
  with_step(a.rule, [&]<typename Step>() {
    constexpr UpdatePass kPass = pass_of(Step::kRule);
    if constexpr (kPass == UpdatePass::move) {
      with_type(a.direction.type, [&]<typename G>() {
        with_type(a.parameter.type,
                  [&]<typename P>() { launch_update<Step, float, G, P>(a, context); });
      });
      return;
    } else {
      with_state_type(a.state[0].type, [&]<typename M>() {
        with_gradient_type<Step>(a, [&]<typename G>() {
          if constexpr (kPass == UpdatePass::first) {
            launch_update<Step, M, G, float>(a, context);  // it makes no parameter
          } else {
            with_type(kPass == UpdatePass::direct ? a.direction.type : a.parameter.type,
                      [&]<typename P>() { launch_update<Step, M, G, P>(a, context); });
          }
        });
      });
    }
  });
}

}  // namespace tessera::kernels::cuda
