// Boxes of a tensor: the hyperslabs that checkpoints are made of. A rank's share of a tensor, under
// any layout, is a few boxes in the tensor's own global coordinates, so any layout can be read into
// any other without knowing either.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/math.hpp"

namespace tessera::io {

inline constexpr int kMaxAxes = 4;
/// No tensor has more elements; keeps every product of coordinates far from overflow.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

/// A coordinate in a tensor; axes are right-aligned, unused leading axes are 0.
using Point = std::array<std::int64_t, kMaxAxes>;

/// A row-major tensor's extents (each at least 1), right-aligned: unused leading axes have extent
/// 1, so that all code loops over four axes whatever the tensor.
struct Shape {
  int axes = 1;
  Point extent{1, 1, 1, 1};

  Shape() = default;
  explicit Shape(std::span<const std::int64_t> extents);
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span(extents.begin(), extents.size())) {}

  std::span<const std::int64_t> extents() const { return used(extent); }
  /// The axes of a point or a count that this tensor has.
  std::span<const std::int64_t> used(const Point& point) const {
    return std::span(point).last(static_cast<std::size_t>(axes));
  }
  std::int64_t elements() const;
  bool operator==(const Shape&) const = default;
};

/// The elements start <= x < start + count; unused leading axes have start 0 and count 1.
struct Box {
  Point start{0, 0, 0, 0};
  Point count{1, 1, 1, 1};

  Box() = default;
  Box(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts);
  Box(std::initializer_list<std::int64_t> starts, std::initializer_list<std::int64_t> counts)
      : Box(std::span(starts.begin(), starts.size()), std::span(counts.begin(), counts.size())) {}
  /// The whole tensor.
  explicit Box(const Shape& shape) : count(shape.extent) {}

  std::int64_t elements() const;
  /// Position of a point in the box's own row-major order.
  std::int64_t index_of(const Point& point) const;
  bool operator==(const Box&) const = default;
};

/// Every count is at least 1 and the box lies within the tensor.
bool inside(const Shape& shape, const Box& box);
std::optional<Box> intersect(const Box& a, const Box& b);

/// The boxes whose elements, one box after another, are the elements [begin, end) of the tensor in
/// row-major order: at most 2 * axes - 1 of them.
std::vector<Box> boxes_of_range(const Shape& shape, Range range);

struct Miscount {
  Point point;         // the first element, in row-major order, that is not held exactly once
  std::int64_t times;  // how many boxes hold it
};

/// Do the boxes (each inside the shape) hold every element exactly once? O(n log n): the indicator
/// functions of boxes add up to that of the tensor if and only if their signed corners do.
std::optional<Miscount> find_miscount(const Shape& shape, std::span<const Box> boxes);

/// "(2, 768)"
std::string to_string(std::span<const std::int64_t> values);

/// Calls copy(a_index, b_index, elements) for each run of `part` that is contiguous in the
/// row-major order of both `a` and `b`, which contain it; as few and long runs as possible.
template <typename Copy>
void for_each_run(const Box& part, const Box& a, const Box& b, Copy&& copy) {
  int axis = kMaxAxes - 1;  // the run covers axes [axis, 4)
  std::int64_t length = part.count[kMaxAxes - 1];
  for (; axis > 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    if (part.count[i] != a.count[i] || part.count[i] != b.count[i]) break;
    length *= part.count[i - 1];
  }
  Point at = part.start;
  while (true) {
    copy(a.index_of(at), b.index_of(at), length);
    int turn = axis - 1;  // the next run: count up the axes before `axis`, last one fastest
    for (; turn >= 0; --turn) {
      const auto i = static_cast<std::size_t>(turn);
      if (++at[i] < part.start[i] + part.count[i]) break;
      at[i] = part.start[i];
    }
    if (turn < 0) return;
  }
}

}  // namespace tessera::io
