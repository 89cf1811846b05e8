// Values over disjoint ranges of integers: who wrote these bytes last, say.
#pragma once

#include <algorithm>
#include <map>
#include <type_traits>

#include "core/math.hpp"

namespace tessera {

template <typename T>
class RangeMap {
 public:
  /// f(value), or f(its range, value), for the values that make up `range`: at its ends they are
  /// split, where there was none yet it is T{}.
  template <typename F>
  void each(Range range, F&& f) {
    if (range.empty()) return;
    auto it = split(range.begin);
    for (std::int64_t at = range.begin; at < range.end; at = it->second.end, ++it) {
      if (it == parts_.end() || it->first > at) {
        const std::int64_t end = it == parts_.end() ? range.end : std::min(range.end, it->first);
        it = parts_.emplace_hint(it, at, Part{end, T{}});
      }
      cut(it, range.end);
      if constexpr (std::is_invocable_v<F, Range, T&>) {
        f(Range{it->first, it->second.end}, it->second.value);
      } else {
        f(it->second.value);
      }
    }
  }
  /// The whole range has one value.
  void assign(Range range, const T& value) {
    if (range.empty()) return;
    auto it = split(range.begin);
    if (it == parts_.end() || it->first != range.begin) {
      it = parts_.emplace_hint(it, range.begin, Part{range.end, value});
    } else {
      cut(it, range.end);
      it->second = {range.end, value};
    }
    for (++it; it != parts_.end() && it->first < range.end; it = parts_.erase(it))
      cut(it, range.end);
  }

 private:
  struct Part {
    std::int64_t end = 0;
    T value;
  };
  using Parts = std::map<std::int64_t, Part>;  // by begin
  /// What reaches beyond `at` becomes a part of its own.
  void cut(typename Parts::iterator it, std::int64_t at) {
    if (it->second.end <= at) return;
    parts_.emplace_hint(std::next(it), at, it->second);
    it->second.end = at;
  }
  /// The first part that begins at `at` or behind it, none reaching over `at`.
  typename Parts::iterator split(std::int64_t at) {
    const auto it = parts_.lower_bound(at);
    if (it == parts_.begin() || (it != parts_.end() && it->first == at)) return it;
    const auto before = std::prev(it);
    cut(before, at);
    return std::next(before);
  }
  Parts parts_;
};

}  // namespace tessera
