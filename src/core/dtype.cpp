#include "core/dtype.hpp"

namespace tessera {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u16: return "u16";
    case DType::u8: return "u8";
    case DType::e4m3: return "e4m3";
    case DType::e5m2: return "e5m2";
  }
  return "?";
}

f16::f16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: quiet, payload's top bits kept
    bits = static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x01ffU));
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00U);
  } else if (magnitude >= 0x38800000U) {  // normal: 2^-14 and above
    const std::uint32_t rebased = magnitude - 0x38000000U;
    bits = static_cast<std::uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
  } else {  // denormal: count units of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 16777216.0F;  // exact
    const auto floor = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(floor);
    const bool up = rest > 0.5F || (rest == 0.5F && (floor & 1U) != 0);
    bits = static_cast<std::uint16_t>(sign | (floor + (up ? 1U : 0U)));
  }
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  const std::uint32_t rebased = exponent == 31 ? 0x7f800000U : (exponent + 112U) << 23;
  return std::bit_cast<float>(sign | rebased | (mantissa << 13));
}

}  // namespace tessera
