// A fault that a deck asks for, to test recovery: one line "KIND key=value ..." that says what goes
// wrong, on which rank, in which step. Which keys a kind has is a table in fault.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/io_call.hpp"
#include "deck/words.hpp"

namespace tessera::deck {

struct Fault {
  FaultKind kind = FaultKind::kill;
  std::int64_t rank = 0;
  std::int64_t step = 0;
  std::string tensor;          // nan, flip
  std::int64_t ms = 0;         // slow, slow_disk
  std::optional<IoCall> call;  // faults of files: unset means any call
  std::string path;            // of the call's file: a part of it; empty: any
  std::int64_t nth = 1;        // of the matching calls from `step` on: the first that it hits
  std::int64_t count = 1;      // calls that it hits
  bool operator==(const Fault&) const = default;
};

/// Throws DeckError that says what is wrong and what is allowed; it names no place.
Fault parse_fault(std::string_view text);

/// The fault in canonical form, without defaults. parse_fault() gives the same fault back.
std::string to_text(const Fault& fault);

/// What kinds there are, as a Markdown table.
std::string fault_markdown();

}  // namespace tessera::deck
