// Softmax and cross-entropy on the CPU: checks arguments, divides rows over the team.
#include "kernels/common/classifier.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// Refuses targets beyond the vocabulary. Only a back end that reads them on the host can.
void check_targets(const View& targets, std::int64_t vocab) {
  const auto* target = targets.as<std::int32_t>();
  for (std::int64_t r = 0; r < targets.elements(); ++r) {
    TESSERA_CHECK(target[r] < vocab, "target {} in row {}, vocabulary {}", target[r], r, vocab);
  }
}

/// Floats of a row of exponentials, which its gradient is made of.
std::int64_t exponentials_of(const Classify& a) { return a.scale ? round_up(a.vocab, 16) : 0; }

}  // namespace

std::int64_t scratch_bytes(const Classify& a, const Context& context) {
  return context.threads * exponentials_of(a) * size_of(DType::f32);
}

void run(const Classify& a, const Context& context) {
  check_targets(a.targets, a.vocab);
  const std::int64_t rows = a.logits.rows(), each = exponentials_of(a);
  auto* all = reinterpret_cast<float*>(a.scratch.data);
  parallel_ranges(context.threads, context.threads, 1, [&](Range one) {
    const Range own = even_part(rows, one.begin, context.threads);
    context.hot.classify(a, own, each > 0 ? all + one.begin * each : nullptr);
  });
}

void run(const ClassifyPart& a, const Context& context) {
  check_targets(a.targets, a.vocab);
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify_part(a, rows); });
}

void run(const ClassifyLoss& a, const Context& context) {
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  parallel_ranges(context.threads, rows, 16, [&](Range part) {
    for (std::int64_t r = part.begin; r < part.end; ++r) {
      loss_of_parts(a.stats.as<float>() + kPartStats * r, parts, kPartStats * rows, a.terms,
                    a.vocab, a.targets.as<std::int32_t>()[r] < 0, a.losses.as<float>()[r],
                    a.lse.as<float>()[r]);
    }
  });
}

void run(const ClassifyGradient& a, const Context& context) {
  check_targets(a.targets, a.vocab);
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify_gradient(a, rows); });
}

void run(const SoftCap& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.soft_cap(a, rows); });
}

void run(const Confusion& a, const Context&) {
  const std::int64_t classes = a.counts.cols();
  check_targets(a.targets, classes);
  with_type(a.logits.type, [&]<typename T>() {
    const View logits = a.logits.matrix();
    for (std::int64_t r = 0; r < logits.rows(); ++r) {
      const std::int32_t target = a.targets.as<std::int32_t>()[r];
      if (target < 0) continue;
      const T* row = logits.as<T>() + r * logits.ld;
      const std::int64_t predicted =
          first_largest(classes, [&](std::int64_t i) { return static_cast<float>(row[i]); });
      ++a.counts.as<std::int64_t>()[target * classes + predicted];
    }
  });
}

}  // namespace tessera::kernels::cpu
