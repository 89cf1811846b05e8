#include "plan/check.hpp"

#include <algorithm>
#include <map>

#include "core/range_map.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

[[noreturn]] void reject(const Plan& plan, std::size_t index, const std::string& why) {
  const Op& op = plan.ops[index];
  throw InternalError(fmt::format("broken plan: op {} ({} {}, unit {}, micro-batch {}): {}", index,
                                  enum_word(op.kind), call_name(op.call), op.unit, op.micro_batch,
                                  why));
}

/// Happens-before by brute force: reach[i] is the set of ops complete when op i starts, as the
/// latest of each stream.
std::vector<std::array<OpId, kStreams>> reachable(const Plan& plan) {
  std::vector<std::array<OpId, kStreams>> reach(plan.ops.size());
  std::array<OpId, kStreams> last;
  last.fill(-1);
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto& mine = reach[i];
    mine.fill(-1);
    const auto include = [&](OpId id) {
      const auto other = static_cast<std::size_t>(id);
      for (std::size_t s = 0; s < kStreams; ++s) mine[s] = std::max(mine[s], reach[other][s]);
      auto& slot = mine[static_cast<std::size_t>(plan.ops[other].stream)];
      slot = std::max(slot, id);
    };
    if (const OpId previous = last[static_cast<std::size_t>(op.stream)]; previous >= 0)
      include(previous);
    for (OpId wait : op.waits) {
      if (wait < 0 || static_cast<std::size_t>(wait) >= i)
        reject(plan, i, fmt::format("waits for op {}", wait));
      include(wait);
    }
    last[static_cast<std::size_t>(op.stream)] = static_cast<OpId>(i);
  }
  return reach;
}

void check_ranges(const Plan& plan) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      if (use.buffer < 0 || static_cast<std::size_t>(use.buffer) >= plan.buffers.size())
        reject(plan, i, "unknown buffer");
      const Buffer& b = plan.buffers[static_cast<std::size_t>(use.buffer)];
      const std::int64_t arena = plan.arena_bytes[static_cast<std::size_t>(arena_of(b))];
      if (use.bytes.begin < 0 || use.bytes.end > b.bytes) {
        reject(plan, i,
               fmt::format("bytes {}..{} of {}, which has {}", use.bytes.begin, use.bytes.end,
                           b.name, b.bytes));
      }
      if (b.offset < 0 || b.offset + b.bytes > arena)
        reject(plan, i, fmt::format("{} lies outside its arena", b.name));
    }
  }
}

/// Conflicting accesses to the same physical bytes must be ordered, and a read must see bytes of
/// its own buffer.
void check_order(const Plan& plan) {
  const auto reach = reachable(plan);
  const auto stream_of = [&](OpId op) {
    return static_cast<std::size_t>(plan.ops[static_cast<std::size_t>(op)].stream);
  };
  struct History {
    OpId writer = -1;
    BufferId buffer = -1;                                // as which it was written
    std::array<OpId, kStreams> readers{-1, -1, -1, -1};  // since, the latest of each stream
  };
  std::array<RangeMap<History>, 2> arenas;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto uses = uses_of(plan.ops[i]);
    const auto physical = [&](const BufferUse& use) {
      const Buffer& b = plan.buffers[static_cast<std::size_t>(use.buffer)];
      return Range{b.offset + use.bytes.begin, b.offset + use.bytes.end};
    };
    const auto arena = [&](const BufferUse& use) -> RangeMap<History>& {
      return arenas[static_cast<std::size_t>(
          arena_of(plan.buffers[static_cast<std::size_t>(use.buffer)]))];
    };
    for (const BufferUse& use : uses) {
      const Buffer& b = plan.buffers[static_cast<std::size_t>(use.buffer)];
      const auto after = [&](OpId other) {
        if (other >= 0 && reach[i][stream_of(other)] < other)
          reject(plan, i, fmt::format("races with op {} on {}", other, b.name));
      };
      arena(use).each(physical(use), [&](const History& h) {
        after(h.writer);
        if (use.access != Access::read) std::for_each(h.readers.begin(), h.readers.end(), after);
        if (use.access == Access::write) return;
        if (h.writer < 0 && !b.persistent)
          reject(plan, i, fmt::format("reads {} before it is written", b.name));
        if (h.writer >= 0 && h.buffer != use.buffer) {
          reject(plan, i,
                 fmt::format("reads {}, whose bytes hold {}", b.name,
                             plan.buffers[static_cast<std::size_t>(h.buffer)].name));
        }
      });
    }
    const auto op = static_cast<OpId>(i);
    for (const BufferUse& use : uses) {
      if (use.access == Access::read)
        arena(use).each(physical(use), [&](History& h) { h.readers[stream_of(op)] = op; });
    }
    for (const BufferUse& use : uses) {
      if (use.access != Access::read)
        arena(use).assign(physical(use), {.writer = op, .buffer = use.buffer});
    }
  }
}

/// Every gradient buffer that operations of a unit fill is summed once, after the last of them;
/// what the sums make up enters the norm once and the update once, in this order.
void check_gradients(const Plan& plan) {
  if (plan.shape.purpose == PlanPurpose::evaluate) return;
  struct Unit {
    std::int64_t reductions = 0, shard = 0, normed = 0, updated = 0;
  };
  std::map<std::int32_t, Unit> units;
  std::map<BufferId, std::size_t> unreduced;  // gradient buffer -> op that wrote it last
  bool verdict = false;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    Unit& unit = units[op.unit];
    if (op.kind == OpKind::kernel) {
      for (const BufferUse& use : uses_of(op)) {
        const bool gradient =
            plan.buffers[static_cast<std::size_t>(use.buffer)].purpose == Purpose::gradients;
        if (gradient && use.access != Access::read) unreduced[use.buffer] = i;
      }
    }
    if (op.kind == OpKind::reduce_gradients) {
      const auto& call = std::get<comm::ReduceScatter>(std::get<comm::CollectiveCall>(op.call));
      if (call.full.elements() != call.shard.elements() * plan.data_group.size) {
        reject(plan, i, "shards do not make up the whole");
      }
      if ((call.write == kernels::Write::overwrite) != (unit.reductions == 0)) {
        reject(plan, i, "a sum is lost or starts from garbage");
      }
      if (unreduced.erase(buffer_of(call.full)) == 0)
        reject(plan, i, "sums a gradient that nobody made");
      ++unit.reductions;
      unit.shard = call.shard.elements();
    }
    const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    if (kernel == nullptr) continue;
    if (const auto* sum = std::get_if<kernels::ExactSum>(kernel);
        sum != nullptr && op.kind == OpKind::norm) {
      unit.normed += sum->x.elements();
    }
    verdict = verdict || std::holds_alternative<kernels::Verdict>(*kernel);
    if (const auto* update = std::get_if<kernels::AdamUpdate>(kernel)) {
      if (!verdict) reject(plan, i, "updates before the norm is known");
      unit.updated += update->master.elements();
    }
  }
  const bool alone = plan.data_group.size == 1;
  if (!alone && !unreduced.empty())
    reject(plan, unreduced.begin()->second, "makes a gradient that is never summed");
  for (const auto& [id, unit] : units) {
    if (id < 0 || unit.normed + unit.updated + unit.reductions == 0) continue;
    const std::int64_t shard = alone ? unit.normed : unit.shard;
    const bool all_updated = unit.updated == shard || unit.updated == shard * plan.data_group.size;
    if (unit.normed != shard || !all_updated) {
      throw InternalError(
          fmt::format("broken plan: unit {} sums {} elements, {} enter the norm, {} are updated",
                      id, shard, unit.normed, unit.updated));
    }
  }
}

}  // namespace

void check(const Plan& plan) {
  check_ranges(plan);
  check_order(plan);
  check_gradients(plan);
}

void check_together(std::span<const std::uint64_t> plan_hashes) {
  for (std::size_t r = 1; r < plan_hashes.size(); ++r) {
    if (plan_hashes[r] != plan_hashes[0]) {
      throw InternalError(fmt::format(
          "broken plan: the first rank and number {} after it do not issue the same collectives",
          r));
    }
  }
}

}  // namespace tessera::plan
