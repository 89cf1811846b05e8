// The schema: one row a key, with its member of Deck, meaning, range and rules. Parsing, checks,
// messages, the resolved echo, inputs/README.md and the rules of resuming are all derived from it.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// A member of Deck with its type erased.
struct Field {
  std::string (*type)();                        // "an integer"
  std::vector<std::string_view> (*words)();     // the choices, where the type has any
  bool (*set)(Deck& deck, const Value& value);  // false: not of this type
  std::string (*problem)(const Value& value);   // why set() refused; empty: no more to say
  Value (*get)(const Deck& deck);               // in canonical form; unset when an empty optional
};

/// What every number in a value must satisfy.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;   // low itself is not allowed
  bool below_high = false;  // high itself is not allowed
  bool in_f32 = false;      // it is used as an f32: so rounded, it must be finite and within

  bool allow(double number) const;
  std::string text()
      const;  // ">= 1", "> 0", "0 to 3", ">= 0 and < 1", "> 0 as an f32"; "" for none
};

/// What happens, when a run resumes, to a key that differs from the checkpoint's; from lenient to
/// strict. `refused`: within a run; `architecture`: also where a model starts a new run.
enum class OnResume { free, event, refused, architecture };

/// The part of a row that most keys leave at its defaults.
struct KeyRules {
  Limits limits = {};
  std::string_view unit = "";
  std::string_view unset = "";  // what a key left out means, where no constant says it
  /// The values available in this version, of which "numbers" are all of them; empty: all.
  std::string_view built = "";
  bool required = false;
  OnResume on_resume = OnResume::free;
};

struct SchemaRow {
  std::string_view name;  // "zero.quantize.weights"
  std::string_view section;
  std::string_view key;
  Field field;
  std::string_view meaning;
  KeyRules rules = {};

  std::string allowed() const;                 // type and limits: "an integer, 0 to 3"
  std::string available() const;               // "only auto, cpu": what this version serves
  bool within_limits(const Deck& deck) const;  // this key's numbers are
  bool is_built(const Deck& deck) const;       // this key's value is available in this version
};

struct SchemaSection {
  std::string_view name;
  std::string_view meaning;
  std::string (*details)() = nullptr;  // for the reference, after the keys
};

/// Sections and rows in the order in which they are printed.
std::span<const SchemaSection> schema_sections();
std::span<const SchemaRow> schema_rows();

const SchemaRow* find_row(std::string_view name);
bool is_section(std::string_view name);

/// What the reference says of token files' formats, after the keys of [data].
std::string token_files_markdown();

/// What it says of curricula, after the keys of [batch].
std::string curricula_markdown();

/// What it says of pictures and of cooling down, after the keys of [schedule].
std::string schedules_markdown();

/// inputs/README.md: the reference of every key.
std::string schema_markdown();

}  // namespace tessera::deck

namespace tessera {
template <>
struct EnumWords<deck::OnResume> {
  using enum deck::OnResume;
  static constexpr std::array table = {std::pair{free, "free"}, std::pair{event, "event"},
                                       std::pair{refused, "refused"},
                                       std::pair{architecture, "architecture"}};
};
}  // namespace tessera
