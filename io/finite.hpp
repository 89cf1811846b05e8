// NaN and infinite values: found while tensors pass through memory, and refused with their name and
// place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace tessera::io {

/// Position of the first value that is NaN or infinite once it is rounded to `type`, which is f32,
/// bf16 or f16.
std::optional<std::int64_t> find_non_finite(std::span<const float> values, DType type);

/// "[3, 17]": where a tensor of this shape has its element number `element`, row-major.
std::string index_text(std::span<const std::int64_t> shape, std::int64_t element);

/// The refusal of such a value; `where` names file, tensor and index, `accept` is what a user
/// writes to have it nevertheless.
DataError non_finite_error(const std::string& where, float value, DType type,
                           std::string_view accept);

}  // namespace tessera::io
