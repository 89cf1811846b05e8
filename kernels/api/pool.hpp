// One vector for each of a sample's documents: what a head reads that says one thing of all of it.
#pragma once

#include "core/choices.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// out[b, k] = the mean of x[b, t] over the tokens of the sample's k-th document, added in f32 and
/// multiplied with 1 / their number; or the vector of its first or of its last token; 0 where the
/// sample has no more documents. A sum has sixteen parts, each of every sixteenth token in their
/// order, which are folded by halves.
struct Pool {
  static constexpr const char* kName = "pool";
  View x;          // (B, T, C)
  View documents;  // (B, T, 2), see check_documents; absent: a sample is one document
  View out;        // (B, K, C) or (B K, C), of the first K documents
  Pooling kind = Pooling::mean;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.documents, Access::read), f(s.out, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const Pool&) const = default;
};

/// d_x from the gradient of out: 0 for tokens that are not pooled.
struct PoolBackward {
  static constexpr const char* kName = "pool_backward";
  View d_out;      // as Pool's out
  View documents;  // as in Pool
  View d_x;        // (B, T, C)
  Pooling kind = Pooling::mean;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.d_out, Access::read), f(s.documents, Access::read), f(s.d_x, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const PoolBackward&) const = default;
};

}  // namespace tessera::kernels
