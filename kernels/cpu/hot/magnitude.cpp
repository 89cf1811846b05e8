// Loops over rows and columns whose lengths are scaled.
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// magnitude / sqrt(squares), or 1 where these are 0.
TESSERA_INLINE Vec column_factor(const Vec& magnitude, const Vec& squares) {
  return select(squares > Vec(0.0F), magnitude / sqrt(squares), Vec(1.0F));
}

template <typename X, typename B, typename T>
void scale_rows(const ScaleColumns& a, Range rows) {
  const auto* magnitude = reinterpret_cast<const float*>(a.magnitude.data);
  const auto* bias = reinterpret_cast<const B*>(a.bias.data);
  const auto* squares = reinterpret_cast<const float*>(a.squares.data);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const X* from = row_of<X>(a.x, r);
    T* to = row_of<T>(a.out, r);
    for_vectors(
        columns_of(a.x), [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          const Vec added = bias != nullptr ? load(bias + i, count) : Vec(0.0F);
          Vec v = load(from + i, count);
          if (magnitude != nullptr) {
            v = fmadd(v, column_factor(load(magnitude + i, count), load(squares + i, count)),
                      added);
          } else {
            v = v + added;
          }
          store(to + i, v, count);
        });
  }
}

/// Rows added in one go, as in sum_rows.
constexpr std::int64_t kRowBlock = 64;

}  // namespace

void row_squares(const RowSquares& a, Range rows) {
  with_type(a.weight.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const T* weight = row_of<T>(a.weight, r);
      const float* update = row_of<float>(a.update, r);
      Vec sum(0.0F);
      for_vectors(
          columns_of(a.weight), [&](std::int64_t i,
                                    std::int64_t count) __attribute__((always_inline)) {
            const Vec v = fmadd(load(update + i, count), Vec(a.scale), load(weight + i, count));
            sum = fmadd(v, v, sum);
          });
      reinterpret_cast<float*>(a.out.data)[r] = sum_of(sum);
    }
  });
}

void scale_columns(const ScaleColumns& a, Range rows) {
  with_type(a.out.type, [&]<typename T>() {
    with_type(a.bias ? a.bias.type : a.out.type, [&]<typename B>() {
      a.x.type == DType::f32 ? scale_rows<float, B, T>(a, rows) : scale_rows<T, B, T>(a, rows);
    });
  });
}

void magnitude_backward(const MagnitudeBackward& a, Range columns) {
  with_type(a.x.type, [&]<typename T>() {
    const std::int64_t rows = row_count(a.x);
    for (std::int64_t c = columns.begin; c < columns.end; c += kLanes) {
      const std::int64_t count = at_most(kLanes, columns.end - c);
      Vec total(0.0F);
      for (std::int64_t r0 = 0; r0 < rows; r0 += kRowBlock) {
        Vec sum(0.0F);
        for (std::int64_t r = r0; r < at_most(rows, r0 + kRowBlock); ++r)
          sum =
              fmadd(load(row_of<T>(a.d_y, r) + c, count), load(row_of<T>(a.x, r) + c, count), sum);
        total = total + sum;
      }
      const Vec squares = load(reinterpret_cast<const float*>(a.squares.data) + c, count);
      const Vec none(0.0F);
      total = select(squares > none, total / sqrt(squares), none);
      with_type(a.out.type, [&]<typename G>() {
        G* to = reinterpret_cast<G*>(a.out.data) + c;
        store(to, a.write == Write::add ? load(to, count) + total : total, count);
      });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
