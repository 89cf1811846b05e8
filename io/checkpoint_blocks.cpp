#include "io/checkpoint_blocks.hpp"

#include <algorithm>
#include <vector>

namespace tessera::io {

std::uint64_t hash_range(const File& file, Range range, std::uint64_t seed) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(range.count(), kPieceBytes)));
  while (!range.empty()) {
    const auto bytes =
        std::span(piece).first(static_cast<std::size_t>(std::min(range.count(), kPieceBytes)));
    file.read(range.begin, bytes);
    seed = hash_bytes(bytes, seed);
    range.begin += static_cast<std::int64_t>(bytes.size());
  }
  return seed;
}

std::uint64_t hash_rest(const File& file, const RankPart& part) {
  std::uint64_t hash = 0;
  std::int64_t begin = 0;
  for (const DatasetRecord& d : part.datasets) {
    hash = hash_range(file, {begin, d.offset}, hash);
    begin = d.offset + d.bytes();
  }
  return hash_range(file, {begin, part.file_bytes}, hash);
}

}  // namespace tessera::io
