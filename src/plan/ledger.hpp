// The memory ledger: every byte that a rank will hold, by purpose, known before anything is
// allocated.
#pragma once

#include <map>
#include <span>

#include "plan/plan.hpp"

namespace tessera::plan {

struct Ledger {
  std::map<Purpose, std::int64_t> state;  // persistent buffers
  std::map<Purpose, std::int64_t>
      peak;               // of the step arena, at the moment when most of it is in use
  std::int64_t gaps = 0;  // of the step arena: what lies between buffers at that moment
  ArenaBytes arenas{};
  std::int64_t arena(ArenaId id) const { return arenas[static_cast<std::size_t>(id)]; }
  std::int64_t total() const { return std::reduce(arenas.begin(), arenas.end()); }
  /// Of the arenas on the device.
  std::int64_t device() const { return arena(ArenaId::state) + arena(ArenaId::step); }
  /// Of all arenas.
  std::int64_t of(Purpose purpose) const;
};

/// Of a run that uses these plans in turn: arenas are as large as the largest plan wants them.
Ledger make_ledger(std::span<const Plan* const> plans);

/// Rows "name   bytes" for people.
std::string to_text(const Ledger& ledger);

/// "1.50 GiB"
std::string human_bytes(std::int64_t bytes);

}  // namespace tessera::plan
