// What metrics.jsonl holds: every event and field that a run writes, with its unit and meaning.
// METRICS.md is made from this table, and a test compares both with the code that writes events.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

struct EventField {
  std::string_view name, unit, meaning;  // no unit: text, a name or a plain number
};

struct EventKind {
  std::string_view name, when;
  std::span<const EventField> fields;  // beside "event" and "time"
};

std::span<const EventKind> event_kinds();

/// src/train/METRICS.md.
std::string events_markdown();

}  // namespace tessera::train
