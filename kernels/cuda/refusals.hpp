// What is computed in place of products that the library refuses, as it may refuse gelu or a bias
// within a product on some GPU, version or alignment: the same product without it, and an operation
// of our own for it.
#pragma once

#include <set>
#include <string>

#include "kernels/cuda/gemm.hpp"

namespace tessera::kernels::cuda {

/// Products that the library does not compute as they are.
using Refusals = std::set<GemmKey>;

/// A product of operands alone: nothing can be left out of it.
inline bool is_plain(const GemmKey& key) { return key.epilogue == Epilogue::none && !key.bias; }

/// The product of an operation: as the rules say, without gelu where that is refused, without the
/// bias where that is too.
template <typename Call>
Gemm gemm_of(const Call& call, ProductRules rules, const Refusals& refused) {
  Gemm product = gemm_of(call, rules);
  if (product.key.epilogue != Epilogue::none && refused.contains(product.key)) {
    rules.gelu = false;
    product = gemm_of(call, rules);
  }
  if (refused.contains(product.key)) product.key.bias = false;
  return product;
}

/// The same as gemm_keys of gemm.hpp.
std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules,
                               const Refusals& refused);

/// Throws DeviceError for a plain product: there is no other way to compute it. `library`: its
/// version.
void add_refused(Refusals& all, std::span<const GemmKey> keys, std::int64_t library);

/// For people.
std::string text_of(const GemmKey& key);

}  // namespace tessera::kernels::cuda
