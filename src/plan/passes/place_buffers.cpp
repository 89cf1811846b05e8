#include "plan/passes/place_buffers.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "plan/ir/lives.hpp"

namespace tessera::plan {
namespace {

std::int64_t rounded(const Plan& plan, const Buffer& buffer) {
  return round_up(buffer.bytes, plan.alignment);
}
/// Whether it lives within a step, at all.
bool is_placed(const Buffer& buffer, const Life& life) {
  return !buffer.persistent && life.end >= 0;
}

/// By buffer, whether it comes before others, so that all data ranks have it in the same place,
/// which NCCL's registered memory wants (comm::Traffic::replicas). Where an optimizer needs whole
/// matrices, ranks have different ones, with different scratch: there it is what data ranks
/// exchange. Else all ranks have buffers of one size, and none comes first.
std::vector<bool> comes_first(const Plan& plan) {
  std::vector<bool> first(plan.buffers.size());
  const auto of_matrices = [](const Op& op) { return op.kind == OpKind::matrices; };
  if (std::ranges::none_of(plan.ops, of_matrices)) return first;
  for (const Op& op : plan.ops) {
    if (op.group != MeshGroup::data || !std::holds_alternative<comm::CollectiveCall>(op.call))
      continue;
    for (const BufferUse& use : uses_of(op)) first[static_cast<std::size_t>(use.buffer)] = true;
  }
  return first;
}

/// Buffers that lie in one place, one after another.
struct Place {
  std::int64_t bytes = 0, offset = 0, number = 0;
  Location location = Location::device;
  bool first = false;
  std::vector<Life> lives;  // in their order
  std::vector<std::size_t> buffers;

  bool meets(const Place& other) const {
    for (std::size_t i = 0, k = 0; i < lives.size() && k < other.lives.size();) {
      const Life &mine = lives[i], &theirs = other.lives[k];
      if (mine.end < theirs.begin) {
        ++i;
      } else if (theirs.end < mine.begin) {
        ++k;
      } else {
        return true;
      }
    }
    return false;
  }
};

std::vector<Place> places_of(const Plan& plan, const std::vector<Life>& life,
                             const std::vector<BufferId>& like) {
  const std::vector<bool> first = comes_first(plan);
  std::vector<std::size_t> in_order;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (is_placed(plan.buffers[b], life[b])) in_order.push_back(b);
  std::ranges::stable_sort(in_order, {}, [&](std::size_t b) { return life[b].begin; });
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<std::size_t> place_of(plan.buffers.size(), kNone);
  std::vector<Place> places;
  for (const std::size_t b : in_order) {
    const Buffer& buffer = plan.buffers[b];
    std::size_t& own = place_of[b];
    if (!like.empty() && like[b] >= 0) own = at(place_of, like[b]);
    const bool fits = own != kNone && places[own].location == buffer.location &&
                      places[own].bytes == rounded(plan, buffer) && places[own].first == first[b] &&
                      places[own].lives.back().end < life[b].begin;
    if (!fits) {
      own = places.size();
      places.push_back(
          {.bytes = rounded(plan, buffer), .location = buffer.location, .first = first[b]});
    }
    places[own].lives.push_back(life[b]);
    places[own].buffers.push_back(b);
  }
  return places;
}

/// The smallest range that is large enough between those that are taken, or the first behind them.
std::int64_t offset_between(std::vector<Range> taken, std::int64_t bytes) {
  std::ranges::sort(taken, {}, &Range::begin);
  std::int64_t end = 0, best = -1, room = std::numeric_limits<std::int64_t>::max();
  for (const Range& r : taken) {
    const std::int64_t hole = r.begin - end;
    if (hole >= bytes && hole < room) best = end, room = hole;
    end = std::max(end, r.end);
  }
  return best >= 0 ? best : end;
}

/// Ranges that are taken while a place's buffers live.
class Taken {
 public:
  Taken(std::size_t ops, std::size_t places)
      : living_(ops / kOpsTogether + 1), born_(living_.size()), seen_(places) {}

  void add(const Place& place) {
    for (const Life& life : place.lives) {
      at(born_, life.begin / kOpsTogether).push_back(&place);
      for (std::int64_t t = life.begin / kOpsTogether; t <= life.end / kOpsTogether; ++t)
        at(living_, t).push_back(&place);
    }
  }
  /// What lives with a buffer lives where it begins, or begins later.
  std::vector<Range> beside(const Place& place) {
    std::vector<Range> ranges;
    ++asked_;
    const auto look = [&](const std::vector<const Place*>& there) {
      for (const Place* other : there) {
        if (std::exchange(at(seen_, other->number), asked_) == asked_) continue;
        if (other->location == place.location && place.meets(*other))
          ranges.push_back({other->offset, other->offset + other->bytes});
      }
    };
    for (const Life& life : place.lives) {
      look(at(living_, life.begin / kOpsTogether));
      for (std::int64_t t = life.begin / kOpsTogether + 1; t <= life.end / kOpsTogether; ++t)
        look(at(born_, t));
    }
    return ranges;
  }

 private:
  static constexpr std::int64_t kOpsTogether = 16;
  std::vector<std::vector<const Place*>> living_, born_;  // by time, in so many ops
  std::vector<std::int64_t> seen_;                        // by place, when it was seen last
  std::int64_t asked_ = 0;
};

/// The largest come first, so that small ones fill what is left (greedy by size: Pisarchyk and Lee
/// 2020, Efficient Memory Management for Deep Neural Net Inference, section 5).
PerLocation<std::int64_t> place_by_size(Plan& plan, const std::vector<Life>& life,
                                        const std::vector<BufferId>& like) {
  std::vector<Place> places = places_of(plan, life, like);
  std::ranges::stable_sort(places, std::ranges::greater(),
                           [](const Place& p) { return std::pair(p.first, p.bytes); });
  PerLocation<std::int64_t> ends{};
  Taken taken(plan.ops.size(), places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Place& place = places[i];
    place.number = static_cast<std::int64_t>(i);
    place.offset = offset_between(taken.beside(place), place.bytes);
    taken.add(place);
    std::int64_t& end = ends[place.location];
    end = std::max(end, place.offset + place.bytes);
    for (const std::size_t b : place.buffers) plan.buffers[b].offset = place.offset;
  }
  return ends;
}

}  // namespace

void place_buffers(Plan& plan, const std::vector<BufferId>& like) {
  const std::vector<Life> life = buffer_lives(plan);
  ArenaBytes end{};  // of each arena, what persists first
  // Data ranks exchange parameters, and have different state beside them: these come first, in
  // every plan, for all of a run's plans have the same state.
  for (const bool parameters : {true, false}) {
    for (Buffer& buffer : plan.buffers) {
      if (!buffer.persistent || (buffer.purpose == BufferPurpose::parameters) != parameters)
        continue;
      std::int64_t& arena_end = end[arena_of(buffer)];
      buffer.offset = arena_end;
      arena_end += rounded(plan, buffer);
    }
  }
  const PerLocation<std::int64_t> ends = place_by_size(plan, life, like);
  // Where an arena has both, what lives within a step comes after what persists.
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    Buffer& buffer = plan.buffers[b];
    if (is_placed(buffer, life[b])) buffer.offset += end[arena_of(buffer)];
  }
  for (const LocationRow& row : kLocationRows) end[row.step] += ends[row.location];
  plan.arena_bytes = end;
}

}  // namespace tessera::plan
