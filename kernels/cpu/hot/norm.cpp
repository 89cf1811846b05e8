// Loops of residual addition with norm, and of its gradients.
#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// sum = round(resid + dropout(pending)).
template <typename T, typename Operation>
void add_row(const Operation& a, const DropoutRule& rule, std::int64_t r, std::int64_t columns) {
  const T* resid = row_of<T>(a.resid, r);
  const T* pending = row_of<T>(a.pending, r);
  T* sum = row_of<T>(a.sum, r);
  const auto add = [&](std::int64_t c0, const float* factors, std::int64_t n) {
    for_vectors(
        n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          Vec p = load(pending + c0 + i, count);
          if (factors != nullptr) p = p * load(factors + i, count);
          store(sum + c0 + i, load(resid + c0 + i, count) + p, count);
        });
  };
  if (a.dropout.p > 0) {
    for_dropout_pieces(a.dropout, rule, r, a.pending.shape[1], columns, add);
  } else {
    add(0, nullptr, columns);
  }
}

/// One head of a row, of so many columns.
struct HeadRow {
  std::int64_t row, head, columns;

  template <typename T>
  T* of(const View& view) const {
    return row_of<T>(view, row) + head * columns;
  }
  float* stats(const View& view) const { return row_of<float>(view, row) + 2 * head; }
};

template <typename T>
void norm_row(const AddNorm& a, const HeadRow& r) {
  const std::int64_t columns = r.columns;
  const T* x = r.of<T>(a.sum.data != nullptr ? a.sum : a.resid);
  const auto n = static_cast<float>(columns);
  float mean = 0;
  if (a.kind == NormKind::layernorm) {
    Vec total(0.0F);
    for_vectors(
        columns, [&](std::int64_t i, std::int64_t count)
                     __attribute__((always_inline)) { total = total + load(x + i, count); });
    mean = sum_of(total) / n;
  }
  Vec squares(0.0F);
  for_vectors(
      columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec d = first_lanes(load(x + i, count) - Vec(mean), count);
        squares = fmadd(d, d, squares);
      });
  const float scale = 1.0F / __builtin_sqrtf(sum_of(squares) / n + a.eps);
  float* stats = r.stats(a.stats);
  stats[0] = mean, stats[1] = scale;

  const T* weight = row_of<T>(a.weight, 0);
  const T* bias = row_of<T>(a.bias, 0);
  T* out = r.of<T>(a.out);
  for_vectors(
      columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec unit = (load(x + i, count) - Vec(mean)) * Vec(scale);
        const Vec w = load(weight + i, count);
        store(out + i, bias != nullptr ? fmadd(unit, w, load(bias + i, count)) : unit * w, count);
      });
}

/// d_sum = d_resid + scale (g - mean(g) - x^ mean(g x^)) with g = d_out weight, x^ the normalised
/// row; the first mean is of layer norm only.
template <typename T>
void norm_backward_row(const NormBackward& a, const HeadRow& r, float* d_weight, float* d_bias) {
  const std::int64_t columns = r.columns;
  const T* d_out = r.of<T>(a.d_out);
  const T* x = r.of<T>(a.sum);
  const T* weight = row_of<T>(a.weight, 0);
  const T* d_resid = a.d_resid.data == nullptr ? nullptr : r.of<T>(a.d_resid);
  T* d_sum = r.of<T>(a.d_sum);
  const float* stats = r.stats(a.stats);
  const Vec mean(stats[0]), scale(stats[1]);

  Vec sum_g(0.0F), sum_gx(0.0F);
  for_vectors(
      columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec unit = (load(x + i, count) - mean) * scale;
        const Vec d = load(d_out + i, count);  // 0 beyond count, which keeps the sums right
        const Vec g = d * load(weight + i, count);
        sum_g = sum_g + g;
        sum_gx = fmadd(g, unit, sum_gx);
        store(d_weight + i, fmadd(d, unit, load(d_weight + i, count)), count);
        if (d_bias != nullptr) store(d_bias + i, load(d_bias + i, count) + d, count);
      });
  const auto n = static_cast<float>(columns);
  const Vec mean_g(a.kind == NormKind::layernorm ? sum_of(sum_g) / n : 0.0F);
  const Vec minus_mean_gx(-sum_of(sum_gx) / n);
  for_vectors(
      columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        const Vec unit = (load(x + i, count) - mean) * scale;
        const Vec g = load(d_out + i, count) * load(weight + i, count);
        const Vec d = fmadd(unit, minus_mean_gx, g - mean_g) * scale;
        store(d_sum + i, d_resid != nullptr ? load(d_resid + i, count) + d : d, count);
      });
}

}  // namespace

void add_norm(const AddNorm& a, const DropoutRule& rule, Range rows) {
  const std::int64_t columns = columns_of(a.resid);
  with_type(a.resid.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      if (a.pending.data != nullptr) add_row<T>(a, rule, r, columns);
      for (std::int64_t head = 0; head < a.heads; ++head)
        norm_row<T>(a, {r, head, columns / a.heads});
    }
  });
}

void add_pending(const AddPending& a, const DropoutRule& rule, Range rows) {
  with_type(a.resid.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r)
      add_row<T>(a, rule, r, columns_of(a.resid));
  });
}

void norm_backward(const NormBackward& a, Range rows, float* d_weight, float* d_bias) {
  const std::int64_t columns = columns_of(a.sum);
  with_type(a.sum.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      for (std::int64_t head = 0; head < a.heads; ++head)
        norm_backward_row<T>(a, {r, head, columns / a.heads}, d_weight, d_bias);
    }
  });
}

void apply_dropout(const ApplyDropout& a, const DropoutRule& rule, Range rows) {
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const T* x = row_of<T>(a.x, r);
      T* out = row_of<T>(a.out, r);
      DropoutRule of_row = rule;
      if (a.columns > 0) of_row.first += r % a.x.shape[1] * (a.columns - columns_of(a.x));
      for_dropout_pieces(
          a.dropout, of_row, r, a.x.shape[1], columns_of(a.x),
          [&](std::int64_t c0, const float* factors, std::int64_t n) {
            for_vectors(
                n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
                  store(out + c0 + i, load(x + c0 + i, count) * load(factors + i, count), count);
                });
          });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
