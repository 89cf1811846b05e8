// The loops that decide the speed of a step, each over a range of rows or elements, so that the
// caller divides the work. They are compiled once for each instruction set (TESSERA_ISA names the
// namespace) and reached through one table of functions, chosen when the device is made. They check
// nothing, allocate nothing and start no threads: shapes are checked and work is divided in
// kernels/cpu/*.cpp.
#pragma once

#include <span>
#include <type_traits>

#include "core/math.hpp"
#include "kernels/api/device.hpp"
#include "kernels/common/dropout.hpp"
#include "kernels/common/place_rows.hpp"
#include "kernels/common/quantize.hpp"
#include "kernels/cpu/hot/attention_shape.hpp"
#include "kernels/cpu/hot/product.hpp"
#include "kernels/cpu/isa.hpp"

namespace tessera::kernels {

/// Rows of x that multiply_few_rows takes.
inline constexpr std::int64_t kMostFewRows = 32;

/// y = x W^T + b, where x is few rows.
struct FewRows {
  View x;       // (M, K)
  View weight;  // (N, K), of x's type or codes
  WeightCodes codes;
  View bias, y;
  std::byte* packed = nullptr;  // what pack_few_rows makes of x; null where it needs no bytes
};
/// Bytes of x packed, and, for each thread, of rows of the weight that are not multiplied as they
/// lie.
struct FewRowsScratch {
  std::int64_t packed = 0, weight = 0;
};

/// What one rank has added to a sum: elements of f32 or a 16-bit type.
struct SumPart {
  const std::byte* data;
  DType type;
};
/// out (+)= the sum of the parts in TreeSum's order, each rounded to the type in which
/// contributions travel. `out` may be one of the parts.
struct SumOfParts {
  std::span<const SumPart> parts;
  DType wire = DType::f32;
  std::byte* out = nullptr;
  DType out_type = DType::f32;
  Write write = Write::overwrite;
};

/// The list of these functions, with their types: the table, what the files of hot/ define, and the
/// table's values come from it.
// clang-format off
#define TESSERA_EACH_HOT_KERNEL(F) \
  F(embed, void(const Embed&, const DropoutRule&, Range rows)) \
  /* Places sorted by (row of the table, place); runs of one row that begin in `entries` are added \
     up. */ \
  F(embed_backward_rows, void(const EmbedBackward&, const DropoutRule&, const PlaceRows&, \
    const View& table, std::span<const std::int64_t> places, Range entries)) \
  /* Without documents. */ \
  F(embed_backward_positions, void(const EmbedBackward&, const DropoutRule&, Range positions)) \
  F(add_positions, void(const AddPositions&, const DropoutRule&, Range rows)) \
  F(add_norm, void(const AddNorm&, const DropoutRule&, Range rows)) \
  /* d_weight and d_bias of these rows are added to the partial sums (C), f32; bias may be \
     null. */ \
  F(norm_backward, void(const NormBackward&, Range rows, float* d_weight, float* d_bias)) \
  F(add_pending, void(const AddPending&, const DropoutRule&, Range rows)) \
  F(apply_dropout, void(const ApplyDropout&, const DropoutRule&, Range rows)) \
  F(attention, void(const Attention&, const DropoutRule&, const AttentionUnit&, float* scratch)) \
  F(attention_backward, void(const AttentionBackward&, const DropoutRule&, const KvHead&, \
    float* scratch)) \
  F(merge_attention, void(const MergeAttention&, Range rows)) \
  /* `turns`: (T, 2, R / 2) f32, cosines, then sines. */ \
  F(rope, void(const Rope&, const float* turns, Range rows)) \
  F(split_heads, void(const SplitHeads&, Range rows)) \
  F(activate, void(const Activate&, Range rows)) \
  F(activate_backward, void(const ActivateBackward&, Range rows)) \
  /* `exponentials`: room for a row of f32; null where there is no gradient. */ \
  F(classify, void(const Classify&, Range rows, float* exponentials)) \
  F(classify_part, void(const ClassifyPart&, Range rows)) \
  F(classify_gradient, void(const ClassifyGradient&, Range rows)) \
  F(soft_cap, void(const SoftCap&, Range rows)) \
  /* Of some of the (B, C) results, counted row by row. */ \
  F(pool, void(const Pool&, Range elements)) \
  F(pool_backward, void(const PoolBackward&, Range rows)) \
  F(join_gates, void(const JoinGates&, Range rows)) \
  F(join_gates_backward, void(const JoinGatesBackward&, Range rows)) \
  F(route, void(const Route&, Range rows)) \
  F(route_backward, void(const RouteBackward&, Range rows)) \
  /* Sixteen neighbouring experts of a sample each, counted sample by sample. */ \
  F(expert_load, void(const ExpertLoad&, Range sixteens)) \
  F(spread_rows, void(const SpreadRows&, Range rows)) \
  F(combine_rows, void(const CombineRows&, Range rows)) \
  F(row_dots, void(const RowDots&, Range rows)) \
  /* `trust`: trust_of a second pass's sums. */ \
  F(update, void(const OptimizerUpdate&, float trust, Range elements)) \
  /* A first pass: words (kTensorWords, not normalised) += its sums; null: there are none. */ \
  F(first_update, void(const OptimizerUpdate&, Range elements, std::int64_t* words)) \
  /* Moves state and makes directions, of a step that is applied. */ \
  F(direct_update, void(const OptimizerUpdate&, Range elements)) \
  /* Moments move; returns the bits of the largest ratio, or 0. */ \
  F(moment_ratio, std::int64_t(const MomentRatio&, Range elements)) \
  /* out = x * factor, for matrices of equal shape. */ \
  F(scale, void(const View& x, float factor, const View& out, Range rows)) \
  F(product_form, ProductForm(DType)) \
  /* The part's rows of the left operand. */ \
  F(pack_left, void(const Product&, const ProductPart&)) \
  F(multiply_part, void(const Product&, const ProductPart&)) \
  F(few_rows_scratch, FewRowsScratch(const FewRows&)) \
  F(pack_few_rows, void(const FewRows&)) \
  F(multiply_few_rows, void(const FewRows&, Range columns, std::byte* weight)) \
  F(row_squares, void(const RowSquares&, Range rows)) \
  F(scale_columns, void(const ScaleColumns&, Range rows)) \
  F(magnitude_backward, void(const MagnitudeBackward&, Range columns)) \
  F(square_polynomial, void(const SquarePolynomial&, Range rows)) \
  /* out (+)= x for matrices of equal shape. */ \
  F(convert, void(const View& x, const View& out, Write, Range rows)) \
  /* `factor` is y's. */ \
  F(blend, void(const Blend&, float factor, Range elements)) \
  /* The parts as (parts, elements). */ \
  F(tree_sum, void(const TreeSum&, Range elements)) \
  F(sum_parts, void(const SumOfParts&, Range elements)) \
  /* out (+)= sum of x over its rows, in an order that rows alone decide. */ \
  F(sum_rows, void(const View& x, const View& out, Write, Range columns)) \
  /* The bits of the largest |x|; not-a-number's are larger than infinity's. */ \
  F(largest_magnitude, std::uint32_t(const View& x, Range rows)) \
  /* out = x times `scale`, rounded to a number of e4m3 or e5m2. */ \
  F(round_to_fp8, void(const View& x, float scale, DType format, const View& out, Range rows)) \
  /* out (+)= sums times `factor` + bias, which may be absent. */ \
  F(scale_sums, void(const View& sums, float factor, const View& bias, const View& out, Write, \
    Range rows)) \
  /* words (not normalised) += sum of the elements of a flat view. */ \
  F(exact_sum, void(const View& x, ExactSum::Of, Range elements, std::int64_t* words)) \
  /* Blocks are counted over all slots: of x, of out, of the sum. `numbers` holds two blocks', or \
   * one's without chance. */ \
  F(quantize, void(const Quantize&, const SlotLayout&, Range blocks, float* numbers)) \
  F(sum_quantized, void(const SumQuantized&, const SlotLayout&, Range blocks)) \
  F(requantize_sum, void(const RequantizeSum&, const SlotLayout&, Range blocks, float* numbers))
// clang-format on

/// Those of them that are also compiled for instructions for matrices.
#define TESSERA_EACH_MATRIX_KERNEL(F) \
  F(attention)                        \
  F(attention_backward)               \
  F(product_form)                     \
  F(pack_left) F(multiply_part) F(few_rows_scratch) F(pack_few_rows) F(multiply_few_rows)

struct HotKernels {
#define TESSERA_POINTER(name, ...) std::add_pointer_t<__VA_ARGS__> name;
  TESSERA_EACH_HOT_KERNEL(TESSERA_POINTER)
#undef TESSERA_POINTER
};

const HotKernels& hot_kernels(Isa isa);

}  // namespace tessera::kernels
