// Loops of softmax and cross-entropy, of whole rows and of parts of the vocabulary.
#include <cmath>

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
          best = max(load(x + i, count), best);
        } else {  // the padding's zeros must not win
          for (std::int64_t j = i; j < n; ++j) best = max(Vec(static_cast<float>(x[j])), best);
        }
      });
  return max_of(best);
}

template <typename T>
double sum_of_exponentials(const T* x, std::int64_t n, float shift) {
  double total = 0;
  for (std::int64_t c = 0; c < n; c += kSummed) {
    Vec sum(0.0F);
    for_vectors(
        n - c < kSummed ? n - c : kSummed, [&](std::int64_t i,
                                               std::int64_t count) __attribute__((always_inline)) {
          sum = sum + first_lanes(exp_of(load(x + c + i, count) - Vec(shift)), count);
        });
    total += static_cast<double>(sum_of(sum));
  }
  return total;
}

template <typename T>
void clear(T* x, std::int64_t n) {
  std::memset(static_cast<void*>(x), 0, static_cast<std::size_t>(n) * sizeof(T));
}

template <typename T>
void classify_row(const Classify& a, std::int64_t r, std::int64_t padded) {
  T* x = row_of<T>(a.logits, r);
  float& loss = reinterpret_cast<float*>(a.losses.data)[r];
  const std::int32_t target = reinterpret_cast<const std::int32_t*>(a.targets.data)[r];
  const bool gradient = a.scale.data != nullptr;
  if (target < 0) {
    loss = 0;
    if (gradient) clear(x, padded);
    return;
  }
  const float shift = row_max(x, a.vocab);
  const double sum = sum_of_exponentials(x, a.vocab, shift);
  Vec target_logit = load(x + target, 1);
  loss = static_cast<float>(std::log(sum) + static_cast<double>(shift) -
                            static_cast<double>(sum_of(target_logit)));
  if (!gradient) return;

  const float scale = *reinterpret_cast<const float*>(a.scale.data);
  const auto weight = static_cast<float>(static_cast<double>(scale) / sum);
  const float at_target =
      sum_of(first_lanes(exp_of(target_logit - Vec(shift)), 1)) * weight - scale;
  for_vectors(
      a.vocab, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        store(x + i, exp_of(load(x + i, count) - Vec(shift)) * Vec(weight), count);
      });
  store(x + target, Vec(at_target), 1);
  clear(x + a.vocab, padded - a.vocab);
}

/// How many of a part's columns are tokens; the others are padding.
template <typename Operation>
std::int64_t tokens_here(const Operation& a) {
  const std::int64_t left = a.vocab - a.first_token, columns = columns_of(a.logits);
  return left < 0 ? 0 : left < columns ? left : columns;
}

template <typename T>
void classify_part_row(const ClassifyPart& a, std::int64_t r, std::int64_t tokens) {
  const T* x = row_of<T>(a.logits, r);
  const std::int64_t target =
      reinterpret_cast<const std::int32_t*>(a.targets.data)[r] - a.first_token;
  float* stats = reinterpret_cast<float*>(a.stats.data) + 3 * r;
  const float top = row_max(x, tokens);
  // Without a token above -inf, -inf - top would be no number.
  const float shift = top == -__builtin_inff() ? 0.0F : top;
  stats[0] = top;
  stats[1] = static_cast<float>(sum_of_exponentials(x, tokens, shift));
  stats[2] = target >= 0 && target < tokens ? sum_of(load(x + target, 1)) : 0.0F;
}

template <typename T>
void classify_gradient_row(const ClassifyGradient& a, std::int64_t r, std::int64_t tokens) {
  T* x = row_of<T>(a.logits, r);
  const std::int32_t target = reinterpret_cast<const std::int32_t*>(a.targets.data)[r];
  if (target < 0) {
    clear(x, columns_of(a.logits));
    return;
  }
  const Vec lse(reinterpret_cast<const float*>(a.lse.data)[r]);
  const Vec scale(*reinterpret_cast<const float*>(a.scale.data));
  const std::int64_t hit = target - a.first_token;
  const bool here = hit >= 0 && hit < tokens;
  const Vec target_logit = here ? load(x + hit, 1) : Vec(0.0F);
  for_vectors(
      tokens, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        store(x + i, exp_of(load(x + i, count) - lse) * scale, count);
      });
  if (here) store(x + hit, (exp_of(target_logit - lse) - Vec(1.0F)) * scale, 1);
  clear(x + tokens, columns_of(a.logits) - tokens);
}

}  // namespace

void classify(const Classify& a, Range rows) {
  with_type(a.logits.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      classify_row<T>(a, r, columns_of(a.logits));
    }
  });
}

void classify_part(const ClassifyPart& a, Range rows) {
  with_type(a.logits.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) classify_part_row<T>(a, r, tokens_here(a));
  });
}

void classify_gradient(const ClassifyGradient& a, Range rows) {
  with_type(a.logits.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      classify_gradient_row<T>(a, r, tokens_here(a));
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
