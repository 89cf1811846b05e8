#include "kernels/cuda/scratch.hpp"

#include <algorithm>
#include <bit>

#include "core/math.hpp"
#include "kernels/cuda/sdpa_rules.hpp"

namespace tessera::kernels {
namespace cuda {
namespace {

// Of a group's rows. Few chunks leave multiprocessors idle, many cost the reading of their sums:
// with 16 rows to a chunk the sums are a sixteenth of what is read and written anyway, and 1024
// blocks are enough for all of today's GPUs.
constexpr std::int64_t kMaxChunks = 1024, kMinChunkRows = 16;

constexpr std::int64_t kMaxSumChunks = 256, kMinSumRows = 64;

constexpr std::int64_t kProductScratch = kMatmulWorkspace + kWorkspaceAlignment;

std::int64_t operand_bytes(Operands operands, const View& a, const View& b) {
  return operands == Operands::stored ? 0 : Fp8Scratch(a).bytes + Fp8Scratch(b).bytes;
}

}  // namespace

View workspace_of(const View& scratch) {
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(scratch.data));
  return scratch.range(round_up(address, kWorkspaceAlignment) - address, kMatmulWorkspace);
}
std::byte* after_workspace(const View& scratch) {
  return workspace_of(scratch).data + kMatmulWorkspace;
}

Fp8Scratch::Fp8Scratch(const View& x)
    : magnitudes(round_up(x.elements(), kWorkspaceAlignment)),
      scale(magnitudes + kFp8Parts * size_of(DType::i32)),
      bytes(scale + kWorkspaceAlignment) {}

std::int64_t fp8_bytes(const Linear& a) { return operand_bytes(a.operands, a.weight, a.x); }
std::int64_t fp8_bytes(const LinearBackwardInput& a) {
  return operand_bytes(a.operands, a.weight, a.d_y);
}
std::int64_t fp8_bytes(const LinearBackwardWeight& a) {
  return operand_bytes(a.operands, a.x, a.d_y);
}

// A bias that the library does not take as it is has a copy of the result's type.
std::int64_t scratch_bytes(const Linear& a) {
  return kProductScratch + fp8_bytes(a) + (a.bias ? a.bias.elements() * size_of(a.y.type) : 0);
}

std::int64_t scratch_bytes(const LinearBackwardInput& a) { return kProductScratch + fp8_bytes(a); }

ColumnSums::ColumnSums(const LinearBackwardWeight& a)
    : rows(a.d_y.rows()),
      columns(a.d_y.cols()),
      chunks(std::min(kMaxSumChunks, ceil_div(rows, kMinSumRows))) {}

std::int64_t ColumnSums::bytes() const { return chunks * columns * size_of(DType::f32); }

std::int64_t scratch_bytes(const LinearBackwardWeight& a) {
  return kProductScratch + fp8_bytes(a) + (a.d_bias ? ColumnSums(a).bytes() : 0);
}

/// Plans are made of it, so a model that has no kernel is refused before it is run.
static void check_head(const AttentionShape& shape) {
  const auto check = [](const char* key, std::int64_t dim) {
    if (dim <= kMostGpuHeadDim) return;
    throw DeckError(fmt::format("{} = {}: attention on a GPU takes heads of at most {}", key, dim,
                                kMostGpuHeadDim));
  };
  check("model.head_dim", shape.head_dim), check("model.value_dim", shape.values());
}

std::int64_t scratch_bytes(const Attention& a) {
  check_head(a.shape);
  return sdpa_plan(a).value_or(SdpaPlan{}).workspace_bytes;
}

// The own kernel keeps a number for each row of d_out.
std::int64_t scratch_bytes(const AttentionBackward& a, std::int64_t most_scores) {
  check_head(a.shape);
  const std::int64_t own = a.q.extent(0) * a.shape.heads * a.q.extent(1) * size_of(DType::f32);
  return std::max(own, sdpa_plan(a, most_scores).value_or(SdpaPlan{}).workspace_bytes);
}

NormPartials::NormPartials(const NormBackward& a)
    : groups(a.groups),
      group_rows(a.sum.rows() / a.groups),
      chunks(std::min(kMaxChunks, ceil_div(group_rows, kMinChunkRows))),
      heads(a.heads),
      columns(a.sum.cols() / heads) {}

std::int64_t NormPartials::bytes() const {
  return 2 * groups * chunks * heads * columns * size_of(DType::f32);
}

std::int64_t scratch_bytes(const NormBackward& a) {
  check_groups(a);
  return NormPartials(a).bytes();
}

PlaceSort::PlaceSort(std::int64_t of_places, std::int64_t rows)
    : places(of_places),
      tiles(ceil_div(places, kTile)),
      // Rows 0 .. n - 1 and n for places whose row is elsewhere.
      passes(static_cast<int>(
          ceil_div(std::bit_width(static_cast<std::uint64_t>(rows)), kDigitBits))) {}

std::int64_t PlaceSort::bytes() const {
  return (4 * places + kDigits * tiles) * size_of(DType::i32);
}

std::int64_t scratch_bytes(const EmbedBackward& a) {
  return PlaceSort(a.tokens.elements(), a.d_token_table.extent(0)).bytes();
}

// The choices of this call alone, where what is beyond a capacity is wanted.
std::int64_t scratch_bytes(const CountChoices& a) {
  return a.dropped ? a.counts.elements() * size_of(DType::i32) : 0;
}

std::int64_t scratch_bytes(const Dispatch& a) {
  return PlaceSort(a.experts.elements(), a.own()).bytes() + 2 * a.own() * size_of(DType::i32);
}

std::int64_t scratch_bytes(const Rope& a) {
  return a.tables() * a.positions() * a.turned() * size_of(DType::f32);
}

/// Refuses more parts than a GPU adds at once, here too, because plans are made of it.
static void check_parts(const View& code) {
  if (code.extent(0) <= kMostCodeParts) return;
  throw DeckError(fmt::format(
      "zero.quantize.gradients: {} ranks' blocks are added at once, a GPU adds {}: fewer "
      "data ranks, or as many on every node, or zero.quantize.gradients = \"none\"",
      code.extent(0), kMostCodeParts));
}
std::int64_t scratch_bytes(const SumQuantized& a) {
  check_parts(a.code);
  return 0;
}
std::int64_t scratch_bytes(const RequantizeSum& a) {
  check_parts(a.code);
  return 0;
}

std::int64_t scratch_bytes(const KernelCall& call, std::int64_t most_scores) {
  return std::visit(
      [&]<typename Operation>(const Operation& a) {
        if constexpr (std::is_same_v<Operation, AttentionBackward>)
          return scratch_bytes(a, most_scores);
        else
          return scratch_bytes(a);
      },
      call);
}

}  // namespace cuda

namespace {

class CudaPlanner final : public Device {
 public:
  explicit CudaPlanner(std::int64_t most_scores) : most_scores_(most_scores) {}

  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return cuda::scratch_bytes(call, most_scores_);
  }
  void run(const KernelCall& call) override {
    throw InternalError(fmt::format("{} on a device that only plans", name_of(call)));
  }

 private:
  std::int64_t most_scores_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_planner(std::int64_t most_scores) {
  return std::make_unique<CudaPlanner>(most_scores);
}

}  // namespace tessera::kernels
