#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const Classify& a, const Context& context) {
  check_floats({a.logits});
  check_flat({a.targets}, DType::i32, a.logits.rows());
  check_flat({a.losses}, DType::f32, a.logits.rows());
  if (a.scale) check_flat({a.scale}, DType::f32, 1);
  TESSERA_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "vocabulary {} of {} columns", a.vocab,
                a.logits.cols());
  const auto* target = a.targets.as<std::int32_t>();
  for (std::int64_t r = 0; r < a.logits.rows(); ++r) {
    TESSERA_CHECK(target[r] < a.vocab, "target {} in row {}, vocabulary {}", target[r], r, a.vocab);
  }
  parallel_ranges(context.threads, a.logits.rows(), 1,
                  [&](Range rows) { context.hot.classify(a, rows); });
}

}  // namespace tessera::kernels::cpu
