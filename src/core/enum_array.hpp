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

}  // namespace tessera
