// Runs of V neighbouring elements as floats. A run goes through 128-bit (or 64-bit) accesses where
// addresses allow it, and through scalar ones elsewhere; the floats are the same, and whatever is
// done with them, so an element's bits do not depend on alignment. 16-bit types are widened on load
// and rounded once on store, to nearest even.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "core/view.hpp"
#include "kernels/common/math.hpp"
#include "kernels/cuda/ptx.hpp"

namespace tessera::kernels::cuda {

/// a / b for 0 <= a, 0 < b; 32-bit division is several times as fast.
__device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Elements of a run: 16 bytes of the narrowest type.
template <typename... T>
inline constexpr int kRun = ((sizeof(T) == 2) || ...) ? 8 : 4;

/// Rows of a matrix; `data` is null for an absent view.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t ld = 0;
  __device__ __forceinline__ T* operator[](std::int64_t row) const { return data + row * ld; }
};

template <typename T>
Rows<T> rows_of(const View& v) {
  return {reinterpret_cast<T*>(v.data), v.rank <= 1 ? 0 : v.ld};
}

/// Whether runs of V elements from multiples of V on can go through wide accesses in all of the
/// present views.
template <int V>
bool wide(std::initializer_list<View> views) {
  bool all = true;
  for (const View& v : views) {
    if (!v) continue;
    const std::int64_t bytes = V * size_of(v.type), unit = bytes < 16 ? bytes : 16;
    all = all && reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(unit) == 0;
    all = all && (v.rows() <= 1 || v.ld * size_of(v.type) % unit == 0);
  }
  return all;
}

template <typename T>
__device__ __forceinline__ float load_one(const T* p) {
  if constexpr (std::is_same_v<T, float>) {
    return *p;
  } else {
    return widen<T>(p->bits);
  }
}
template <typename T>
__device__ __forceinline__ void store_one(T* p, float x) {
  if constexpr (std::is_same_v<T, float>) {
    *p = x;
  } else {
    p->bits = static_cast<std::uint16_t>(pack<T>(x, 0.0F));
  }
}

/// The 32-bit words of a run, as they lie in memory.
template <typename T, int V>
struct RawRun {
  static constexpr int kWords = V * static_cast<int>(sizeof(T)) / 4;
  std::uint32_t word[kWords];

  __device__ __forceinline__ void read(const T* p) {
    if constexpr (kWords == 1) {
      word[0] = *reinterpret_cast<const std::uint32_t*>(p);
    } else if constexpr (kWords == 2) {
      const uint2 w = *reinterpret_cast<const uint2*>(p);
      word[0] = w.x, word[1] = w.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        const uint4 w = reinterpret_cast<const uint4*>(p)[i];
        word[4 * i] = w.x, word[4 * i + 1] = w.y, word[4 * i + 2] = w.z, word[4 * i + 3] = w.w;
      }
    }
  }
  /// The first `count` elements; those beyond are 0. Nothing waits for them before they are
  /// unpacked, so that several runs can be on their way.
  __device__ __forceinline__ void read(const T* p, int count, bool wide) {
    if (wide && count >= V) return read(p);
    const auto bits = [&](int i) -> std::uint32_t {
      if (i >= count) return 0;
      if constexpr (sizeof(T) == 4) {
        return std::bit_cast<std::uint32_t>(p[i]);
      } else {
        return p[i].bits;
      }
    };
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = bits(i);
      } else {
        word[i] = bits(2 * i) | bits(2 * i + 1) << 16;
      }
    }
  }
  __device__ __forceinline__ void write(T* p) const {
    if constexpr (kWords == 1) {
      *reinterpret_cast<std::uint32_t*>(p) = word[0];
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(p) = make_uint2(word[0], word[1]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        reinterpret_cast<uint4*>(p)[i] =
            make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
      }
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[V]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = std::bit_cast<float>(word[i]);
      } else {
        x[2 * i] = widen<T>(static_cast<std::uint16_t>(word[i] & 0xffffU));
        x[2 * i + 1] = widen<T>(static_cast<std::uint16_t>(word[i] >> 16));
      }
    }
  }
  __device__ __forceinline__ void set(const float (&x)[V]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = std::bit_cast<std::uint32_t>(x[i]);
      } else {
        word[i] = pack<T>(x[2 * i], x[2 * i + 1]);
      }
    }
  }
};

/// The first `count` (at most V) elements at p; those beyond are 0.
template <int V, typename T>
__device__ __forceinline__ void load(const T* p, int count, bool wide, float (&x)[V]) {
  RawRun<T, V> raw;
  raw.read(p, count, wide);
  raw.unpack(x);
}
template <int V, typename T>
__device__ __forceinline__ void store(T* p, int count, bool wide, const float (&x)[V]) {
  if (wide && count >= V) {
    RawRun<T, V> raw;
    raw.set(x);
    raw.write(p);
  } else {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if (i < count) store_one(p + i, x[i]);
    }
  }
}

}  // namespace tessera::kernels::cuda
