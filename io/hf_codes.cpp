#include "io/hf_codes.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/at.hpp"
#include "core/error.hpp"
#include "core/terminal.hpp"
#include "kernels/common/slots.hpp"

namespace tessera::io {
namespace {

using kernels::BlockFormat, kernels::BlockType;

constexpr std::string_view kMethod = "tessera";
constexpr std::int64_t kAlignment = 4;

}  // namespace

std::string codes_of(std::string_view tensor) { return fmt::format("{}.codes", tensor); }
std::string scales_of(std::string_view tensor) { return fmt::format("{}.scales", tensor); }

BlockFormat read_codes_config(const JsonCursor& config) {
  if (!config.raw().is_object() ||
      config.raw().value("quant_method", nlohmann::json()) != kMethod) {
    config.fail(fmt::format("{} is not supported; allowed: null, or what tessera quantize writes",
                            config.shown()));
  }
  const JsonCursor word = config["type"];
  const auto type = enum_from_word<BlockType>(word.text());
  if (!type || *type == BlockType::sign)
    word.fail(fmt::format("{} is not supported; allowed: int8, int4, nf4", word.shown()));
  const JsonCursor block = config["block"];
  const std::int64_t elements = block.integer(kSmallestBlock, kLargestBlock);
  if (elements % 2 != 0) block.fail(fmt::format("{} is odd", elements));
  return {.type = *type, .block = elements};
}

nlohmann::json codes_config(const BlockFormat& format) {
  return {{"quant_method", kMethod}, {"type", enum_word(format.type)}, {"block", format.block}};
}

std::string to_string(const BlockFormat& format) {
  return fmt::format("{} in blocks of {}", enum_word(format.type), format.block);
}

std::string values_taken_note(std::string_view directory, const BlockFormat& format) {
  return fmt::format("note: {} has its matrices as {}, whose values are taken",
                     printable(directory), to_string(format));
}

RowCodes::RowCodes(const BlockFormat& format, std::int64_t columns)
    : format_(format), columns_(columns) {
  TESSERA_CHECK(columns > 0 && format.type != BlockType::sign, "{} columns as {}", columns,
                to_string(format));
}

std::int64_t RowCodes::bytes() const {
  return round_up(ceil_div(columns_ * format_.bits(), 8), kAlignment);
}

std::int64_t RowCodes::blocks() const { return ceil_div(columns_, format_.block); }

void RowCodes::encode(std::span<const float> row, std::span<std::byte> codes,
                      std::span<std::byte> scales) const {
  TESSERA_CHECK(std::ssize(row) == columns_ && std::ssize(codes) == bytes() &&
                    std::ssize(scales) == scale_bytes(),
                "{} columns, {} and {} bytes", row.size(), codes.size(), scales.size());
  kernels::encode_blocks(format_, row, codes, scales);
}

void RowCodes::decode(std::span<const std::byte> codes, std::span<const std::byte> scales,
                      std::int64_t first, std::span<float> out) const {
  TESSERA_CHECK(first >= 0 && first + std::ssize(out) <= columns_ && std::ssize(codes) == bytes() &&
                    std::ssize(scales) == scale_bytes(),
                "columns {}+{} of {}", first, out.size(), columns_);
  kernels::decode_blocks(format_, codes.data(), scales.data(), first, out);
}

std::optional<RowCodes::Damage> RowCodes::damage(std::span<const std::byte> codes,
                                                 std::span<const std::byte> scales,
                                                 Range columns) const {
  const std::int64_t end = ceil_div(columns.end, format_.block);
  for (std::int64_t block = columns.begin / format_.block; block < end; ++block) {
    float scale = 0;
    std::memcpy(&scale, scales.data() + block * format_.scale_bytes(), sizeof(scale));
    if (scale < 0 && std::isfinite(scale))
      return Damage{.of = Damage::Of::scale, .index = block, .value = scale};
  }
  if (format_.type == BlockType::nf4) return std::nullopt;  // all of its codes are some number's
  const auto bits = static_cast<int>(format_.bits());
  const unsigned lowest = 1U << (bits - 1), mask = (1U << bits) - 1;  // codes are symmetric
  for (std::int64_t c = columns.begin; c < columns.end; ++c) {
    const auto byte = static_cast<unsigned>(at(codes, c * bits / 8));
    if ((byte >> (c * bits % 8) & mask) == lowest)
      return Damage{.of = Damage::Of::code, .index = c, .value = -static_cast<float>(lowest)};
  }
  return std::nullopt;
}

}  // namespace tessera::io
