#include "io/box.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace tessera::io {
namespace {

Point right_aligned(std::span<const std::int64_t> values, std::int64_t fill) {
  TESSERA_CHECK(!values.empty() && values.size() <= kMaxAxes, "{} axes", values.size());
  Point point;
  point.fill(fill);
  std::copy(values.begin(), values.end(), point.end() - static_cast<std::ptrdiff_t>(values.size()));
  return point;
}

std::int64_t product(const Point& counts) { return counts[0] * counts[1] * counts[2] * counts[3]; }

/// Appends the boxes of elements [range) of the sub-tensor at start[0..axis).
void append_boxes(const Shape& shape, std::size_t axis, Point start, Range range,
                  std::vector<Box>& boxes) {
  std::int64_t row = 1;  // elements of one index of this axis
  for (std::size_t i = axis + 1; i < kMaxAxes; ++i) row *= shape.extent[i];

  const auto descend = [&](std::int64_t index, Range within) {
    start[axis] = index;
    append_boxes(shape, axis + 1, start, within, boxes);
  };
  const std::int64_t first = range.begin / row, last = range.end / row;
  const std::int64_t head = range.begin % row, tail = range.end % row;
  if (first == last) return descend(first, {head, tail});

  if (head > 0) descend(first, {head, row});
  if (const std::int64_t whole = ceil_div(range.begin, row); whole < last) {
    Box box(shape);
    box.start = start;
    std::fill(box.start.begin() + static_cast<std::ptrdiff_t>(axis), box.start.end(), 0);
    std::fill_n(box.count.begin(), axis, 1);
    box.start[axis] = whole;
    box.count[axis] = last - whole;
    boxes.push_back(box);
  }
  if (tail > 0) descend(last, {0, tail});
}

}  // namespace

Shape::Shape(std::span<const std::int64_t> extents)
    : axes(static_cast<int>(extents.size())), extent(right_aligned(extents, 1)) {
  std::int64_t all = 1;
  for (const std::int64_t n : extents) {
    TESSERA_CHECK(n >= 1 && n <= kMaxElements / all, "extents {}", to_string(extents));
    all *= n;
  }
}

std::int64_t Shape::elements() const { return product(extent); }

Box::Box(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts)
    : start(right_aligned(starts, 0)), count(right_aligned(counts, 1)) {}

std::int64_t Box::elements() const { return product(count); }

std::int64_t Box::index_of(const Point& point) const {
  std::int64_t index = 0;
  for (std::size_t i = 0; i < kMaxAxes; ++i) index = index * count[i] + (point[i] - start[i]);
  return index;
}

bool inside(const Shape& shape, const Box& box) {
  for (std::size_t i = 0; i < kMaxAxes; ++i) {
    if (box.start[i] < 0 || box.count[i] < 1 || box.start[i] >= shape.extent[i] ||
        box.count[i] > shape.extent[i] - box.start[i])
      return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box both;
  for (std::size_t i = 0; i < kMaxAxes; ++i) {
    const Range r = intersect(Range{a.start[i], a.start[i] + a.count[i]},
                              Range{b.start[i], b.start[i] + b.count[i]});
    if (r.empty()) return std::nullopt;
    both.start[i] = r.begin;
    both.count[i] = r.count();
  }
  return both;
}

std::vector<Box> boxes_of_range(const Shape& shape, Range range) {
  TESSERA_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= shape.elements(),
                "elements [{}, {}) of {}", range.begin, range.end, shape.elements());
  std::vector<Box> boxes;
  if (!range.empty()) append_boxes(shape, 0, Point{}, range, boxes);
  return boxes;
}

std::optional<Miscount> find_miscount(const Shape& shape, std::span<const Box> boxes) {
  std::vector<std::size_t> axes;  // those with more than one index
  for (std::size_t i = 0; i < kMaxAxes; ++i) {
    if (shape.extent[i] > 1) axes.push_back(i);
  }
  // A corner's key orders points as row-major order does; coordinates reach extent itself.
  std::vector<std::pair<std::int64_t, std::int64_t>> corners;  // key, sign
  corners.reserve((boxes.size() + 1) << axes.size());
  const auto add_corners = [&](const Box& box, std::int64_t sign) {
    for (unsigned mask = 0; mask < (1U << axes.size()); ++mask) {
      std::int64_t key = 0, signed_one = sign;
      for (std::size_t i = 0; i < axes.size(); ++i) {
        const bool upper = (mask >> i) & 1U;
        const std::size_t axis = axes[i];
        key = key * (shape.extent[axis] + 1) + box.start[axis] + (upper ? box.count[axis] : 0);
        if (upper) signed_one = -signed_one;
      }
      corners.emplace_back(key, signed_one);
    }
  };
  add_corners(Box(shape), -1);
  for (const Box& box : boxes) add_corners(box, 1);
  std::sort(corners.begin(), corners.end());

  for (std::size_t i = 0; i < corners.size();) {
    std::int64_t key = corners[i].first, sum = 0;
    for (; i < corners.size() && corners[i].first == key; ++i) sum += corners[i].second;
    if (sum == 0) continue;
    // All corners before this one cancel, so here the count is wrong by exactly `sum`.
    Miscount found{{}, 1 + sum};
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      found.point[*axis] = key % (shape.extent[*axis] + 1);
      key /= shape.extent[*axis] + 1;
    }
    return found;
  }
  return std::nullopt;
}

std::string to_string(std::span<const std::int64_t> values) {
  return fmt::format("({})", fmt::join(values, ", "));
}

}  // namespace tessera::io
