#include "kernels/cuda/refusals.hpp"

namespace tessera::kernels::cuda {

std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules,
                               const Refusals& refused) {
  std::set<GemmKey> keys;
  for (const KernelCall& call : calls) {
    std::visit(
        [&](const auto& args) {
          if constexpr (requires { gemm_of(args, rules); })
            keys.insert(gemm_of(args, rules, refused).key);
        },
        call);
  }
  return {keys.begin(), keys.end()};
}

std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules) {
  return gemm_keys(calls, rules, {});
}

void add_refused(Refusals& all, std::span<const GemmKey> keys, std::int64_t library) {
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
