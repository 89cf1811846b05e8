// Matrix products by oneDNN. A product is compiled on first use and kept, so that a step of fixed
// shapes allocates nothing; library scratch is the caller's.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "core/view.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels::cpu {

/// How an operand is stored: as the product has it, or transposed.
enum class Stored : std::uint8_t { straight, turned };

/// c (m, n) (+)= a (m, k) b (k, n) + bias (n). A turned operand's view has its extents exchanged.
struct Product {
  View a, b, c;
  View bias;  // or absent; not together with Write::add
  Stored a_stored = Stored::straight, b_stored = Stored::straight;
  Write write = Write::overwrite;
};

class Matmul {
 public:
  explicit Matmul(int threads);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Whether products of this type are computed as they are; otherwise operands must be f32.
  bool native(DType type) const;
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
