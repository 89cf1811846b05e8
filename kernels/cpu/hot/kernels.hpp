// Declares the functions of HotKernels in the namespace of the instruction set being compiled for.
#pragma once

#include "kernels/cpu/hot/hot.hpp"
#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

void embed(const Embed&, const DropoutRule&, Range rows);
void embed_backward_tokens(const EmbedBackward&, const DropoutRule&,
                           std::span<const std::int64_t> places, Range entries);
void embed_backward_positions(const EmbedBackward&, const DropoutRule&, Range positions);
void add_positions(const AddPositions&, const DropoutRule&, Range rows);
void add_norm(const AddNorm&, const DropoutRule&, Range rows);
void norm_backward(const NormBackward&, Range rows, float* d_weight, float* d_bias);
void add_pending(const AddPending&, const DropoutRule&, Range rows);
void apply_dropout(const ApplyDropout&, const DropoutRule&, Range rows);
void attention(const Attention&, const DropoutRule&, const AttentionUnit&, float* scratch);
void attention_backward(const AttentionBackward&, const DropoutRule&, const KvHead&,
                        float* scratch);
void rope(const Rope&, const float* turns, Range rows);
void activate(const Activate&, Range rows);
void activate_backward(const ActivateBackward&, Range rows);
void classify(const Classify&, Range rows);
void classify_part(const ClassifyPart&, Range rows);
void classify_gradient(const ClassifyGradient&, Range rows);
void adam(const AdamUpdate&, Range elements);
void convert(const View& x, const View& out, Write, Range rows);
void tree_sum(const TreeSum&, Range elements);
void sum_rows(const View& x, const View& out, Write, Range columns);
std::uint32_t largest_magnitude(const View& x, Range rows);
void round_to_fp8(const View& x, float scale, DType format, const View& out, Range rows);
void scale_sums(const View& sums, float factor, const View& bias, const View& out, Write,
                Range rows);
void exact_sum(const View& x, ExactSum::Of, Range elements, std::int64_t* words);
void quantize(const Quantize&, const SlotLayout&, Range blocks);
void sum_quantized(const SumQuantized&, const SlotLayout&, Range blocks);
void requantize_sum(const RequantizeSum&, const SlotLayout&, Range blocks, float* sums);

extern const HotKernels kTable;

}  // namespace tessera::kernels::TESSERA_ISA
