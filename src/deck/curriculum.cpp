#include "deck/curriculum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/math.hpp"
#include "deck/codec.hpp"
#include "deck/names.hpp"

namespace tessera::deck {
namespace {

constexpr std::int64_t kMostLength = std::int64_t{1} << 30;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 32;  // times a length, within 64 bits
constexpr std::int64_t kMostDegree = 16;

/// A member of a curriculum that is an integer, and its bounds.
struct IntegerMember {
  std::string_view key;
  std::int64_t Curriculum::*member;
  std::int64_t most;
};
constexpr std::array kIntegers = {IntegerMember{"start", &Curriculum::start, kMostLength},
                                  IntegerMember{"end", &Curriculum::end, kMostLength},
                                  IntegerMember{"steps", &Curriculum::steps, kMostSteps},
                                  IntegerMember{"round", &Curriculum::round, kMostLength},
                                  IntegerMember{"degree", &Curriculum::degree, kMostDegree}};

constexpr std::array<std::string_view, 8> kKeys = {"start", "end",    "steps", "round",
                                                   "kind",  "degree", "table", "cut"};

template <typename E>
std::string set_word(E& member, const TableMember& from) {
  const auto word = Codec<E>::read(from.value);
  if (!word) {
    return fmt::format("{} = {} must be {}", from.key, value_excerpt(from.value), Codec<E>::type());
  }
  member = *word;
  return "";
}

/// What is wrong with a member of the table; empty where it is now in the curriculum.
std::string set_member(Curriculum& c, const TableMember& from) {
  if (from.key == "kind") return set_word(c.kind, from);
  if (from.key == "cut") return set_word(c.cut, from);
  if (from.key == "table") {
    auto table = Codec<std::vector<LengthEntry>>::read(from.value);
    const bool good = table && !table->empty();
    if (good) c.table = *std::move(table);
    return good ? ""
                : fmt::format("table = {} must be [step, length] pairs", value_excerpt(from.value));
  }
  const auto* integer = std::ranges::find(kIntegers, from.key, &IntegerMember::key);
  if (integer == kIntegers.end()) {
    const std::string_view near = nearest_name(from.key, kKeys);
    return fmt::format("{} is no key of a curriculum{}", key_text(from.key),
                       near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
  }
  const auto value = Codec<std::int64_t>::read(from.value);
  if (!value || *value < 1 || *value > integer->most) {
    return fmt::format("{} = {} must be an integer, 1 to {}", from.key, value_excerpt(from.value),
                       integer->most);
  }
  c.*integer->member = *value;
  return "";
}

/// The step in which a growing length reaches `length`, which is beyond the start.
std::int64_t step_of(const Curriculum& c, std::int64_t length) {
  const std::int64_t grown = length - c.start, all = c.end - c.start;
  if (c.kind == Growth::linear) return ceil_div(grown * c.steps, all);
  const double share = static_cast<double>(grown) / static_cast<double>(all);
  double power = 1;
  for (std::int64_t i = 0; i < c.degree; ++i) power *= share;
  constexpr double kRounding = 1e-12;  // a step that is reached exactly is reached
  return static_cast<std::int64_t>(
      std::ceil(power * static_cast<double>(c.steps) * (1 - kRounding)));
}

}  // namespace

std::string read_curriculum(const Value& value, Curriculum& curriculum) {
  if (value.unset()) return "";
  const Table* table = value.as<Table>();
  if (table == nullptr) return fmt::format("{} is no table", value_excerpt(value));
  const auto has = [&](std::string_view key) {
    return std::ranges::find(*table, key, &TableMember::key) != table->end();
  };
  for (const TableMember& member : *table) {
    if (auto problem = set_member(curriculum, member); !problem.empty()) return problem;
  }
  if (table->empty()) return "";
  if (has("table")) {
    for (const std::string_view key : {"start", "end", "steps", "round", "kind", "degree"}) {
      if (has(key)) return fmt::format("table and {} say the same thing: keep one", key);
    }
    return "";
  }
  for (const std::string_view key : {"start", "steps"}) {
    if (!has(key)) return fmt::format("{} is missing (or give a table)", key);
  }
  if (has("degree") && curriculum.kind != Growth::root)
    return "degree has no effect: kind is not \"root\" (leave it out)";
  return "";
}

Value Codec<Curriculum>::write(const Curriculum& c) {
  if (c.empty()) return {};
  Table table;
  const auto add = [&](std::string_view key, Value value) {
    table.push_back({std::string(key), {}, std::move(value)});
  };
  if (c.table.empty()) {
    for (const IntegerMember& i : kIntegers) {
      const bool used = i.member == &Curriculum::degree ? c.kind == Growth::root : c.*i.member > 0;
      if (used) add(i.key, Codec<std::int64_t>::write(c.*i.member));
    }
    add("kind", Codec<Growth>::write(c.kind));
  } else {
    add("table", Codec<std::vector<LengthEntry>>::write(c.table));
  }
  add("cut", Codec<Cut>::write(c.cut));
  return {std::move(table), {}};
}

std::int64_t phases_asked(const Curriculum& c) {
  if (c.empty()) return 1;
  if (!c.table.empty()) return std::ssize(c.table);
  return c.end / c.round - c.start / c.round + (c.end % c.round == 0 ? 1 : 2);
}

std::optional<std::string> curriculum_problem(const Curriculum& c, std::int64_t sequence) {
  if (c.empty()) return std::nullopt;
  const std::string key = "batch.curriculum";
  const auto limited = [&](std::string_view what, std::int64_t length) {
    return fmt::format("{}: {} = {} is more than batch.sequence = {} (at most {})", key, what,
                       length, sequence, sequence);
  };
  if (phases_asked(c) > kMostPhases) {
    return fmt::format(
        "{} has up to {} lengths, each of which needs plans of its own (at most {}: "
        "give {})",
        key, phases_asked(c), kMostPhases,
        c.table.empty() ? fmt::format("round = {} or more",
                                      round_up(ceil_div(c.end - c.start, kMostPhases - 2), c.round))
                        : "a shorter table");
  }
  if (c.table.empty()) {
    if (c.end > sequence) return limited("end", c.end);
    if (c.start > c.end) {
      return fmt::format("{}: start = {} is more than end = {} (exchange them)", key, c.start,
                         c.end);
    }
    return std::nullopt;
  }
  if (c.table.front().step != 0) {
    return fmt::format("{}: table begins with step {} (the first pair is [0, length])", key,
                       c.table.front().step);
  }
  for (std::size_t i = 0; i < c.table.size(); ++i) {
    const LengthEntry& entry = c.table[i];
    if (entry.length < 1)
      return fmt::format("{}: table has the length {} (at least 1)", key, entry.length);
    if (entry.length > sequence) return limited("a length of table", entry.length);
    if (entry.step > kMostSteps)
      return fmt::format("{}: table has step {} (at most {})", key, entry.step, kMostSteps);
    if (i > 0 && entry.step <= c.table[i - 1].step) {
      return fmt::format("{}: table has step {} after step {} (steps must grow)", key, entry.step,
                         c.table[i - 1].step);
    }
  }
  return std::nullopt;
}

std::vector<LengthEntry> phases(const BatchSection& batch) {
  const Curriculum& c = batch.curriculum;
  if (c.empty()) return {{.step = 0, .length = batch.sequence}};
  if (!c.table.empty()) return c.table;
  std::vector<LengthEntry> all = {{.step = 0, .length = c.start}};
  const auto add = [&](std::int64_t step, std::int64_t length) {
    if (length == all.back().length) return;
    if (all.back().step == step) all.pop_back();  // of no step
    all.push_back({.step = step, .length = length});
  };
  for (std::int64_t length = (c.start / c.round + 1) * c.round; length < c.end; length += c.round)
    add(step_of(c, length), length);
  add(c.steps, c.end);
  return all;
}

}  // namespace tessera::deck
