// The emulator's versions of kernels/cuda/ptx.hpp's functions.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "core/dtype.hpp"

namespace tessera::kernels::cuda {

template <typename T>
inline std::uint32_t pack(float low, float high) {
  return T(low).bits | static_cast<std::uint32_t>(T(high).bits) << 16;
}

template <typename T>
inline float widen(std::uint16_t bits) {
  T x;
  x.bits = bits;
  return static_cast<float>(x);
}

template <typename T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::dynamic_shared());
}

inline constexpr unsigned kWholeWarp = 0xffffffffU;

/// Elements `first` and `second` of row `lane / 4` of each matrix whose rows the lanes point to.
template <typename Pick>
void pick_elements(std::uint32_t (&to)[4], const void* row, Pick&& pick) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    throw std::runtime_error("ldmatrix: a row that is not on 16 bytes");
  }
  const auto rows = emulator::exchange(kWholeWarp, row);
  for (std::size_t matrix = 0; matrix < 4; ++matrix) {
    const auto element = [&](int i, int j) {
      std::uint16_t bits = 0;
      const auto* from =
          static_cast<const std::byte*>(rows[8 * matrix + static_cast<std::size_t>(i)]);
      std::memcpy(&bits, from + 2 * j, sizeof(bits));
      return std::uint32_t{bits};
    };
    const int i = emulator::lane() / 4, j = emulator::lane() % 4 * 2;
    to[matrix] = pick(element, i, j) | pick(element, i, j + 1) << 16;
  }
}
inline void load_matrices(std::uint32_t (&to)[4], const void* row) {
  pick_elements(to, row, [](auto&& element, int i, int j) { return element(i, j); });
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], const void* row) {
  pick_elements(to, row, [](auto&& element, int i, int j) { return element(j, i); });
}

template <typename T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Given {
    float a[8], b[4];  // two of each register
  };
  Given given;
  const auto widen_both = [](std::uint32_t both, float* to) {
    to[0] = widen<T>(static_cast<std::uint16_t>(both));
    to[1] = widen<T>(static_cast<std::uint16_t>(both >> 16));
  };
  for (int i = 0; i < 4; ++i) widen_both(a[i], given.a + 2 * i);
  widen_both(b0, given.b), widen_both(b1, given.b + 2);
  const auto lanes = emulator::exchange(kWholeWarp, given);
  const int row = emulator::lane() / 4, pair = emulator::lane() % 4 * 2;
  for (int e = 0; e < 4; ++e) {
    const int lower = e / 2, column = pair + e % 2;
    float sum = c[e];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      const auto& left = lanes[static_cast<std::size_t>(4 * row + k % 8 / 2)];
      const auto& right = lanes[static_cast<std::size_t>(4 * column + k % 8 / 2)];
      sum += left.a[2 * (lower + k / 8 * 2) + k % 2] * right.b[k / 8 * 2 + k % 2];
    }
    c[e] = sum;
  }
}

inline float exp2_approximately(float x) {
  const float y = std::exp2(x);
  return std::isnormal(y) || !std::isfinite(y) ? y : 0.0F;
}

/// A thread's copies to shared memory. They are made when they are waited for, as late as a GPU may
/// make them, so that what is read too early is not there.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    bool present;
  };
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};
inline Copies& copies() {
  thread_local std::array<Copies, 1024> of_threads;
  return of_threads[threadIdx.x +
                    blockDim.x * (threadIdx.y + std::size_t{blockDim.y} * threadIdx.z)];
}
inline void copy_async(void* to, const void* from, bool present) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    throw std::runtime_error("cp.async: an address that is not on 16 bytes");
  }
  copies().open.push_back({to, from, present});
}
inline void commit_copies() {
  copies().groups.push_back(std::move(copies().open));
  copies().open.clear();
}
template <int kPending>
void wait_for_copies() {
  auto& groups = copies().groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const auto& copy : groups.front()) {
      if (copy.present) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
  }
}

}  // namespace tessera::kernels::cuda
