#include "plan/passes/place_waits.hpp"

#include <algorithm>

#include "core/range_map.hpp"

namespace tessera::plan {
namespace {

constexpr OpId kNone = -1;
/// A vector clock: of each stream, the latest op known to be complete, and so all before it.
using Clock = PerStream<OpId>;
constexpr Clock nothing() {
  Clock clock{};
  clock.fill(kNone);
  return clock;
}

/// Who wrote some bytes, and who has read them since.
struct Accesses {
  OpId writer = kNone;
  Clock readers = nothing();
};

}  // namespace

void place_waits(Plan& plan) {
  PerArena<RangeMap<Accesses>> arenas;
  std::vector<Clock> known(plan.ops.size());  // what is complete when the op starts
  std::vector<OpId> before;
  std::vector<std::pair<ArenaId, BufferUse>> uses;
  Clock last_on = nothing();
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    Op& op = plan.ops[i];
    Clock clock = nothing();
    if (const OpId previous = last_on[op.stream]; previous != kNone) {
      clock = at(known, previous);
      clock[op.stream] = previous;
    }
    before.clear();
    uses.clear();
    for (BufferUse use : uses_of(op)) {
      const Buffer& buffer = plan.buffer(use.buffer);
      use.bytes = {buffer.offset + use.bytes.begin, buffer.offset + use.bytes.end};
      uses.emplace_back(arena_of(buffer), use);
    }
    for (const auto& [arena, use] : uses) {
      arenas[arena].each(use.bytes, [&](Accesses& s) {
        if (s.writer != kNone) before.push_back(s.writer);
        if (use.access == kernels::Access::read) return;
        for (OpId reader : s.readers) {
          if (reader != kNone) before.push_back(reader);
        }
      });
    }
    // Latest first: a wait for an op implies all that this op had waited for, so that earlier ones
    // often need no wait of their own.
    std::sort(before.begin(), before.end(), std::greater<>());
    for (OpId other : before) {
      const Stream of_other = plan.op(other).stream;
      if (of_other == op.stream || clock[of_other] >= other) continue;
      op.waits.push_back(other);
      const Clock& theirs = at(known, other);
      std::ranges::transform(clock, theirs, clock.begin(), std::ranges::max);
      clock[of_other] = std::max(clock[of_other], other);
    }
    known[i] = clock;
    last_on[op.stream] = static_cast<OpId>(i);
    for (const auto& [arena, use] : uses) {
      if (use.access == kernels::Access::read) {
        arenas[arena].each(use.bytes,
                           [&](Accesses& s) { s.readers[op.stream] = static_cast<OpId>(i); });
      }
    }
    for (const auto& [arena, use] : uses) {
      if (use.access != kernels::Access::read)
        arenas[arena].assign(use.bytes, {.writer = static_cast<OpId>(i)});
    }
  }
}

}  // namespace tessera::plan
