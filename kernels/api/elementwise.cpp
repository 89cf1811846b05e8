#include "kernels/api/elementwise.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const Fill& a) { TESSERA_CHECK(a.out.dense(), "fill of a strided view"); }

void check(const TakeRow& a) {
  check_flat({a.out}, DType::u8, a.x.cols());
  check_flat({a.next}, DType::i64, 1);
  TESSERA_CHECK(a.x.type == DType::u8 && a.x.dense() && a.x.cols() % kRowAlignment == 0,
                "take_row of {} {} bytes", a.x.rows(), a.x.cols());
}

void check(const Convert& a) {
  check_floats({a.x, a.out});
  if (a.x.dense() && a.out.dense()) {
    check_flat({a.x}, a.x.type, a.x.elements());
    check_flat({a.out}, a.out.type, a.x.elements());
  } else {
    check_same_matrix({a.x, a.out});
  }
  if (a.verdict) check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const OrderChunks& a) {
  check_floats({a.x, a.out});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x.matrix(), a.out.matrix()});
  TESSERA_CHECK(
      a.samples > 0 && a.chunks.shares > 0 && a.x.rows() % (a.chunks.count() * a.samples) == 0,
      "{} rows of {} samples in {} shares", a.x.rows(), a.samples, a.chunks.shares);
}

void check(const Scale& a) {
  check_floats({a.x});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x, a.out});
}

void check(const Blend& a) {
  check_flat({a.y, a.out}, DType::f32, a.out.elements());
  if (a.scalars) check_flat({a.scalars}, DType::f32, kScalars);
  if (a.verdict) check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const TreeSum& a) {
  check_floats({a.parts, a.bias, a.out});
  const std::int64_t n = a.out.elements(), parts = a.parts.extent(0);
  TESSERA_CHECK(a.parts.rank >= 2 && parts >= 1, "sum of {} parts of {} axes", parts, a.parts.rank);
  check_flat({a.parts}, a.bias ? DType::f32 : a.parts.type, parts * n);
  check_flat({a.out}, a.out.type, n);
  if (a.bias) check_flat({a.bias}, a.bias.type, a.out.cols());
}

void check(const ExactSum& a) {
  check_floats({a.x});
  check_flat({a.x}, a.x.type, a.x.elements());
  check_flat({a.accumulator}, DType::i64, kExactSumWords);
}

void check(const ExactSums& a) {
  check_floats({a.x});
  TESSERA_CHECK(a.x.rank == 2 && a.accumulators.rank == 2,
                "sums of the rows of {} axes in a matrix of {}", a.x.rank, a.accumulators.rank);
  check_flat({a.x}, a.x.type, a.x.elements());
  check_flat({a.into}, DType::i32, a.x.rows());
  check_flat({a.accumulators}, DType::i64, a.accumulators.rows() * kExactSumWords);
}

}  // namespace tessera::kernels
