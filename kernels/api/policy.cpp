#include "kernels/api/policy.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const PolicyLoss& a) {
  const std::int64_t rows = a.target_losses.elements();
  check_flat({a.target_losses}, DType::f32, rows);
  check_flat({a.targets}, DType::i32, rows);
  check_flat({a.advantages}, DType::f32, rows);
  if (a.weights) check_flat({a.weights}, DType::f32, rows);
  if (a.drawn) check_flat({a.drawn}, DType::f32, rows);
  TESSERA_CHECK(static_cast<bool>(a.reference) == (a.terms.kl > 0),
                "a reference where nothing is compared with it, or none where something is");
  if (a.reference) check_flat({a.reference}, DType::f32, rows);
  check_flat({a.scale}, DType::f32, 1);
  check_flat({a.losses}, DType::f32, rows);
  check_flat({a.slopes}, DType::f32, rows);
  if (a.statistics) check_flat({a.statistics}, DType::f32, kPolicyStats * rows);
  TESSERA_CHECK(a.terms.low >= 0 && a.terms.low < 1 && a.terms.high >= 0 && a.terms.kl >= 0,
                "ratios from {} below 1 to {} above, and {} of the divergence", a.terms.low,
                a.terms.high, a.terms.kl);
}

void check(const ValueLoss& a) {
  const std::int64_t rows = a.values.elements();
  check_flat({a.values, a.returns, a.losses, a.slopes}, DType::f32, rows);
  check_flat({a.targets}, DType::i32, rows);
  if (a.weights) check_flat({a.weights}, DType::f32, rows);
  if (a.drawn) check_flat({a.drawn}, DType::f32, rows);
  check_flat({a.scale}, DType::f32, 1);
  TESSERA_CHECK(a.terms.weight > 0 && a.terms.clip > 0, "values weigh {}, and move {}",
                a.terms.weight, a.terms.clip);
}

}  // namespace tessera::kernels
