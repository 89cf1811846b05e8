// The memory ledger: every byte that a rank will hold, by purpose, known before anything is
// allocated.
#pragma once

#include <map>
#include <span>

#include "plan/plan.hpp"

namespace tessera::plan {

/// Of the arenas on the device, which memory.device limits; the others are the host's.
constexpr std::int64_t device_bytes(const ArenaBytes& arenas) {
  return arenas[static_cast<std::size_t>(ArenaId::state)] +
         arenas[static_cast<std::size_t>(ArenaId::step)];
}
constexpr std::int64_t host_bytes(const ArenaBytes& arenas) {
  return arenas[static_cast<std::size_t>(ArenaId::host)];
}

struct Ledger {
  std::map<Purpose, std::int64_t> state;  // persistent buffers
  std::map<Purpose, std::int64_t>
      peak;               // of the step arena, at the moment when most of it is in use
  std::int64_t gaps = 0;  // of the step arena: what lies between buffers at that moment
  ArenaBytes arenas{};
  std::int64_t arena(ArenaId id) const { return arenas[static_cast<std::size_t>(id)]; }
  std::int64_t device() const { return device_bytes(arenas); }
  std::int64_t host() const { return host_bytes(arenas); }
  /// Of all arenas.
  std::int64_t of(Purpose purpose) const;
};

/// Of a run that uses these plans in turn: arenas are as large as the largest plan wants them.
Ledger make_ledger(std::span<const Plan* const> plans);

/// Rows "name   bytes  bytes .." for people, a column for each ledger: what is on the device and
/// its total, then what is on the host.
std::string to_text(std::span<const Ledger* const> ledgers);

/// "1.50 GiB"
std::string human_bytes(std::int64_t bytes);

}  // namespace tessera::plan
