#include "io/finite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace tessera::io {
namespace {

/// The magnitude, as bits of an f32, from which on a value rounds to infinity; NaNs lie above it.
std::uint32_t first_infinite(DType type) {
  switch (type) {
    case DType::f32: return 0x7f800000U;
    case DType::bf16: return 0x7f7f8000U;  // half way from the largest bf16 to the next power of 2
    case DType::f16: return 0x477ff000U;   // 65520, half way from 65504
    default: check_failed("f32, bf16 or f16", std::string(to_string(type)));
  }
}

}  // namespace

std::optional<std::int64_t> find_non_finite(std::span<const float> values, DType type) {
  const std::uint32_t limit = first_infinite(type);
  const auto magnitude = [](float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffU; };
  constexpr std::size_t kPiece = 4096;  // a piece has no branches, so that it becomes vector code
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
    std::uint32_t largest = 0;
    for (const float x : piece) largest = std::max(largest, magnitude(x));
    if (largest < limit) continue;
    const auto first =
        std::find_if(piece.begin(), piece.end(), [&](float x) { return magnitude(x) >= limit; });
    return static_cast<std::int64_t>(begin) + (first - piece.begin());
  }
  return std::nullopt;
}

std::string index_text(std::span<const std::int64_t> shape, std::int64_t element) {
  std::string text;
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    text = fmt::format("{}{}{}", element % shape[axis], text.empty() ? "" : ", ", text);
  return fmt::format("[{}]", text);
}

DataError non_finite_error(const std::string& where, float value, DType type,
                           std::string_view accept) {
  if (std::isfinite(value)) {
    return DataError(
        fmt::format("{} is {}, which {} cannot hold: keep a wider type, or accept an "
                    "infinite value with {}",
                    where, value, to_string(type), accept));
  }
  return DataError(
      fmt::format("{} is {}, no finite number: the model has diverged or the file is damaged; take "
                  "an earlier checkpoint or another copy, or accept it as it is with {}",
                  where, value, accept));
}

}  // namespace tessera::io
