// For programs without a GPU.
#include "core/error.hpp"
#include "support/cuda_test_device.hpp"

namespace tessera::test {

Gpu gpu() { return Gpu::none; }
void set_schedule(std::uint64_t) {}
std::unique_ptr<kernels::Device> make_cuda_test_device() {
  throw DeviceError("a test without a GPU");
}
std::optional<std::string> why_no_fp8() { return "there is no GPU"; }

}  // namespace tessera::test
