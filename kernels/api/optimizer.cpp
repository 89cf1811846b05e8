#include "kernels/api/optimizer.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const Verdict& a) {
  check_flat({a.squares}, DType::i64, kExactSumWords);
  if (a.targets) check_flat({a.targets}, DType::i64, 1);
  TESSERA_CHECK(a.all_targets >= 1, "{} targets", a.all_targets);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const AverageTrust& a) {
  check_flat({a.average}, DType::f32, a.average.elements());
  check_flat({a.sums}, DType::i64, a.average.elements() * kTensorWords);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const MomentRatio& a) {
  check_flat({a.gradient, a.moment, a.frozen}, DType::f32, a.moment.elements());
  if (a.largest) check_flat({a.largest}, DType::i64, 1);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const FollowRatio& a) {
  check_flat({a.ratio}, DType::f32, a.ratio.elements());
  check_flat({a.largest}, DType::i64, a.ratio.elements());
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

}  // namespace tessera::kernels
