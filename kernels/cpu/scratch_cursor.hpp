// Divides an operation's scratch into the pieces that it needs.
#pragma once

#include <algorithm>

#include "core/math.hpp"
#include "core/view.hpp"

namespace tessera::kernels::cpu {

/// Hands out pieces of scratch one after another. For a measurement the addresses mean nothing.
class ScratchCursor {
 public:
  explicit ScratchCursor(View scratch) : base_(scratch.data), bytes_(scratch.span_bytes()) {}
  static ScratchCursor measuring() {
    ScratchCursor cursor{View()};
    cursor.base_ = reinterpret_cast<std::byte*>(kAlignment);
    cursor.measures_ = true;
    return cursor;
  }

  View matrix(std::int64_t rows, std::int64_t columns, DType type = DType::f32) {
    const View v(base_ + used_, type, {rows, columns});
    TESSERA_CHECK(measures_ || used_ + v.span_bytes() <= bytes_,
                  "{} bytes of scratch behind the first {} of {}", v.span_bytes(), used_, bytes_);
    used_ += round_up(v.span_bytes(), kAlignment);
    return v;
  }
  /// What has not been handed out, if so much is there; of a measurement nothing.
  View rest() const {
    return View(base_ + used_, DType::u8, {std::max<std::int64_t>(0, bytes_ - used_)});
  }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlignment = 64;

  std::byte* base_;
  std::int64_t bytes_, used_ = 0;
  bool measures_ = false;
};

}  // namespace tessera::kernels::cpu
