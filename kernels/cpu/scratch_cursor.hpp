// Divides an operation's scratch into the pieces that it needs.
#pragma once

#include "core/math.hpp"
#include "core/view.hpp"

namespace tessera::kernels::cpu {

/// Hands out pieces of scratch one after another. For a measurement the addresses mean nothing.
class ScratchCursor {
 public:
  explicit ScratchCursor(View scratch) : base_(scratch.data) {}
  static ScratchCursor measuring() {
    View anywhere;
    anywhere.data = reinterpret_cast<std::byte*>(kAlignment);
    return ScratchCursor(anywhere);
  }

  View matrix(std::int64_t rows, std::int64_t columns, DType type = DType::f32) {
    const View v(base_ + used_, type, {rows, columns});
    used_ += round_up(v.span_bytes(), kAlignment);
    return v;
  }
  View rest() const { return View(base_ + used_, DType::u8, {0}); }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlignment = 64;

  std::byte* base_;
  std::int64_t used_ = 0;
};

}  // namespace tessera::kernels::cpu
