#include "io/tokenize.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/math.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/megatron.hpp"
#include "io/text_reader.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestDocument = std::int64_t{1} << 30;

fs::path part_prefix(const fs::path& prefix, std::int64_t index) {
  return fmt::format("{}.part{:05}", prefix.string(), index);
}

/// Whether copies of it may overlap: then which of them count depends on the text from the start.
bool overlaps_itself(std::string_view separator) {
  for (std::size_t shift = 1; shift < separator.size(); ++shift) {
    if (separator.starts_with(separator.substr(shift))) return true;
  }
  return false;
}

[[noreturn]] void refuse_empty(const fs::path& path) {
  throw DataError(fmt::format(
      "{}: empty: was it copied in full? Leave it out if it should be empty", path.string()));
}

struct Input {
  Input(fs::path where, const DocumentRules& rules) : path(std::move(where)) {
    size = File(path, OpenMode::read).size();
    if (size == 0) refuse_empty(path);
    json_lines = is_json_lines(path);
    separator = json_lines ? "\n" : rules.separator;
    divisible = !separator.empty() && !overlaps_itself(separator) && !is_gzip(path);
  }

  fs::path path;
  std::int64_t size = 0;
  bool json_lines = false;
  std::string separator;   // between documents; empty: there is one
  bool divisible = false;  // documents can be found from any place on
};

/// Cuts the text of a file at its separators.
class Pieces {
 public:
  /// From a separator's length before the range on, the first piece that starts in it is found.
  Pieces(const Input& input, Range range, const std::function<void(std::int64_t)>& bytes_done)
      : input_(input),
        range_(range),
        bytes_done_(bytes_done),
        at_(std::max<std::int64_t>(range.begin - width(), 0)),
        inside_(range.begin == 0),
        reader_(input.path, at_) {}

  /// Calls `visit` with the place in the text, and the text, of each piece that starts in the
  /// range.
  template <typename Visit>
  void for_each(const Visit& visit) {
    do {
      std::size_t start = 0, end = 0;
      while ((end = find_end()) != std::string::npos) {
        if (inside_)
          visit(at_ + to_signed(start), std::string_view(text_).substr(start, end - start));
        start = searched_ = end + input_.separator.size();
        inside_ = at_ + to_signed(start) < range_.end;
        if (!inside_) return;
      }
      forget(start);
    } while (at_ < range_.end + width() && read_more());
    // The last piece may lack its separator.
    if (inside_ && !text_.empty()) visit(at_, text_);
  }

 private:
  static std::int64_t to_signed(std::size_t n) { return static_cast<std::int64_t>(n); }
  std::int64_t width() const { return to_signed(input_.separator.size()); }

  std::size_t find_end() const {
    return input_.separator.empty() ? std::string::npos : text_.find(input_.separator, searched_);
  }

  /// Drops what precedes a piece that goes on, or, outside of the range, all that cannot be a part
  /// of a separator.
  void forget(std::size_t start) {
    const std::size_t tail = std::max<std::size_t>(input_.separator.size(), 1) - 1;
    const std::size_t before_tail = text_.size() - std::min(text_.size(), tail);
    const std::size_t drop = inside_ ? start : before_tail;
    text_.erase(0, drop);
    at_ += to_signed(drop);
    searched_ = std::max(before_tail, drop) - drop;
    if (to_signed(text_.size()) > kLargestDocument) {
      throw DataError(fmt::format(
          "{}: byte {}: a document of more than {} bytes: {}", input_.path.string(), at_,
          kLargestDocument, input_.json_lines ? "is it JSON lines?" : "what is its --separator?"));
    }
  }

  bool read_more() {
    const std::int64_t before = reader_.position();
    const std::string_view more = reader_.next();
    text_ += more;
    bytes_done_(reader_.position() - before);
    if (more.empty() && before == 0) refuse_empty(input_.path);
    return !more.empty();
  }

  const Input& input_;
  Range range_;
  const std::function<void(std::int64_t)>& bytes_done_;
  std::int64_t at_;  // of text_[0]
  bool inside_;      // of a piece that starts in the range
  TextReader reader_;
  std::string text_;          // read, but not yet visited
  std::size_t searched_ = 0;  // before it in text_ no separator begins
};

/// The number, from 1, of the line that the byte at `offset` of a file's text is in.
std::int64_t line_at(const fs::path& path, std::int64_t offset) {
  TextReader reader(path);
  std::int64_t line = 1;
  while (offset > 0) {
    const std::string_view block = reader.next().substr(0, static_cast<std::size_t>(offset));
    if (block.empty()) break;
    line += std::count(block.begin(), block.end(), '\n');
    offset -= static_cast<std::int64_t>(block.size());
  }
  return line;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// Hands out the documents of ranges of inputs; empty ones too.
class DocumentReader {
 public:
  DocumentReader(const DocumentRules& rules, const DocumentVisitor& document)
      : rules_(rules), document_(document) {}

  void read(const Input& input, Range range, const std::function<void(std::int64_t)>& bytes_done) {
    Pieces pieces(input, range, bytes_done);
    pieces.for_each([&](std::int64_t at, std::string_view text) {
      if (input.json_lines) {
        json_line(input, at, text);
      } else {
        document_(text);
      }
    });
  }

 private:
  void json_line(const Input& input, std::int64_t at, std::string_view line) {
    if (is_blank(line)) return;
    try {
      take_field(line, input.path.string());
    } catch (const DataError&) {  // the line's number is found only now, as that is slow
      take_field(line, fmt::format("{}: line {}", input.path.string(), line_at(input.path, at)));
      throw;
    }
  }

  void take_field(std::string_view line, const std::string& name) {
    const JsonDocument object(line, name);
    document_(object.root()[rules_.field].text());
  }

  const DocumentRules& rules_;
  const DocumentVisitor& document_;
};

}  // namespace

bool is_json_lines(const fs::path& path) {
  return (path.extension() == ".gz" ? path.stem() : path).extension() == ".jsonl";
}

void read_part(std::span<const fs::path> inputs, TokenizePart part, const DocumentRules& rules,
               const TokenizeProgress& progress, const DocumentVisitor& document) {
  std::vector<Input> files;
  std::int64_t total = 0;
  for (const fs::path& path : inputs) total += files.emplace_back(path, rules).size;
  const Range mine = even_part(total, part.index, part.count);
  std::int64_t done = 0;
  const std::function<void(std::int64_t)> advance = [&](std::int64_t bytes) {
    done = std::min(done + bytes, mine.count());
    if (progress) progress(done, mine.count());
  };
  DocumentReader reader(rules, document);
  Range extent;  // of the input in the row of all
  for (const Input& file : files) {
    extent = {extent.end, extent.end + file.size};
    const Range common = intersect(extent, mine);
    if (common.empty()) continue;
    if (file.divisible) {
      reader.read(file, {common.begin - extent.begin, common.end - extent.begin}, advance);
    } else if (common.begin == extent.begin) {
      reader.read(file, {0, std::numeric_limits<std::int64_t>::max() / 2}, advance);
    }
  }
  if (progress) progress(mine.count(), mine.count());
}

void tokenize_part(std::span<const fs::path> inputs, const fs::path& prefix, Tokenizer& tokenizer,
                   TokenizePart part, const TokenizeProgress& progress,
                   const DocumentRules& rules) {
  MegatronWriter writer(part_prefix(prefix, part.index), tokenizer.vocab());
  std::vector<std::int32_t> ids;
  read_part(inputs, part, rules, progress, [&](std::string_view text) {
    if (text.empty()) return;
    ids.clear();
    tokenizer.encode(text, ids);
    if (const auto end = tokenizer.end_of_text()) ids.push_back(*end);
    writer.append(ids);
    writer.end_document();
  });
  writer.publish();
}

WordCounts count_words(std::span<const fs::path> inputs, TokenizePart part,
                       const TokenizeProgress& progress, const DocumentRules& rules) {
  Tokenizer words = Tokenizer::parse(gpt2_tokenizer_json({}), "GPT-2's pattern");
  WordCounts counts;
  const std::function<void(std::string_view)> count = [&](std::string_view word) {
    counts.add(word);
  };
  read_part(inputs, part, rules, progress,
            [&](std::string_view text) { words.for_each_word(text, count); });
  return counts;
}

std::string learn_tokenizer(const WordCounts& words, std::int64_t vocab,
                            const std::function<void(std::int64_t)>& progress) {
  TESSERA_CHECK(vocab >= kSmallestLearnedVocab, "a vocabulary of {}", vocab);
  const auto untrained = parse_tokenizer_json(gpt2_tokenizer_json({}), "GPT-2's bytes");
  return gpt2_tokenizer_json(learn_merges(words, untrained.model.byte_ids, vocab - 1, progress));
}

TokenizeSummary merge_parts(const fs::path& prefix, std::int64_t parts,
                            const Tokenizer& tokenizer) {
  MegatronWriter merged(prefix, tokenizer.vocab());
  for (std::int64_t i = 0; i < parts; ++i) merged.append_pair(part_prefix(prefix, i));
  if (merged.documents() > 0) {
    // Of the tokens before: should this stop half-way, the new ones must not be taken for theirs.
    forget_tokenizer(tokenizer_beside(prefix));
    merged.publish();
  }
  for (std::int64_t i = 0; i < parts; ++i) {
    remove_tree(megatron_idx(part_prefix(prefix, i)));
    remove_tree(megatron_bin(part_prefix(prefix, i)));
  }
  if (merged.documents() == 0) {
    throw DataError(fmt::format("no document in the inputs, {} is not made: all of them are empty",
                                megatron_bin(prefix).string()));
  }
  keep_tokenizer(tokenizer_beside(prefix), tokenizer);
  return {.documents = merged.documents(), .tokens = merged.tokens()};
}

}  // namespace tessera::io
