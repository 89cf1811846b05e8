// Text files into token files, in parts that run side by side: each part writes a pair of its own,
// and merging them in order gives bytes that do not depend on the number of parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "io/tokenizer.hpp"

namespace tessera {

struct TokenizePart {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// Bytes of input read so far, and all that this part will read.
using TokenizeProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Tokenizes a part of the inputs into PREFIX.partNNNNN.bin and .idx. A file whose name ends in
/// ".jsonl" holds a document a line, the string "text" of an object; any other file is a document.
/// Empty documents are left out; a document ends with the tokenizer's end-of-text token, if it has
/// one. All inputs, one after another, are cut into ranges of equal bytes, and a document belongs
/// to the part in which its first byte lies. DataError, with file and byte, for input that is not
/// what it should be.
void tokenize_part(std::span<const std::filesystem::path> inputs,
                   const std::filesystem::path& prefix, Tokenizer& tokenizer, TokenizePart part,
                   const TokenizeProgress& progress);

struct TokenizeSummary {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

/// Joins the parts into PREFIX.bin and .idx and removes them. Every part must be complete. Leaves
/// the tokenizer's JSON, if it has one, as PREFIX.tokenizer.json.
TokenizeSummary merge_parts(const std::filesystem::path& prefix, std::int64_t parts,
                            const Tokenizer& tokenizer);

/// The text of the tokenizer.json that a deck's token files were made with; empty if none of them
/// tells. DataError, naming two of them, if they tell of different ones.
std::string corpus_tokenizer(std::span<const std::string> entries);

}  // namespace tessera
