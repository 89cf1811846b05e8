// How much scratch the CUDA back end's operations need, and how their sums are divided: functions
// of shapes and one limit, without CUDA, so that a plan made on any machine knows the memory of a
// GPU's run.
#pragma once

#include <memory>

#include "kernels/api/device.hpp"

namespace tessera::kernels {

/// Answers scratch_bytes as make_cuda_device does of libraries with this limit (CudaLibraries), on
/// any machine; run() is an InternalError.
std::unique_ptr<Device> make_cuda_planner(std::int64_t most_scores);

}  // namespace tessera::kernels

namespace tessera::kernels::cuda {

/// Most operations need none; the others overload this.
template <typename Operation>
std::int64_t scratch_bytes(const Operation&) {
  return 0;
}
std::int64_t scratch_bytes(const EmbedBackward&);
std::int64_t scratch_bytes(const NormBackward&);
std::int64_t scratch_bytes(const Linear&);
std::int64_t scratch_bytes(const LinearBackwardInput&);
std::int64_t scratch_bytes(const LinearBackwardWeight&);
std::int64_t scratch_bytes(const Attention&);
std::int64_t scratch_bytes(const Rope&);
std::int64_t scratch_bytes(const CountChoices&);
std::int64_t scratch_bytes(const Dispatch&);
std::int64_t scratch_bytes(const SumQuantized&);
std::int64_t scratch_bytes(const RequantizeSum&);
std::int64_t scratch_bytes(const AttentionBackward&, std::int64_t most_scores);
/// Of any operation; `most_scores` is sdpa_plan's.
std::int64_t scratch_bytes(const KernelCall& call, std::int64_t most_scores);

/// Slots of one place that a kernel adds up.
inline constexpr std::int64_t kMostCodeParts = 4088;

/// What every matrix product may use: as much as NVIDIA recommends for cuBLAS on Hopper. It is the
/// same for all, so that the algorithm chosen for a product depends on nothing else.
inline constexpr std::int64_t kMatmulWorkspace = std::int64_t{32} << 20;
/// The library wants it on this boundary; scratch may begin anywhere.
inline constexpr std::int64_t kWorkspaceAlignment = 256;

/// The part of a product's scratch that the library uses, and what lies behind it: fp8 operands,
/// then a copy of the bias or partial sums of its gradient.
View workspace_of(const View& scratch);
std::byte* after_workspace(const View& scratch);

/// Where things lie in the scratch of an fp8 operand, in bytes; its codes come first.
struct Fp8Scratch {
  std::int64_t magnitudes, scale, bytes;

  explicit Fp8Scratch(const View& x);
};
/// Parts of an operand whose largest magnitudes are found at once.
inline constexpr std::int64_t kFp8Parts = 256;
/// Bytes for both operands of a call; 0 where they are used as stored.
std::int64_t fp8_bytes(const Linear&);
std::int64_t fp8_bytes(const LinearBackwardInput&);
std::int64_t fp8_bytes(const LinearBackwardWeight&);

/// Partial sums of a bias gradient, (chunks, N) f32 in scratch.
struct ColumnSums {
  std::int64_t rows, columns, chunks;

  explicit ColumnSums(const LinearBackwardWeight&);
  std::int64_t bytes() const;
};

/// Partial sums of NormBackward, (2, groups, chunks, heads, C / heads) f32 in scratch: weights,
/// then biases. A head of a chunk's rows is added up by one block.
struct NormPartials {
  std::int64_t groups, group_rows, chunks, heads, columns;

  explicit NormPartials(const NormBackward&);
  std::int64_t bytes() const;
};

/// A sort of places by their row of a table: keys and places twice, as a radix sort takes them from
/// one to the other, and how often each tile of places has each digit. The sorts of EmbedBackward's
/// tables use the same memory one after the other.
struct PlaceSort {
  static constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
  static constexpr std::int64_t kTile = 2048;  // places that a block sorts
  std::int64_t places, tiles;
  int passes;  // digits of a row's index

  PlaceSort(std::int64_t of_places, std::int64_t rows);
  std::int64_t bytes() const;
};

}  // namespace tessera::kernels::cuda
