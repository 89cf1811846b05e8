// Loops that round a tensor to an 8-bit format.
#include "kernels/common/fp8.hpp"

#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T>
std::uint32_t largest_of(const View& x, Range rows) {
  LargestMagnitude largest;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = row_of<T>(x, r);
    for_vectors(
        columns_of(x), [&](std::int64_t i, std::int64_t count)
                           __attribute__((always_inline)) { largest.take(load(from + i, count)); });
  }
  return static_cast<std::uint32_t>(largest.bits());
}

template <typename Format, typename T, typename G>
void round_rows(const View& x, float scale, const View& out, Range rows) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = row_of<T>(x, r);
    G* to = row_of<G>(out, r);
    for_vectors(
        columns_of(x), [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          store(to + i, rounded_to_fp8<Format>(load(from + i, count) * Vec(scale)), count);
        });
  }
}

template <typename T, typename B>
void scale_rows(const View& sums, float factor, const View& bias, const View& out, Write write,
                Range rows) {
  const B* addend = reinterpret_cast<const B*>(bias.data);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* from = row_of<float>(sums, r);
    T* to = row_of<T>(out, r);
    for_vectors(
        columns_of(out), [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          Vec v = load(from + i, count) * Vec(factor);
          if (addend != nullptr) v = v + load(addend + i, count);
          if (write == Write::add) v = load(to + i, count) + v;
          store(to + i, v, count);
        });
  }
}

}  // namespace

std::uint32_t largest_magnitude(const View& x, Range rows) {
  return x.type == DType::f32 ? largest_of<float>(x, rows) : largest_of<bf16>(x, rows);
}

void round_to_fp8(const View& x, float scale, DType format, const View& out, Range rows) {
  with_fp8(format, [&]<typename Format>() {
    with_type(x.type, [&]<typename T>() {
      with_type(out.type, [&]<typename G>() { round_rows<Format, T, G>(x, scale, out, rows); });
    });
  });
}

void scale_sums(const View& sums, float factor, const View& bias, const View& out, Write write,
                Range rows) {
  with_type(out.type, [&]<typename T>() {
    with_type(bias ? bias.type : out.type,
              [&]<typename B>() { scale_rows<T, B>(sums, factor, bias, out, write, rows); });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
