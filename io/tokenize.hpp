// Text files into token files, in parts that run side by side: each part writes a pair of its own,
// and merging them in order gives bytes that do not depend on the number of parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "io/bpe_training.hpp"
#include "io/tokenizer.hpp"

namespace tessera::io {

struct TokenizePart {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// Where the documents of the inputs are.
struct DocumentRules {
  std::string field = "text";  // of a JSON line's object: the string that is a document
  std::string separator;       // between the documents of a text file; empty: the file is one
};

/// Whether a file holds a document a line: its name ends in ".jsonl" or ".jsonl.gz".
bool is_json_lines(const std::filesystem::path& path);

/// Bytes of input read so far, and all that this part will read.
using TokenizeProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Tokenizes a part of the inputs into PREFIX.partNNNNN.bin and .idx. What is_json_lines() does not
/// take is text. Files that gzip has packed are unpacked. Empty documents are left out; a document
/// ends with the tokenizer's end-of-text token, if it has one. All inputs, one after another, are
/// cut into ranges of equal bytes, and a document belongs to the part in which its first byte lies;
/// what cannot be read from its middle (packed files, text that is one document, separators that
/// may overlap themselves) belongs to the part in which the file begins. DataError, with file and
/// line, for input that is not what it should be, and for empty files.
void tokenize_part(std::span<const std::filesystem::path> inputs,
                   const std::filesystem::path& prefix, Tokenizer& tokenizer, TokenizePart part,
                   const TokenizeProgress& progress, const DocumentRules& rules = {});

/// What is called with the text of each document.
using DocumentVisitor = std::function<void(std::string_view text)>;

/// Hands out the documents of a part of the inputs, which are found and cut as tokenize_part()
/// says; empty ones too.
void read_part(std::span<const std::filesystem::path> inputs, TokenizePart part,
               const DocumentRules& rules, const TokenizeProgress& progress,
               const DocumentVisitor& document);

/// How often each word of a part of the inputs occurs, cut as GPT-2 does.
WordCounts count_words(std::span<const std::filesystem::path> inputs, TokenizePart part,
                       const TokenizeProgress& progress, const DocumentRules& rules = {});

/// The bytes and the token that ends a document.
inline constexpr std::int64_t kSmallestLearnedVocab = 257;

/// A tokenizer.json of `vocab` tokens, of GPT-2's form, learned from the words of all parts; of
/// fewer tokens if no more pairs occur twice.
std::string learn_tokenizer(const WordCounts& words, std::int64_t vocab,
                            const std::function<void(std::int64_t)>& progress = {});

struct TokenizeSummary {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

/// Joins the parts into PREFIX.bin and .idx, removes them, and keeps the tokenizer and the end of
/// documents beside (io/tokenizer_files.hpp). Every part must be complete. DataError if there is no
/// document in any of them.
TokenizeSummary merge_parts(const std::filesystem::path& prefix, std::int64_t parts,
                            const Tokenizer& tokenizer);

}  // namespace tessera::io
