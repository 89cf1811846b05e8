#include "kernels/cuda/device.hpp"

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {
namespace {

int multiprocessors() {
  int device = 0, count = 0;
  cuda::check_cuda(cudaGetDevice(&device), "the current device");
  cuda::check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
                   "a device's multiprocessors");
  return count;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const cuda::Queue& queue) : context_{queue, multiprocessors()} {}

  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return std::visit([](const auto& args) { return cuda::scratch_bytes(args); }, call);
  }

  void run(const KernelCall& call) override {
    const std::int64_t needed = scratch_bytes(call);
    std::visit(
        [&]<typename Operation>(const Operation& args) {
          TESSERA_CHECK(args.scratch.span_bytes() >= needed, "{}: {} bytes of scratch, needs {}",
                        args.kName, args.scratch.span_bytes(), needed);
          if constexpr (requires { cuda::run(args, context_); }) {
            cuda::run(args, context_);
          } else {
            throw InternalError(fmt::format("no CUDA kernel of {}", Operation::kName));
          }
        },
        call);
  }

 private:
  cuda::Context context_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const cuda::Queue& queue) {
  return std::make_unique<CudaDevice>(queue);
}

}  // namespace tessera::kernels
