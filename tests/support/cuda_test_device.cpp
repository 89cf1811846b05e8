#include "support/cuda_test_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/cuda.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/sdpa_rules.hpp"

namespace tessera::test {
namespace {

using kernels::Access;
using kernels::KernelCall;

constexpr std::int64_t kGuard = 256;  // bytes before and behind, and what addresses are kept modulo
constexpr std::byte kPattern{0xff};   // NaN, where scratch is read before it is written

void cuda_try(cudaError_t code) { check_cuda(code, "a test's copy"); }

/// Host memory of one or several overlapping views, and its copy; scratch, which may be large and
/// holds nothing before or after, is not copied.
struct Piece {
  std::byte *begin, *end;
  bool written;
  bool scratch;
  std::byte* device = nullptr;  // of the allocation

  std::int64_t before() const {
    return kGuard + static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % kGuard);
  }
  std::byte* address_of(std::byte* host) const { return device + before() + (host - begin); }
};

class CudaTestDevice final : public kernels::Device {
 public:
  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return device_->scratch_bytes(call);
  }

  void run(const KernelCall& call) override {
    KernelCall moved = call;
    std::vector<Piece> pieces = pieces_of(moved);
    try {
      for (Piece& p : pieces) upload(p);
      kernels::visit_views(moved, [&](View& view, Access) {
        const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) {
          return p.begin <= view.data && view.data + view.span_bytes() <= p.end;
        });
        view.data = piece->address_of(view.data);
      });
      device_->run(moved);
      cuda_try(cudaStreamSynchronize(queue_.stream));
      for (Piece& p : pieces) download(p, kernels::name_of(call));
    } catch (...) {
      release(pieces);
      throw;
    }
    release(pieces);
  }

 private:
  static std::vector<Piece> pieces_of(KernelCall& call) {
    std::vector<Piece> all;
    const View* scratch = std::visit([](const auto& args) { return &args.scratch; }, call);
    kernels::visit_views(call, [&](View& view, Access access) {
      all.push_back(
          {view.data, view.data + view.span_bytes(), access != Access::read, &view == scratch});
    });
    std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::vector<Piece> merged;
    for (const Piece& p : all) {
      if (merged.empty() || p.begin >= merged.back().end) {
        merged.push_back(p);
      } else {
        merged.back().end = std::max(merged.back().end, p.end);
        merged.back().written = merged.back().written || p.written;
        merged.back().scratch = merged.back().scratch && p.scratch;
      }
    }
    return merged;
  }

  void upload(Piece& p) const {
    const std::int64_t bytes = p.before() + (p.end - p.begin) + kGuard;
    void* made = nullptr;
    cuda_try(cudaMalloc(&made, static_cast<std::size_t>(bytes)));
    p.device = static_cast<std::byte*>(made);
    cuda_try(cudaMemsetAsync(p.device, std::to_integer<int>(kPattern),
                             static_cast<std::size_t>(bytes), queue_.stream));
    if (p.scratch) return;
    cuda_try(cudaMemcpyAsync(p.address_of(p.begin), p.begin,
                             static_cast<std::size_t>(p.end - p.begin), cudaMemcpyHostToDevice,
                             queue_.stream));
  }

  void download(Piece& p, std::string_view operation) const {
    const auto is_pattern = [](std::byte b) { return b == kPattern; };
    const auto before = read(p.device, p.before()), behind = read(p.address_of(p.end), kGuard);
    TESSERA_CHECK(std::all_of(before.begin(), before.end(), is_pattern) &&
                      std::all_of(behind.begin(), behind.end(), is_pattern),
                  "{} wrote beside its views", operation);
    if (p.scratch) return;
    const auto now = read(p.address_of(p.begin), p.end - p.begin);
    TESSERA_CHECK(p.written || std::equal(now.begin(), now.end(), p.begin),
                  "{} wrote into what it reads", operation);
    if (p.written) std::copy(now.begin(), now.end(), p.begin);
  }

  std::vector<std::byte> read(const std::byte* from, std::int64_t bytes) const {
    std::vector<std::byte> to(static_cast<std::size_t>(bytes));
    cuda_try(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, queue_.stream));
    cuda_try(cudaStreamSynchronize(queue_.stream));
    return to;
  }

  static void release(const std::vector<Piece>& pieces) {
    for (const Piece& p : pieces) cudaFree(p.device);
  }

  kernels::cuda::Queue queue_;
  kernels::CudaLibraries libraries_{queue_, kernels::cuda::kAtOnce, 0};
  std::unique_ptr<kernels::Device> device_ =
      kernels::make_cuda_device(queue_, libraries_, kernels::cuda::ProductRules{});
};

}  // namespace

std::unique_ptr<kernels::Device> make_cuda_test_device() {
  return std::make_unique<CudaTestDevice>();
}

std::optional<std::string> why_no_fp8() {
  int gpu = 0, major = 0, minor = 0;
  cuda_try(cudaGetDevice(&gpu));
  cuda_try(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
  cuda_try(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu));
  if (std::pair(major, minor) >= std::pair(8, 9)) return std::nullopt;
  return fmt::format("a GPU of compute capability {}.{} multiplies no fp8 operands", major, minor);
}

}  // namespace tessera::test
