// The tokens of a run as one long row: the documents of all files a deck lists, one after another.
// Two formats are read: Megatron's indexed datasets (io/megatron.hpp) and llm.c's shards (a header
// of 256 i32 {magic, version, count}, then 16- or 32-bit tokens).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "io/file.hpp"
#include "io/megatron.hpp"

namespace tessera::io {

/// Sequences of `length` tokens, each followed by a target, that so many tokens make.
constexpr std::int64_t sequences_in(std::int64_t tokens, std::int64_t length) {
  return tokens > 0 ? (tokens - 1) / length : 0;
}

/// Tokens are read with pread when asked for: nothing is mapped, so resident memory stays what the
/// ledger says. Adjacent documents are merged into runs; a corpus written in order is one run a
/// file, however many documents it has.
class TokenCorpus {
 public:
  /// An entry is a Megatron prefix, or a path or glob that ends in ".bin" (llm.c; the matches are
  /// taken in byte order of their names). DataError for files that cannot be used.
  TokenCorpus(std::span<const std::string> entries, std::int64_t vocab);

  std::int64_t tokens() const { return tokens_; }
  /// The tokens of each entry.
  std::span<const Range> entries() const { return entries_; }
  /// The entry that a token is of.
  std::size_t entry_of(std::int64_t token) const;
  /// Sequences of `length` tokens and their shifted targets: sequence s needs the tokens
  /// [s length, s length + length], so the last token of the corpus is only ever a target.
  std::int64_t sequences(std::int64_t length) const { return sequences_in(tokens_, length); }

  /// Tokens [first, first + out.size()), which must exist. DataError, naming file and position, for
  /// a token that is not below the vocabulary size. Safe to call from many threads at once.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  /// Whether some files say which of their tokens count as targets of the loss
  /// (io/token_targets.hpp).
  bool has_targets() const;
  /// Whether tokens [first, first + out.size()) count: 1 or 0, and 1 where nothing says so.
  /// DataError for another value. Safe to call from many threads at once.
  void read_targets(std::int64_t first, std::span<std::uint8_t> out) const;

  /// The first file that does not say where its documents are, or null.
  const File* file_without_documents() const;
  /// The tokens behind which documents end, of those that end in (range.begin, range.end], in
  /// ascending order. Safe to call from many threads at once.
  std::vector<std::int64_t> document_ends(Range range) const;

  struct TokenFile {
    File file;
    DType type;  // u32 tokens are read as i32: a token >= 2^31 is out of range either way
    std::int64_t tokens = 0;
    std::int64_t documents = 0;                  // 0: the format does not say
    std::optional<std::filesystem::path> index;  // Megatron's .idx
    std::optional<MegatronIndex> table;          // likewise, to look documents up
    std::optional<File> targets;                 // PREFIX.targets.bin, in the order of `file`
  };
  std::span<const TokenFile> files() const { return files_; }

 private:
  struct Run {
    std::int64_t first = 0;   // token of the corpus
    std::int64_t offset = 0;  // byte in the file
    std::size_t file = 0;
    Range sequences;  // of Megatron's index
  };
  /// f(run, tokens to pass over in it, count) for each run that has some of the tokens.
  template <typename F>
  void for_each_run(Range tokens, F&& f) const;

  void add_megatron(const std::string& prefix);
  void add_llmc(const std::string& path);
  void add_targets();
  void add_run(std::int64_t offset, std::int64_t count, std::int64_t sequence = 0);
  void read_run(const Run& run, std::int64_t skip, std::span<std::int32_t> out) const;

  std::int64_t vocab_;
  std::int64_t tokens_ = 0;
  std::vector<Range> entries_;
  std::vector<TokenFile> files_;
  std::vector<Run> runs_;  // ascending by first, none empty
};

/// The elements of a pair beside tokens that has one for each: DataError where its type is another,
/// or where its documents are not those of the tokens, of the same lengths and in the same order in
/// the file.
File open_alongside(const TokenCorpus::TokenFile& tokens, const std::filesystem::path& prefix,
                    DType type);

}  // namespace tessera::io
