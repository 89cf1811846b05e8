// Residual addition fused with layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).
#pragma once

#include "core/choices.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// sum = round(resid + dropout(pending)); out = norm(sum) * weight + bias. The sum is written in
/// the compute type first and the *written* value is normalised, so that a pipeline boundary or
/// recomputation between the two changes no bit. Statistics are f32. With several heads, equal
/// parts of the columns, each is normalised by itself, and all have the same weights; then nothing
/// is pending.
struct AddNorm {
  static constexpr const char* kName = "add_norm";
  View resid;    // (B, T, C)
  View pending;  // (B, T, C) or absent
  View weight;   // (C / heads)
  View bias;     // (C / heads) or absent
  View sum;      // (B, T, C); absent when there is no pending (the sum is resid then)
  View out;      // (B, T, C)
  View stats;    // (B T heads, 2) f32: mean (0 for rmsnorm) and 1 / deviation
  NormKind kind = NormKind::layernorm;
  float eps = 1e-5F;
  std::int64_t heads = 1;
  Dropout dropout;  // of pending
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.resid, Access::read), f(s.pending, Access::read), f(s.weight, Access::read),
        f(s.bias, Access::read);
    f(s.dropout.samples, Access::read), f(s.sum, Access::write), f(s.out, Access::write);
    f(s.stats, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const AddNorm&) const = default;
};

/// d_sum = d_resid + gradient through the norm; d_weight, d_bias (+)= sums over rows, in an order
/// that does not depend on the number of threads. The T positions form `groups` equal parts, each
/// with sums of its own, whose bits do not depend on the other parts. d_resid may be absent (0) and
/// may be the same memory as d_sum. Heads as in AddNorm.
struct NormBackward {
  static constexpr const char* kName = "norm_backward";
  View d_out;     // (B, T, C)
  View d_resid;   // (B, T, C) or absent
  View sum;       // (B, T, C): AddNorm's sum
  View weight;    // (C / heads)
  View stats;     // (B T heads, 2) f32
  View d_sum;     // (B, T, C)
  View d_weight;  // (C / heads), or (groups, C / heads) dense, accumulation type
  View d_bias;    // like d_weight, or absent
  std::int64_t groups = 1;
  std::int64_t heads = 1;
  NormKind kind = NormKind::layernorm;
  Write write = Write::overwrite;  // of d_weight, d_bias
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_out, Access::read), f(s.d_resid, Access::read), f(s.sum, Access::read),
        f(s.weight, Access::read);
    f(s.stats, Access::read), f(s.d_sum, Access::write), f(s.d_weight, access_of(s.write));
    f(s.d_bias, access_of(s.write)), f(s.scratch, Access::write);
  }
  bool operator==(const NormBackward&) const = default;
};

/// The part of the contract that scratch needs.
void check_groups(const NormBackward& a);

/// sum = round(resid + dropout(pending)), the bits of AddNorm's sum: what goes from one pipeline
/// stage to the next.
struct AddPending {
  static constexpr const char* kName = "add_pending";
  View resid;    // (B, T, C)
  View pending;  // (B, T, C)
  View sum;      // (B, T, C)
  Dropout dropout;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.resid, Access::read), f(s.pending, Access::read), f(s.dropout.samples, Access::read);
    f(s.sum, Access::write), f(s.scratch, Access::write);
  }
  /// A call whose views `tensor()` makes.
  template <typename Tensor>
  static AddPending example(Tensor&& tensor) {
    return {.resid = tensor(), .pending = tensor(), .sum = tensor()};
  }
  bool operator==(const AddPending&) const = default;
};

/// out = dropout(x): the gradient of a dropped-out pending from the gradient of the sum.
struct ApplyDropout {
  static constexpr const char* kName = "dropout";
  View x;    // (B, T, C)
  View out;  // (B, T, C)
  Dropout dropout;
  /// Of a whole row, of which x has C: elements of the mask from one row to the next. 0: C.
  std::int64_t columns = 0;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.dropout.samples, Access::read), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const ApplyDropout&) const = default;
};

}  // namespace tessera::kernels
