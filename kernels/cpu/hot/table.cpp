#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

constinit const HotKernels kTable{
    .embed = embed,
    .embed_backward_tokens = embed_backward_tokens,
    .embed_backward_positions = embed_backward_positions,
    .add_norm = add_norm,
    .norm_backward = norm_backward,
    .apply_dropout = apply_dropout,
    .attention = attention,
    .attention_backward = attention_backward,
    .rope = rope,
    .activate = activate,
    .activate_backward = activate_backward,
    .classify = classify,
    .adam = adam,
    .convert = convert,
    .sum_rows = sum_rows,
    .exact_sum = exact_sum,
};

}  // namespace tessera::kernels::TESSERA_ISA
