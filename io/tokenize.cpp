#include "io/tokenize.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/math.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/megatron.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestDocument = std::int64_t{1} << 30;
constexpr std::int64_t kBlock = std::int64_t{1} << 20;

fs::path part_prefix(const fs::path& prefix, std::int64_t index) {
  return fmt::format("{}.part{:05}", prefix.string(), index);
}

/// Calls `visit` with the offset and text of each line that starts in `range`.
void for_each_line(const File& file, Range range,
                   const std::function<void(std::int64_t, std::string_view)>& visit) {
  const std::int64_t size = file.size();
  // A line starts at 0 or after a newline: looking from the byte before the range finds the first.
  std::int64_t at = std::max<std::int64_t>(range.begin - 1, 0);
  bool inside = range.begin == 0;  // of a line that starts in the range
  std::int64_t start = 0;
  std::string line, block;
  while (at < size && (inside || at < range.end)) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, size - at)));
    file.read(at, std::as_writable_bytes(std::span(block)));
    std::string_view rest = block;
    while (!rest.empty() && (inside || at < range.end)) {
      const std::size_t newline = rest.find('\n');
      const std::string_view piece = rest.substr(0, newline);
      if (inside) line += piece;
      if (static_cast<std::int64_t>(line.size()) > kLargestDocument) {
        throw DataError(fmt::format("{}: byte {}: a line of more than {} bytes: is it JSON lines?",
                                    file.path().string(), start, kLargestDocument));
      }
      const std::size_t used = newline == std::string_view::npos ? rest.size() : newline + 1;
      rest.remove_prefix(used);
      at += static_cast<std::int64_t>(used);
      if (newline == std::string_view::npos) continue;
      if (inside) visit(start, line);
      line.clear();
      start = at;
      inside = start < range.end;
    }
  }
  if (inside && !line.empty()) visit(start, line);  // the last line may lack its newline
}

fs::path tokenizer_beside(const fs::path& prefix) { return prefix.string() + ".tokenizer.json"; }

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

class PartTokenizer {
 public:
  PartTokenizer(const fs::path& prefix, Tokenizer& tokenizer)
      : tokenizer_(tokenizer), writer_(prefix, tokenizer.vocab()) {}

  void json_lines(const fs::path& path, Range range,
                  const std::function<void(std::int64_t)>& bytes_done) {
    const File file(path, OpenMode::read);
    for_each_line(file, range, [&](std::int64_t start, std::string_view line) {
      if (!is_blank(line)) {
        const JsonDocument object(line, fmt::format("{}: byte {}", path.string(), start));
        document(object.root()["text"].text());
      }
      bytes_done(static_cast<std::int64_t>(line.size()) + 1);
    });
  }

  void text_file(const fs::path& path) { document(read_text(path, kLargestDocument)); }
  void publish() { writer_.publish(); }

 private:
  void document(std::string_view text) {
    if (text.empty()) return;
    ids_.clear();
    tokenizer_.encode(text, ids_);
    if (const auto end = tokenizer_.end_of_text()) ids_.push_back(*end);
    writer_.append(ids_);
    writer_.end_document();
  }

  Tokenizer& tokenizer_;
  MegatronWriter writer_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

void tokenize_part(std::span<const fs::path> inputs, const fs::path& prefix, Tokenizer& tokenizer,
                   TokenizePart part, const TokenizeProgress& progress) {
  std::vector<Range> extents;  // of each input in the row of all
  std::int64_t total = 0;
  for (const fs::path& input : inputs) {
    const std::int64_t size = File(input, OpenMode::read).size();
    extents.push_back({total, total + size});
    total += size;
  }
  const Range mine = even_part(total, part.index, part.count);
  std::int64_t done = 0;
  const auto advance = [&](std::int64_t bytes) {
    done = std::min(done + bytes, mine.count());
    if (progress) progress(done, mine.count());
  };
  PartTokenizer output(part_prefix(prefix, part.index), tokenizer);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Range extent = extents[i], common = intersect(extent, mine);
    if (common.empty()) continue;
    if (inputs[i].extension() == ".jsonl") {
      output.json_lines(inputs[i], {common.begin - extent.begin, common.end - extent.begin},
                        advance);
    } else if (common.begin == extent.begin) {
      output.text_file(inputs[i]);
      advance(extent.count());
    }
  }
  output.publish();
  if (progress) progress(mine.count(), mine.count());
}

TokenizeSummary merge_parts(const fs::path& prefix, std::int64_t parts,
                            const Tokenizer& tokenizer) {
  // Of the tokens before: should this stop half-way, the new ones must not be taken for theirs.
  remove_durably(tokenizer_beside(prefix));
  MegatronWriter merged(prefix, tokenizer.vocab());
  for (std::int64_t i = 0; i < parts; ++i) merged.append_pair(part_prefix(prefix, i));
  merged.publish();
  for (std::int64_t i = 0; i < parts; ++i) {
    remove_tree(megatron_idx(part_prefix(prefix, i)));
    remove_tree(megatron_bin(part_prefix(prefix, i)));
  }
  if (!tokenizer.json().empty()) {
    AtomicFile beside(tokenizer_beside(prefix));
    beside.append(tokenizer.json());
    beside.publish();
  }
  return {.documents = merged.documents(), .tokens = merged.tokens()};
}

std::string corpus_tokenizer(std::span<const std::string> entries) {
  std::string text, source;
  for (const std::string& entry : entries) {
    const fs::path beside = tokenizer_beside(entry);
    if (!fs::exists(beside)) continue;
    const std::string other = Tokenizer::open(beside).json();
    if (!text.empty() && other != text) {
      throw DataError(fmt::format(
          "{} and {} differ: their corpora were made with different tokenizers and cannot train "
          "one model; tokenize them alike",
          source, beside.string()));
    }
    text = other;
    source = beside.string();
  }
  return text;
}

}  // namespace tessera
