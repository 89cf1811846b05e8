#include "io/document_reader.hpp"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/math.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/json_line.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestDocument = std::int64_t{1} << 30;

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

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

/// A label as JSON has it: a string, an integer, true or false.
LabelValue label_of(const JsonCursor& value) {
  if (value.is_text()) return {LabelKind::text, value.text()};
  if (value.is_integer()) return {LabelKind::integer, std::to_string(value.integer())};
  if (!value.is_boolean()) value.expected("a label: a string, an integer, true or false");
  return {LabelKind::boolean, value.boolean() ? "true" : "false"};
}

/// Hands out the documents of ranges of inputs; empty ones too.
class DocumentReader {
 public:
  DocumentReader(const DocumentRules& rules, const DocumentVisitor& document)
      : rules_(rules), document_(document) {}

  void read(const Input& input, Range range, const std::function<void(std::int64_t)>& bytes_done) {
    Pieces pieces(input, range, bytes_done);
    InputPlace place{input.path};
    LabelValue folder{LabelKind::text, input.path.parent_path().filename().string()};
    std::span<const LabelValue> labels;
    if (rules_.labels == LabelSource::folder) labels = {&folder, 1};
    pieces.for_each([&](std::int64_t at, std::string_view text) {
      place.byte = at;
      if (!input.json_lines) return document_({.text = text, .labels = labels, .place = place});
      if (!is_blank(text)) json_line(text, place);
    });
  }

 private:
  void json_line(std::string_view line, const InputPlace& place) {
    try {
      take_line(line, place.file.string(), place);
    } catch (const DataError&) {  // the line's number is found only now, as that is slow
      take_line(line, place_text(place), place);
      throw;
    }
  }

  void take_line(std::string_view line, const std::string& name, const InputPlace& place) {
    Document document{.line = line, .place = place};
    const std::string_view field = rules_.field.empty() ? "text" : std::string_view(rules_.field);
    if (!rules_.chat && rules_.words.empty() && rules_.labels != LabelSource::member) {
      if (const auto text = quick_.text(line, field)) {
        document.text = *text;
        return document_(document);
      }
    }
    const JsonDocument object(line, name);
    std::vector<TemplatePiece> pieces;
    std::vector<std::string> words;
    std::string text;  // of words
    if (rules_.pairs) {
      for (const auto& answer : rules_.chat->render_pair(object.root())) {
        document.pieces = answer;
        document_(document);
      }
      return;
    }
    if (rules_.chat) {
      pieces = rules_.prompts ? rules_.chat->render_prompt(object.root(), rules_.field)
                              : rules_.chat->render(object.root(), rules_.field);
      document.pieces = pieces;
    } else if (!rules_.words.empty()) {
      object.root()[rules_.words].for_each_item(
          [&](const JsonCursor& word) { words.push_back(word.text()); });
      document.words = words;
      document.text = text = fmt::format("{}", fmt::join(words, " "));
    } else {
      document.text = object.root()[field].text();
    }
    std::vector<LabelValue> labels;
    if (rules_.labels == LabelSource::member) {
      labels = labels_of(object.root()[rules_.label_key], std::ssize(words));
      document.labels = labels;
    }
    document_(document);
  }

  /// That of a document, or those of so many words.
  std::vector<LabelValue> labels_of(const JsonCursor& value, std::int64_t words) const {
    if (rules_.words.empty()) return {label_of(value)};
    std::vector<LabelValue> labels;
    value.for_each_item([&](const JsonCursor& label) { labels.push_back(label_of(label)); });
    if (std::ssize(labels) != words) {
      value.fail(fmt::format("{} for the {} of {}: each word has one",
                             count_text(std::ssize(labels), "label"), count_text(words, "word"),
                             rules_.words));
    }
    return labels;
  }

  const DocumentRules& rules_;
  const DocumentVisitor& document_;
  JsonLineReader quick_;
};

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<fs::path> visible(std::vector<fs::path> paths) {
  std::erase_if(paths, is_hidden);
  std::ranges::sort(paths, {}, [](const fs::path& path) { return path.string(); });
  return paths;
}

}  // namespace

bool is_json_lines(const fs::path& path) {
  return (path.extension() == ".gz" ? path.stem() : path).extension() == ".jsonl";
}

FolderFiles files_of_folders(const fs::path& directory) {
  const fs::path root = directory.has_filename() ? directory : directory.parent_path();
  const std::vector<fs::path> folders = visible(subdirectories(root));
  FolderFiles found{.files = visible(files_in(root))};
  if (!folders.empty()) {
    found.left_out = std::ssize(found.files);
    found.files.clear();
  }
  for (const fs::path& folder : folders.empty() ? std::vector{root} : folders) {
    const std::string name = folder.filename().string();
    if (valid_utf8_prefix(name) < name.size()) {
      throw DataError(
          fmt::format("{}: the folder's name is no UTF-8, and so no label", folder.string()));
    }
    if (folder == root) break;
    if (const auto deeper = visible(subdirectories(folder)); !deeper.empty()) {
      throw DataError(fmt::format(
          "{}: a folder within a folder that is a label: give the folder above it, {}, as input",
          deeper[0].string(), folder.string()));
    }
    std::ranges::copy(visible(files_in(folder)), std::back_inserter(found.files));
  }
  if (found.files.empty()) {
    throw DataError(fmt::format("{}: no files in it{}", root.string(),
                                folders.empty() ? "" : ", nor in its folders"));
  }
  return found;
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

}  // namespace tessera::io
