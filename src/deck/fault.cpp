#include "deck/fault.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "deck/codec.hpp"
#include "deck/names.hpp"

namespace tessera::deck {

namespace {

struct FaultKey {
  std::string_view name;
  std::string allowed;
  bool (*set)(Fault& fault, std::string_view text);
  std::string (*get)(const Fault& fault);
};

bool set_number(std::int64_t& number, std::string_view text, std::int64_t least) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number >= least;
}

template <auto kMember>
FaultKey number_key(std::string_view name, std::int64_t least) {
  if (least == 0) {
    return {name, "a number from 0 on",
            [](Fault& f, std::string_view text) { return set_number(f.*kMember, text, 0); },
            [](const Fault& f) { return fmt::to_string(f.*kMember); }};
  }
  return {name, "a number from 1 on",
          [](Fault& f, std::string_view text) { return set_number(f.*kMember, text, 1); },
          [](const Fault& f) { return fmt::to_string(f.*kMember); }};
}

template <auto kMember>
FaultKey text_key(std::string_view name, std::string_view allowed) {
  return {name, std::string(allowed),
          [](Fault& f, std::string_view text) {
            f.*kMember = text;
            return !text.empty();
          },
          [](const Fault& f) { return f.*kMember; }};
}

/// In the order in which to_text() writes them.
std::span<const FaultKey> all_keys() {
  static const std::vector<FaultKey> keys = {
      number_key<&Fault::rank>("rank", 0),
      number_key<&Fault::step>("step", 0),
      text_key<&Fault::tensor>("tensor", "a parameter's name, as checkpoints have it"),
      number_key<&Fault::ms>("ms", 1),
      {"call", enum_choices<IoCall>(),
       [](Fault& f, std::string_view text) {
         f.call = enum_from_word<IoCall>(text);
         return f.call.has_value();
       },
       [](const Fault& f) { return f.call ? std::string(enum_word(*f.call)) : ""; }},
      text_key<&Fault::path>("path", "a part of a file's path"),
      number_key<&Fault::nth>("nth", 1),
      number_key<&Fault::count>("count", 1),
  };
  return keys;
}

struct KindRow {
  FaultKind kind;
  std::vector<std::string_view> required, optional;
  std::string_view meaning;
  std::int64_t first_step = 1;  // 0: also while the run starts
};

std::span<const KindRow> all_kinds() {
  using enum FaultKind;
  static const std::vector<std::string_view> file_keys = {"call", "path", "nth", "count"};
  static const std::vector<KindRow> rows = {
      {kill, {"rank", "step"}, {}, "the rank kills itself (SIGKILL) at the step's begin"},
      {stop, {"rank", "step"}, {}, "the rank stops itself (SIGSTOP) at the step's begin"},
      {slow,
       {"rank", "step", "ms"},
       {},
       "every step from this one on takes the rank so much longer"},
      {nan,
       {"rank", "step", "tensor"},
       {},
       "an element of the tensor's gradient becomes NaN, after the rank's backward"},
      {flip,
       {"rank", "step", "tensor"},
       {},
       "a bit of the tensor's parameters turns in the rank's memory, before the step"},
      {flip_file,
       {"rank", "step"},
       {},
       "a bit of the rank's file turns in the first checkpoint from this step on, once it is "
       "committed"},
      {eio, {"rank", "step"}, file_keys, "calls of the operating system's fail with EIO", 0},
      {enospc, {"rank", "step"}, file_keys, "the same with ENOSPC", 0},
      {short_transfer, {"rank", "step"}, file_keys, "reads or writes move half of their bytes", 0},
      {slow_disk, {"rank", "step", "ms"}, {"call", "path"}, "calls take so much longer", 0},
  };
  return rows;
}

const KindRow& row_of(FaultKind kind) {
  return *std::ranges::find(all_kinds(), kind, &KindRow::kind);
}

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return words;
    words.push_back(text.substr(0, text.find(' ')));
    text.remove_prefix(words.back().size());
  }
}

std::string hint(std::string_view name, std::span<const std::string_view> candidates) {
  const auto nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest);
}

const KindRow& parse_kind(std::string_view word) {
  const auto kind = enum_from_word<FaultKind>(word);
  if (!kind) {
    throw DeckError(fmt::format("\"{}\" is no kind of fault{}; there are {}", word,
                                hint(word, Words<FaultKind>::list()), enum_choices<FaultKind>()));
  }
  return row_of(*kind);
}

void parse_key(Fault& fault, const KindRow& row, std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  const bool has_value = name.size() < word.size();
  std::vector<std::string_view> known = row.required;
  known.insert(known.end(), row.optional.begin(), row.optional.end());
  if (!has_value || !contains(known, name)) {
    throw DeckError(fmt::format("\"{}\"{}: {} takes key=value with {}", word, hint(name, known),
                                enum_word(row.kind), fmt::join(known, ", ")));
  }
  const FaultKey& key = *std::ranges::find(all_keys(), name, &FaultKey::name);
  if (!key.set(fault, word.substr(name.size() + 1))) {
    throw DeckError(fmt::format("\"{}\": {} must be {}", word, name, key.allowed));
  }
}

}  // namespace

Fault parse_fault(std::string_view text) {
  const auto words = words_of(text);
  const KindRow& row = parse_kind(words.empty() ? "" : words.front());
  Fault fault{.kind = row.kind};
  std::vector<std::string_view> given;
  for (std::size_t i = 1; i < words.size(); ++i) {
    parse_key(fault, row, words[i]);
    given.push_back(words[i].substr(0, words[i].find('=')));
    if (std::ranges::count(given, given.back()) > 1)
      throw DeckError(fmt::format("{} is given twice", given.back()));
  }
  for (const std::string_view name : row.required) {
    if (contains(given, name)) continue;
    throw DeckError(fmt::format("{} needs {}", enum_word(row.kind), fmt::join(row.required, ", ")));
  }
  if (fault.step < row.first_step)
    throw DeckError(fmt::format("step=0: {} happens in a step, from 1 on", enum_word(row.kind)));
  return fault;
}

std::string to_text(const Fault& fault) {
  const KindRow& row = row_of(fault.kind);
  std::string text(enum_word(fault.kind));
  for (const FaultKey& key : all_keys()) {
    const bool given = contains(row.required, key.name) ||
                       (contains(row.optional, key.name) && key.get(fault) != key.get(Fault{}));
    if (given) text += fmt::format(" {}={}", key.name, key.get(fault));
  }
  return text;
}

std::string fault_markdown() {
  std::string out = "\n| fault | keys | what happens |\n|---|---|---|\n";
  for (const KindRow& row : all_kinds()) {
    std::string keys = fmt::format("{}", fmt::join(row.required, ", "));
    if (!row.optional.empty()) keys += fmt::format("; may have {}", fmt::join(row.optional, ", "));
    out += fmt::format("| `{}` | {} | {} |\n", enum_word(row.kind), keys, row.meaning);
  }
  return out;
}

}  // namespace tessera::deck
