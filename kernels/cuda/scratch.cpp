#include "kernels/cuda/scratch.hpp"

#include <algorithm>
#include <bit>

#include "core/math.hpp"
#include "kernels/common/contracts.hpp"

namespace tessera::kernels {
namespace cuda {
namespace {

// Of a group's rows. Few chunks leave multiprocessors idle, many cost the reading of their sums:
// with 16 rows to a chunk the sums are a sixteenth of what is read and written anyway, and 1024
// blocks are enough for all of today's GPUs.
constexpr std::int64_t kMaxChunks = 1024, kMinChunkRows = 16;

}  // namespace

NormPartials::NormPartials(const NormBackward& a)
    : groups(a.groups),
      group_rows(a.sum.rows() / a.groups),
      chunks(std::min(kMaxChunks, ceil_div(group_rows, kMinChunkRows))),
      columns(a.sum.cols()) {}

std::int64_t NormPartials::bytes() const {
  return 2 * groups * chunks * columns * size_of(DType::f32);
}

std::int64_t scratch_bytes(const NormBackward& a) {
  check_groups(a);
  return NormPartials(a).bytes();
}

PlaceSort::PlaceSort(const EmbedBackward& a)
    : places(a.tokens.elements()), tiles(ceil_div(places, kTile)) {
  // Rows 0 .. n - 1 and n for places whose token is elsewhere.
  const auto rows = static_cast<std::uint64_t>(a.d_token_table.extent(0));
  passes = static_cast<int>(ceil_div(std::bit_width(rows), kDigitBits));
}

std::int64_t PlaceSort::bytes() const {
  return (4 * places + kDigits * tiles) * size_of(DType::i32);
}

std::int64_t scratch_bytes(const EmbedBackward& a) { return PlaceSort(a).bytes(); }

std::int64_t scratch_bytes(const Rope& a) {
  return a.x.extent(1) * a.head_dim * size_of(DType::f32);
}

}  // namespace cuda

namespace {

class CudaPlanner final : public Device {
 public:
  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return std::visit([](const auto& args) { return cuda::scratch_bytes(args); }, call);
  }
  void run(const KernelCall& call) override {
    throw InternalError(fmt::format("{} on a device that only plans", name_of(call)));
  }
};

}  // namespace

std::unique_ptr<Device> make_cuda_planner() { return std::make_unique<CudaPlanner>(); }

}  // namespace tessera::kernels
