// Plain file I/O that benchmarks compare with: a file written, read, or dropped from the page
// cache.
#include <fcntl.h>

#include "io/file.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kBlock = 4 << 20;

/// `bytes` of a file from or to one block, again and again.
template <typename Transfer>
void in_blocks(std::int64_t bytes, Transfer&& transfer) {
  std::vector<std::byte> block(static_cast<std::size_t>(kBlock), std::byte{0x5a});
  for (std::int64_t at = 0; at < bytes; at += kBlock)
    transfer(at, std::span(block).first(static_cast<std::size_t>(std::min(kBlock, bytes - at))));
}

}  // namespace

void forget(const std::filesystem::path& path) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const io::File file(entry.path(), io::OpenMode::read);
    posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);  // advice: may be ignored
  }
}

void write_raw(const std::filesystem::path& path, std::int64_t bytes) {
  io::File file(path, io::OpenMode::create);
  in_blocks(bytes, [&](std::int64_t at, std::span<std::byte> part) { file.write(at, part); });
  file.sync();
  file.close();
}

void read_raw(const std::filesystem::path& path, std::int64_t bytes) {
  const io::File file(path, io::OpenMode::read);
  in_blocks(bytes, [&](std::int64_t at, std::span<std::byte> part) { file.read(at, part); });
}

}  // namespace tessera::verbs
