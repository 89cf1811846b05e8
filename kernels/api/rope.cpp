#include "kernels/api/rope.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check(const RopeScaling& s, std::int64_t turned) {
  using enum RopeScalingKind;
  if (s.kind == none) return;
  TESSERA_CHECK(s.factor >= 1, "frequencies for {} times as long a context", s.factor);
  TESSERA_CHECK(s.kind == linear || s.original_positions > 0, "a context of {} before",
                s.original_positions);
  TESSERA_CHECK(s.kind != dynamic || (s.positions > 0 && turned > 2),
                "dynamic frequencies of {} columns for {} tokens", turned, s.positions);
  TESSERA_CHECK(s.kind != llama3 || (0 < s.low_frequency && s.low_frequency < s.high_frequency),
                "frequencies change between {} and {} turns", s.low_frequency, s.high_frequency);
  TESSERA_CHECK(
      s.kind != yarn || (0 < s.slow_turns && s.slow_turns <= s.fast_turns && s.magnitude >= 0),
      "frequencies change between {} and {} turns, magnitude {}", s.slow_turns, s.fast_turns,
      s.magnitude);
}

}  // namespace

void check(const Rope& a) {
  check_floats({a.x});
  check_documents(a.documents, a.x.extent(0), a.x.extent(1));
  check_cached(a.cached, a.x.extent(0));
  TESSERA_CHECK(!(a.documents || a.cached) || a.first_position == 0,
                "documents or a cache from position {}", a.first_position);
  TESSERA_CHECK(!a.cached || (!a.documents && a.longest == 0), "documents of a cache");
  TESSERA_CHECK(a.x.rank == 3 && a.head_dim > 0 && a.x.cols() % a.head_dim == 0 &&
                    a.rotary_dim >= 0 && a.turned() % 2 == 0 && a.first_column >= 0 &&
                    a.first_column + a.turned() <= a.head_dim && a.first_position >= 0,
                "{} columns of heads of {}, of which {} from {} on turn, from position {}",
                a.x.cols(), a.head_dim, a.turned(), a.first_column, a.first_position);
  check(a.scaling, a.turned());
}

}  // namespace tessera::kernels
