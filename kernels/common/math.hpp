// Scalar maths of the kernels, written once: `F` is float (host or device) or a vector of floats.
// Only operations that IEEE 754 rounds exactly are used, so a vector's lane and a scalar agree to
// the bit. Error bounds are stated in units in the last place (ulp) and tested.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define TESSERA_INLINE __host__ __device__ __forceinline__
#else
#define TESSERA_INLINE [[gnu::always_inline]] inline
#endif

namespace tessera::kernels {

/// a b + c, rounded once wherever the instruction set has the operation.
TESSERA_INLINE float fmadd(float a, float b, float c) {
#if defined(__FMA__) || defined(__CUDACC__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
TESSERA_INLINE float select(bool take_a, float a, float b) { return take_a ? a : b; }
TESSERA_INLINE float larger(float a, float b) { return a > b ? a : b; }
TESSERA_INLINE float smaller(float a, float b) { return a < b ? a : b; }
TESSERA_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }

/// Adding this to |x| < 2^22 leaves round(x) in the low bits of the mantissa.
inline constexpr float kRoundToInt = 0x1.8p23F;

/// 2^n for integral n in [-126, 127].
TESSERA_INLINE float power_of_two(float n) {
  const auto bits = std::bit_cast<std::uint32_t>(n + kRoundToInt);
  return std::bit_cast<float>((bits << 23) + 0x3f800000U);
}

/// The power of two in |x|, x without sign and mantissa: 0 for denormals, infinity for NaN.
TESSERA_INLINE float power_of(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7f800000U);
}

/// Bits that all depend on all bits of x (the finalizer of MurmurHash3, Appleby 2011). `U`:
/// std::uint32_t or a vector of them.
template <typename U>
TESSERA_INLINE U mixed(U x) {
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x *= 0xc2b2ae35U;
  return x ^ (x >> 16);
}

/// The bits of x rounded to one of the two bf16 beside it, up or down at random in proportion, so
/// that the rounding is right on average (stochastic rounding: Gupta et al. 2015). Chance comes
/// from the bits of `key`, of x and of the salt, and so is the same wherever an element is
/// computed.
template <typename U>
TESSERA_INLINE U bits_rounded_at_random(U x, U key, std::uint32_t salt) {
  return (x + (mixed(mixed(key + salt * 0x9e3779b9U) ^ x) & 0xffffU)) & 0xffff0000U;
}
TESSERA_INLINE float rounded_at_random(float x, float key, std::uint32_t salt) {
  const std::uint32_t bits = bits_rounded_at_random(std::bit_cast<std::uint32_t>(x),
                                                    std::bit_cast<std::uint32_t>(key), salt);
  return x != x ? x : std::bit_cast<float>(bits);
}

/// x 2^n for integral n in [-150, 128] and x between 1/2 and 2, rounded once: the first product is
/// exact, and a normal number.
template <typename F>
TESSERA_INLINE F times_power_of_two(F x, F n) {
  const F half = fmadd(n, F(0.5F), F(kRoundToInt)) - F(kRoundToInt);
  return x * power_of_two(half) * power_of_two(n - half);
}

/// e^x, at most 2 ulp, denormal results included; overflows to infinity, NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln(2) / 2; e^r by a polynomial of degree 6 (interpolated at Chebyshev
/// nodes, relative error 2^-26.5).
template <typename F>
TESSERA_INLINE F exp_of(F x) {
  x = smaller(F(89.0F), larger(F(-104.0F), x));
  const F n = fmadd(x, F(1.44269504F), F(kRoundToInt)) - F(kRoundToInt);
  F r = fmadd(n, F(-0.693145751953125F), x);  // ln 2 in two parts; n times the first is exact
  r = fmadd(n, F(-1.42860682e-6F), r);
  F p = F(1.392625083e-3F);
  p = fmadd(p, r, F(8.363232884e-3F));
  p = fmadd(p, r, F(4.166655421e-2F));
  p = fmadd(p, r, F(1.666657667e-1F));
  p = fmadd(p, r, F(0.5F));
  p = fmadd(p * r, r, r) + F(1.0F);
  return times_power_of_two(p, n);
}

/// 1 / (1 + e^-x), at most 4 ulp where the result is normal.
template <typename F>
TESSERA_INLINE F sigmoid(F x) {
  return F(1.0F) / (F(1.0F) + exp_of(F(0.0F) - x));
}

/// tanh x, at most 4 ulp. Below 1/2 an odd polynomial of degree 11 (interpolated at Chebyshev
/// nodes, relative error 2^-29), above 1 - 2 / (1 + e^2|x|).
template <typename F>
TESSERA_INLINE F tanh_of(F x) {
  const F size = select(x < F(0.0F), F(0.0F) - x, x);
  const F large = F(1.0F) - F(2.0F) / (F(1.0F) + exp_of(size + size));
  const F square = x * x;
  F p = F(-6.942941765e-3F);
  p = fmadd(p, square, F(2.147068303e-2F));
  p = fmadd(p, square, F(-5.393346915e-2F));
  p = fmadd(p, square, F(1.333322578e-1F));
  p = fmadd(p, square, F(-3.333333280e-1F));
  const F small = fmadd(p * square, x, x);
  return select(size < F(0.5F), small, select(x < F(0.0F), F(0.0F) - large, large));
}
/// The slope of tanh where it is t: off by at most 8 * 2^-24.
template <typename F>
TESSERA_INLINE F tanh_slope(F t) {
  return F(1.0F) - t * t;
}

/// The slope of tanh at x.
template <typename F>
TESSERA_INLINE F tanh_slope_at(F x) {
  return tanh_slope(tanh_of(x));
}

template <typename F>
TESSERA_INLINE F silu(F x) {
  return x * sigmoid(x);
}
template <typename F>
TESSERA_INLINE F silu_slope(F x) {
  const F s = sigmoid(x);
  return fmadd(x * s, F(1.0F) - s, s);
}

template <typename F>
TESSERA_INLINE F relu(F x) {
  return select(x < F(0.0F), F(0.0F), x);
}
template <typename F>
TESSERA_INLINE F relu_slope(F x) {
  return select(x > F(0.0F), F(1.0F), F(0.0F));
}

/// 1, -1 or, of 0, 0.
template <typename F>
TESSERA_INLINE F sign(F x) {
  return select(x > F(0.0F), F(1.0F), select(x < F(0.0F), F(-1.0F), F(0.0F)));
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(kGelu1 x + kGelu3 x^3): no tanh, and
// no cancellation in the negative tail.
inline constexpr float kGelu1 = 1.5957691216F;  // 2 sqrt(2 / pi)
inline constexpr float kGelu3 = 0.0713548163F;  // 0.044715 of it

template <typename F>
TESSERA_INLINE F gelu(F x) {
  return x * sigmoid(x * fmadd(x * x, F(kGelu3), F(kGelu1)));
}
template <typename F>
TESSERA_INLINE F gelu_slope(F x) {
  x = select(x < F(-16.0F), F(-16.0F), x);  // flat beyond; x^2 must not overflow
  x = select(x > F(16.0F), F(16.0F), x);
  const F square = x * x;
  const F s = sigmoid(x * fmadd(square, F(kGelu3), F(kGelu1)));
  return fmadd(x * s * (F(1.0F) - s), fmadd(square, F(3.0F * kGelu3), F(kGelu1)), s);
}

/// The normal distribution up to x, given e = e^(-x^2 / 2): t p(t) e on the left, with
/// t = 1 / (1 + |x| / 4) and p of degree 9 (interpolated at Chebyshev nodes for |x| <= 15, relative
/// error 2^-26), and one less that on the right.
template <typename F>
TESSERA_INLINE F normal_cdf(F x, F e) {
  const F magnitude = select(x < F(0.0F), F(0.0F) - x, x);
  const F t = F(1.0F) / fmadd(magnitude, F(0.25F), F(1.0F));
  F p = F(1.607147339e-2F);
  p = fmadd(p, t, F(-6.022585304e-2F));
  p = fmadd(p, t, F(4.611993766e-2F));
  p = fmadd(p, t, F(3.507515370e-2F));
  p = fmadd(p, t, F(7.866203846e-3F));
  p = fmadd(p, t, F(8.885935936e-2F));
  p = fmadd(p, t, F(7.138857128e-2F));
  p = fmadd(p, t, F(9.561157543e-2F));
  p = fmadd(p, t, F(9.948556838e-2F));
  p = fmadd(p, t, F(9.974801271e-2F));
  const F tail = p * t * e;
  return select(x < F(0.0F), tail, F(1.0F) - tail);
}

/// x times the normal distribution up to x.
template <typename F>
TESSERA_INLINE F gelu_erf(F x) {
  return x * normal_cdf(x, exp_of(x * x * F(-0.5F)));
}
template <typename F>
TESSERA_INLINE F gelu_erf_slope(F x) {
  x = select(x < F(-16.0F), F(-16.0F), x);  // flat beyond; an infinity must not be multiplied by 0
  x = select(x > F(16.0F), F(16.0F), x);
  const F e = exp_of(x * x * F(-0.5F));
  return fmadd(x * e, F(0.3989422804F), normal_cdf(x, e));  // 1 / sqrt(2 pi)
}

}  // namespace tessera::kernels
