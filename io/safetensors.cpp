#include "io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/math.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr std::int64_t kLargestHeader = 100'000'000;
constexpr std::int64_t kAlignment = 8;
constexpr std::string_view kMetadata = "__metadata__";

struct StoredType {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> type;
};
constexpr std::array<StoredType, 14> kStoredTypes = {{{"F32", 4, DType::f32},
                                                      {"BF16", 2, DType::bf16},
                                                      {"F16", 2, DType::f16},
                                                      {"F64", 8, DType::f64},
                                                      {"I64", 8, DType::i64},
                                                      {"I32", 4, DType::i32},
                                                      {"U16", 2, DType::u16},
                                                      {"U8", 1, DType::u8},
                                                      {"I16", 2, {}},
                                                      {"I8", 1, {}},
                                                      {"U64", 8, {}},
                                                      {"U32", 4, {}},
                                                      {"BOOL", 1, {}},
                                                      {"F8_E4M3", 1, {}}}};

const StoredType& stored_type(const JsonCursor& dtype) {
  std::string all;
  for (const StoredType& row : kStoredTypes) {
    if (row.name == dtype.text()) return row;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", row.name);
  }
  dtype.fail(fmt::format("the element type \"{}\" is not known; allowed: {}", dtype.text(), all));
}

std::string_view stored_name(DType type) {
  const auto row = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                [&](const StoredType& r) { return r.type == type; });
  return row->name;
}

/// One tensor of the header, its shape checked against its bytes; offsets are those of the header.
SafetensorsEntry parse_entry(const JsonCursor& value, std::int64_t data_bytes, std::int64_t& end) {
  const StoredType& type = stored_type(value["dtype"]);
  SafetensorsEntry entry{.dtype = std::string(type.name), .type = type.type, .elements = 1};
  std::int64_t bytes = type.bytes;
  bool fits = true;
  value["shape"].for_each_item([&](const JsonCursor& extent) {
    const std::int64_t n = extent.integer();
    if (n < 0) extent.fail(fmt::format("an extent of {}", n));
    entry.shape.push_back(n);
    fits = fits && !__builtin_mul_overflow(bytes, n, &bytes);
  });
  std::vector<std::int64_t> range;
  value["data_offsets"].for_each_item(
      [&](const JsonCursor& offset) { range.push_back(offset.integer()); });
  if (range.size() != 2 || range[0] < 0 || range[1] < range[0] || range[1] > data_bytes) {
    value["data_offsets"].fail(
        fmt::format("not a range within the {} bytes that follow the header: truncated or damaged",
                    data_bytes));
  }
  if (!fits || bytes != range[1] - range[0]) {
    value.fail(
        fmt::format("the shape does not fit the {} bytes of data_offsets", range[1] - range[0]));
  }
  entry.elements = bytes / type.bytes;
  entry.offset = range[0];
  end = range[1];
  return entry;
}

template <typename T>
void to_f32(std::span<const std::byte> bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

template <typename T>
void append_as(AtomicFile& file, std::span<const float> values) {
  std::vector<T> converted;
  converted.reserve(values.size());
  for (const float value : values) converted.emplace_back(value);
  file.append(std::as_bytes(std::span(converted)));
}

}  // namespace

/// Texts; what is none is left out, as nobody asks for it.
static void read_metadata(const JsonCursor& value,
                          std::map<std::string, std::string, std::less<>>& all) {
  if (!value.is_object()) return;
  value.for_each_member([&](const std::string& key, const JsonCursor& text) {
    if (text.is_text()) all.emplace(key, text.text());
  });
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path, OpenMode::read) {
  const std::string name = path.string();
  const std::int64_t size = file_.size();
  std::uint64_t length = 0;
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const std::int64_t most = std::min(kLargestHeader, size - kLengthBytes);
  if (length > static_cast<std::uint64_t>(most)) {
    throw DataError(fmt::format(
        "{}: byte 0: a header of {} bytes, at most {} possible: truncated or not safetensors", name,
        length, most));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const std::int64_t data_start = kLengthBytes + static_cast<std::int64_t>(length);
  const std::int64_t data_bytes = size - data_start;

  const JsonDocument document(text, name);
  std::vector<Range> ranges;
  document.root().for_each_member([&](const std::string& key, const JsonCursor& value) {
    if (key == kMetadata) return read_metadata(value, metadata_);
    std::int64_t end = 0;
    SafetensorsEntry entry = parse_entry(value, data_bytes, end);
    ranges.push_back({entry.offset, end});
    entry.offset += data_start;
    tensors_.emplace(key, std::move(entry));
  });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::int64_t covered = 0;
  for (const Range& range : ranges) {
    if (range.begin != covered) {
      throw DataError(fmt::format("{}: data_offsets {} to {}: tensors overlap or leave a gap", name,
                                  std::min(covered, range.begin), std::max(covered, range.begin)));
    }
    covered = range.end;
  }
  if (covered != data_bytes) {
    throw DataError(fmt::format("{}: {} bytes of tensors, but {} follow the header", name, covered,
                                data_bytes));
  }
}

void SafetensorsFile::read(const SafetensorsEntry& tensor, std::int64_t first,
                           std::span<float> out) const {
  TESSERA_CHECK(
      tensor.type && first >= 0 && first + static_cast<std::int64_t>(out.size()) <= tensor.elements,
      "elements {}+{} of {} {}", first, out.size(), tensor.elements, tensor.dtype);
  const std::int64_t element = size_of(*tensor.type);
  std::array<std::byte, 1 << 15> buffer;
  const std::size_t batch = buffer.size() / static_cast<std::size_t>(element);
  while (!out.empty()) {
    const auto piece = out.first(std::min(batch, out.size()));
    const auto bytes = std::span(buffer).first(piece.size() * static_cast<std::size_t>(element));
    file_.read(tensor.offset + first * element, bytes);
    switch (*tensor.type) {
      case DType::f32: to_f32<float>(bytes, piece); break;
      case DType::bf16: to_f32<bf16>(bytes, piece); break;
      case DType::f16: to_f32<f16>(bytes, piece); break;
      case DType::f64: to_f32<double>(bytes, piece); break;
      default: check_failed("floating point", tensor.dtype);
    }
    first += static_cast<std::int64_t>(piece.size());
    out = out.subspan(piece.size());
  }
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& tensor, std::int64_t first,
                                 std::span<std::byte> out) const {
  TESSERA_CHECK(tensor.type && first >= 0 &&
                    first + std::ssize(out) <= tensor.elements * size_of(*tensor.type),
                "bytes {}+{} of {} {}", first, out.size(), tensor.elements, tensor.dtype);
  file_.read(tensor.offset + first, out);
}

std::int64_t SafetensorsWriter::Tensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, DType type,
                                     std::span<const Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  nlohmann::ordered_json header;
  auto& said = header[std::string(kMetadata)];
  said = {{"format", "pt"}};  // transformers refuses a file without it
  for (const auto& [key, text] : metadata) said[key] = text;
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    tensors_.push_back({tensor.type.value_or(type), tensor.elements()});
    const DType own = tensors_.back().type;
    const std::int64_t end = offset + tensor.elements() * size_of(own);
    header[tensor.name] = {
        {"dtype", stored_name(own)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize(
      static_cast<std::size_t>(round_up(static_cast<std::int64_t>(text.size()), kAlignment)), ' ');
  file_.append_value(static_cast<std::uint64_t>(text.size()));
  file_.append(text);
  expected_bytes_ = file_.position() + offset;
}

void SafetensorsWriter::append(std::span<const float> values) {
  while (!values.empty()) {
    TESSERA_CHECK(!tensors_.empty(), "{} elements behind the last tensor", values.size());
    auto& [type, left] = tensors_.front();
    const auto now = values.first(std::min(values.size(), static_cast<std::size_t>(left)));
    switch (type) {
      case DType::f32: file_.append(std::as_bytes(now)); break;
      case DType::bf16: append_as<bf16>(file_, now); break;
      case DType::f16: append_as<f16>(file_, now); break;
      default: check_failed("f32, bf16 or f16", std::string(to_string(type)));
    }
    values = values.subspan(now.size());
    left -= std::ssize(now);
    if (left == 0) tensors_.pop_front();
  }
}

void SafetensorsWriter::append_bytes(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  TESSERA_CHECK(!tensors_.empty(), "{} bytes behind the last tensor", bytes.size());
  auto& [type, left] = tensors_.front();
  const std::int64_t elements = std::ssize(bytes) / size_of(type);
  TESSERA_CHECK(elements <= left && std::ssize(bytes) % size_of(type) == 0,
                "{} bytes for {} elements of {}", bytes.size(), left, to_string(type));
  file_.append(bytes);
  left -= elements;
  if (left == 0) tensors_.pop_front();
}

void SafetensorsWriter::publish() {
  TESSERA_CHECK(file_.position() == expected_bytes_, "{} bytes written of {}", file_.position(),
                expected_bytes_);
  file_.publish();
}

}  // namespace tessera::io
