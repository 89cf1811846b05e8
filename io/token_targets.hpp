// Which tokens count as targets of the loss: beside PREFIX.bin and .idx a second indexed dataset,
// PREFIX.targets.bin and .targets.idx, of u8 elements, with the same documents of the same lengths:
// 1 where the token counts when it is what the model should have predicted, 0 where it does not.
// Where there is none, every token counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/token_files.hpp"

namespace tessera::io {

/// The PREFIX of a token file that has an index.
std::filesystem::path prefix_of(const TokenCorpus::TokenFile& tokens);

/// PREFIX.targets, the prefix of the pair.
std::filesystem::path targets_prefix(const std::filesystem::path& prefix);
/// The targets beside a token file, where it has an index and there are such.
std::optional<std::filesystem::path> targets_of(const TokenCorpus::TokenFile& tokens);
/// Removes both files, durably; no error if they are not there.
void forget_targets(const std::filesystem::path& prefix);

/// The targets of a corpus, as one row like its tokens.
class TargetCorpus {
 public:
  /// DataError for targets whose documents are not those of the tokens.
  explicit TargetCorpus(const TokenCorpus& tokens);

  /// Whether every token counts because no file has targets.
  bool all() const;
  /// Of tokens [first, first + out.size()), which must exist: 1 for each that counts, 0 for each
  /// other. DataError for a file that holds anything else. Safe to call from many threads at once.
  void read(std::int64_t first, std::span<std::uint8_t> out) const;

 private:
  struct Extent {
    std::int64_t first = 0, end = 0;      // tokens of the corpus
    std::unique_ptr<TokenCorpus> marked;  // none: all count
  };
  std::vector<Extent> extents_;  // of the token files, in order
};

/// How many tokens of a file count. DataError as of a TargetCorpus.
std::int64_t count_targets(const TargetCorpus& targets, std::int64_t first, std::int64_t count);

}  // namespace tessera::io
