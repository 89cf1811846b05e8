// Matrix products by oneDNN, which uses a processor's matrix instructions (AMX). A product is
// compiled on first use and kept, so that a step of fixed shapes allocates nothing; scratch is the
// caller's.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/cpu/hot/product.hpp"

namespace tessera::kernels::cpu {

/// Products of bf16, with sums in f32. Bits may depend on the number of threads, and on how many
/// rows there are.
class LibraryProducts {
 public:
  explicit LibraryProducts(int threads);
  ~LibraryProducts();
  LibraryProducts(const LibraryProducts&) = delete;
  LibraryProducts& operator=(const LibraryProducts&) = delete;

  /// Of a product whose shapes fit; one to which something is added may need more.
  std::int64_t scratch_bytes(const Product& product);
  void run(const Product& product, View scratch);

 private:
  struct Key {
    std::int64_t m, n, k, lda, ldb, ldc;
    DType ab, c, bias;
    bool a_turned, b_turned, has_bias, add;
    auto operator<=>(const Key&) const = default;
  };
  struct Compiled;

  Compiled& compiled(const Product& product);

  int threads_;
  struct Library;
  std::unique_ptr<Library> library_;
  std::map<Key, std::unique_ptr<Compiled>> compiled_;
};

}  // namespace tessera::kernels::cpu
