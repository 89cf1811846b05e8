// Chunks, which follow one another until they are all.
#pragma once

#include <map>

#include "plan/proof/reject.hpp"

namespace tessera::plan {

/// Follows what goes in chunks, by the buffer that has it or gets it: they come in order, and each
/// once.
class InTurn {
 public:
  explicit InTurn(const Plan& plan) : plan_(plan) {}

  /// Op `at` takes the elements `chunk` of 0 .. n. Whether they are the last ones.
  bool take(std::size_t at, BufferId buffer, const Range& chunk, std::int64_t n) {
    const auto [it, begins] = next_.try_emplace(buffer, 0, at);
    if (chunk.begin != it->second.first || chunk.begin >= chunk.end || chunk.end > n)
      reject(plan_, at,
             fmt::format("takes elements {}..{} of {} after {}", chunk.begin, chunk.end,
                         plan_.buffer(buffer).name, it->second.first));
    it->second = {chunk.end, at};
    if (chunk.end < n) return false;
    next_.erase(it);
    return true;
  }
  /// Whether only some of the buffer's chunks have come yet.
  bool partly(BufferId buffer) const { return next_.contains(buffer); }
  /// Throws InternalError where some are missing in the end.
  void end() const {
    for (const auto& [buffer, next] : next_)
      reject(plan_, next.second,
             fmt::format("takes a chunk of {}, but others never come", plan_.buffer(buffer).name));
  }

 private:
  const Plan& plan_;
  std::map<BufferId, std::pair<std::int64_t, std::size_t>> next_;  // element; the last op
};

}  // namespace tessera::plan
