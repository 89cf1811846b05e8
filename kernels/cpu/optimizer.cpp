#include <algorithm>
#include <cmath>

#include "core/exact_sum.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

constexpr auto kScalars = static_cast<std::int64_t>(StepScalar::count);
constexpr auto kVerdictFields = static_cast<std::int64_t>(VerdictField::count);

}  // namespace

void run(const Verdict& a, const Context&) {
  check_flat({a.squares}, DType::i64, kExactSumWords);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
  const double unscale = a.scalars.as<float>()[static_cast<int>(StepScalar::unscale)];
  const double sum = exact_value(ConstExactWords(a.squares.as<std::int64_t>(), kExactSumWords));
  const double norm = std::sqrt(sum) * unscale;
  const bool apply = std::isfinite(norm);
  const double clip = apply && a.clip_norm > 0 ? std::min(1.0, a.clip_norm / (norm + 1e-6)) : 1.0;
  auto* verdict = a.verdict.as<float>();
  verdict[static_cast<int>(VerdictField::apply)] = apply ? 1.0F : 0.0F;
  verdict[static_cast<int>(VerdictField::coefficient)] = static_cast<float>(unscale * clip);
}

void run(const AdamUpdate& a, const Context& context) {
  const std::int64_t n = a.gradient.elements();
  check_floats({a.gradient, a.parameter});
  check_flat({a.gradient}, a.gradient.type, n);
  check_flat({a.master, a.m, a.v}, DType::f32, n);
  if (a.parameter) check_flat({a.parameter}, a.parameter.type, n);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
  parallel_ranges(context.threads, n, 4096, [&](Range elements) { context.hot.adam(a, elements); });
}

}  // namespace tessera::kernels::cpu
