// Runs CUDA kernels on the CPU, for tests: the threads of a block are fibers, and which of those
// that may run does so is drawn by a seed each time one has to wait. So a result that needs a
// barrier or a mask that the kernel does not have comes out wrong, and a barrier that some threads
// never reach is found. Blocks run one after another, in an order drawn likewise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

namespace tessera::emulator {

inline constexpr int kWarp = 32;
/// Bytes of shared memory: what a block may ask for, and how much of it without opting in.
inline constexpr std::size_t kSharedBytes = 227 * 1024, kSharedBytesByDefault = 48 * 1024;

/// What a block may ask for from here on, for devices made later; kSharedBytes at first.
void set_shared_bytes(std::size_t bytes);

struct Extent {
  unsigned x = 1, y = 1, z = 1;
  std::size_t count() const { return std::size_t{x} * y * z; }
};

/// The running thread's index within its warp.
int lane();

/// From here on orders are drawn from `seed`; the same seed gives the same orders.
void set_seed(std::uint64_t seed);

/// Runs `kernel` on every thread of the grid. Throws std::runtime_error when a block can never go
/// on: the message says which threads wait for what.
void run_grid(const char* name, Extent grid, Extent block, std::size_t shared_bytes,
              const std::function<void()>& kernel);

/// All threads of the block must come, those that have returned included.
void sync_block();

/// The block's dynamic shared memory, aligned to 128 bytes; filled with a pattern (NaN) first.
std::byte* dynamic_shared();

/// Waits for the lanes of `mask`, which must all name the same mask; each gives `bytes` (at most
/// kMostGiven) from `value` and gets those of all 32 lanes, one after another, in `all`. What lanes
/// outside of the mask gave is a pattern.
inline constexpr std::size_t kMostGiven = 64;
void exchange_bytes(unsigned mask, const void* value, std::size_t bytes, void* all);

/// Warp-wide operations are written with this: every lane gives a value, and gets all 32.
template <typename T>
std::array<T, kWarp> exchange(unsigned mask, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMostGiven);
  std::array<T, kWarp> all;
  exchange_bytes(mask, &value, sizeof(T), static_cast<void*>(all.data()));
  return all;
}

}  // namespace tessera::emulator

// CUDA's names of where the running thread is.
extern constinit thread_local tessera::emulator::Extent threadIdx, blockIdx, blockDim, gridDim;
