// Loops of softmax and cross-entropy, of whole rows and of parts of the vocabulary.
#include <cmath>

#include "kernels/common/classifier.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr std::int64_t kSummed = 4096;  // columns summed in f32 before a double takes over

template <typename T>
float row_max(const T* x, std::int64_t n) {
  Vec best(-__builtin_inff());
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        if (count == kLanes) {
          best = larger(load(x + i, count), best);
        } else {  // the padding's zeros must not win
          for (std::int64_t j = i; j < n; ++j) best = larger(Vec(static_cast<float>(x[j])), best);
        }
      });
  return max_of(best);
}

/// Of one vector as of several.
template <bool kCapped>
struct Cap {
  LogitCap<Vec, kCapped> one;
  LogitCap<Vecs, kCapped> several;

  explicit Cap(float most) : one(most), several(most) {}
  TESSERA_INLINE Vec value(const Vec& x) const { return one.value(x); }
  TESSERA_INLINE Vecs value(const Vecs& x) const { return several.value(x); }
  TESSERA_INLINE Vec times_slope(const Vec& g, const Vec& x) const { return one.times_slope(g, x); }
  TESSERA_INLINE Vecs times_slope(const Vecs& g, const Vecs& x) const {
    return several.times_slope(g, x);
  }
};

template <bool kCapped>
float capped(const Cap<kCapped>& cap, float x) {
  return sum_of(first_lanes(cap.value(Vec(x)), 1));
}

/// Sums over a row: of exp(logit - shift), and of the logits themselves.
struct RowSums {
  double exponentials = 0, logits = 0;
};

/// `kept` gets the exponentials, unless it is null.
template <typename T, bool kCapped>
RowSums sums_of(const T* x, std::int64_t n, float shift, const Cap<kCapped>& cap,
                float* kept = nullptr) {
  RowSums total;
  for (std::int64_t c = 0; c < n; c += kSummed) {
    Vec exponentials(0.0F), logits(0.0F);
    for_groups(
        n - c < kSummed ? n - c : kSummed,
        [&](std::int64_t i) __attribute__((always_inline)) {
          const Vecs logit = cap.value(load_all(x + c + i)),
                     exponential = exp_of(logit - Vecs(shift));
          if (kept != nullptr) store_all(kept + c + i, exponential);
          for (const Vec& v : exponential.of) exponentials = exponentials + v;
          for (const Vec& v : logit.of) logits = logits + v;
        },
        [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          const Vec logit = cap.value(load(x + c + i, count)),
                    exponential = exp_of(logit - Vec(shift));
          if (kept != nullptr) store(kept + c + i, exponential, count);
          exponentials = exponentials + first_lanes(exponential, count);
          logits = logits + first_lanes(logit, count);
        });
    total.exponentials += static_cast<double>(sum_of(exponentials));
    total.logits += static_cast<double>(sum_of(logits));
  }
  return total;
}

/// x = (exponential weight - everywhere) scale, times the slope of the cap. `exponentials` has
/// e^(logit - shift) of several elements from the i-th on, or of `count`.
template <typename T, bool kCapped, typename Exponentials>
void write_gradient(T* x, std::int64_t n, const Cap<kCapped>& cap, Exponentials&& exponentials,
                    float weight, float everywhere, float scale) {
  const auto gradient = [&](const auto& raw, const auto& exponential)
      __attribute__((always_inline)) {
    using F = std::decay_t<decltype(raw)>;
    return cap.times_slope((exponential * F(weight) - F(everywhere)) * F(scale), raw);
  };
  for_groups(
      n,
      [&](std::int64_t i) __attribute__((always_inline)) {
        store_all(x + i, gradient(load_all(x + i), exponentials.several(i)));
      },
      [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        store(x + i, gradient(load(x + i, count), exponentials.one(i, count)), count);
      });
}

/// Exponentials of a row that were kept.
struct Kept {
  const float* of;
  TESSERA_INLINE Vecs several(std::int64_t i) const { return load_all(of + i); }
  TESSERA_INLINE Vec one(std::int64_t i, std::int64_t count) const { return load(of + i, count); }
};
/// The same, made again from logits.
template <typename T, bool kCapped>
struct Again {
  const T* x;
  const Cap<kCapped>& cap;
  float shift;
  TESSERA_INLINE Vecs several(std::int64_t i) const {
    return exp_of(cap.value(load_all(x + i)) - Vecs(shift));
  }
  TESSERA_INLINE Vec one(std::int64_t i, std::int64_t count) const {
    return exp_of(cap.value(load(x + i, count)) - Vec(shift));
  }
};

template <typename T>
void clear(T* x, std::int64_t n) {
  std::memset(static_cast<void*>(x), 0, static_cast<std::size_t>(n) * sizeof(T));
}

template <typename T, bool kCapped>
void classify_row(const Classify& a, std::int64_t r, std::int64_t padded, float* exponentials) {
  const Cap<kCapped> cap(a.soft_cap);
  T* x = row_of<T>(a.logits, r);
  float& loss = reinterpret_cast<float*>(a.losses.data)[r];
  const std::int32_t target = reinterpret_cast<const std::int32_t*>(a.targets.data)[r];
  const bool gradient = a.scale.data != nullptr;
  if (target < 0) {
    loss = 0;
    if (gradient) clear(x, padded);
    return;
  }
  const float shift = capped(cap, row_max(x, a.vocab));
  const RowSums sums = sums_of(x, a.vocab, shift, cap, exponentials);
  const Vec raw_target = load(x + target, 1), target_logit = first_lanes(cap.value(raw_target), 1);
  const double lse = std::log(sums.exponentials) + static_cast<double>(shift);
  loss = loss_of(a.terms, a.vocab, lse, static_cast<double>(sum_of(target_logit)), sums.logits);
  if (!gradient) return;

  const LossSlope slope(a.terms, a.vocab);
  const float scale = *reinterpret_cast<const float*>(a.scale.data);
  const auto weight =
      static_cast<float>(static_cast<double>(scale) * slope.of_softmax(lse) / sums.exponentials);
  const float everywhere = scale * slope.everywhere;
  const float at_target = sum_of(first_lanes(exp_of(target_logit - Vec(shift)), 1)) * weight -
                          everywhere - scale * slope.at_target;
  const Vec d_target = cap.times_slope(Vec(at_target), raw_target);
  write_gradient(x, a.vocab, cap, Kept{exponentials}, weight, everywhere, 1.0F);
  store(x + target, d_target, 1);
  clear(x + a.vocab, padded - a.vocab);
}

/// How many of a part's columns are tokens; the others are padding.
template <typename Operation>
std::int64_t tokens_here(const Operation& a) {
  const std::int64_t left = a.vocab - a.first_token, columns = columns_of(a.logits);
  return left < 0 ? 0 : left < columns ? left : columns;
}

template <typename T, bool kCapped>
void classify_part_row(const ClassifyPart& a, std::int64_t r, std::int64_t tokens) {
  const Cap<kCapped> cap(a.soft_cap);
  const T* x = row_of<T>(a.logits, r);
  const std::int64_t target =
      reinterpret_cast<const std::int32_t*>(a.targets.data)[r] - a.first_token;
  float* stats = reinterpret_cast<float*>(a.stats.data) + kPartStats * r;
  const float most = row_max(x, tokens);
  const float top = most == -__builtin_inff() ? most : capped(cap, most);
  // Without a token above -inf, -inf - top would be no number.
  const float shift = top == -__builtin_inff() ? 0.0F : top;
  const RowSums sums = sums_of(x, tokens, shift, cap);
  stats[0] = top;
  stats[1] = static_cast<float>(sums.exponentials);
  stats[2] = target >= 0 && target < tokens ? sum_of(first_lanes(cap.value(load(x + target, 1)), 1))
                                            : 0.0F;
  stats[3] = static_cast<float>(sums.logits);
}

template <typename T, bool kCapped>
void classify_gradient_row(const ClassifyGradient& a, std::int64_t r, std::int64_t tokens) {
  const Cap<kCapped> cap(a.soft_cap);
  T* x = row_of<T>(a.logits, r);
  const std::int32_t target = reinterpret_cast<const std::int32_t*>(a.targets.data)[r];
  if (target < 0) {
    clear(x, columns_of(a.logits));
    return;
  }
  const float row_lse = reinterpret_cast<const float*>(a.lse.data)[r];
  const LossSlope slope(a.terms, a.vocab);
  const auto softmax = static_cast<float>(slope.of_softmax(static_cast<double>(row_lse)));
  const bool one_scale = a.scale.shape[0] == 1;
  const float scale = reinterpret_cast<const float*>(a.scale.data)[one_scale ? 0 : r];
  const std::int64_t hit = target - a.first_token;
  const bool here = hit >= 0 && hit < tokens;
  const Vec target_logit = here ? load(x + hit, 1) : Vec(0.0F);
  write_gradient(x, tokens, cap, Again<T, kCapped>{x, cap, row_lse}, softmax, slope.everywhere,
                 scale);
  if (here) {
    const Vec d =
        exp_of(cap.value(target_logit) - Vec(row_lse)) * Vec(softmax) - Vec(slope.everywhere);
    store(x + hit, cap.times_slope((d - Vec(slope.at_target)) * Vec(scale), target_logit), 1);
  }
  clear(x + tokens, columns_of(a.logits) - tokens);
}

}  // namespace

void classify(const Classify& a, Range rows, float* exponentials) {
  with_type(a.logits.type, [&]<typename T>() {
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r)
        classify_row<T, kCapped>(a, r, columns_of(a.logits), exponentials);
    });
  });
}

void classify_part(const ClassifyPart& a, Range rows) {
  with_type(a.logits.type, [&]<typename T>() {
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r)
        classify_part_row<T, kCapped>(a, r, tokens_here(a));
    });
  });
}

void classify_gradient(const ClassifyGradient& a, Range rows) {
  with_type(a.logits.type, [&]<typename T>() {
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      for (std::int64_t r = rows.begin; r < rows.end; ++r)
        classify_gradient_row<T, kCapped>(a, r, tokens_here(a));
    });
  });
}

void soft_cap(const SoftCap& a, Range rows) {
  const Cap<true> cap(a.cap);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const T* x = row_of<T>(a.x, r);
      T* out = row_of<T>(a.out, r);
      for_vectors(
          columns_of(a.x), [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            store(out + i, cap.value(load(x + i, count)), count);
          });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
