// The verdict and the optimizer's update on the CPU: checks arguments, divides elements over the
// team.
#include <algorithm>
#include <atomic>

#include "kernels/common/optimizer_steps.hpp"
#include "kernels/common/verdict.hpp"
#include "kernels/cpu/clear.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const Verdict& a, const Context&) {
  std::int64_t squares[kExactSumWords];
  std::copy_n(a.squares.as<std::int64_t>(), kExactSumWords, squares);
  const double factor =
      mean_factor(a.scalars.as<float>()[static_cast<int>(StepScalar::unscale)],
                  a.targets ? a.targets.as<std::int64_t>() : nullptr, a.all_targets);
  const VerdictNumbers v = verdict_of(squares, factor, a.clip_norm);
  auto* verdict = a.verdict.as<float>();
  verdict[static_cast<int>(VerdictField::apply)] = v.apply;
  verdict[static_cast<int>(VerdictField::coefficient)] = v.coefficient;
}

/// Adds a thread's words to the sums of all: integers, whose order does not matter.
static void add_atomically(const std::int64_t* words, std::int64_t* sums) {
  for (std::int64_t i = 0; i < kTensorWords; ++i)
    std::atomic_ref(sums[i]).fetch_add(words[i], std::memory_order_relaxed);
}

static void run_first_pass(const OptimizerUpdate& a, const Context& context) {
  if (a.verdict.as<float>()[static_cast<int>(VerdictField::apply)] == 0.0F) return;
  auto* sums = a.sums ? a.sums.as<std::int64_t>() : nullptr;
  parallel_ranges(context.threads, a.master.elements(), 4096, [&](Range elements) {
    std::int64_t words[kTensorWords] = {};
    context.hot.first_update(a, elements, sums == nullptr ? nullptr : words);
    if (sums != nullptr) add_atomically(words, sums);
  });
  if (sums == nullptr) return;
  exact_normalise(ExactWords(sums, kExactSumWords));
  exact_normalise(ExactWords(sums + kExactSumWords, kExactSumWords));
}

static void run_directions(const OptimizerUpdate& a, const Context& context) {
  if (a.verdict.as<float>()[static_cast<int>(VerdictField::apply)] == 0.0F) {
    if (a.direction) clear_rows(a.direction, context.threads);
    return;
  }
  parallel_ranges(context.threads, a.master.elements(), 4096,
                  [&](Range elements) { context.hot.direct_update(a, elements); });
}

/// What a tensor's update is multiplied with.
static float trust_of_tensor(const OptimizerUpdate& a) {
  if (a.factors[0]) return *a.factors[0].as<float>() * *a.factors[1].as<float>();
  if (!a.sums) return 1;
  std::int64_t sums[kTensorWords];
  std::copy_n(a.sums.as<std::int64_t>(), kTensorWords, sums);
  return trust_of(sums, a.settings);
}

void run(const OptimizerUpdate& a, const Context& context) {
  const UpdatePass pass = pass_of(a.rule);
  if (pass == UpdatePass::first) return run_first_pass(a, context);
  if (pass == UpdatePass::direct) return run_directions(a, context);
  const float trust = trust_of_tensor(a);
  parallel_ranges(context.threads, a.master.elements(), 4096,
                  [&](Range elements) { context.hot.update(a, trust, elements); });
}

}  // namespace tessera::kernels::cpu
