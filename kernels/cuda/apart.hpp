// What is computed in place of a product with a bias or gelu in it, where the library refuses that,
// as it may on some GPU, version or alignment, or where the product takes longer so: the same
// product without it, and an operation of our own for it.
#pragma once

#include <set>
#include <string>

#include "kernels/cuda/gemm.hpp"

namespace tessera::kernels::cuda {

/// Products that are computed in parts, each of which rounds what it writes: gelu is then of the
/// preactivation as written, a bias is added to the product as written.
using Apart = std::set<GemmKey>;

/// A product of operands alone: nothing can be left out of it.
inline bool is_plain(const GemmKey& key) { return key.epilogue == Epilogue::none && !key.bias; }

/// The product without what happens last to its sum: its epilogue, or the bias where it has none.
/// It is written where the operation finds it that follows in its place. Not of a plain one.
Gemm without_last(Gemm product);

/// The product of an operation as the rules say, without what is computed apart.
template <typename Call>
Gemm gemm_of(const Call& call, const ProductRules& rules, const Apart& apart) {
  Gemm product = gemm_of(call, rules);
  while (apart.contains(product.key)) product = without_last(product);
  return product;
}

/// The same as gemm_keys of gemm.hpp.
std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules,
                               const Apart& apart);

/// Throws DeviceError for a plain product: there is no other way to compute it. `library`: its
/// version.
void add_refused(Apart& all, std::span<const GemmKey> keys, std::int64_t library);

/// For people.
std::string text_of(const GemmKey& key);

}  // namespace tessera::kernels::cuda
