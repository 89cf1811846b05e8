// The "model" of a tokenizer.json: its vocabulary, and how words become tokens of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "io/bpe.hpp"
#include "io/json.hpp"
#include "io/unigram.hpp"
#include "io/word_piece.hpp"

namespace tessera::io {

using TokenModel = std::variant<BpeModel, WordPieceModel, UnigramModel>;

struct ModelDefinition {
  TokenModel model;
  std::unordered_map<std::string, std::int32_t> ids;  // of tokens, as the file spells them
};

/// DataError, naming the place, for a model that is damaged or not known: known are BPE, WordPiece
/// and Unigram. `byte_level`: tokens of BPE are spelled in GPT-2's alphabet of bytes.
ModelDefinition parse_token_model(const JsonCursor& value, bool byte_level);

/// An id as JSON has it.
std::int32_t token_id(const JsonCursor& value);

/// GPT-2's printable names of bytes: printable Latin-1 characters stand for themselves, the others
/// for the characters from U+0100 on.
const std::unordered_map<char32_t, std::uint8_t>& byte_alphabet();

/// The bytes that a token's printable name spells; nothing if it has other characters (the names of
/// special tokens may: they stand for themselves).
std::optional<std::string> spelled_bytes(std::string_view name);

/// Of true where only false is supported.
void refuse_flag(const JsonCursor& object, std::string_view key);

}  // namespace tessera::io
