// The safetensors format: u64 N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then the
// tensors' bytes, little-endian and row-major, without gaps or overlaps.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "io/file.hpp"

namespace tessera::io {

struct SafetensorsEntry {
  std::string dtype;                // as in the file: "F32", "BF16", ...
  std::optional<DType> type;        // what can be read as numbers; none for BOOL, F8 and the like
  std::vector<std::int64_t> shape;  // empty: a scalar
  std::int64_t elements = 0;
  std::int64_t offset = 0;  // in the file, of the first byte
};

/// An open file whose header has been checked against its size (DataError otherwise). Reading is
/// safe from many threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsEntry, std::less<>>& tensors() const { return tensors_; }
  /// What the file says of itself: texts by name.
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

  /// Elements [first, first + out.size()) of a floating-point tensor of this file, as f32.
  void read(const SafetensorsEntry& tensor, std::int64_t first, std::span<float> out) const;
  /// Bytes [first, first + out.size()) of a tensor, as they are.
  void read_bytes(const SafetensorsEntry& tensor, std::int64_t first,
                  std::span<std::byte> out) const;

 private:
  File file_;
  std::map<std::string, SafetensorsEntry, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

/// Writes a file front to back; it appears when publish() returns.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::optional<DType> type = {};  // f32, bf16, f16 or u8; nothing: the file's
    std::int64_t elements() const;
  };

  /// All tensors in the order in which they will be written. `metadata`: what the file says of
  /// itself beside its format.
  SafetensorsWriter(std::filesystem::path path, DType type, std::span<const Tensor> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// The next elements, rounded to nearest even.
  void append(std::span<const float> values);
  /// The next whole elements of one tensor, as the bytes that they are in the file.
  void append_bytes(std::span<const std::byte> bytes);
  void publish();

 private:
  struct Unwritten {
    DType type;
    std::int64_t elements;
  };
  std::deque<Unwritten> tensors_;
  AtomicFile file_;
  std::int64_t expected_bytes_ = 0;
};

}  // namespace tessera::io
