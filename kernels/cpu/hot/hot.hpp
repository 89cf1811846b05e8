// The loops that decide the speed of a step, each over a range of rows or elements, so that the
// caller divides the work. They are compiled once for each instruction set (TESSERA_ISA names the
// namespace) and reached through one table of functions, chosen when the device is made. They check
// nothing, allocate nothing and start no threads: shapes are checked and work is divided in
// kernels/cpu/*.cpp.
#pragma once

#include <span>

#include "core/math.hpp"
#include "kernels/api/device.hpp"
#include "kernels/common/dropout.hpp"
#include "kernels/common/quantize.hpp"
#include "kernels/cpu/hot/attention_shape.hpp"
#include "kernels/cpu/isa.hpp"

namespace tessera::kernels {

struct HotKernels {
  void (*embed)(const Embed&, const DropoutRule&, Range rows);
  /// Places of the table's tokens, sorted by (token, place); runs of one token that begin in
  /// `entries` are added up.
  void (*embed_backward_tokens)(const EmbedBackward&, const DropoutRule&,
                                std::span<const std::int64_t> places, Range entries);
  void (*embed_backward_positions)(const EmbedBackward&, const DropoutRule&, Range positions);
  void (*add_positions)(const AddPositions&, const DropoutRule&, Range rows);
  void (*add_norm)(const AddNorm&, const DropoutRule&, Range rows);
  /// d_weight and d_bias of these rows are added to the partial sums (C), f32; bias may be null.
  void (*norm_backward)(const NormBackward&, Range rows, float* d_weight, float* d_bias);
  void (*add_pending)(const AddPending&, const DropoutRule&, Range rows);
  void (*apply_dropout)(const ApplyDropout&, const DropoutRule&, Range rows);
  void (*attention)(const Attention&, const DropoutRule&, const AttentionUnit&, float* scratch);
  void (*attention_backward)(const AttentionBackward&, const DropoutRule&, const KvHead&,
                             float* scratch);
  /// `turns`: (T, 2, D / 2) f32, cosines, then sines.
  void (*rope)(const Rope&, const float* turns, Range rows);
  void (*activate)(const Activate&, Range rows);
  void (*activate_backward)(const ActivateBackward&, Range rows);
  void (*classify)(const Classify&, Range rows);
  void (*classify_part)(const ClassifyPart&, Range rows);
  void (*classify_gradient)(const ClassifyGradient&, Range rows);
  void (*adam)(const AdamUpdate&, Range elements);
  /// out (+)= x for matrices of equal shape.
  void (*convert)(const View& x, const View& out, Write, Range rows);
  /// The parts as (parts, elements).
  void (*tree_sum)(const TreeSum&, Range elements);
  /// out (+)= sum of x over its rows, in an order that rows alone decide.
  void (*sum_rows)(const View& x, const View& out, Write, Range columns);
  /// The bits of the largest |x|; not-a-number's are larger than infinity's.
  std::uint32_t (*largest_magnitude)(const View& x, Range rows);
  /// out = x times `scale`, rounded to a number of e4m3 or e5m2.
  void (*round_to_fp8)(const View& x, float scale, DType format, const View& out, Range rows);
  /// out (+)= sums times `factor` + bias, which may be absent.
  void (*scale_sums)(const View& sums, float factor, const View& bias, const View& out, Write,
                     Range rows);
  /// words (not normalised) += sum of the elements of a flat view.
  void (*exact_sum)(const View& x, ExactSum::Of, Range elements, std::int64_t* words);
  /// Blocks are counted over all slots: of x, of out, of the sum.
  void (*quantize)(const Quantize&, const SlotLayout&, Range blocks);
  void (*sum_quantized)(const SumQuantized&, const SlotLayout&, Range blocks);
  /// `sums` holds a block's.
  void (*requantize_sum)(const RequantizeSum&, const SlotLayout&, Range blocks, float* sums);
};

const HotKernels& hot_kernels(Isa isa);

}  // namespace tessera::kernels
