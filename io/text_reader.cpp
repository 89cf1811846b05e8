#include "io/text_reader.hpp"

#include <zlib.h>

#include <algorithm>
#include <new>
#include <string>

#include "core/error.hpp"
#include "io/file.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 20;
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: the largest window, in gzip's format

bool starts_as_gzip(const File& file) {
  std::string magic(kGzipMagic.size(), '\0');
  if (file.size() < static_cast<std::int64_t>(magic.size())) return false;
  file.read(0, std::as_writable_bytes(std::span(magic)));
  return magic == kGzipMagic;
}

/// Unpacks gzip's format: members, one after another, each with a checksum of its own, and zeros
/// that tapes and block devices leave behind them.
class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;  // zlib's state points to the stream
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  bool hungry() const { return stream_.avail_in == 0; }
  bool between_members() const { return at_end_; }

  void feed(std::string_view packed) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
  }

  /// How much of `out` was filled. Throws what is wrong, as a text, for damaged input.
  std::size_t unpack(std::string& out) {
    if (at_end_) {
      for (; stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) ++stream_.next_in;
      if (hungry()) return 0;
      inflateReset(&stream_);
    }
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw DataError(stream_.msg != nullptr ? stream_.msg : "no gzip data");
    }
    at_end_ = result == Z_STREAM_END;
    return out.size() - stream_.avail_out;
  }

 private:
  z_stream stream_{};
  bool at_end_ = false;  // of a member
};

}  // namespace

struct TextReader::Impl {
  Impl(const fs::path& path, std::int64_t begin) : file(path, OpenMode::read), at(begin) {
    if (starts_as_gzip(file)) {
      inflater = std::make_unique<Inflater>();
    } else if (path.extension() == ".gz" && file.size() > 0) {
      throw DataError(fmt::format("{}: does not start as gzip's files do (1f 8b)", path.string()));
    }
    TESSERA_CHECK(!inflater || begin == 0, "{}: packed, from byte {}", path.string(), begin);
  }

  std::string_view next_block() {
    block.resize(
        static_cast<std::size_t>(std::min(kBlock, std::max<std::int64_t>(file.size() - at, 0))));
    file.read(at, std::as_writable_bytes(std::span(block)));
    at += static_cast<std::int64_t>(block.size());
    return block;
  }

  std::string_view next_unpacked() {
    unpacked.resize(static_cast<std::size_t>(kBlock));
    while (true) {
      if (inflater->hungry()) {
        inflater->feed(next_block());
        if (inflater->hungry() && inflater->between_members()) return {};
        if (inflater->hungry()) {
          throw DataError(fmt::format("{}: ends in the middle of what gzip has packed: truncated?",
                                      file.path().string()));
        }
      }
      try {
        const std::size_t count = inflater->unpack(unpacked);
        if (count > 0) return std::string_view(unpacked).substr(0, count);
      } catch (DataError& e) {
        e.add_context(fmt::format("{}: before byte {}: damaged", file.path().string(), at));
        throw;
      }
    }
  }

  File file;
  std::int64_t at;
  std::unique_ptr<Inflater> inflater;  // of packed files
  std::string block, unpacked;
};

TextReader::TextReader(const fs::path& path, std::int64_t begin)
    : impl_(std::make_unique<Impl>(path, begin)) {}
TextReader::~TextReader() = default;

std::string_view TextReader::next() {
  return impl_->inflater ? impl_->next_unpacked() : impl_->next_block();
}

std::int64_t TextReader::position() const { return impl_->at; }

std::string place_text(const InputPlace& place) {
  TextReader reader(place.file);
  std::int64_t line = 1;
  for (std::int64_t left = place.byte; left > 0;) {
    const std::string_view block = reader.next().substr(0, static_cast<std::size_t>(left));
    if (block.empty()) break;
    line += std::count(block.begin(), block.end(), '\n');
    left -= static_cast<std::int64_t>(block.size());
  }
  return fmt::format("{}: line {}", place.file.string(), line);
}

bool is_gzip(const fs::path& path) { return starts_as_gzip(File(path, OpenMode::read)); }

}  // namespace tessera::io
