#include "kernels/cuda/device.hpp"

#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {
namespace {

int attribute(cudaDeviceAttr which, const char* what) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "the current device");
  check_cuda(cudaDeviceGetAttribute(&value, which, device), what);
  return value;
}

cuda::Context context_of(const cuda::Queue& queue, CudaLibraries& libraries,
                         const cuda::ProductRules& rules) {
  return {
      .queue = queue,
      .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, "a device's multiprocessors"),
      .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, "a block's shared memory"),
      .rules = rules,
      .matmul = libraries.matmul,
      .sdpa = libraries.sdpa};
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const cuda::Context& context) : context_(context) {}

  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return cuda::scratch_bytes(call, context_.sdpa.most_scores());
  }

  void run(const KernelCall& call) override {
    check_scratch(call, scratch_bytes(call));
    std::visit([&](const auto& args) { check(args), cuda::run(args, context_); }, call);
  }

 private:
  cuda::Context context_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(const cuda::Queue& queue, CudaLibraries& libraries,
                                         const cuda::ProductRules& rules) {
  return std::make_unique<CudaDevice>(context_of(queue, libraries, rules));
}

cuda::OwnKernels own_kernels(const cuda::Queue& queue, CudaLibraries& libraries,
                             const cuda::ProductRules& rules) {
  return [context = context_of(queue, libraries, rules)](const cuda::Gemm& product,
                                                         std::byte* bias) {
    const View of_sum = product.key.bias ? View(bias, product.key.result, {product.key.m}) : View();
    cuda::finish(product, cuda::without_last(product), of_sum, context);
  };
}

}  // namespace tessera::kernels
