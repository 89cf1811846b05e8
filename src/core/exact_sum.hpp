// Exact sums of f32 values or of their squares: a wide fixed-point number (Kulisch accumulator). No
// rounding happens, so the sum does not depend on order, threads, shards or ranks, and partial sums
// over ranks are added as integers. Rounded once, at the end.
#pragma once

#include <cstdint>
#include <span>

namespace tessera {

/// Value = sum over i of limb[i] * 2^(32 i - 320), limbs signed; covers 2^-298 (the smallest f32
/// squared) to 2^256 (the largest) summed over 2^60 terms. Two words follow: how many terms were
/// NaN, and how many infinite.
inline constexpr int kExactSumLimbs = 22;
inline constexpr int kExactSumWords = kExactSumLimbs + 2;
inline constexpr int kExactSumExponent = -320;
inline constexpr int kExactSumNan = kExactSumLimbs;
inline constexpr int kExactSumInf = kExactSumLimbs + 1;

using ExactWords = std::span<std::int64_t, kExactSumWords>;
using ConstExactWords = std::span<const std::int64_t, kExactSumWords>;

/// words += value, which must be finite and a multiple of 2^-320 (any product of two f32, any f32).
void exact_add(ExactWords words, double value);
/// words += other: 64-bit integer additions, so all-reducing words by integer sum does the same.
void exact_merge(ExactWords words, ConstExactWords other);
/// Brings limbs 0 .. n-2 into [0, 2^32), carrying upwards; the value stays. Call before 2^30
/// further additions.
void exact_normalise(ExactWords words);
/// Nearest double; NaN or infinity when such terms were counted.
double exact_value(ConstExactWords words);

}  // namespace tessera
