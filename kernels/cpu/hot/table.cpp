#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

constinit const HotKernels kTable{
    .embed = embed,
    .embed_backward_tokens = embed_backward_tokens,
    .embed_backward_positions = embed_backward_positions,
    .add_positions = add_positions,
    .add_norm = add_norm,
    .norm_backward = norm_backward,
    .add_pending = add_pending,
    .apply_dropout = apply_dropout,
    .attention = attention,
    .attention_backward = attention_backward,
    .rope = rope,
    .activate = activate,
    .activate_backward = activate_backward,
    .classify = classify,
    .classify_part = classify_part,
    .classify_gradient = classify_gradient,
    .adam = adam,
    .convert = convert,
    .tree_sum = tree_sum,
    .sum_rows = sum_rows,
    .largest_magnitude = largest_magnitude,
    .round_to_fp8 = round_to_fp8,
    .scale_sums = scale_sums,
    .exact_sum = exact_sum,
    .quantize = quantize,
    .sum_quantized = sum_quantized,
    .requantize_sum = requantize_sum,
};

}  // namespace tessera::kernels::TESSERA_ISA
