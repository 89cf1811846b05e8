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
    split(range.begin);
    split(range.end);
    std::int64_t at = range.begin;
    for (auto it = parts_.lower_bound(at); at < range.end; at = it->second.end, ++it) {
      if (it == parts_.end() || it->first > at) {
        const std::int64_t end = it == parts_.end() ? range.end : std::min(range.end, it->first);
        it = parts_.emplace_hint(it, at, Part{end, T{}});
      }
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
    split(range.begin);
    split(range.end);
    const auto next = parts_.erase(parts_.lower_bound(range.begin), parts_.lower_bound(range.end));
    parts_.emplace_hint(next, range.begin, Part{range.end, value});
  }

 private:
  struct Part {
    std::int64_t end = 0;
    T value;
  };
  void split(std::int64_t at) {
    auto it = parts_.upper_bound(at);
    if (it == parts_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    parts_.emplace_hint(std::next(it), at, it->second);
    it->second.end = at;
  }
  std::map<std::int64_t, Part> parts_;  // by begin
};

}  // namespace tessera
