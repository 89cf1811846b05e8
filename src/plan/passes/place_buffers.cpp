#include "plan/passes/place_buffers.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "plan/ir/lives.hpp"

namespace tessera::plan {
namespace {

/// Allocates ranges of an arena that grows as needed: takes the smallest hole that is large enough,
/// and joins neighbouring holes.
class FreeList {
 public:
  std::int64_t take(std::int64_t bytes) {
    const auto best = by_size_.lower_bound({bytes, 0});
    if (best == by_size_.end()) {
      // Nothing fits: grow, starting in the last hole if it touches the end.
      std::int64_t offset = end_;
      if (!free_.empty()) {
        const auto last = std::prev(free_.end());
        if (last->first + last->second == end_) offset = remove(last).first;
      }
      end_ = offset + bytes;
      return offset;
    }
    const auto [offset, size] = remove(free_.find(best->second));
    if (size > bytes) add(offset + bytes, size - bytes);
    return offset;
  }
  /// Whether the range was free, and is taken now.
  bool take_at(std::int64_t offset, std::int64_t bytes) {
    auto hole = free_.upper_bound(offset);
    if (hole == free_.begin()) return false;
    hole = std::prev(hole);
    const std::int64_t end = hole->first + hole->second;
    if (offset + bytes > end) return false;
    const std::int64_t begin = remove(hole).first;
    if (begin < offset) add(begin, offset - begin);
    if (offset + bytes < end) add(offset + bytes, end - offset - bytes);
    return true;
  }
  void give(std::int64_t offset, std::int64_t bytes) {
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        bytes += remove(previous).second;
      }
    }
    if (next != free_.end() && offset + bytes == next->first) bytes += remove(next).second;
    add(offset, bytes);
  }
  std::int64_t end() const { return end_; }

 private:
  using Holes = std::map<std::int64_t, std::int64_t>;  // offset -> bytes
  void add(std::int64_t offset, std::int64_t bytes) {
    free_[offset] = bytes;
    by_size_.insert({bytes, offset});
  }
  std::pair<std::int64_t, std::int64_t> remove(Holes::iterator hole) {
    const auto [offset, bytes] = *hole;
    by_size_.erase({bytes, offset});
    free_.erase(hole);
    return {offset, bytes};
  }
  Holes free_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;  // {bytes, offset} of the same
  std::int64_t end_ = 0;
};

}  // namespace

void place_buffers(Plan& plan, const std::vector<BufferId>& like) {
  const std::vector<Life> life = buffer_lives(plan);
  const auto rounded = [&](const Buffer& b) { return round_up(b.bytes, plan.alignment); };
  ArenaBytes end{};  // of each arena, what persists first
  std::vector<std::vector<std::size_t>> born(plan.ops.size()), dead(plan.ops.size());
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    Buffer& buffer = plan.buffers[b];
    if (buffer.persistent) {
      std::int64_t& arena_end = end[arena_of(buffer)];
      buffer.offset = arena_end;
      arena_end += rounded(buffer);
    } else if (life[b].end >= 0) {
      at(born, life[b].begin).push_back(b);
      at(dead, life[b].end).push_back(b);
    }
  }
  PerLocation<FreeList> free;
  const auto free_of = [&](std::size_t b) -> FreeList& { return free[plan.buffers[b].location]; };
  const auto place = [&](std::size_t b) {
    const std::int64_t bytes = rounded(plan.buffers[b]);
    for (BufferId other = like.empty() ? -1 : like[b]; other >= 0; other = at(like, other)) {
      const Buffer& there = plan.buffer(other);
      if (there.location == plan.buffers[b].location && rounded(there) == bytes &&
          there.offset >= 0 && free_of(b).take_at(there.offset, bytes))
        return there.offset;
    }
    return free_of(b).take(bytes);
  };
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    // Large ones first, so that small ones fill what is left.
    std::stable_sort(born[i].begin(), born[i].end(), [&](std::size_t a, std::size_t b) {
      return plan.buffers[a].bytes > plan.buffers[b].bytes;
    });
    for (std::size_t b : born[i]) plan.buffers[b].offset = place(b);
    for (std::size_t b : dead[i]) free_of(b).give(plan.buffers[b].offset, rounded(plan.buffers[b]));
  }
  // Where an arena has both, what lives within a step comes after what persists.
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    Buffer& buffer = plan.buffers[b];
    if (!buffer.persistent && life[b].end >= 0) buffer.offset += end[arena_of(buffer)];
  }
  for (const LocationRow& row : kLocationRows) end[row.step] += free[row.location].end();
  plan.arena_bytes = end;
}

}  // namespace tessera::plan
