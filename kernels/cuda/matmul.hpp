// Matrix products by cuBLASLt. Every product keeps one algorithm, because another may round
// differently: chosen by the library or by timing before the first step, or adopted from a table.
#pragma once

#include <functional>
#include <memory>

#include "kernels/cuda/algorithm_table.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

/// How an algorithm is chosen: the library's first proposal, the same wherever library and GPU are
/// the same; or the fastest of its proposals here and now.
enum class AlgorithmChoice : std::uint8_t { first, timed };

/// Queues on kernels of our own what a product does beyond without_last of it, whose result is
/// there already. `bias`: as of Matmul::run.
using OwnKernels = std::function<void(const Gemm& product, std::byte* bias)>;

class Matmul {
 public:
  /// Opens the library; `driver` is GemmMachine's. Throws DeviceError.
  Matmul(const Queue& queue, int driver);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// The product of an operation, without what is computed apart. The library is asked about a
  /// product whose algorithm was neither chosen nor adopted.
  template <typename Call>
  Gemm product_for(const Call& call, const ProductRules& rules) {
    Gemm product = gemm_of(call, rules, apart_);
    while (!is_plain(product.key) && !takes(product.key)) {
      refuse({&product.key, 1});
      product = gemm_of(call, rules, apart_);
    }
    return product;
  }
  /// Whether the product has an algorithm, or the library proposes one.
  bool takes(const GemmKey& key);
  /// From here on these products are computed in parts. Throws DeviceError for a plain one.
  void refuse(std::span<const GemmKey> keys) { add_refused(apart_, keys, machine().library); }
  /// What is refused, or was chosen or adopted as faster in parts.
  const Apart& apart() const { return apart_; }

  /// Queues the product. `bias` (m) is of the result's type and on kOperandAlignment, absent where
  /// the key has none; `workspace` has kMatmulWorkspace bytes from a kWorkspaceAlignment on. A
  /// product whose algorithm was neither chosen nor adopted takes the library's first proposal.
  void run(const Gemm& product, const std::byte* bias, const View& workspace);

  /// Bytes of memory that timing these products takes.
  static std::int64_t timing_bytes(std::span<const GemmKey> keys);
  /// Chooses the algorithm of each product, none where the library refuses it. `memory`
  /// (timing_bytes, likewise aligned; only for AlgorithmChoice::timed) is overwritten. With `own` a
  /// product that is not plain is also timed in parts, each as it is chosen, and computed so where
  /// that is faster; then its parts are chosen too.
  void choose(std::span<const GemmKey> keys, AlgorithmChoice how, const View& memory,
              const OwnKernels& own = {});
  /// Takes over the choices of a table made on the same kind of machine for those of `keys` that it
  /// has; the others, and what this machine's library refuses, are returned.
  std::vector<GemmKey> adopt(const AlgorithmTable& table, std::span<const GemmKey> keys);
  /// All choices made so far.
  AlgorithmTable table() const;
  GemmMachine machine() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
  Apart apart_;
};

}  // namespace tessera::kernels::cuda
