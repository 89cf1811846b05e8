// Matrix products: how one is cut over the team of threads and over the depth.
#pragma once

#include "kernels/cpu/hot/hot.hpp"

namespace tessera::kernels::cpu {

/// Products of f32, f16 and bf16. Each element is a sum over the depth in an order of the
/// instruction set and the type: a chain of multiply-adds (of bf16 two by two, the later first), or
/// such chains of 32 elements each where there are instructions for matrices (hot/matrices). So its
/// bits depend on its row of a and its column of b alone. Scratch is the caller's.
class Matmul {
 public:
  Matmul(int threads, const HotKernels& hot) : threads_(threads), hot_(hot) {}

  std::int64_t scratch_bytes(const Product& product) const;
  /// Throws InternalError where shapes do not fit or there is too little scratch.
  void run(const Product& product, View scratch) const;

 private:
  int threads_;
  const HotKernels& hot_;
};

}  // namespace tessera::kernels::cpu
