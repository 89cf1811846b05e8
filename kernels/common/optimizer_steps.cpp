#include "kernels/common/optimizer_steps.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

std::size_t state_count(UpdateRule rule) {
  std::size_t count = 0;
  with_step(rule, [&]<typename Step>() { count = Step::kStates; });
  return count;
}

void check(const OptimizerUpdate& a) {
  const std::int64_t n = a.master.elements();
  const UpdatePass pass = pass_of(a.rule);
  check_flat({a.master}, DType::f32, n);
  if (reads_gradient(pass)) {
    check_floats({a.gradient});
    check_flat({a.gradient}, a.gradient.type, n);
  } else {
    TESSERA_CHECK(!a.gradient, "{} is not by a gradient", a.name());
  }
  TESSERA_CHECK(pass != UpdatePass::second || a.sums, "{} is by sums", a.name());
  TESSERA_CHECK(has_sums(pass) || !a.sums, "{} has no use for sums", a.name());
  TESSERA_CHECK(has_direction(pass) || !a.direction, "{} has no directions", a.name());
  TESSERA_CHECK(moves_weights(pass) || (!a.parameter && !a.average), "{} moves no weights",
                a.name());
  if (a.direction) {
    check_floats({a.direction});
    check_flat({a.direction}, a.direction.type, n);
  }
  if (a.sums) check_flat({a.sums}, DType::i64, kTensorWords);
  for (const View& factor : a.factors) {
    TESSERA_CHECK(static_cast<bool>(factor) == (a.rule == UpdateRule::frozen_lamb),
                  "{} with or without factors", a.name());
    if (factor) check_flat({factor}, DType::f32, 1);
  }
  const std::size_t states = state_count(a.rule);
  for (std::size_t s = 0; s < kMostStates; ++s) {
    if (s < states) {
      check_flat({a.state[s]}, a.state[0].type == DType::bf16 ? DType::bf16 : DType::f32, n);
    } else {
      TESSERA_CHECK(!a.state[s], "{} has state {}, which it does not keep", a.name(), s);
    }
  }
  if (a.average) check_flat({a.average}, DType::f32, n);
  check_floats({a.parameter});
  if (a.parameter) check_flat({a.parameter}, a.parameter.type, n);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

}  // namespace tessera::kernels
