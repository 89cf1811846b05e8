#include "plan/passes/tiers.hpp"

#include <algorithm>
#include <map>

#include "core/range_map.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

/// What becomes of bytes during a stay.
struct Handling {
  bool fetched = false;  // they are read before they are written
  bool written = false;
};

/// A run of uses of a buffer during which ops find the same bytes in the same place.
struct Stay {
  Location location = Location::device;
  Range bytes;  // of the buffer
  std::size_t first_op = 0, last_op = 0;
  std::int32_t first_time = 0, last_time = 0;
  std::int32_t unit = -1, micro_batch = -1;  // of the first use
  RangeMap<Handling> handling;
  bool writes = false;
  bool over = false;          // later uses are of other stays
  BufferId stand_in = -1;     // -1: the buffer itself
  std::int64_t first_at = 0;  // where the stand-in has the first byte
};

/// A buffer that ops use elsewhere than it lies, or that leaves for a while.
struct Traveller {
  std::vector<Stay> stays;
  BufferId home = -1;  // where it is between stays
  /// Ops that change the home itself, before which nothing may be fetched, and that read it.
  std::vector<std::pair<std::size_t, Range>> written_at_home, read_at_home;
};

/// Messages too: what a stage has received is what its first layer saves.
bool is_saved(const Buffer& b) {
  const bool saved =
      b.purpose == BufferPurpose::activations || b.purpose == BufferPurpose::messages;
  return saved && !b.persistent && b.location == Location::device;
}

bool overlap(Range a, Range b) { return !intersect(a, b).empty(); }
bool contains(Range all, Range part) { return all.begin <= part.begin && part.end <= all.end; }
Range hull(Range a, Range b) { return {std::min(a.begin, b.begin), std::max(a.end, b.end)}; }

/// By op, the visit that it belongs to or comes before; behind the last visit of a layer, one more.
std::vector<std::int32_t> times_of(const Plan& plan) {
  std::vector<std::int32_t> times(plan.ops.size());
  const auto apart = [&](std::size_t i) {  // visits of their own
    const Op& op = plan.ops[i];
    return op.kind == OpKind::update || op.kind == OpKind::errors || op.kind == OpKind::momentum ||
           std::holds_alternative<SaveTile>(op.call);
  };
  const auto of_layer = [&](std::size_t i) { return plan.ops[i].visit >= 0 && !apart(i); };
  std::int32_t next = -1;  // visit of the ops that follow; -1: there are none
  for (std::size_t i = plan.ops.size(); i-- > 0;) {
    if (of_layer(i)) next = plan.ops[i].visit;
    times[i] = next;
  }
  std::int32_t time = 0;  // it never goes back, as visits of what is added at the end may
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (times[i] >= 0) time = std::max(time, times[i]);
    times[i] = apart(i) ? plan.ops[i].visit : times[i] >= 0 ? time : time + 1;
  }
  return times;
}

class Movement {
 public:
  Movement(Plan& plan, const PlanInputs& in)
      : plan_(plan), in_(in), times_(times_of(plan)), travellers_(plan.buffers.size()) {
    for (std::size_t i = 0; i < times_.size(); ++i) first_of_time_.try_emplace(times_[i], i);
  }

  void run() {
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) look_at(i);
    for (std::size_t b = 0; b < travellers_.size(); ++b) {
      if (travels(static_cast<BufferId>(b))) move(static_cast<BufferId>(b));
    }
    for (const UseOfStay& use : uses_) use_stand_in(use);
    std::ranges::stable_sort(fetches_, {}, &Fetch::first_op);
    for (Fetch& f : fetches_) insertions_.before(f.position, std::move(f.op));
    insertions_.apply(plan_.ops);
  }

 private:
  /// The view number `view` of an op, and the stay that it is in.
  struct UseOfStay {
    std::size_t op, view;
    BufferId buffer;
    std::size_t stay;
  };
  struct Fetch {
    std::size_t first_op, position;
    Op op;
  };

  bool leaves(const Buffer& b) const {
    return in_.offload.activations != Location::device && is_saved(b);
  }

  void look_at(std::size_t i) {
    const Op& op = plan_.ops[i];
    // Tokens reach the device by themselves.
    const bool reaches_all =
        std::holds_alternative<Copy>(op.call) || std::holds_alternative<LoadBatch>(op.call);
    std::size_t view = 0;
    for (const BufferUse& use : uses_of(op)) {
      const Buffer& b = plan_.buffer(use.buffer);
      if (reaches_all || (b.location == op.location && !leaves(b))) {
        use_home(i, use);
      } else {
        uses_.push_back({i, view, use.buffer, stay_of(i, use)});
      }
      ++view;
    }
  }

  /// A use of a buffer where it lives.
  void use_home(std::size_t i, const BufferUse& use) {
    Traveller& t = at(travellers_, use.buffer);
    for (Stay& s : t.stays) s.over = s.over || overlap(s.bytes, use.bytes);
    if (use.access != Access::read) t.written_at_home.emplace_back(i, use.bytes);
    if (use.access != Access::write) t.read_at_home.emplace_back(i, use.bytes);
  }

  /// The stay that a use of an op belongs to: one within whose bytes it is, or one of the same
  /// visit or with some of its bytes, which grows if it can; else a new one. A stay ends where
  /// another begins that has bytes of it.
  std::size_t stay_of(std::size_t i, const BufferUse& use) {
    Traveller& t = at(travellers_, use.buffer);
    const std::int32_t time = times_[i];
    std::size_t found = t.stays.size();
    for (std::size_t k = 0; k < t.stays.size(); ++k) {
      Stay& s = t.stays[k];
      // It would come back before, or as soon as, it has left.
      s.over = s.over || std::abs(time - s.last_time) > in_.offload.ahead + 1;
      if (s.over || s.location != plan_.ops[i].location) continue;
      if (contains(s.bytes, use.bytes)) {
        found = k;
        break;
      }
      const bool near = overlap(s.bytes, use.bytes) || s.first_time == time;
      if (near && may_have(t, s, hull(s.bytes, use.bytes))) found = k;
    }
    if (found == t.stays.size()) {
      t.stays.push_back({.location = plan_.ops[i].location,
                         .bytes = use.bytes,
                         .first_op = i,
                         .first_time = time,
                         .unit = plan_.ops[i].unit,
                         .micro_batch = plan_.ops[i].micro_batch});
    }
    Stay& stay = t.stays[found];
    stay.bytes = hull(stay.bytes, use.bytes);
    stay.last_op = i;
    stay.last_time = time;
    stay.writes = stay.writes || use.access != Access::read;
    stay.handling.each(use.bytes, [&](Handling& h) {
      h.fetched = h.fetched || (use.access != Access::write && !h.written);
      h.written = h.written || use.access != Access::read;
    });
    for (Stay& s : t.stays) {
      const bool other = &s != &stay && overlap(s.bytes, stay.bytes);
      s.over = s.over || other;
    }
    return found;
  }

  /// Whether a stay may have these bytes too, from its begin: nobody else has had them since.
  static bool may_have(const Traveller& t, const Stay& stay, Range bytes) {
    const bool alone = std::ranges::all_of(t.stays, [&](const Stay& s) {
      return &s == &stay || s.last_op < stay.first_op || !overlap(s.bytes, bytes);
    });
    return alone && std::ranges::all_of(t.written_at_home, [&](const auto& written) {
             return written.first < stay.first_op || !overlap(written.second, bytes);
           });
  }

  /// Whether a buffer goes anywhere: its home is elsewhere, or a later stay reads what it holds.
  bool travels(BufferId id) {
    Traveller& t = at(travellers_, id);
    if (t.stays.empty()) return false;
    if (plan_.buffer(id).location != t.stays.front().location) {
      t.home = id;
      return true;
    }
    for (std::size_t k = 1; k < t.stays.size(); ++k) {
      bool reads = false;
      t.stays[k].handling.each(t.stays[k].bytes, [&](Handling& h) { reads = reads || h.fetched; });
      if (!reads) continue;
      Buffer elsewhere = plan_.buffer(id);
      elsewhere.location = in_.offload.activations;
      t.home = add_buffer(plan_, elsewhere);
      return true;
    }
    return false;
  }

  void move(BufferId id) {
    Traveller& t = at(travellers_, id);
    RangeMap<bool> wanted;  // bytes that later stays fetch, or ops read at home, or the next step
    if (plan_.buffer(id).persistent) wanted.assign({0, plan_.buffer(id).bytes}, true);
    for (std::size_t k = t.stays.size(); k-- > 0;) {
      Stay& s = t.stays[k];
      if (t.home == id || k > 0) add_stand_in(s, id);
      for (const auto& [op, bytes] : t.read_at_home) {
        if (t.home == id && op > s.last_op) wanted.assign(bytes, true);
      }
      evict(s, id, t.home, wanted);
      each_part(
          s, [](const Handling& h) { return h.fetched; },
          [&](Range part) {
            wanted.assign(part, true);
            fetch(t, k, id, part);
          });
    }
  }

  /// What the stay has written goes home after it, as far as anybody wants it.
  void evict(Stay& s, BufferId id, BufferId home, RangeMap<bool>& wanted) {
    each_part(
        s, [](const Handling& h) { return h.written; },
        [&](Range part) {
          Range wanted_part;
          wanted.each(part, [&](Range range, bool w) {
            if (w) wanted_part = wanted_part.empty() ? range : hull(wanted_part, range);
          });
          wanted_part = intersect(wanted_part, part);
          if (wanted_part.empty()) return;
          Op op = copy_op(plan_, about(s, s.last_time),
                          {in_stay(s, id, wanted_part), at_home(home, wanted_part)});
          op.kind = OpKind::evict;
          insertions_.before(s.last_op + 1, std::move(op));
        });
  }

  void fetch(Traveller& t, std::size_t k, BufferId id, Range part) {
    const Stay& s = t.stays[k];
    const auto time =
        static_cast<std::int32_t>(std::max<std::int64_t>(0, s.first_time - in_.offload.ahead));
    std::size_t position = first_of_time_.lower_bound(time)->second;
    for (std::size_t j = 0; j < t.stays.size(); ++j) {  // once it is there
      const Stay& earlier = t.stays[j];
      if (j != k && earlier.writes && earlier.first_op <= s.first_op &&
          overlap(earlier.bytes, part))
        position = std::max(position, earlier.last_op + 1);
    }
    for (const auto& [op, bytes] : t.written_at_home) {
      if (op < s.first_op && overlap(bytes, part)) position = std::max(position, op + 1);
    }
    TESSERA_CHECK(position <= s.first_op, "{} is used in two places at once",
                  plan_.buffer(id).name);
    Op op = copy_op(plan_, about(s, time), {at_home(t.home, part), in_stay(s, id, part)});
    op.kind = OpKind::fetch;
    fetches_.push_back({s.first_op, position, std::move(op)});
  }

  void use_stand_in(const UseOfStay& use) {
    const Traveller& t = at(travellers_, use.buffer);
    if (t.home < 0) return;
    const Stay& s = t.stays[use.stay];
    if (s.stand_in < 0) return;
    std::size_t view = 0;
    each_view(plan_.ops[use.op].call, [&](View& v, Access) {
      if (view++ != use.view) return;
      v.data = symbolic(s.stand_in, s.first_at + offset_of(v) - s.bytes.begin);
    });
  }

  void add_stand_in(Stay& s, BufferId id) {
    Buffer b = plan_.buffer(id);
    b.persistent = false;
    b.location = s.location;
    s.first_at = s.bytes.begin % plan_.alignment;  // aligned alike on both sides
    b.home_byte = s.bytes.begin - s.first_at;
    b.home_bytes = b.bytes;
    b.bytes = s.first_at + s.bytes.count();
    s.stand_in = add_buffer(plan_, std::move(b));
  }

  /// f(part) for the longest ranges of a stay's bytes that are handled so.
  template <typename Is, typename F>
  static void each_part(Stay& s, Is&& is, F&& f) {
    Range part;
    s.handling.each(s.bytes, [&](Range range, const Handling& h) {
      if (!is(h)) return;
      if (part.empty() || part.end != range.begin) {
        if (!part.empty()) f(part);
        part = range;
      }
      part.end = range.end;
    });
    if (!part.empty()) f(part);
  }

  View in_stay(const Stay& s, BufferId id, Range part) const {
    const std::int64_t first =
        s.stand_in < 0 ? part.begin : s.first_at + part.begin - s.bytes.begin;
    return View(symbolic(s.stand_in < 0 ? id : s.stand_in, first), DType::u8, {part.count()});
  }
  static View at_home(BufferId home, Range part) {
    return View(symbolic(home, part.begin), DType::u8, {part.count()});
  }
  Op about(const Stay& s, std::int32_t visit) const {
    return {.unit = s.unit, .micro_batch = s.micro_batch, .visit = visit, .call = {}, .waits = {}};
  }

  Plan& plan_;
  const PlanInputs& in_;
  std::vector<std::int32_t> times_;
  std::map<std::int32_t, std::size_t> first_of_time_;
  std::vector<Traveller> travellers_;  // by buffer
  std::vector<UseOfStay> uses_;
  std::vector<Fetch> fetches_;
  Insertions insertions_;
};

/// What goes between disks and a device whose memory they do not reach goes through the host's.
void go_through_host(Plan& plan) {
  Insertions insertions;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    Op& op = plan.ops[i];
    auto* copy = std::get_if<Copy>(&op.call);
    if (copy == nullptr) continue;
    const auto is_at = [&](const View& v, Location location) {
      return plan.buffer(buffer_of(v)).location == location;
    };
    const bool out = is_at(copy->from, Location::disk) && is_at(copy->to, Location::device),
               in = is_at(copy->from, Location::device) && is_at(copy->to, Location::disk);
    if (!out && !in) continue;
    const std::int64_t bytes = copy->from.span_bytes(),
                       first = offset_of(out ? copy->from : copy->to) % plan.alignment;
    const BufferId staging = add_buffer(plan, {.name = "staging of disks",
                                               .purpose = BufferPurpose::staging,
                                               .bytes = first + bytes,
                                               .location = Location::host});
    const View host(symbolic(staging, first), DType::u8, {bytes});
    const Copy to_host{copy->from, host}, from_host{host, copy->to};
    Op second = copy_op(plan, op, from_host);
    const OpKind kind = op.kind;
    op = copy_op(plan, op, to_host);
    op.kind = second.kind = kind;
    insertions.before(i + 1, std::move(second));
  }
  insertions.apply(plan.ops);
}

}  // namespace

void tiers(Plan& plan, const PlanInputs& in) {
  if (!in.offload.anything()) return;
  Movement(plan, in).run();
  if (!in.offload.device_is_host) go_through_host(plan);
}

}  // namespace tessera::plan
