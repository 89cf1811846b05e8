// The memory ledger: every byte that a rank will hold, by purpose, known before anything is
// allocated.
#pragma once

#include <map>
#include <span>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Bytes of the arenas of a location.
constexpr std::int64_t bytes_in(Location location, const ArenaBytes& arenas) {
  std::int64_t bytes = 0;
  for (const auto& [id, word] : EnumWords<ArenaId>::table)
    bytes += location_of(id) == location ? arenas[id] : 0;
  return bytes;
}
/// Bytes of the arenas on the device, which memory.device limits, and of those on the host.
constexpr std::int64_t device_bytes(const ArenaBytes& arenas) {
  return bytes_in(Location::device, arenas);
}
constexpr std::int64_t host_bytes(const ArenaBytes& arenas) {
  return bytes_in(Location::host, arenas);
}
/// And of those on disks.
constexpr std::int64_t disk_bytes(const ArenaBytes& arenas) {
  return bytes_in(Location::disk, arenas);
}

/// Bytes by where they lie and what for.
using BytesByRow = std::map<std::pair<Location, BufferPurpose>, std::int64_t>;

struct Ledger {
  BytesByRow state;  // persistent buffers
  BytesByRow peak;   // of what lives within a step, at the moment when most of the step arena is in
                     // use
  std::int64_t gaps = 0;  // of the step arena: what lies between buffers at that moment
  ArenaBytes arenas{};
  std::int64_t arena(ArenaId id) const { return arenas[id]; }
  std::int64_t device() const { return device_bytes(arenas); }
  std::int64_t host() const { return host_bytes(arenas); }
  std::int64_t disk() const { return disk_bytes(arenas); }
  std::int64_t of(Location location, BufferPurpose purpose) const;
  /// Bytes of a purpose, in all arenas.
  std::int64_t of(BufferPurpose purpose) const;
};

Ledger make_ledger(const Plan& plan);
/// The ledger of a run that uses in turn the plans of both: arenas are as large as the larger plan
/// needs them, and what fills the step's is that plan's.
Ledger of_both(const Ledger& a, const Ledger& b);

/// Rows "name   bytes  bytes .." for people, a column for each ledger: what is on the device and
/// its total, then what is on the host, then on disks.
std::string to_text(std::span<const Ledger* const> ledgers);

}  // namespace tessera::plan
