// An array that has an element for each value of an enum, and is indexed by it alone.
#pragma once

#include <array>
#include <cstddef>

namespace tessera {

/// The enum's values are 0 to kCount - 1.
template <typename Enum, typename T, std::size_t kCount>
struct EnumArray : std::array<T, kCount> {
  using std::array<T, kCount>::operator[];
  constexpr T& operator[](Enum e) { return this->begin()[static_cast<std::ptrdiff_t>(e)]; }
  constexpr const T& operator[](Enum e) const {
    return this->begin()[static_cast<std::ptrdiff_t>(e)];
  }
};

/// Whether row i of a table is that of the enum's value i, so that values are places in it.
template <typename Rows, typename Row, typename Enum>
constexpr bool indexed_by(Enum Row::*value, const Rows& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<std::size_t>(rows[i].*value) != i) return false;
  }
  return true;
}

}  // namespace tessera
