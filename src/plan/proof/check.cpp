#include "plan/proof/check.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

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

constexpr PerStream<OpId> none() {
  PerStream<OpId> all{};
  all.fill(-1);
  return all;
}

/// Happens-before: reach[i] says which ops are complete when op i starts. A stream keeps its order,
/// so the latest such op of each stream stands for all before it.
std::vector<PerStream<OpId>> reachable(const Plan& plan) {
  std::vector<PerStream<OpId>> reach(plan.ops.size());
  PerStream<OpId> last = none();
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto& mine = reach[i] = none();
    const auto include = [&](OpId id) {
      const PerStream<OpId>& theirs = at(reach, id);
      std::ranges::transform(mine, theirs, mine.begin(), std::ranges::max);
      OpId& slot = mine[plan.op(id).stream];
      slot = std::max(slot, id);
    };
    if (const OpId previous = last[op.stream]; previous >= 0) include(previous);
    for (OpId wait : op.waits) {
      if (wait < 0 || static_cast<std::size_t>(wait) >= i)
        reject(plan, i, fmt::format("waits for op {}", wait));
      include(wait);
    }
    last[op.stream] = static_cast<OpId>(i);
  }
  return reach;
}

void check_ranges(const Plan& plan) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      if (use.buffer < 0 || static_cast<std::size_t>(use.buffer) >= plan.buffers.size())
        reject(plan, i, "unknown buffer");
      const Buffer& b = plan.buffer(use.buffer);
      const std::int64_t arena = plan.arena(arena_of(b));
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
  struct History {
    OpId writer = -1;
    BufferId buffer = -1;              // as which it was written
    PerStream<OpId> readers = none();  // since, the latest of each stream
  };
  PerArena<RangeMap<History>> arenas;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto uses = uses_of(plan.ops[i]);
    const auto physical = [&](const BufferUse& use) {
      const Buffer& b = plan.buffer(use.buffer);
      return Range{b.offset + use.bytes.begin, b.offset + use.bytes.end};
    };
    const auto arena = [&](const BufferUse& use) -> RangeMap<History>& {
      return arenas[arena_of(plan.buffer(use.buffer))];
    };
    for (const BufferUse& use : uses) {
      const Buffer& b = plan.buffer(use.buffer);
      const auto after = [&](OpId other) {
        if (other >= 0 && reach[i][plan.op(other).stream] < other)
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
                 fmt::format("reads {}, whose bytes hold {}", b.name, plan.buffer(h.buffer).name));
        }
      });
    }
    const auto op = static_cast<OpId>(i);
    for (const BufferUse& use : uses) {
      if (use.access == Access::read)
        arena(use).each(physical(use), [&](History& h) { h.readers[plan.op(op).stream] = op; });
    }
    for (const BufferUse& use : uses) {
      if (use.access != Access::read)
        arena(use).assign(physical(use), {.writer = op, .buffer = use.buffer});
    }
  }
}

/// Where the bytes of buffers belong that stand in for others: what is copied there and back by
/// fetches and evictions, perhaps in several hops.
class Homes {
 public:
  explicit Homes(const Plan& plan) : plan_(plan) {
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const Copy* copy = copy_of(i, OpKind::fetch);
      if (copy != nullptr) set_home(i, copy->to, copy->from);
    }
    for (std::size_t i = plan.ops.size(); i-- > 0;) {
      const Copy* copy = copy_of(i, OpKind::evict);
      if (copy != nullptr) set_home(i, copy->from, copy->to);
    }
  }
  /// The buffer that a use is of in the end, and which of its bytes.
  BufferUse home_of(BufferUse use) const {
    const auto it = homes_.find(use.buffer);
    if (it == homes_.end()) return use;
    const auto [home, distance] = it->second;
    return {home, {use.bytes.begin + distance, use.bytes.end + distance}, use.access};
  }
  BufferUse home_of(const View& v) const {
    return home_of({buffer_of(v), {offset_of(v), offset_of(v) + v.span_bytes()}, Access::read});
  }

  /// Ops read the newest version of bytes, in whichever stand-in they look for it; and what
  /// persists has it at home when the step ends.
  void check_versions() const {
    if (homes_.empty()) return;
    using Versions = RangeMap<std::int64_t>;
    std::vector<Versions> newest(plan_.buffers.size()), held(plan_.buffers.size());
    const auto is_newest = [&](const BufferUse& use) {
      const BufferUse home = home_of(use);
      const std::int64_t distance = home.bytes.begin - use.bytes.begin;
      bool all = true;
      at(newest, home.buffer).each(home.bytes, [&](Range range, std::int64_t version) {
        at(held, use.buffer)
            .each({range.begin - distance, range.end - distance},
                  [&](std::int64_t v) { all = all && v == version; });
      });
      return all;
    };
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      const Op& op = plan_.ops[i];
      const bool moves = op.kind == OpKind::fetch || op.kind == OpKind::evict;
      for (const BufferUse& use : uses_of(op)) {
        if (use.access != Access::write && !is_newest(use)) {
          reject(plan_, i,
                 fmt::format("reads {}, of which there is a newer version",
                             plan_.buffer(use.buffer).name));
        }
      }
      for (const BufferUse& use : uses_of(op)) {
        if (use.access == Access::read) continue;
        const BufferUse home = home_of(use);
        const std::int64_t distance = home.bytes.begin - use.bytes.begin;
        if (!moves) at(newest, home.buffer).assign(home.bytes, static_cast<std::int64_t>(i) + 1);
        at(newest, home.buffer).each(home.bytes, [&](Range range, std::int64_t version) {
          at(held, use.buffer).assign({range.begin - distance, range.end - distance}, version);
        });
      }
    }
    for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      if (buffer.persistent &&
          !is_newest({static_cast<BufferId>(b), {0, buffer.bytes}, Access::read})) {
        throw InternalError(
            fmt::format("broken plan: {} is changed, but never where it lives", buffer.name));
      }
    }
  }

 private:
  struct Home {
    BufferId buffer = -1;
    std::int64_t distance = 0;  // of bytes there from those of the stand-in
    bool operator==(const Home&) const = default;
  };
  const Copy* copy_of(std::size_t at, OpKind kind) const {
    const Op& op = plan_.ops[at];
    if (op.kind != kind) return nullptr;
    const auto* copy = std::get_if<Copy>(&op.call);
    if (copy == nullptr || copy->from.span_bytes() != copy->to.span_bytes())
      reject(plan_, at, "is no copy of bytes");
    return copy;
  }
  void set_home(std::size_t at, const View& stand_in, const View& towards) {
    const BufferUse home = home_of(towards);
    const Home found{home.buffer, home.bytes.begin - offset_of(stand_in)};
    const BufferId id = buffer_of(stand_in);
    if (id == home.buffer || homes_.try_emplace(id, found).first->second != found)
      reject(plan_, at, fmt::format("{} belongs elsewhere", plan_.buffer(id).name));
  }

  const Plan& plan_;
  std::map<BufferId, Home> homes_;
};

/// Follows gradients that travel as blocks: for the slots that this rank holds, which ranks'
/// contributions they contain and which ranks they are for. All ranks of a group run the same
/// calls, so the slots of another rank contain what this rank's do, shifted by the distance between
/// the two ranks.
class GradientBlocks {
 public:
  explicit GradientBlocks(const Plan& plan) : plan_(plan) {}

  void set_out(std::size_t at, const kernels::Quantize& call) {
    const std::int64_t outer = call.x.extent(0), inner = call.x.extent(1);
    Slots slots{.format = call.format, .elements = call.x.cols(), .of = {plan_.place.data}};
    for (std::int64_t b = 0; b < inner; ++b) {
      for (std::int64_t a = 0; a < outer; ++a) slots.owners.push_back(a * inner + b);
    }
    put(at, call.code, std::move(slots));
  }
  void exchange(std::size_t at, const comm::AllToAll& call) {
    Slots slots = take(at, call.send);
    const RankGroup& ranks = call.ranks;
    const std::int64_t own = plan_.place.data, place = ranks.index(own),
                       part = std::ssize(slots.owners) / ranks.count;
    if (slots.parts != 1 || part * ranks.count != std::ssize(slots.owners) ||
        call.send.rows() != ranks.count || call.receive.rows() != ranks.count ||
        call.send.cols() != part * slots.format.bytes(slots.elements) ||
        call.receive.cols() != call.send.cols()) {
      reject(plan_, at, "slots that do not divide over the ranks");
    }
    if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
      reject(plan_, at, "an exchange of others");
    slots.owners = {slots.owners.begin() + place * part, slots.owners.begin() + (place + 1) * part};
    slots.of = shifted(at, slots.of, ranks);
    slots.parts = ranks.count;
    put(at, call.receive, std::move(slots));
  }
  /// One hop of a reduction of gradients that are not quantised. True at the last, where the own
  /// slice has all contributions.
  bool reduce(std::size_t at, const comm::ReduceScatter& call, std::int64_t size) {
    const RankGroup ranks = ranks_of(call.among, plan_.group(MeshGroup::data));
    const std::int64_t own = plan_.place.data, place = ranks.index(own);
    Slots slots{.of = {own}};
    if (held_.contains(buffer_of(call.full))) {
      slots = take(at, call.full);
      if (call.full.type != DType::f32) reject(plan_, at, "rounds sums of nodes");
    } else {
      slots.elements = call.full.elements() / size;
      for (std::int64_t r = 0; r < size; ++r) slots.owners.push_back(r);
    }
    const std::int64_t count = std::ssize(slots.owners), part = count / call.blocks / ranks.count;
    if (slots.format != kernels::BlockFormat{} || part * call.blocks * ranks.count != count ||
        call.full.elements() != count * slots.elements ||
        call.shard.elements() * ranks.count != call.full.elements())
      reject(plan_, at, "slots that do not divide over the ranks");
    if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
      reject(plan_, at, "a sum of others");
    std::vector<std::int64_t> owners;
    for (std::int64_t b = 0; b < call.blocks; ++b) {
      for (std::int64_t i = 0; i < part; ++i)
        owners.push_back(tessera::at(slots.owners, (b * ranks.count + place) * part + i));
    }
    slots.owners = std::move(owners);
    slots.of = shifted(at, slots.of, ranks);
    if (std::ssize(slots.owners) > 1) {
      if (call.write != kernels::Write::overwrite) reject(plan_, at, "adds sums of nodes twice");
      put(at, call.shard, std::move(slots));
      return false;
    }
    if (slots.owners[0] != own || std::ssize(slots.of) != size || *slots.of.begin() != 0 ||
        *slots.of.rbegin() != size - 1)
      reject(plan_, at, "not all ranks' contributions to the own slice");
    return true;
  }
  /// Whether these are sums of nodes that are on their way.
  bool holds(const View& v) const { return held_.contains(buffer_of(v)); }
  void add(std::size_t at, const kernels::RequantizeSum& call) {
    Slots slots = added(at, call.code, call.format);
    if (call.elements != slots.elements) reject(plan_, at, "slots of another size");
    put(at, call.sum, std::move(slots));
  }
  void arrive(std::size_t at, const kernels::SumQuantized& call) {
    const Slots slots = added(at, call.code, call.format);
    const std::int64_t size = plan_.group(MeshGroup::data).size;
    if (slots.elements != call.out.elements() || std::ssize(slots.of) != size ||
        *slots.of.begin() != 0 || *slots.of.rbegin() != size - 1 ||
        slots.owners != std::vector{plan_.place.data}) {
      reject(plan_, at, "not all ranks' contributions to the own slice");
    }
  }
  void end() const {
    if (!held_.empty()) throw InternalError("broken plan: blocks of gradients are never added");
  }

 private:
  struct Slots {
    kernels::BlockFormat format;
    std::int64_t elements = 0;         // of a slot
    std::vector<std::int64_t> owners;  // of each slot: the rank that it is for
    std::set<std::int64_t> of;         // ranks whose contributions are in each slot
    std::int64_t parts = 1;            // copies of each slot that wait to be added
    const std::byte* where = nullptr;  // symbolic
  };
  /// The contributions that all of these ranks have, which differ by the distances between them.
  std::set<std::int64_t> shifted(std::size_t at, const std::set<std::int64_t>& of,
                                 const RankGroup& ranks) const {
    std::set<std::int64_t> all;
    for (std::int64_t p = 0; p < ranks.count; ++p) {
      for (const std::int64_t r : of) {
        if (!all.insert(r + ranks.rank(p) - plan_.place.data).second)
          reject(plan_, at, "adds a contribution twice");
      }
    }
    return all;
  }
  Slots take(std::size_t at, const View& v) {
    const auto it = held_.find(buffer_of(v));
    if (it == held_.end() || it->second.where != v.data)
      reject(plan_, at, "reads blocks that nobody made");
    Slots slots = std::move(it->second);
    held_.erase(it);
    return slots;
  }
  void put(std::size_t at, const View& v, Slots slots) {
    slots.where = v.data;
    if (!held_.emplace(buffer_of(v), std::move(slots)).second)
      reject(plan_, at, "overwrites blocks that nobody added");
  }
  Slots added(std::size_t at, const View& code, const kernels::BlockFormat& format) {
    Slots slots = take(at, code);
    if (code.extent(0) != slots.parts || code.extent(1) != std::ssize(slots.owners) ||
        format != slots.format) {
      reject(plan_, at, "adds other blocks than arrived");
    }
    slots.parts = 1;
    return slots;
  }

  const Plan& plan_;
  std::map<BufferId, Slots> held_;
};

/// Follows error feedback: the first rounding of a unit's gradient in a step takes what the step
/// before has left, the others what those before them have lost; and that is left to the next step,
/// once, where this one is applied.
class ErrorFeedback {
 public:
  ErrorFeedback(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes) {}

  void rounds(std::size_t at, const Op& op, const kernels::Quantize& call) {
    Errors& errors = of_[op.unit];
    ++errors.roundings;
    errors.with += call.lost ? 1 : 0;
    if (errors.with != 0 && errors.with != errors.roundings)
      reject(plan_, at, "forgets what other roundings have lost");
    if (!call.lost) return;
    const BufferUse lost = homes_.home_of(call.lost);
    if (!same(homes_.home_of(call.scalars), homes_.home_of(plan_.scalars)))
      reject(plan_, at, "rounds by what is no step's");
    if (errors.roundings == 1) {
      if (!call.error) reject(plan_, at, "rounds without the errors of the step before");
      errors.error = homes_.home_of(call.error), errors.lost = lost;
      const Buffer& kept = plan_.buffer(errors.error.buffer);
      if (!kept.persistent || kept.purpose != BufferPurpose::errors ||
          !taken_.insert(lost.buffer).second || !taken_.insert(errors.error.buffer).second)
        reject(plan_, at, "takes errors from elsewhere");
    } else if (call.error || !same(lost, errors.lost)) {
      reject(plan_, at, "rounds without the errors of this step");
    }
  }
  void keeps(std::size_t at, const Op& op, const kernels::Convert& call, bool verdict) {
    Errors& errors = of_[op.unit];
    if (!call.verdict) {  // of the step before, to be summed
      if (plan_.buffer(homes_.home_of(call.x).buffer).purpose != BufferPurpose::errors ||
          errors.kept)
        reject(plan_, at, "sums what is no error of the step before");
      return;
    }
    if (!verdict || !same(homes_.home_of(call.verdict), homes_.home_of(plan_.verdict)))
      reject(plan_, at, "keeps errors of a step that may not be applied");
    if (errors.with == 0 || errors.kept || call.write != kernels::Write::overwrite ||
        !same(homes_.home_of(call.x), errors.lost) || !same(homes_.home_of(call.out), errors.error))
      reject(plan_, at, "keeps other errors than the step's");
    errors.kept = true;
  }
  void end() const {
    for (std::size_t u = 0; u < plan_.shares.size(); ++u) {
      const auto it = of_.find(static_cast<std::int32_t>(u));
      const bool trains = plan_.shape.purpose >= PlanPurpose::train && plan_.shares[u].errors,
                 kept = it != of_.end() && it->second.kept;
      if (kept != trains)
        throw InternalError(fmt::format("broken plan: unit {} loses its errors", u));
    }
  }

 private:
  struct Errors {
    BufferUse error, lost;
    int roundings = 0, with = 0;
    bool kept = false;
  };
  static bool same(const BufferUse& a, const BufferUse& b) {
    return a.buffer == b.buffer && a.bytes == b.bytes;
  }

  const Plan& plan_;
  const Homes& homes_;
  std::map<std::int32_t, Errors> of_;  // by unit
  std::set<BufferId> taken_;           // whose errors these are
};

/// Follows what is gathered over the ranks that share a unit, as it is or in blocks and perhaps in
/// several hops: whose shards a buffer has, and in which order. A whole has all of them in the
/// order of ranks, in one format. All ranks run the same calls, so those of another rank are this
/// one's, shifted by the distance between the two.
class GatherCheck {
 public:
  GatherCheck(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes) {}

  void run() {
    for (at_ = 0; at_ < plan_.ops.size(); ++at_) {
      const Op& op = plan_.ops[at_];
      if (op.kind != OpKind::gather && op.kind != OpKind::publish &&
          op.kind != OpKind::gather_gradients) {
        forget_written(op);
        continue;
      }
      if (const auto* kernel = std::get_if<kernels::KernelCall>(&op.call)) {
        if (const auto* own = std::get_if<kernels::Quantize>(kernel)) {
          is_own_shard(op, own->x);
          put(op, own->code, {.format = own->format, .owners = {plan_.place.data}});
        } else if (const auto* all = std::get_if<kernels::SumQuantized>(kernel)) {
          const Shards* shards = taken(op, all->code);
          if (shards == nullptr || shards->format != all->format || !whole(op, *shards))
            reject(plan_, at_, "takes blocks of parameters that are not there");
          forget_written(op);
        } else {
          forget_written(op);
        }
      } else if (const auto* call = std::get_if<comm::CollectiveCall>(&op.call)) {
        if (const auto* gather = std::get_if<comm::AllGather>(call)) follow(op, *gather);
      } else {
        forget_written(op);
      }
    }
    for (const auto& [buffer, shards] : held_) {
      if (!shards.used) throw InternalError("broken plan: gathered shards are never used");
    }
  }

 private:
  struct Shards {
    std::int32_t unit = -1;
    std::optional<kernels::BlockFormat> format;
    std::vector<std::int64_t> owners;
    bool used = false;
    View where;
  };
  /// What other ops have written is no shards any more.
  void forget_written(const Op& op) {
    for (const BufferUse& use : uses_of(op)) {
      if (use.access == Access::read) continue;
      const auto it = held_.find(use.buffer);
      if (it == held_.end()) continue;
      if (!it->second.used) reject(plan_, at_, "overwrites shards that nobody took");
      held_.erase(it);
    }
  }
  /// Parameters that this rank has for all, where they live.
  void is_own_shard(const Op& op, const View& v) const {
    const BufferUse home = homes_.home_of(v);
    const Buffer& buffer = plan_.buffer(home.buffer);
    const std::int64_t bytes = at(plan_.shares, op.unit).shard * size_of(v.type),
                       first = buffer.bytes > bytes ? plan_.place.data * bytes : 0;
    if (buffer.purpose != BufferPurpose::parameters || !buffer.persistent ||
        home.bytes != Range{first, first + bytes})
      reject(plan_, at_, "gathers what is not the own shard");
  }
  void follow(const Op& op, const comm::AllGather& gather) {
    const RankGroup ranks = ranks_of(gather.among, plan_.group(op.group));
    const std::int64_t own = plan_.place.data, place = ranks.index(own);
    if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
      reject(plan_, at_, "a gather of others");
    Shards shards{.owners = {own}};
    const bool codes = gather.full.type == DType::u8;
    if (const Shards* held = taken(op, gather.shard); held != nullptr) {
      shards = *held;
    } else if (codes) {
      reject(plan_, at_, "takes blocks of parameters that are not there");
    } else if (op.kind != OpKind::gather_gradients) {
      is_own_shard(op, gather.shard);
    }
    if (codes != shards.format.has_value()) reject(plan_, at_, "gathers in another format");
    const std::int64_t part = std::ssize(shards.owners) / gather.blocks;
    if (part * gather.blocks != std::ssize(shards.owners) ||
        gather.full.elements() != gather.shard.elements() * ranks.count)
      reject(plan_, at_, "shards do not make up the whole");
    std::vector<std::int64_t> all;
    for (std::int64_t b = 0; b < gather.blocks; ++b) {
      for (std::int64_t p = 0; p < ranks.count; ++p) {
        for (std::int64_t i = 0; i < part; ++i)
          all.push_back(at(shards.owners, b * part + i) + ranks.rank(p) - own);
      }
    }
    shards.owners = std::move(all);
    const bool done = !codes && whole(op, shards);  // though it may be on its way still
    if (codes || gather.among) {
      put(op, gather.full, std::move(shards), done);
    } else if (!done) {
      reject(plan_, at_, "shards do not make up the whole");
    }
  }
  bool whole(const Op& op, const Shards& shards) const {
    if (std::ssize(shards.owners) != plan_.group(op.group).size) return false;
    for (std::int64_t r = 0; r < std::ssize(shards.owners); ++r) {
      if (at(shards.owners, r) != r) return false;
    }
    return true;
  }
  /// What is held in a buffer of this op's unit; nullptr if it is no such buffer.
  const Shards* taken(const Op& op, const View& v) {
    const auto it = held_.find(buffer_of(v));
    if (it == held_.end()) return nullptr;
    if (it->second.unit != op.unit) reject(plan_, at_, "gathers shards of another unit");
    if (it->second.where.data != v.data || it->second.where.span_bytes() != v.span_bytes())
      reject(plan_, at_, "gathers other bytes than the shards'");
    it->second.used = true;
    return &it->second;
  }
  void put(const Op& op, const View& v, Shards shards, bool used = false) {
    shards.unit = op.unit;
    shards.used = used;
    shards.where = v;
    const auto [it, added] = held_.try_emplace(buffer_of(v), shards);
    if (added) return;
    // The own blocks may lie among those of all ranks, which take their place.
    if (!it->second.used) reject(plan_, at_, "overwrites shards that nobody took");
    it->second = std::move(shards);
  }

  const Plan& plan_;
  const Homes& homes_;
  std::size_t at_ = 0;
  std::map<BufferId, Shards> held_;
};

/// Follows every gradient from the operations that make it, through sums over micro-batches, ranks
/// and ends of the pipeline, to the norm and the update: none is lost on the way, none is counted
/// twice. Updates before the verdict are deferred ones: they are by the gradients, the verdict and
/// the scalars that the step before has left, and the plan leaves the same to the next step.
class GradientCheck {
 public:
  GradientCheck(const Plan& plan, const Homes& homes)
      : plan_(plan), homes_(homes), blocks_(plan), errors_(plan, homes) {}

  void run() {
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      const Op& op = plan_.ops[i];
      at_ = i;
      if (const auto* call = std::get_if<comm::CollectiveCall>(&op.call)) collective(op, *call);
      if (const auto* call = std::get_if<kernels::KernelCall>(&op.call)) kernel(op, *call);
      if (const auto* copy = std::get_if<Copy>(&op.call)) follow_parameters(op, *copy);
      if (const auto* tile = std::get_if<SaveTile>(&op.call)) follow_tile(op, *tile);
      note_reads(op);
    }
    end_deferred();
    end_tiles();
    errors_.end();
    for (const auto& [id, made] : unsummed_)
      reject(plan_, made, "makes a gradient that is never used");
    blocks_.end();
    for (std::size_t u = 0; u < plan_.shares.size(); ++u) {
      const UnitShare& share = plan_.shares[u];
      const Unit& unit = units_[static_cast<std::int32_t>(u)];
      const std::int64_t whole = share.shard * share.parts;
      const std::int64_t counted = plan_.shape.purpose == PlanPurpose::flush ? 0 : share.counted;
      const bool all = unit.updated == share.shard || unit.updated == whole || is_empty_flush();
      const bool right =
          share.trained ? unit.normed == counted && all : unit.normed == 0 && unit.updated == 0;
      if (!right) {
        throw InternalError(
            fmt::format("broken plan: unit {} has a shard of {} elements, {} of them its own to "
                        "count{}; {} enter the norm, {} are updated",
                        u, share.shard, share.counted, share.trained ? "" : ", and is frozen",
                        unit.normed, unit.updated));
      }
      if (!share.trained || unit.updated == whole) continue;
      if (unit.read_unpublished)
        reject(plan_, *unit.read_unpublished, "reads parameters that other ranks have updated");
      const auto parameters = parameters_.find(static_cast<std::int32_t>(u));
      if (parameters == parameters_.end()) continue;
      if (const auto read = read_unpublished_.find(parameters->second);
          read != read_unpublished_.end())
        reject(plan_, read->second, "reads parameters that other ranks have updated");
    }
  }

 private:
  struct Unit {
    std::int64_t normed = 0, updated = 0;
    bool published = false;  // where parameters live elsewhere than on the device
    std::optional<std::size_t> read_unpublished;  // the op
  };
  bool are_parameters_at_home(BufferId id) const {
    const Buffer& b = plan_.buffer(id);
    return b.persistent && b.purpose == BufferPurpose::parameters && b.location != Location::device;
  }
  /// What other ranks have updated of parameters that live elsewhere is gathered, and goes where
  /// they live, before they are read there.
  void follow_parameters(const Op& op, const Copy& copy) {
    if (op.unit < 0) return;  // of no unit's parameters
    const UnitShare& share = at(plan_.shares, op.unit);
    const bool whole = copy.from.elements() == share.shard * share.parts &&
                       copy.from.type != DType::u8 && are_parameters_at_home(buffer_of(copy.from));
    Unit& unit = units_[op.unit];
    if (op.kind == OpKind::fetch && whole && !unit.published && !unit.read_unpublished)
      unit.read_unpublished = at_;
  }
  void publish(const Op& op, const comm::AllGather& gather) {
    published_.insert(home_of(gather.full));
    if (are_parameters_at_home(home_of(gather.full))) units_[op.unit].published = true;
  }
  BufferId home_of(const View& v) const { return homes_.home_of(v).buffer; }
  bool is_gradient(const View& v) const {
    return plan_.buffer(home_of(v)).purpose == BufferPurpose::gradients;
  }
  static bool is_all_of(const View& v, const View& all) {
    return v.data == all.data && v.elements() == all.elements();
  }
  static bool is_state(const Buffer& b) {
    return b.purpose == BufferPurpose::parameters || b.purpose == BufferPurpose::master ||
           b.purpose == BufferPurpose::optimizer;
  }
  /// Whether `v` is `all`, or stands in for it.
  bool is_at(const View& v, const View& all) const {
    const BufferUse at = homes_.home_of(v), wanted = homes_.home_of(all);
    return at.buffer == wanted.buffer && at.bytes == wanted.bytes;
  }
  void use(const View& v, const char* otherwise) {
    if (unsummed_.erase(home_of(v)) == 0) reject(plan_, at_, otherwise);
  }

  void collective(const Op& op, const comm::CollectiveCall& call) {
    if (op.kind == OpKind::gather_gradients) {
      const auto& gather = std::get<comm::AllGather>(call);
      const auto hop = whole_.find(home_of(gather.shard));  // what came over other nodes
      whole_[home_of(gather.full)] = hop == whole_.end() ? home_of(gather.shard) : hop->second;
      return;
    }
    if (const auto* slots = std::get_if<comm::AllToAll>(&call)) {
      if (op.kind != OpKind::reduce_gradients)
        reject(plan_, at_, "an exchange that reduces no gradients");
      return blocks_.exchange(at_, *slots);
    }
    if (const auto* gather = std::get_if<comm::AllGather>(&call)) publish(op, *gather);
    const auto* reduce = std::get_if<comm::ReduceScatter>(&call);
    const bool ours = op.kind == OpKind::reduce_gradients || op.kind == OpKind::tie_gradients;
    if (reduce == nullptr || !ours) return;
    const std::int64_t size = plan_.group(op.group).size;
    if (op.kind == OpKind::tie_gradients) {
      if (reduce->full.elements() != reduce->shard.elements() * size)
        reject(plan_, at_, "shards do not make up the whole");
      use(reduce->full, "sums a gradient that nobody made");
      return made_sum(reduce->shard, reduce->write);
    }
    if (!blocks_.holds(reduce->full)) use(reduce->full, "sums a gradient that nobody made");
    if (blocks_.reduce(at_, *reduce, size)) made_sum(reduce->shard, reduce->write);
  }
  void made_sum(const View& shard, kernels::Write write) {
    const BufferId sum = home_of(shard);
    const bool adds = write == kernels::Write::add;
    if (adds != unsummed_.contains(sum)) reject(plan_, at_, "a sum is lost or starts from garbage");
    unsummed_[sum] = at_;
  }

  /// Gradients that travel as blocks.
  void blocks(const Op& op, const kernels::KernelCall& call) {
    if (const auto* quantize = std::get_if<kernels::Quantize>(&call)) {
      use(quantize->x, "sends a gradient that nobody made");
      errors_.rounds(at_, op, *quantize);
      blocks_.set_out(at_, *quantize);
    } else if (const auto* requantize = std::get_if<kernels::RequantizeSum>(&call)) {
      blocks_.add(at_, *requantize);
    } else if (const auto* sum = std::get_if<kernels::SumQuantized>(&call)) {
      blocks_.arrive(at_, *sum);
      made_sum(sum->out, sum->write);
    } else {
      reject(plan_, at_, "does not reduce gradients");
    }
  }

  void kernel(const Op& op, const kernels::KernelCall& call) {
    if (op.kind == OpKind::reduce_gradients) {
      blocks(op, call);
    } else if (op.kind == OpKind::errors) {
      errors_.keeps(at_, op, std::get<kernels::Convert>(call), verdict_);
    } else if (op.kind == OpKind::sum_gradients) {
      const auto& add = std::get<kernels::Convert>(call);
      use(add.x, "adds a gradient that nobody made");
      if (!unsummed_.contains(home_of(add.out))) reject(plan_, at_, "adds to garbage");
    } else if (op.kind == OpKind::norm) {
      verdict_ = verdict_ || std::holds_alternative<kernels::Verdict>(call);
      if (const auto* kept = std::get_if<kernels::Convert>(&call); kept != nullptr)
        keeps_scalars_ = keeps_scalars_ || (is_all_of(kept->x, plan_.scalars) &&
                                            is_all_of(kept->out, plan_.update_scalars));
      if (const auto* fill = std::get_if<kernels::Fill>(&call); fill != nullptr)
        nothing_left_ = nothing_left_ || is_all_of(fill->out, plan_.verdict);
      const auto* sum = std::get_if<kernels::ExactSum>(&call);
      if (sum == nullptr) return;
      if (!unsummed_.contains(home_of(sum->x))) reject(plan_, at_, "the norm of what nobody made");
      units_[op.unit].normed += sum->x.elements();
    } else if (op.kind == OpKind::update ||
               std::holds_alternative<kernels::OptimizerUpdate>(call)) {
      if (keeps_scalars_ || nothing_left_) reject(plan_, at_, "updates by what is the next step's");
      kernels::visit_views(call, [&](const View& v, Access access) {
        const Buffer& home = plan_.buffer(home_of(v));
        if (access != Access::read && is_state(home) && !home.persistent) {
          reject(plan_, at_, fmt::format("{} is changed, but never where it lives", home.name));
        }
      });
      std::visit([&](const auto& args) { updated(op, args); }, call);
    } else if (op.kind == OpKind::kernel) {
      kernels::visit_views(call, [&](const View& v, Access access) {
        if (access == Access::read || !is_gradient(v)) return;
        unsummed_[home_of(v)] = at_;
      });
    }
  }

  /// Any optimizer's update of some elements.
  template <typename Update>
  void updated(const Op& op, const Update& update) {
    if constexpr (requires { update.gradient, update.master; }) {
      units_[op.unit].updated += update.master.elements();
      const Range elements = homes_.home_of(update.master).bytes;
      for (const Range& other : updated_[home_of(update.master)]) {
        if (!intersect(other, elements).empty()) reject(plan_, at_, "updates an element again");
      }
      updated_[home_of(update.master)].push_back(elements);
      if (update.parameter) same_elements(op, update.parameter, update.master);
      if (!is_at(update.scalars, plan_.update_scalars) || !is_at(update.verdict, plan_.verdict))
        reject(plan_, at_, "updates by what is no step's");
      const BufferId from = home_of(update.gradient);
      note_rows(op, update);
      if (verdict_) {
        if (has_deferred_) reject(plan_, at_, "updates by gradients of two steps");
        if (!is_at(update.scalars, plan_.scalars))
          reject(plan_, at_, "updates by what is no step's");
        unsummed_.erase(whole_.contains(from) ? whole_.at(from) : from);
      } else {
        defer(op, update, from);
      }
    } else {
      reject(plan_, at_, "updates nothing");
    }
  }

  /// An update by what the step before has left: nothing has changed that or looked at what it
  /// updates, but to bring it there.
  template <typename Update>
  void defer(const Op& op, const Update& update, BufferId gradient) {
    has_deferred_ = true;
    if (!plan_.buffer(gradient).persistent || !plan_.buffer(home_of(update.scalars)).persistent ||
        is_at(update.scalars, plan_.scalars))
      reject(plan_, at_, "updates before the norm is known");
    if (unsummed_.contains(gradient) || whole_.contains(gradient))
      reject(plan_, at_, "updates by a gradient without a norm");
    left_[gradient] = op.unit;
    bool read = false;
    update.visit(update, [&](const View& v, Access access) {
      if (!v || access == Access::read) return;
      const BufferUse home = homes_.home_of(v);
      read_[home.buffer].each(home.bytes, [&](bool r) { read = read || r; });
    });
    if (read) reject(plan_, at_, "updates what the step has used");
  }
  /// Where a unit's rows and parameters are, as its updates have it.
  template <typename Update>
  void note_rows(const Op& op, const Update& update) {
    std::vector<BufferId> rows{home_of(update.master)};
    for (const View& v : update.state) rows.push_back(v ? home_of(v) : -1);
    rows_[op.unit] = std::move(rows);
    parameters_[op.unit] = home_of(update.parameter ? update.parameter : update.master);
  }
  /// Tiles are of the rows that they say, and of elements that are as far apart there.
  void follow_tile(const Op& op, const SaveTile& tile) {
    const BufferUse home = homes_.home_of(tile.from);
    const std::int64_t distance = home.bytes.begin - tile.first * size_of(tile.from.type);
    const auto [found, added] =
        tiles_.try_emplace({op.unit, tile.row}, std::pair{home.buffer, distance});
    if (!added && found->second != std::pair{home.buffer, distance})
      reject(plan_, at_, "saves other elements than it says");
  }
  void end_tiles() {
    for (const auto& [row, home] : tiles_) {
      const auto rows = rows_.find(row.first);
      if (rows != rows_.end() && rows->second.at(row.second) != home.first)
        throw InternalError(fmt::format("broken plan: row {} of unit {} is saved as another",
                                        row.second, row.first));
    }
  }
  /// What of the state ops of the step have read, other than to bring it elsewhere.
  void note_reads(const Op& op) {
    if (op.kind == OpKind::update || op.kind == OpKind::fetch || op.kind == OpKind::evict) return;
    for (const BufferUse& use : uses_of(op)) {
      const BufferUse home = homes_.home_of(use);
      if (use.access == Access::write || !is_state(plan_.buffer(home.buffer))) continue;
      read_[home.buffer].assign(home.bytes, true);
      if (op.kind == OpKind::kernel && !published_.contains(home.buffer))
        read_unpublished_.try_emplace(home.buffer, at_);
    }
  }
  /// The step leaves to the next one what it has taken from the one before; a flush leaves nothing.
  void end_deferred() {
    const bool flushes = plan_.shape.purpose == PlanPurpose::flush;
    if (flushes && (verdict_ || (has_deferred_ && !nothing_left_)))
      throw InternalError("broken plan: a flush that leaves something to do");
    if (flushes || !has_deferred_) return;
    if (!keeps_scalars_ || !verdict_)
      throw InternalError("broken plan: the next step cannot do the update of this one");
    for (const auto& [gradient, unit] : left_) {
      if (unsummed_.erase(whole_.contains(gradient) ? whole_.at(gradient) : gradient) == 0)
        throw InternalError(fmt::format("broken plan: unit {} leaves no gradient", unit));
    }
  }
  /// Where nothing is deferred there is nothing to flush.
  bool is_empty_flush() const {
    return plan_.shape.purpose == PlanPurpose::flush &&
           plan_.update_scalars.data == plan_.scalars.data && !has_deferred_;
  }

  /// The parameters of a unit are all as far from their master weights: by no shard or by whole
  /// ones.
  void same_elements(const Op& op, const View& parameter, const View& master) {
    const std::int64_t of_one = size_of(parameter.type), of_other = size_of(master.type),
                       distance = homes_.home_of(parameter).bytes.begin * of_other -
                                  homes_.home_of(master).bytes.begin * of_one,
                       shard = at(plan_.shares, op.unit).shard * of_one * of_other;
    if (distance % shard != 0 ||
        distances_.try_emplace(op.unit, distance).first->second != distance)
      reject(plan_, at_, "updates the parameters of other elements");
  }

  const Plan& plan_;
  const Homes& homes_;
  GradientBlocks blocks_;
  ErrorFeedback errors_;
  std::size_t at_ = 0;
  std::map<BufferId, std::size_t> unsummed_;  // gradient buffer -> op that made it
  std::map<BufferId, BufferId> whole_;        // gathered gradient -> this rank's slice of it
  std::map<std::int32_t, Unit> units_;
  std::map<BufferId, std::vector<Range>> updated_;  // bytes of master weights
  std::map<std::int32_t, std::int64_t> distances_;  // by unit, of parameters from master weights
  bool verdict_ = false;
  // Of deferred updates.
  bool has_deferred_ = false, keeps_scalars_ = false, nothing_left_ = false;
  std::map<BufferId, std::int32_t> left_;  // gradients of the step before, and of which unit
  // Where rows (by unit) and tiles of them (by unit and row) are, and parameters; those of which
  // all is there, and the op that has read others first.
  std::map<std::int32_t, std::vector<BufferId>> rows_;
  std::map<std::pair<std::int32_t, std::size_t>, std::pair<BufferId, std::int64_t>> tiles_;
  std::map<std::int32_t, BufferId> parameters_;
  std::set<BufferId> published_;
  std::map<BufferId, std::size_t> read_unpublished_;
  std::map<BufferId, RangeMap<bool>> read_;  // bytes of state
};

}  // namespace

namespace {

/// The host loads the step's tokens before anything else; what it computes is on its own stream.
/// All ops but copies find their buffers where they run.
void check_locations(const Plan& plan) {
  bool loading = true;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const bool loads = std::holds_alternative<LoadBatch>(op.call);
    const bool saves = std::holds_alternative<SaveTile>(op.call);
    const bool by_host = loads || op.stream == Stream::host;
    if (saves ? op.location == Location::disk : by_host != (op.location == Location::host))
      reject(plan, i, "runs elsewhere than on the host what is the host's, or there what is not");
    if (op.stream == Stream::host && !std::holds_alternative<kernels::KernelCall>(op.call))
      reject(plan, i, "is on the stream of what the host computes, and computes nothing");
    if (loads && !loading) reject(plan, i, "loads tokens after the step has begun");
    loading = loads;
    if (loads || std::holds_alternative<Copy>(op.call)) continue;
    for (const BufferUse& use : uses_of(op)) {
      const Buffer& b = plan.buffer(use.buffer);
      if (b.location != op.location)
        reject(plan, i, fmt::format("uses {} on the {}", b.name, enum_word(b.location)));
    }
  }
}

/// Parameters that are gathered out of shards of a whole that persists are that whole from then on.
void check_published(const Plan& plan, const Homes& homes) {
  std::map<BufferId, BufferUse> on_the_way;  // what shards of other nodes are beside
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* call = std::get_if<comm::CollectiveCall>(&plan.ops[i].call);
    const auto* gather = call == nullptr ? nullptr : std::get_if<comm::AllGather>(call);
    if (gather == nullptr) continue;
    BufferUse shard = homes.home_of(gather->shard);
    const BufferUse full = homes.home_of(gather->full);
    if (const auto it = on_the_way.find(shard.buffer); it != on_the_way.end()) {
      shard = it->second;
    } else if (gather->among) {
      on_the_way[full.buffer] = shard;
      continue;
    }
    const Buffer& home = plan.buffer(shard.buffer);
    if (!home.persistent || home.purpose == BufferPurpose::gradients ||
        home.bytes == shard.bytes.count())
      continue;
    if (full.buffer != shard.buffer || full.bytes != Range{0, home.bytes})
      reject(plan, i, fmt::format("{} is changed, but never where it lives", home.name));
  }
}

/// Of a row that is saved in tiles, each element of the shard is in one of them.
void check_tiles(const Plan& plan) {
  std::map<std::pair<std::int32_t, std::size_t>, std::vector<Range>> rows;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* tile = std::get_if<SaveTile>(&plan.ops[i].call);
    if (tile == nullptr) continue;
    auto& ranges = rows[{plan.ops[i].unit, tile->row}];
    const Range elements{tile->first, tile->first + tile->from.elements()};
    for (const Range& other : ranges) {
      if (!intersect(other, elements).empty()) reject(plan, i, "saves an element again");
    }
    ranges.push_back(elements);
  }
  for (const auto& [row, ranges] : rows) {
    std::int64_t saved = 0;
    for (const Range& r : ranges) saved += r.count();
    if (saved != at(plan.shares, row.first).shard)
      throw InternalError(
          fmt::format("broken plan: {} elements of unit {}, row {} are saved, of {}", saved,
                      row.first, row.second, at(plan.shares, row.first).shard));
  }
}

}  // namespace

void check(const Plan& plan) {
  check_ranges(plan);
  check_locations(plan);
  check_order(plan);
  const Homes homes(plan);
  homes.check_versions();
  GatherCheck(plan, homes).run();
  check_published(plan, homes);
  check_tiles(plan);
  if (plan.shape.purpose != PlanPurpose::evaluate) GradientCheck(plan, homes).run();
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
