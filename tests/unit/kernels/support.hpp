// What the kernel tests share: tensors of any type with a double's view of their elements, devices
// of every instruction set at hand, and comparison against bounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cpu/device.hpp"
#include "support/cuda_test_device.hpp"
#include "support/sanitized.hpp"

namespace tessera::kernels::test {

using tessera::test::gpu, tessera::test::Gpu;
using Numbers = std::vector<double>;

/// Unit roundoff.
inline double roundoff(DType type) {
  return type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-11;
}
/// Largest error of writing x as `type`, denormals included.
inline double write_error(DType type, double x) {
  return roundoff(type) * std::abs(x) + (type == DType::f16 ? 0x1p-25 : 0x1p-149);
}

/// A dense or row-strided tensor; gaps between rows hold a pattern that must survive.
class Tensor {
 public:
  Tensor(DType type, std::vector<std::int64_t> shape, std::int64_t gap = 0)
      : bytes_(), view_(&anchor, type, shape) {
    view_.ld = view_.cols() + gap;
    bytes_.assign(static_cast<std::size_t>(view_.span_bytes() + gap * size_of(type) + 64),
                  std::byte{0x5a});
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    view_.data = bytes_.data() + (64 - address % 64) % 64;
    for (std::int64_t r = 0; r < view_.rows(); ++r) {
      std::memset(view_.data + r * view_.ld * size_of(type), 0,
                  static_cast<std::size_t>(view_.cols() * size_of(type)));
    }
  }
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  static Tensor random(DType type, std::vector<std::int64_t> shape, unsigned seed, double scale = 1,
                       std::int64_t gap = 0) {
    Tensor t(type, std::move(shape), gap);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, scale);
    for (std::int64_t i = 0; i < t.size(); ++i) t.set(i, normal(generator));
    return t;
  }

  const View& view() const { return view_; }
  std::int64_t size() const { return view_.elements(); }
  double operator[](std::int64_t i) const {
    const std::byte* p = at(i);
    switch (view_.type) {
      case DType::bf16: return static_cast<float>(*reinterpret_cast<const bf16*>(p));
      case DType::f16: return static_cast<float>(*reinterpret_cast<const f16*>(p));
      case DType::i32: return *reinterpret_cast<const std::int32_t*>(p);
      case DType::i64: return static_cast<double>(*reinterpret_cast<const std::int64_t*>(p));
      default: return *reinterpret_cast<const float*>(p);
    }
  }
  void set(std::int64_t i, double x) {
    std::byte* p = at(i);
    switch (view_.type) {
      case DType::bf16: *reinterpret_cast<bf16*>(p) = bf16(static_cast<float>(x)); break;
      case DType::f16: *reinterpret_cast<f16*>(p) = f16(static_cast<float>(x)); break;
      case DType::i32: *reinterpret_cast<std::int32_t*>(p) = static_cast<std::int32_t>(x); break;
      case DType::i64: *reinterpret_cast<std::int64_t*>(p) = static_cast<std::int64_t>(x); break;
      default: *reinterpret_cast<float*>(p) = static_cast<float>(x);
    }
  }
  Numbers numbers() const {
    Numbers all;
    for (std::int64_t i = 0; i < size(); ++i) all.push_back((*this)[i]);
    return all;
  }
  Tensor copy() const {
    Tensor t(view_.type, {view_.shape.begin(), view_.shape.begin() + view_.rank},
             view_.ld - view_.cols());
    for (std::int64_t i = 0; i < size(); ++i) std::memcpy(t.at(i), at(i), width());
    return t;
  }
  bool same_bits(const Tensor& other) const {
    for (std::int64_t i = 0; i < size(); ++i) {
      if (std::memcmp(at(i), other.at(i), width()) != 0) return false;
    }
    return size() == other.size();
  }
  bool gaps_intact() const {
    for (std::int64_t r = 0; r + 1 < view_.rows(); ++r) {
      const std::byte* row = view_.data + r * view_.ld * size_of(view_.type);
      for (std::int64_t i = view_.cols() * size_of(view_.type); i < view_.ld * size_of(view_.type);
           ++i) {
        if (row[i] != std::byte{0x5a}) return false;
      }
    }
    return true;
  }

 private:
  std::byte* at(std::int64_t i) const {
    const std::int64_t row = i / view_.cols(), column = i % view_.cols();
    return view_.data + (row * view_.ld + column) * size_of(view_.type);
  }
  std::size_t width() const { return static_cast<std::size_t>(size_of(view_.type)); }

  static inline std::byte anchor;
  std::vector<std::byte> bytes_;
  View view_;
};

/// Runs an operation with exactly the scratch that it asks for, filled with a pattern.
template <typename Operation>
void run(Device& device, Operation operation) {
  const std::int64_t bytes = device.scratch_bytes(operation);
  Tensor scratch(DType::f32, {bytes / 4 + 1});
  std::memset(scratch.view().data, 0xff, static_cast<std::size_t>(bytes));  // NaN
  operation.scratch = View(scratch.view().data, DType::u8, {bytes});
  device.run(operation);
  const std::byte* end = scratch.view().data + bytes;
  for (std::int64_t i = 0; i < 4 - bytes % 4; ++i) {
    EXPECT_EQ(end[i], std::byte{0}) << "wrote past its scratch";
  }
}

inline std::vector<Isa> isas() {
  std::vector<Isa> all = {Isa::baseline};
  if (best_isa() >= Isa::v3) all.push_back(Isa::v3);
  if (best_isa() >= Isa::v4) all.push_back(Isa::v4);
  return all;
}
/// And that with instructions for matrices, which only products of bf16, and attention to it, have.
inline std::vector<Isa> isas_of_products() {
  std::vector<Isa> all = isas();
  if (best_isa() == Isa::amx) all.push_back(Isa::amx);
  return all;
}
inline const std::vector<DType> kTypes = {DType::f32, DType::bf16, DType::f16};
/// Those of a GPU: sanitizers need not see f16 on an emulated one, which has the kernels of bf16.
inline std::vector<DType> gpu_types() {
  if (tessera::test::kSanitized) return {DType::f32, DType::bf16};
  return kTypes;
}

/// f(device) for every instruction set.
inline void for_cpu_devices(const std::function<void(Device&)>& f) {
  for (Isa isa : isas()) {
    SCOPED_TRACE(enum_word(isa));
    f(*make_cpu_device({.threads = 2, .isa = isa}));
  }
}
/// f(device) for every instruction set and an emulated GPU (which sanitizers do without), or for a
/// real GPU alone.
inline void for_devices(const std::function<void(Device&)>& f) {
  if (gpu() != Gpu::real) for_cpu_devices(f);
  if (gpu() == Gpu::none) return;
  SCOPED_TRACE("CUDA");
  f(*tessera::test::make_cuda_test_device());
}

/// f(device, type) for the same devices and every type.
inline void for_cpu_devices_and_types(const std::function<void(Device&, DType)>& f) {
  for_cpu_devices([&](Device& device) {
    for (DType type : kTypes) {
      SCOPED_TRACE(to_string(type));
      f(device, type);
    }
  });
}
inline void for_devices_and_types(const std::function<void(Device&, DType)>& f) {
  if (gpu() != Gpu::real) for_cpu_devices_and_types(f);
  if (gpu() == Gpu::none) return;
  const auto device = tessera::test::make_cuda_test_device();
  for (DType type : gpu_types()) {
    SCOPED_TRACE(fmt::format("CUDA {}", to_string(type)));
    f(*device, type);
  }
}

/// f(device, bf16) with instructions for matrices, if there are any.
inline void for_matrix_device(const std::function<void(Device&, DType)>& f) {
  if (best_isa() != Isa::amx) return;
  SCOPED_TRACE(enum_word(Isa::amx));
  f(*make_cpu_device({.threads = 2, .isa = Isa::amx}), DType::bf16);
}
/// The same devices and types, and that.
inline void for_devices_of_products(const std::function<void(Device&, DType)>& f) {
  for_devices_and_types(f);
  if (gpu() != Gpu::real) for_matrix_device(f);
}

/// How many roundings a term of a sum over a row of n goes through. On a CPU sixteen lanes add n /
/// 16 terms each, then four levels. On a GPU a thread adds its runs of V, then come five levels and
/// those of the warps: runs are 8 at most and threads so many that this is less, but for n < 128.
inline double sum_depth(std::int64_t n) { return std::max(static_cast<double>(n) / 16, 8.0) + 5; }

/// Keeps, as a property of the running test in its report, the largest error as a share of what it
/// may be.
inline void note_error(double share) {
  static const testing::TestInfo* test = nullptr;
  static double largest = 0;
  const auto* now = testing::UnitTest::GetInstance()->current_test_info();
  if (now != test) test = now, largest = 0;
  if (!(share > largest)) return;
  largest = share;
  testing::Test::RecordProperty("largest_error", fmt::format("{:.3g}", share));
}

/// |got - want| <= bound(i), element by element.
inline void expect_within(const Tensor& got, const Numbers& want,
                          const std::function<double(std::int64_t)>& bound, const char* what) {
  ASSERT_EQ(got.size(), static_cast<std::int64_t>(want.size())) << what;
  int wrong = 0;
  double share = 0;
  for (std::int64_t i = 0; i < got.size() && wrong < 3; ++i) {
    const double w = want[static_cast<std::size_t>(i)], off = std::abs(got[i] - w), most = bound(i);
    if (most > 0) share = std::max(share, off / most);
    if (off <= most) continue;
    ++wrong;
    ADD_FAILURE() << what << "[" << i << "] = " << got[i] << ", expected " << w << ", off by "
                  << off << " of at most " << most;
  }
  note_error(share);
  EXPECT_TRUE(got.gaps_intact()) << what << ": wrote between rows";
}

/// Gradient of a scalar function by central differences: error about h^2 f''' + 1e-16 f / h.
inline Numbers numeric_gradient(const std::function<double(const Numbers&)>& f, Numbers x,
                                double h = 1e-4) {
  Numbers gradient;
  for (double& element : x) {
    const double value = element;
    element = value + h;
    const double up = f(x);
    element = value - h;
    gradient.push_back((up - f(x)) / (2 * h));
    element = value;
  }
  return gradient;
}

/// Positions [first, first + count) of each sample of a (B, T, C) tensor.
inline Tensor positions_of(const Tensor& whole, std::int64_t first, std::int64_t count) {
  const std::int64_t samples = whole.view().extent(0), tokens = whole.view().extent(1),
                     columns = whole.view().cols();
  Tensor part(whole.view().type, {samples, count, columns});
  for (std::int64_t i = 0; i < part.size(); ++i) {
    const std::int64_t sample = i / (count * columns), within = i % (count * columns);
    part.set(i, whole[(sample * tokens + first) * columns + within]);
  }
  return part;
}

inline double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
inline double largest(const Numbers& a) {
  double most = 0;
  for (double x : a) most = std::max(most, std::abs(x));
  return most;
}

/// The factor of one element under a dropout.
inline double dropout_factor(const Dropout& d, std::int64_t sample, std::int64_t element) {
  if (!d) return 1;
  const auto stream = static_cast<std::uint64_t>(d.samples.as<std::int64_t>()[sample]);
  const auto index = static_cast<std::uint64_t>(element);
  const double jitter = d.jitter;
  if (jitter > 0) {
    const double bits = random_bits(d.key(), stream, index);
    return 1 - jitter + 2 * jitter * std::floor(bits / 256) * 0x1p-24;
  }
  const double p = std::clamp(std::round(d.p * 0x1p16), 1.0, 0x1p16 - 1) * 0x1p-16;
  return random_half(d.key(), stream, index) >= p * 0x1p16 ? 1 / (1 - p) : 0;
}

}  // namespace tessera::kernels::test
