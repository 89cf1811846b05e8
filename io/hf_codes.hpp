// Matrices that a Hugging Face directory has as codes (`tessera quantize`). In place of a tensor
// NAME there are
//   NAME.codes   u8 (rows, bytes): the codes of a row, as a slot of kernels::BlockFormat has them,
//                and zeros up to a multiple of 4 bytes
//   NAME.scales  f32 (rows, blocks)
// so that a reader that does not know of codes finds a tensor missing, and takes none for weights.
// and config.json says of all of them
//   "quantization_config": {"quant_method": "tessera", "type": "int4", "block": 64}
// A row is what makes one output, also where Hugging Face has matrices as their transposes (GPT-2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/math.hpp"
#include "io/json.hpp"
#include "kernels/api/quantize.hpp"

namespace tessera::io {

/// Bounds of elements that have a scale in common; decks have the same for frozen.block.
inline constexpr std::int64_t kSmallestBlock = 16, kLargestBlock = 1 << 16;

/// The names of the tensors with the codes and the scales of one.
std::string codes_of(std::string_view tensor);
std::string scales_of(std::string_view tensor);

/// What config.json says. DataError for codes that are not of `tessera quantize`.
kernels::BlockFormat read_codes_config(const JsonCursor& config);
nlohmann::json codes_config(const kernels::BlockFormat& format);
/// "int4 in blocks of 64".
std::string to_string(const kernels::BlockFormat& format);
/// For who reads such a directory as a model whose matrices are none.
std::string values_taken_note(std::string_view directory, const kernels::BlockFormat& format);

/// A row of so many columns as codes and scales. Each row begins a block.
class RowCodes {
 public:
  RowCodes(const kernels::BlockFormat& format, std::int64_t columns);

  std::int64_t columns() const { return columns_; }
  std::int64_t bytes() const;  // of its codes
  std::int64_t blocks() const;
  std::int64_t scale_bytes() const { return blocks() * format_.scale_bytes(); }

  /// Rounds to nearest. `codes` and `scales` are a row's.
  void encode(std::span<const float> row, std::span<std::byte> codes,
              std::span<std::byte> scales) const;
  /// Columns [first, first + out.size()).
  void decode(std::span<const std::byte> codes, std::span<const std::byte> scales,
              std::int64_t first, std::span<float> out) const;
  /// What encode() never writes, among the codes of some columns and the scales of their blocks.
  /// Infinite scales and such as are no numbers are none of it: they are of weights like that.
  struct Damage {
    enum class Of { scale, code };
    Of of = Of::scale;
    std::int64_t index = 0;  // the block, or the column
    float value = 0;
  };
  /// The first of it; nothing where there is none.
  std::optional<Damage> damage(std::span<const std::byte> codes, std::span<const std::byte> scales,
                               Range columns) const;

 private:
  kernels::BlockFormat format_;
  std::int64_t columns_;
};

}  // namespace tessera::io
