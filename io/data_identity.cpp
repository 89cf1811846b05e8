#include "io/data_identity.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/megatron.hpp"
#include "io/token_labels.hpp"
#include "io/token_targets.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t kSample = std::int64_t{64} << 10;
constexpr std::int64_t kMostPieces = 256, kLeastPieces = 16;
constexpr std::int64_t kSamplesOfAll = 64 * kMostPieces;

std::uint64_t hash_whole(const File& file) { return hash_range(file, {0, file.size()}); }

std::uint64_t hash_sample(const File& file, std::int64_t pieces) {
  const std::int64_t size = file.size();
  if (size <= pieces * kSample) return hash_whole(file);
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < pieces; ++i) {
    // In 128 bits, for (size - kSample) * i may be more than 64 hold.
    const auto begin =
        static_cast<std::int64_t>(static_cast<__int128>(size - kSample) * i / (pieces - 1));
    hash = hash_range(file, {begin, begin + kSample}, hash);
  }
  return hash;
}

DataFile described(const File& file, std::uint64_t hash) {
  return {.path = file.path().string(), .bytes = file.size(), .hash = hash};
}

/// The index, targets and labels of a token file, where it has such.
void add_companions(const TokenCorpus::TokenFile& tokens, std::int64_t pieces,
                    std::vector<DataFile>& all) {
  if (tokens.index) all.push_back(identify(*tokens.index));
  if (const auto targets = targets_of(tokens)) {
    const File marks(megatron_bin(*targets), OpenMode::read);
    all.push_back(described(marks, hash_sample(marks, pieces)));
    all.push_back(identify(megatron_idx(*targets)));
  }
  if (const auto labels = labels_of(tokens)) {
    for (const auto& path : {megatron_bin(*labels), megatron_idx(*labels),
                             std::filesystem::path(labels->string() + ".json")})
      all.push_back(identify(path));
  }
}

}  // namespace

DataFile identify(const std::filesystem::path& path) {
  const File file(path, OpenMode::read);
  return described(file, hash_whole(file));
}

std::vector<DataFile> identify(const TokenCorpus& corpus) {
  const auto files = static_cast<std::int64_t>(corpus.files().size());
  const std::int64_t pieces =
      std::clamp(kSamplesOfAll / std::max<std::int64_t>(1, files), kLeastPieces, kMostPieces);
  std::vector<DataFile> all;
  for (const TokenCorpus::TokenFile& tokens : corpus.files()) {
    all.push_back(described(tokens.file, hash_sample(tokens.file, pieces)));
    add_companions(tokens, pieces, all);
  }
  return all;
}

std::optional<std::string> find_difference(std::span<const DataFile> saved,
                                           std::span<const DataFile> now) {
  if (saved.size() != now.size())
    return fmt::format("there are {} files, there were {}", now.size(), saved.size());
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const DataFile &a = saved[i], &b = now[i];
    if (a.bytes != b.bytes)
      return fmt::format("{} has {} bytes, {} had {}", b.path, b.bytes, a.path, a.bytes);
    if (a.hash != b.hash) return fmt::format("{} holds other bytes than {} did", b.path, a.path);
  }
  return std::nullopt;
}

}  // namespace tessera::io
