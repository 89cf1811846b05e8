#include "kernels/cuda/apart.hpp"

namespace tessera::kernels::cuda {

Gemm without_last(Gemm product) {
  GemmKey& key = product.key;
  TESSERA_CHECK(!is_plain(key), "nothing can be left out of {}", text_of(key));
  if (key.epilogue == Epilogue::none) {
    key.bias = false;
    return product;
  }
  if (key.epilogue == Epilogue::gelu) {  // which is then of what AUX holds
    product.d = product.aux;
    key.ldd = key.ld_aux;
    key.align_d = key.align_aux;
  }
  product.aux = nullptr;
  key.epilogue = Epilogue::none;
  key.ld_aux = key.align_aux = 0;
  return product;
}

std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules,
                               const Apart& apart) {
  std::set<GemmKey> keys;
  for (const KernelCall& call : calls) {
    std::visit(
        [&](const auto& args) {
          if constexpr (requires { gemm_of(args, rules); })
            keys.insert(gemm_of(args, rules, apart).key);
        },
        call);
  }
  return {keys.begin(), keys.end()};
}

std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules) {
  return gemm_keys(calls, rules, {});
}

void add_refused(Apart& all, std::span<const GemmKey> keys, std::int64_t library) {
  for (const GemmKey& key : keys) {
    if (is_plain(key)) {
      throw DeviceError(
          fmt::format("cuBLASLt {} has no algorithm that all ranks' GPUs take for {}: try sizes of "
                      "the model and batch.micro that are multiples of 8, or another version of it",
                      library, text_of(key)));
    }
    all.insert(key);
  }
}

std::string text_of(const GemmKey& key) {
  return fmt::format(
      "({}, {}) = ({}, {}) x ({}, {}), {} x {} -> {}, distances {} {} {}, alignments "
      "{} {} {}{}{}{}",
      key.m, key.n, key.m, key.k, key.k, key.n, to_string(key.type_a), to_string(key.type_b),
      to_string(key.result), key.lda, key.ldb, key.ldd, key.align_a, key.align_b, key.align_d,
      key.bias ? ", bias" : "", key.write == Write::add ? ", added" : "",
      key.epilogue == Epilogue::none ? "" : fmt::format(", {}", enum_word(key.epilogue)));
}

}  // namespace tessera::kernels::cuda
