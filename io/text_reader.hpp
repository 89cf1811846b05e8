// A text file from front to back; what gzip has packed is unpacked on the way, whatever the file is
// called.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::io {

class TextReader {
 public:
  /// Starts at byte `begin`, which is 0 for a packed file. DataError for a name that ends in ".gz"
  /// without such content.
  explicit TextReader(const std::filesystem::path& path, std::int64_t begin = 0);
  ~TextReader();

  /// The next part of the text, valid until the next call; empty at the end. DataError for a packed
  /// file that is damaged or cut off.
  std::string_view next();
  /// Bytes of the file that were read, packed as they are.
  std::int64_t position() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A place in the text of a file.
struct InputPlace {
  std::filesystem::path file;
  std::int64_t byte = 0;
};

/// "file: line N", which takes reading the file up to there.
std::string place_text(const InputPlace& place);

/// Whether gzip has made it, by the file's first bytes.
bool is_gzip(const std::filesystem::path& path);

}  // namespace tessera::io
