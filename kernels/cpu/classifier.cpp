#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/tree.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

void check_targets(const View& targets, std::int64_t rows, std::int64_t vocab) {
  check_flat({targets}, DType::i32, rows);
  const auto* target = targets.as<std::int32_t>();
  for (std::int64_t r = 0; r < rows; ++r) {
    TESSERA_CHECK(target[r] < vocab, "target {} in row {}, vocabulary {}", target[r], r, vocab);
  }
}

template <typename Operation>
void check_part(const Operation& a) {
  check_floats({a.logits});
  TESSERA_CHECK(a.first_token >= 0 && a.vocab > 0, "tokens from {} on of a vocabulary of {}",
                a.first_token, a.vocab);
  check_targets(a.targets, a.logits.rows(), a.vocab);
}

}  // namespace

void run(const Classify& a, const Context& context) {
  check_floats({a.logits});
  check_flat({a.losses}, DType::f32, a.logits.rows());
  if (a.scale) check_flat({a.scale}, DType::f32, 1);
  TESSERA_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "vocabulary {} of {} columns", a.vocab,
                a.logits.cols());
  check_targets(a.targets, a.logits.rows(), a.vocab);
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify(a, rows); });
}

void run(const ClassifyPart& a, const Context& context) {
  check_part(a);
  check_flat({a.stats}, DType::f32, 3 * a.logits.rows());
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify_part(a, rows); });
}

namespace {

/// The row's loss and lse; `stats` are the first part's, those of the next are `stride` further.
void classify_loss_row(const float* stats, std::int64_t parts, std::int64_t stride, bool ignored,
                       float& loss, float& lse) {
  double top = -std::numeric_limits<double>::infinity(), target = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    top = std::max(top, static_cast<double>(stats[p * stride]));
    target += static_cast<double>(stats[p * stride + 2]);  // all but one are 0
  }
  const double sum = tree_sum(parts, [&](std::int64_t p) {
    const float* part = stats + p * stride;
    return static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - top);
  });
  const double log_sum = top + std::log(sum);
  lse = static_cast<float>(log_sum);
  loss = ignored ? 0.0F : static_cast<float>(log_sum - target);
}

}  // namespace

void run(const ClassifyLoss& a, const Context& context) {
  TESSERA_CHECK(a.stats.rank == 3 && a.stats.extent(0) >= 1 && a.stats.cols() == 3,
                "stats are (parts, rows, 3)");
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  check_flat({a.stats}, DType::f32, 3 * parts * rows);
  check_flat({a.targets}, DType::i32, rows);
  check_flat({a.losses, a.lse}, DType::f32, rows);
  parallel_ranges(context.threads, rows, 16, [&](Range part) {
    for (std::int64_t r = part.begin; r < part.end; ++r) {
      classify_loss_row(a.stats.as<float>() + 3 * r, parts, 3 * rows,
                        a.targets.as<std::int32_t>()[r] < 0, a.losses.as<float>()[r],
                        a.lse.as<float>()[r]);
    }
  });
}

void run(const ClassifyGradient& a, const Context& context) {
  check_part(a);
  check_flat({a.lse}, DType::f32, a.logits.rows());
  check_flat({a.scale}, DType::f32, 1);
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify_gradient(a, rows); });
}

}  // namespace tessera::kernels::cpu
