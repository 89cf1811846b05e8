// Matrix products: how one is cut over the team of threads and over the depth, and which are
// oneDNN's.
#pragma once

#include <memory>

#include "kernels/cpu/hot/hot.hpp"
#include "kernels/cpu/library.hpp"

namespace tessera::kernels::cpu {

/// Products of f32, f16 and bf16. Of our own ones, each element is a chain of multiply-adds in the
/// order of the depth (of bf16 two by two, the later first), so that its bits depend on its row of
/// a and its column of b alone. Scratch is the caller's.
class Matmul {
 public:
  /// `library`: products of bf16 are oneDNN's.
  Matmul(int threads, const HotKernels& hot, bool library);

  /// Whether a product of this type is compiled for its shape, so that there should be few shapes.
  bool compiles(DType type) const { return library_ && type == DType::bf16; }

  std::int64_t scratch_bytes(const Product& product) const;
  /// Throws InternalError where shapes do not fit or there is too little scratch.
  void run(const Product& product, View scratch) const;

 private:
  int threads_;
  const HotKernels& hot_;
  std::unique_ptr<LibraryProducts> library_;
};

}  // namespace tessera::kernels::cpu
