#include "kernels/api/classifier.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_terms(const LossTerms& t) {
  TESSERA_CHECK(t.label_smoothing >= 0 && t.label_smoothing < 1, "label smoothing of {}",
                t.label_smoothing);
  TESSERA_CHECK(t.z_loss >= 0, "a z-loss of {}", t.z_loss);
}

void check_cap(float cap) { TESSERA_CHECK(cap >= 0, "a soft cap of {}", cap); }

template <typename Operation>
void check_part(const Operation& a) {
  check_floats({a.logits});
  TESSERA_CHECK(a.first_token >= 0 && a.vocab > 0, "tokens from {} on of a vocabulary of {}",
                a.first_token, a.vocab);
  check_flat({a.targets}, DType::i32, a.logits.rows());
  check_cap(a.soft_cap);
}

}  // namespace

void check(const Classify& a) {
  check_floats({a.logits});
  check_flat({a.losses}, DType::f32, a.logits.rows());
  if (a.scale) check_flat({a.scale}, DType::f32, 1);
  TESSERA_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "vocabulary {} of {} columns", a.vocab,
                a.logits.cols());
  check_flat({a.targets}, DType::i32, a.logits.rows());
  check_cap(a.soft_cap);
  check_terms(a.terms);
}

void check(const ClassifyPart& a) {
  check_part(a);
  check_flat({a.stats}, DType::f32, kPartStats * a.logits.rows());
}

void check(const ClassifyLoss& a) {
  TESSERA_CHECK(a.stats.rank == 3 && a.stats.extent(0) >= 1 && a.stats.cols() == kPartStats,
                "stats are (parts, rows, {})", kPartStats);
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  check_flat({a.stats}, DType::f32, kPartStats * parts * rows);
  check_flat({a.targets}, DType::i32, rows);
  check_flat({a.losses, a.lse}, DType::f32, rows);
  TESSERA_CHECK(a.vocab > 0, "a vocabulary of {}", a.vocab);
  check_terms(a.terms);
}

void check(const ClassifyGradient& a) {
  check_part(a);
  check_flat({a.lse}, DType::f32, a.logits.rows());
  check_flat({a.scale}, DType::f32, a.scale.elements() == 1 ? 1 : a.logits.rows());
  check_terms(a.terms);
}

void check(const SoftCap& a) {
  check_floats({a.x});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x, a.out});
  TESSERA_CHECK(a.cap > 0, "a soft cap of {}", a.cap);
}

void check(const Confusion& a) {
  check_floats({a.logits});
  check_flat({a.targets}, DType::i32, a.logits.rows());
  const std::int64_t classes = a.counts.cols();
  check_flat({a.counts}, DType::i64, classes * classes);
  TESSERA_CHECK(classes >= 1 && classes <= a.logits.cols(), "{} classes of {} columns", classes,
                a.logits.cols());
}

}  // namespace tessera::kernels
