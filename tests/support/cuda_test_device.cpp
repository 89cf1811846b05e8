#include "support/cuda_test_device.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/launch.hpp"

namespace tessera::test {
namespace {

using kernels::Access;
using kernels::KernelCall;

constexpr std::int64_t kGuard = 256;  // bytes before and behind, and what addresses are kept modulo
constexpr std::byte kPattern{0xa5};

void cuda_try(cudaError_t code) { kernels::cuda::check_cuda(code, "a test's copy"); }

/// Host memory of one or several overlapping views, and its copy.
struct Piece {
  std::byte *begin, *end;
  bool written;
  std::byte* device = nullptr;  // of the allocation
  std::vector<std::byte> image{};

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
    kernels::visit_views(call, [&](View& view, Access access) {
      all.push_back({view.data, view.data + view.span_bytes(), access != Access::read});
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
      }
    }
    return merged;
  }

  void upload(Piece& p) const {
    const std::int64_t bytes = p.before() + (p.end - p.begin) + kGuard;
    p.image.assign(static_cast<std::size_t>(bytes), kPattern);
    std::memcpy(p.image.data() + p.before(), p.begin, static_cast<std::size_t>(p.end - p.begin));
    cuda_try(cudaMalloc(&p.device, p.image.size()));
    cuda_try(cudaMemcpyAsync(p.device, p.image.data(), p.image.size(), cudaMemcpyHostToDevice,
                             queue_.stream));
  }

  void download(Piece& p, std::string_view operation) const {
    std::vector<std::byte> now(p.image.size());
    cuda_try(
        cudaMemcpyAsync(now.data(), p.device, now.size(), cudaMemcpyDeviceToHost, queue_.stream));
    cuda_try(cudaStreamSynchronize(queue_.stream));
    const auto first = now.begin() + p.before(), last = first + (p.end - p.begin);
    const auto is_pattern = [](std::byte b) { return b == kPattern; };
    TESSERA_CHECK(
        std::all_of(now.begin(), first, is_pattern) && std::all_of(last, now.end(), is_pattern),
        "{} wrote beside its views", operation);
    TESSERA_CHECK(p.written || now == p.image, "{} wrote into what it reads", operation);
    if (p.written) std::copy(first, last, p.begin);
  }

  static void release(const std::vector<Piece>& pieces) {
    for (const Piece& p : pieces) cudaFree(p.device);
  }

  kernels::cuda::Queue queue_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cuda_device(queue_);
};

}  // namespace

std::unique_ptr<kernels::Device> make_cuda_test_device() {
  return std::make_unique<CudaTestDevice>();
}

}  // namespace tessera::test
