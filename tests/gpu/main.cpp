// Runs the tests of a GPU's kernels; says why not, with an exit code that ctest takes for a skip,
// where there is no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "support/cuda_test_device.hpp"

constexpr int kSkipped = 77;

namespace tessera::test {

Gpu gpu() { return Gpu::real; }
void set_schedule(std::uint64_t) {}

}  // namespace tessera::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    std::printf("skipped: no GPU (%s)\n",
                code == cudaSuccess ? "none is visible" : cudaGetErrorString(code));
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
