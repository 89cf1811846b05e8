#include "io/token_labels.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "io/json.hpp"
#include "io/megatron.hpp"
#include "io/token_targets.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestNamesFile = std::int64_t{64} << 20;
constexpr std::int64_t kMostClosing = 64;

std::string_view kind_of(const LabelValue& label) {
  constexpr std::array<std::string_view, 3> kKinds = {"a string", "an integer", "true or false"};
  return kKinds[static_cast<std::size_t>(label.kind)];
}

std::int64_t integer_of(const std::string& name) {
  std::int64_t value = 0;
  std::from_chars(name.data(), name.data() + name.size(), value);
  return value;
}

bool is_integer(const std::string& name) { return std::to_string(integer_of(name)) == name; }

struct Labelled {
  LabelValue value;
  std::int32_t number = 0;
  InputPlace place;
};

/// The labels of all parts, each as often as parts have it, in the order in which they were found.
std::vector<Labelled> in_order(std::span<const LabelsFound> parts) {
  std::vector<Labelled> all;
  for (const LabelsFound& part : parts) {
    const auto first = std::ssize(all);
    for (const auto& [label, name] : part.names()) all.push_back({label, name.number, name.place});
    std::ranges::sort(all.begin() + first, all.end(), {}, &Labelled::number);
  }
  return all;
}

std::vector<std::string> sorted_names(std::span<const Labelled> all) {
  std::vector<std::string> names;
  for (const Labelled& label : all) names.push_back(label.value.name);
  const bool integers = !all.empty() && all[0].value.kind == LabelKind::integer;
  std::ranges::sort(names, [&](const std::string& a, const std::string& b) {
    return integers ? integer_of(a) < integer_of(b) : a < b;
  });
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

/// One label a document, each a number of a name.
std::vector<std::int32_t> read_label_pair(const fs::path& prefix, std::size_t names) {
  const std::vector<std::string> entries{prefix.string()};
  const TokenCorpus pair(entries, static_cast<std::int64_t>(names));
  const TokenCorpus::TokenFile& file = pair.files()[0];
  if (file.type != DType::i32 || file.documents != pair.tokens()) {
    throw DataError(
        fmt::format("{}: {} of type {} in {}; expected one element of type i32 a document",
                    megatron_idx(prefix).string(), count_text(pair.tokens(), "element"),
                    to_string(file.type), count_text(file.documents, "document")));
  }
  std::vector<std::int32_t> labels(static_cast<std::size_t>(pair.tokens()));
  pair.read(0, labels);
  return labels;
}

/// The prefixes of pairs that have an element for each token.
std::vector<std::string> pairs_of_words(std::span<const TokenCorpus::TokenFile> tokens) {
  std::vector<std::string> pairs;
  for (const TokenCorpus::TokenFile& file : tokens) {
    const fs::path pair = labels_prefix(prefix_of(file));
    open_alongside(file, pair, DType::i32);
    pairs.push_back(pair.string());
  }
  return pairs;
}

}  // namespace

std::optional<std::int32_t> LabelNames::find(const LabelValue& value) const {
  const auto found = std::ranges::find(names, value.name);
  if (found != names.end()) return static_cast<std::int32_t>(found - names.begin());
  if (value.kind != LabelKind::integer || std::ranges::any_of(names, is_integer))
    return std::nullopt;
  const std::int64_t number = integer_of(value.name);
  if (number < 0 || number >= std::ssize(names)) return std::nullopt;
  return static_cast<std::int32_t>(number);
}

fs::path labels_prefix(const fs::path& prefix) { return prefix.string() + ".labels"; }
fs::path label_names_file(const fs::path& prefix) { return prefix.string() + ".labels.json"; }

LabelNames read_label_names(const fs::path& file) {
  const JsonDocument document(read_text(file, kLargestNamesFile), file.string());
  LabelNames labels{.key = document.root()["key"].text(), .names = {}};
  if (const auto of = document.root().find("of")) {
    const auto known = enum_from_word<LabelsOf>(of->text());
    if (!known) of->expected(enum_choices<LabelsOf>());
    labels.of = *known;
  }
  if (const auto closing = document.root().find("closing"))
    labels.closing = closing->integer(0, kMostClosing);
  std::set<std::string> seen;
  for (const JsonCursor& name : document.root()["names"].items(1, kMostLabels)) {
    if (!seen.insert(name.text()).second) name.fail(fmt::format("{} is there twice", name.shown()));
    labels.names.push_back(name.text());
  }
  return labels;
}

void write_label_names(const fs::path& file, const LabelNames& labels) {
  nlohmann::json json{{"key", labels.key}, {"names", labels.names}};
  if (labels.of != LabelsOf::documents) json["of"] = enum_word(labels.of);
  if (labels.closing > 0) json["closing"] = labels.closing;
  write_text(file, json.dump() + "\n");
}

std::optional<fs::path> labels_of(const TokenCorpus::TokenFile& tokens) {
  if (!tokens.index) return std::nullopt;
  const fs::path prefix = prefix_of(tokens), pair = labels_prefix(prefix);
  const bool any = path_exists(megatron_idx(pair)) || path_exists(megatron_bin(pair)) ||
                   path_exists(label_names_file(prefix));
  return any ? std::optional(pair) : std::nullopt;  // what is missing, whoever opens it says
}

std::optional<LabelNames> label_names_of(const TokenCorpus::TokenFile& tokens) {
  if (!labels_of(tokens)) return std::nullopt;
  return read_label_names(label_names_file(prefix_of(tokens)));
}

std::vector<std::int32_t> read_document_labels(const TokenCorpus::TokenFile& tokens,
                                               const LabelNames& names) {
  const fs::path pair = labels_prefix(prefix_of(tokens));
  auto labels = read_label_pair(pair, names.names.size());
  if (std::ssize(labels) != tokens.documents) {
    throw DataError(fmt::format(
        "{}: {}, but {} has {}: the two were not made together. Make both anew with tessera "
        "tokenize",
        megatron_idx(pair).string(), count_text(std::ssize(labels), "label"),
        tokens.index->string(), count_text(tokens.documents, "document")));
  }
  return labels;
}

WordLabels::WordLabels(std::span<const TokenCorpus::TokenFile> tokens, const LabelNames& names)
    : pairs_(pairs_of_words(tokens)),
      elements_(pairs_, std::int64_t{1} << 31),
      names_(names.names.size()) {}

void WordLabels::read(std::int64_t first, std::span<std::int32_t> out) const {
  elements_.read(first, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (--out[i] < static_cast<std::int64_t>(names_)) continue;
    const std::int64_t element = first + static_cast<std::int64_t>(i);
    const std::size_t pair = elements_.entry_of(element);
    const fs::path prefix = fs::path(pairs_[pair]).replace_extension();
    throw DataError(fmt::format(
        "{}: element {} is {}, of the label {}, but {} names {}: the files were not made together. "
        "Make them anew with tessera tokenize",
        megatron_bin(pairs_[pair]).string(), element - elements_.entries()[pair].begin, out[i] + 1,
        out[i], label_names_file(prefix).string(), names_));
  }
}

void forget_labels(const fs::path& prefix) {
  remove_durably(megatron_idx(labels_prefix(prefix)));
  remove_durably(megatron_bin(labels_prefix(prefix)));
  remove_durably(label_names_file(prefix));
}

void LabelsFound::add(const LabelValue& label, const InputPlace& place) {
  const auto next = static_cast<std::int32_t>(names_.size());
  const auto [found, added] = names_.try_emplace(label);
  if (added) found->second = {next, place};
  numbers_.push_back(found->second.number);
  if (std::ssize(names_) > kMostLabels) {
    throw DataError(fmt::format("{}: more than {} different labels: is it a label?",
                                place.file.string(), kMostLabels));
  }
}

std::string LabelsFound::pack() const {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [label, name] : names_) {
    all.push_back({label.kind, label.name, name.number, name.place.file.string(), name.place.byte});
  }
  return all.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

LabelsFound LabelsFound::unpack(const std::string& packed) {
  LabelsFound found;
  for (const nlohmann::json& row : nlohmann::json::parse(packed)) {
    const InputPlace place{row[3].get<std::string>(), row[4].get<std::int64_t>()};
    found.names_[{row[0].get<LabelKind>(), row[1]}] = {row[2], place};
  }
  return found;
}

std::vector<std::string> label_names(std::string_view key, std::span<const LabelsFound> parts,
                                     const std::optional<LabelNames>& known) {
  const std::vector<Labelled> all = in_order(parts);
  for (const Labelled& label : all) {
    if (label.value.kind != all[0].value.kind) {
      throw DataError(
          fmt::format("{}: {} is {}, {}, but in {} it is {}, {}: labels must be of one kind",
                      place_text(label.place), key, kind_of(label.value), label.value.name,
                      place_text(all[0].place), kind_of(all[0].value), all[0].value.name));
    }
    if (known && !known->find(label.value)) {
      throw DataError(fmt::format("{}: the label {} is not among those of --labels: {}",
                                  place_text(label.place), label.value.name,
                                  fmt::join(known->names, ", ")));
    }
  }
  return known ? known->names : sorted_names(all);
}

}  // namespace tessera::io
