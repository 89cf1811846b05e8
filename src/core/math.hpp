// Small integer maths that every folder needs.
#pragma once

#include <cstdint>

namespace tessera {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t multiple) {
  return ceil_div(a, multiple) * multiple;
}

/// The half-open range [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  constexpr std::int64_t count() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
  constexpr bool operator==(const Range&) const = default;
};

constexpr Range intersect(Range a, Range b) {
  const Range r{a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return r.empty() ? Range{r.begin, r.begin} : r;
}

/// A block of a matrix; a vector is one column.
struct MatrixRange {
  Range rows, columns;
  constexpr std::int64_t elements() const { return rows.count() * columns.count(); }
  constexpr bool operator==(const MatrixRange&) const = default;
};

/// What part `index` of `parts` owns of `count` granules: [floor(i n / p), floor((i + 1) n / p)).
constexpr Range even_part(std::int64_t count, std::int64_t index, std::int64_t parts) {
  return {index * count / parts, (index + 1) * count / parts};
}

}  // namespace tessera
