// The emulator does what CUDA promises, and no more: kernels that need more are found out.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::emulator {
namespace {

template <typename... Parameters>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
            std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(threads);
  config.dynamicSmemBytes = 4 * threads;
  ASSERT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
}

/// The sum of a block's x by halves; barriers may be left out.
__global__ void sum_by_halves(const int* x, int* sums, bool barriers) {
  auto* part = reinterpret_cast<int*>(dynamic_shared());
  part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (barriers) __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    if (barriers) __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

std::vector<int> block_sums(bool barriers) {
  std::vector<int> x(5 * 256), sums(5);
  std::iota(x.begin(), x.end(), 1);
  launch(sum_by_halves, 5, 256, x.data(), sums.data(), barriers);
  return sums;
}

TEST(Emulator, BarriersOrderABlocksThreads) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    set_seed(seed);
    const std::vector<int> sums = block_sums(true);
    for (int b = 0; b < 5; ++b) {
      EXPECT_EQ(sums[static_cast<std::size_t>(b)], 256 * (256 * b + 1) + 255 * 128);
    }
  }
}

TEST(Emulator, AMissingBarrierShows) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    set_seed(seed);
    EXPECT_NE(block_sums(false), block_sums(true)) << "seed " << seed;
  }
}

/// Each round's sum of the warps' numbers goes through the same place in shared memory.
__global__ void rounds_without_second_barrier(int* wrong) {
  auto* part = reinterpret_cast<int*>(dynamic_shared());
  for (int round = 0; round < 8; ++round) {
    int x = round;
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffU, x, i);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; ++w) *wrong += part[w] == 32 * round ? 0 : 1;
  }
}

TEST(Emulator, AWarpMayBeFarAhead) {
  int wrong = 0;
  launch(rounds_without_second_barrier, 10, 256, &wrong);
  EXPECT_GT(wrong, 0);
}

__global__ void warp_operations(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32), me = static_cast<int>(threadIdx.x);
  int sum = me;
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, i);
  const int down = __shfl_down_sync(0xffffffffU, me, 3), up = __shfl_up_sync(0xffffffffU, me, 3);
  const int quarter = __shfl_sync(0xffffffffU, me, 2, 8);
  const unsigned odd = __ballot_sync(0xffffffffU, lane % 2);
  const unsigned alike = __match_any_sync(0xffffffffU, lane % 5);
  int half = 0;  // one half of the warp is elsewhere
  if (lane < 16) half = __shfl_sync(0x0000ffffU, me, 15);
  int* row = out + 8 * me;
  row[0] = sum, row[1] = down, row[2] = up, row[3] = quarter, row[4] = static_cast<int>(odd);
  row[5] = static_cast<int>(alike), row[6] = half;
  row[7] = __any_sync(0xffffffffU, lane == 7) + 2 * __all_sync(0xffffffffU, lane == 7) +
           4 * __reduce_max_sync(0xffffffffU, lane ^ 5);
}

TEST(Emulator, WarpOperationsGiveEachLaneItsValue) {
  std::vector<int> out(64 * 8);
  launch(warp_operations, 1, 64, out.data());
  for (int me = 0; me < 64; ++me) {
    const int* row = out.data() + 8 * me;
    const int lane = me % 32, first = me - lane;
    unsigned alike = 0;
    for (int i = lane % 5; i < 32; i += 5) alike |= 1U << i;
    EXPECT_EQ(row[0], 32 * first + 31 * 16);
    EXPECT_EQ(row[1], lane + 3 < 32 ? me + 3 : me);
    EXPECT_EQ(row[2], lane >= 3 ? me - 3 : me);
    EXPECT_EQ(row[3], first + lane / 8 * 8 + 2);
    EXPECT_EQ(static_cast<unsigned>(row[4]), 0xaaaaaaaaU);
    EXPECT_EQ(static_cast<unsigned>(row[5]), alike);
    EXPECT_EQ(row[6], lane < 16 ? first + 15 : 0);
    EXPECT_EQ(row[7], 1 + 4 * 31);
  }
}

struct Gift {
  std::int64_t words[4];
};
__global__ void all_gifts(std::int64_t* sums) {
  const auto me = static_cast<std::int64_t>(threadIdx.x);
  const auto all = exchange(0xffffffffU, Gift{{me, me * me, 1, -me}});
  for (const Gift& g : all) sums[me] += g.words[0] + g.words[1] + g.words[2] + g.words[3];
}

TEST(Emulator, LanesExchangeStructures) {
  std::vector<std::int64_t> sums(32);
  launch(all_gifts, 1, 32, sums.data());
  for (std::int64_t sum : sums) EXPECT_EQ(sum, 31 * 32 * 63 / 6 + 32);
}

__global__ void half_a_barrier() {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void a_lane_short() {
  if (threadIdx.x != 5) __syncwarp();
}
__global__ void foreign_mask() { __syncwarp(0x0000ffffU); }
__global__ void unequal_masks() { __syncwarp(threadIdx.x == 0 ? 0x3U : 0xffffffffU); }
__global__ void unequal_operations() {
  if (threadIdx.x == 0) {
    __shfl_sync(0xffffffffU, 1.0, 0);
  } else {
    __shfl_sync(0xffffffffU, 1.0F, 0);
  }
}

void expect_failure(void (*kernel)(), const std::string& part) {
  try {
    launch(kernel, 1, 64);
    FAIL() << "went on";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(Emulator, SaysWhatABlockWaitsForThatCanNeverGoOn) {
  expect_failure(half_a_barrier, "of 64 threads 24 have returned, 40 wait at a barrier");
  expect_failure(a_lane_short, "31 for lanes of their warp");
  expect_failure(foreign_mask, "without its own lane");
  expect_failure(unequal_masks, "32 for lanes of their warp");
  expect_failure(unequal_operations, "lanes of a warp meet in different operations");
  EXPECT_EQ(block_sums(true)[0], 256 + 255 * 128) << "and goes on with the next kernel";
}

TEST(Emulator, RefusesGridsThatNoGpuLaunches) {
  EXPECT_THROW(launch(half_a_barrier, 0, 32), std::runtime_error);
  EXPECT_THROW(launch(half_a_barrier, 1, 1056), std::runtime_error);
  cudaLaunchConfig_t config{};
  config.dynamicSmemBytes = kSharedBytesByDefault + 1;
  EXPECT_EQ(cudaLaunchKernelEx(&config, a_lane_short), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tessera::emulator
