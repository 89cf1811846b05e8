// A view: typed, shaped access to bytes that someone else owns. The address may be real (host or
// device memory) or symbolic (a buffer of a plan that is being made). Code that only passes views
// on cannot tell which, and must not dereference them.
#pragma once

#include <array>
#include <initializer_list>
#include <span>

#include "core/dtype.hpp"
#include "core/error.hpp"

namespace tessera {

/// Row-major, up to four axes. All axes but the last two are dense over each other; `ld` is the
/// distance in elements between consecutive indices of the last-but-one axis (so a view can be a
/// column range of a wider matrix). A default-constructed view is "absent".
struct View {
  static constexpr int kMaxRank = 4;

  std::byte* data = nullptr;
  DType type = DType::f32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::int64_t ld = 0;

  View() = default;
  View(std::byte* bytes, DType element, std::span<const std::int64_t> extents)
      : data(bytes), type(element), rank(static_cast<int>(extents.size())) {
    TESSERA_CHECK(rank >= 1 && rank <= kMaxRank, "a view of {} axes", rank);
    for (int i = 0; i < rank; ++i)
      shape[static_cast<std::size_t>(i)] = extents[static_cast<std::size_t>(i)];
    ld = cols();
  }
  View(std::byte* bytes, DType element, std::initializer_list<std::int64_t> extents)
      : View(bytes, element, std::span(extents.begin(), extents.size())) {}

  explicit operator bool() const { return data != nullptr; }
  bool operator==(const View&) const = default;

  std::int64_t extent(int axis) const { return shape[static_cast<std::size_t>(axis)]; }
  /// Extent of the last axis.
  std::int64_t cols() const { return rank == 0 ? 0 : extent(rank - 1); }
  /// Product of all axes but the last.
  std::int64_t rows() const {
    std::int64_t n = rank == 0 ? 0 : 1;
    for (int i = 0; i + 1 < rank; ++i) n *= extent(i);
    return n;
  }
  std::int64_t elements() const { return rows() * cols(); }
  bool dense() const { return rank <= 1 || ld == cols(); }
  /// Bytes from the first to one past the last element, gaps between rows included.
  std::int64_t span_bytes() const {
    const std::int64_t n = elements();
    return n == 0 ? 0 : ((rows() - 1) * (rank <= 1 ? 0 : ld) + cols()) * size_of(type);
  }

  /// The same elements under another shape; this view must be dense.
  View reshaped(std::initializer_list<std::int64_t> extents) const {
    TESSERA_CHECK(dense(), "reshape of a strided view");
    View v(data, type, extents);
    TESSERA_CHECK(v.elements() == elements(), "reshape of {} elements to {}", elements(),
                  v.elements());
    return v;
  }
  /// (rows, cols) with the leading axes merged; keeps the row distance.
  View matrix() const {
    View v = *this;
    v.rank = 2;
    v.shape = {rows(), cols(), 0, 0};
    v.ld = rank <= 1 ? cols() : ld;
    return v;
  }
  /// Rows [begin, begin + count) of matrix().
  View row_range(std::int64_t begin, std::int64_t count) const {
    View v = matrix();
    TESSERA_CHECK(begin >= 0 && count >= 0 && begin + count <= v.shape[0], "rows {}+{} of {}",
                  begin, count, v.shape[0]);
    v.data += begin * v.ld * size_of(type);
    v.shape[0] = count;
    return v;
  }
  /// Columns [begin, begin + count) of the last axis; the leading axes and the row distance stay.
  View col_range(std::int64_t begin, std::int64_t count) const {
    TESSERA_CHECK(begin >= 0 && count >= 0 && begin + count <= cols(), "columns {}+{} of {}", begin,
                  count, cols());
    View v = *this;
    v.ld = rank <= 1 ? cols() : ld;
    v.data += begin * size_of(type);
    v.shape[static_cast<std::size_t>(rank - 1)] = count;
    return v;
  }
  /// Elements [begin, begin + count) of a dense view, as one axis.
  View range(std::int64_t begin, std::int64_t count) const {
    TESSERA_CHECK(dense() && begin >= 0 && count >= 0 && begin + count <= elements(),
                  "elements {}+{} of {}", begin, count, elements());
    return View(data + begin * size_of(type), type, {count});
  }

  template <typename T>
  T* as() const {
    TESSERA_DCHECK(DTypeOf<T>::value == type, "view of {} used as {}", to_string(type),
                   to_string(DTypeOf<T>::value));
    return reinterpret_cast<T*>(data);
  }
};

}  // namespace tessera
