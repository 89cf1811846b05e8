// The files that keep a tokenizer, beside token files, in a run and in a model directory:
// tokenizer.json, and of Hugging Face's tokenizer_config.json beside it the key "eos_token", which
// says what ends a document (null: nothing does). Beside token files both names begin with PREFIX
// and a point.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "io/tokenizer.hpp"

namespace tessera::io {

/// PREFIX.tokenizer.json
std::filesystem::path tokenizer_beside(const std::filesystem::path& prefix);
/// What says how documents end, of a tokenizer.json.
std::filesystem::path tokenizer_config_of(const std::filesystem::path& tokenizer_json);
/// The Jinja text of its chat_template, where that says one.
std::optional<std::string> chat_template_of(const std::filesystem::path& tokenizer_json);

/// A tokenizer.json with the end of documents that its tokenizer_config.json states, where it does.
/// DataError for files that cannot be used.
Tokenizer open_kept_tokenizer(const std::filesystem::path& tokenizer_json);

/// Writes both files, whole or not at all, the tokenizer last.
void keep_tokenizer(const std::filesystem::path& tokenizer_json, const Tokenizer& tokenizer);
/// Copies both, as they are and where they are: they need not be ones that can be used here.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes both; no error if they are not there.
void forget_tokenizer(const std::filesystem::path& tokenizer_json);

/// "bytes" or the path of a tokenizer.json, with what documents shall end by: `eos` is a token,
/// "none", or empty for what the tokenizer's own names say, and after them its
/// tokenizer_config.json. DeckError, saying how to choose, where nothing is known, and for a token
/// that there is not. Bytes have none unless told.
Tokenizer open_for_documents(const std::string& tokenizer, const std::string& eos);

/// A tokenizer with what documents shall end by: `eos` as above, empty for what the tokenizer's own
/// names say. `name` is what errors call it.
Tokenizer with_end(Tokenizer tokenizer, const std::string& name, const std::string& eos);

/// The token that stands for masked ones: what tokenizer_config.json beside the file calls
/// "mask_token", else a token of one of the names that families use. Nothing where there is none,
/// or no tokenizer.json of a kind that is read here. DataError for one that is damaged.
std::optional<std::int32_t> mask_token_of(const std::filesystem::path& tokenizer_json);

/// How documents end, for people: "each ended by id 0 <|endoftext|>".
std::string document_end(const Tokenizer& tokenizer);

}  // namespace tessera::io
