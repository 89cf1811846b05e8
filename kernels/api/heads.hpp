// Heads of attention that have some columns of their own and share others: keys made of latents,
// whose positions all heads have in common (DeepSeek-AI 2024, DeepSeek-V2, section 2.1.3).
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// Head h of `out` has the N columns of head h of `own`, and behind them the R of `shared`.
struct JoinHeads {
  static constexpr const char* kName = "join_heads";
  View own;                // (..., H N)
  View shared;             // (..., R)
  View out;                // (..., H (N + R))
  std::int64_t heads = 1;  // H
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.own, Access::read), f(s.shared, Access::read);
    f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const JoinHeads&) const = default;
};

/// The way back: d_own has its columns of d, and d_shared the sum of the others over heads, one
/// after another in f32. It may be f32 beside 16-bit operands.
struct SplitHeads {
  static constexpr const char* kName = "split_heads";
  View d;                  // (..., H (N + R))
  View d_own;              // (..., H N)
  View d_shared;           // (..., R)
  std::int64_t heads = 1;  // H
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d, Access::read);
    f(s.d_own, Access::write), f(s.d_shared, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const SplitHeads&) const = default;
};

}  // namespace tessera::kernels
