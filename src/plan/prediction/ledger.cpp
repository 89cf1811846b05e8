#include "plan/prediction/ledger.hpp"

#include <algorithm>

#include "core/bytes.hpp"
#include "plan/ir/lives.hpp"

namespace tessera::plan {

std::int64_t Ledger::of(Location location, BufferPurpose purpose) const {
  std::int64_t bytes = 0;
  for (const auto* rows : {&state, &peak}) {
    const auto it = rows->find({location, purpose});
    if (it != rows->end()) bytes += it->second;
  }
  return bytes;
}

std::int64_t Ledger::of(BufferPurpose purpose) const {
  std::int64_t bytes = 0;
  for (const LocationRow& row : kLocationRows) bytes += of(row.location, purpose);
  return bytes;
}

Ledger make_ledger(const Plan& plan) {
  Ledger ledger;
  ledger.arenas = plan.arena_bytes;
  const auto lives = buffer_lives(plan);
  struct Change {
    std::int64_t at;  // op before which it happens
    std::int64_t bytes;
    std::pair<Location, BufferPurpose> row;
  };
  std::vector<Change> changes;
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    const std::pair row{buffer.location, buffer.purpose};
    if (buffer.persistent) {
      ledger.state[row] += buffer.bytes;
    } else if (lives[b].end >= 0) {
      changes.push_back({lives[b].begin, buffer.bytes, row});
      changes.push_back({lives[b].end + 1, -buffer.bytes, row});
    }
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.at != b.at ? a.at < b.at : a.bytes < b.bytes;  // at one op, ends before begins
  });
  BytesByRow live;
  std::int64_t total = 0, most = -1;
  for (const Change& change : changes) {
    live[change.row] += change.bytes;
    if (change.row.first == Location::device) total += change.bytes;
    if (total > most) most = total, ledger.peak = live;
  }
  std::erase_if(ledger.peak, [](const auto& row) { return row.second == 0; });
  ledger.gaps = ledger.arena(ArenaId::step) - std::max<std::int64_t>(most, 0);
  return ledger;
}

Ledger of_both(const Ledger& a, const Ledger& b) {
  Ledger both = b.arena(ArenaId::step) > a.arena(ArenaId::step) ? b : a;
  both.arenas = most_of(a.arenas, b.arenas);
  return both;
}

std::string to_text(std::span<const Ledger* const> ledgers) {
  std::string text;
  const auto row = [&](std::string_view name, auto&& bytes) {
    text += fmt::format("  {:<24}", name);
    for (const Ledger* ledger : ledgers) text += fmt::format("{:>14}", human_bytes(bytes(*ledger)));
    text += '\n';
  };
  const auto rows = [&](Location location) {
    for (const auto& [purpose, word] : EnumWords<BufferPurpose>::table) {
      const auto of = [&](const Ledger& l) { return l.of(location, purpose); };
      if (std::ranges::any_of(ledgers, [&](const Ledger* l) { return of(*l) > 0; })) row(word, of);
    }
  };
  rows(Location::device);
  row("gaps", [](const Ledger& l) { return l.gaps; });
  row("on the device", [](const Ledger& l) { return l.device(); });
  rows(Location::host);
  if (std::ranges::any_of(ledgers, [](const Ledger* l) { return l->host() > 0; }))
    row("device and host", [](const Ledger& l) { return l.device() + l.host(); });
  rows(Location::disk);
  if (std::ranges::any_of(ledgers, [](const Ledger* l) { return l->disk() > 0; }))
    row("on disks", [](const Ledger& l) { return l.disk(); });
  return text;
}

}  // namespace tessera::plan
