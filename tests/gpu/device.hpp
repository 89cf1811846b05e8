// What tests of CUDA's libraries share: operands that stay in the device's memory, and all that
// queues operations on them.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/sdpa_rules.hpp"

namespace tessera::kernels::test {

using Floats = std::vector<float>;

/// Normal numbers as bf16. So many are drawn, and repeated: a prime number, so that no two rows of
/// a matrix are alike.
inline std::vector<bf16> normal_numbers(std::int64_t count, unsigned seed, double scale = 1) {
  constexpr std::size_t kDrawn = 1'000'003;
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<bf16> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = i < kDrawn ? bf16(static_cast<float>(normal(generator))) : all[i - kDrawn];
  return all;
}

/// A dense tensor in the device's memory. Copies wait for all that is queued.
class DeviceTensor {
 public:
  DeviceTensor(DType type, std::initializer_list<std::int64_t> shape)
      : view_(&nothing, type, shape) {
    void* made = nullptr;
    CUDA_TRY(cudaMalloc(&made, size()));
    view_.data = static_cast<std::byte*>(made);
  }
  ~DeviceTensor() { cudaFree(view_.data); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const View& view() const { return view_; }

  void write(const std::vector<bf16>& numbers) {
    TESSERA_CHECK(numbers.size() * sizeof(bf16) == size(), "{} numbers for {} bytes",
                  numbers.size(), size());
    copy(view_.data, numbers.data(), cudaMemcpyHostToDevice);
  }
  /// All numbers become NaN.
  void forget() {
    CUDA_TRY(cudaDeviceSynchronize());
    CUDA_TRY(cudaMemsetAsync(view_.data, 0xff, size()));
    CUDA_TRY(cudaDeviceSynchronize());
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(size());
    copy(all.data(), view_.data, cudaMemcpyDeviceToHost);
    return all;
  }
  /// Of bf16 or f32.
  Floats numbers() const {
    const std::vector<std::byte> raw = bytes();
    Floats all(static_cast<std::size_t>(view_.elements()));
    if (view_.type == DType::f32) {
      std::memcpy(all.data(), raw.data(), raw.size());
    } else {
      const auto* from = reinterpret_cast<const bf16*>(raw.data());
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(from[i]);
    }
    return all;
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(view_.span_bytes()); }
  void copy(void* to, const void* from, cudaMemcpyKind kind) const {
    CUDA_TRY(cudaDeviceSynchronize());
    CUDA_TRY(cudaMemcpyAsync(to, from, size(), kind, nullptr));
    CUDA_TRY(cudaDeviceSynchronize());
  }

  static inline std::byte nothing;
  View view_;
};

/// A stream, the libraries and a device, as a rank has them.
class GpuRank {
 public:
  explicit GpuRank(const cuda::ProductRules& product_rules = {})
      : rules(product_rules), stream_(make_stream()), queue_{stream_.get()} {}

  /// Queues the operation. Of all operations the one that needs the most scratch is to come before
  /// any is recorded.
  template <typename Operation>
  void run(Operation operation) {
    const std::int64_t bytes = device_->scratch_bytes(operation);
    if (!scratch_ || scratch_->view().elements() < bytes) {
      CUDA_TRY(cudaDeviceSynchronize());
      scratch_ = std::make_unique<DeviceTensor>(DType::u8, std::initializer_list{bytes + 1});
    }
    operation.scratch = View(scratch_->view().data, DType::u8, {bytes});
    device_->run(operation);
  }

  /// What f() queues, as a graph.
  template <typename F>
  CudaHandle<cudaGraphExec_t> record(F&& f) {
    CUDA_TRY(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    f();
    cudaGraph_t graph = nullptr;
    CUDA_TRY(cudaStreamEndCapture(stream_.get(), &graph));
    const CudaHandle<cudaGraph_t> owned(graph);
    cudaGraphExec_t made = nullptr;
    CUDA_TRY(cudaGraphInstantiate(&made, graph, 0));
    return CudaHandle<cudaGraphExec_t>(made);
  }
  void launch(const CudaHandle<cudaGraphExec_t>& graph) {
    CUDA_TRY(cudaGraphLaunch(graph.get(), stream_.get()));
    CUDA_TRY(cudaStreamSynchronize(stream_.get()));
  }

  CudaLibraries& libraries() { return libraries_; }
  cuda::OwnKernels own_kernels() { return kernels::own_kernels(queue_, libraries_, rules); }
  const cuda::ProductRules rules;

 private:
  static CudaHandle<cudaStream_t> make_stream() {
    cudaStream_t made = nullptr;
    CUDA_TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return CudaHandle<cudaStream_t>(made);
  }

  CudaHandle<cudaStream_t> stream_;
  cuda::Queue queue_;
  CudaLibraries libraries_{queue_, cuda::kAtOnce, 0};
  std::unique_ptr<Device> device_ = make_cuda_device(queue_, libraries_, rules);
  std::unique_ptr<DeviceTensor> scratch_;
};

}  // namespace tessera::kernels::test
