// Documents out of text files, files of JSON lines and folders of text files, in parts that are
// read side by side: a document belongs to exactly one part, whatever their number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat_template.hpp"
#include "io/text_reader.hpp"
#include "io/token_labels.hpp"

namespace tessera::io {

struct TokenizePart {
  std::int64_t index = 0;
  std::int64_t count = 1;
};

/// What a document's label is.
enum class LabelSource {
  none,
  member,  // of a JSON line's object
  folder,  // the name of the one in which the file lies
};

/// Where the documents of the inputs are.
struct DocumentRules {
  /// Of a JSON line's object: the string that is a document. Empty: "text", or with a template what
  /// that looks for.
  std::string field;
  std::string separator;  // between the documents of a text file; empty: the file is one
  /// Of a JSON line's object: the list of words that is a document, in place of a text. Then the
  /// label is a list too, of one for each.
  std::string words = {};
  LabelSource labels = LabelSource::none;
  std::string label_key = {};          // the member
  bool special_tokens = false;         // text gets what the tokenizer's post-processor adds
  const ChatTemplate* chat = nullptr;  // what makes documents of JSON lines that are not text
  bool pairs = false;    // with it: a line is a pair of answers, which becomes two documents
  bool prompts = false;  // with it: a line is to be answered (ChatTemplate::render_prompt)
};

/// A document, as long as its visitor is called.
struct Document {
  std::string_view text;
  std::span<const TemplatePiece> pieces;  // in place of it, where a template has made it
  std::span<const std::string> words;     // that the text is made of, where the rules ask for such
  std::span<const LabelValue> labels;     // where the rules ask for them: its own, or of each word
  std::string_view line = {};             // of JSON, that it is of
  const InputPlace& place;
};
using DocumentVisitor = std::function<void(const Document& document)>;

/// Bytes of input read so far, and all that this part will read.
using TokenizeProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Whether a file holds a document a line: its name ends in ".jsonl" or ".jsonl.gz".
bool is_json_lines(const std::filesystem::path& path);

struct FolderFiles {
  std::vector<std::filesystem::path> files;  // by folder, then by name, in the order of bytes
  std::int64_t left_out = 0;                 // files beside the folders
};

/// The files of folders whose names are labels: those in each folder of `directory`, or, where it
/// has no folders, those in itself. What begins with a point is not looked at. DataError where
/// there is no file, and for folders within the folders.
FolderFiles files_of_folders(const std::filesystem::path& directory);

/// Hands out the documents of a part of the inputs, empty ones too. What is_json_lines() does not
/// take is text. Files that gzip has packed are unpacked. All inputs, one after another, are cut
/// into ranges of equal bytes, and a document belongs to the part in which its first byte lies;
/// what cannot be read from its middle (packed files, text that is one document, separators that
/// may overlap themselves) belongs to the part in which the file begins. DataError, with file and
/// line, for input that is not what it should be, and for empty files.
void read_part(std::span<const std::filesystem::path> inputs, TokenizePart part,
               const DocumentRules& rules, const TokenizeProgress& progress,
               const DocumentVisitor& document);

}  // namespace tessera::io
