// Indices that are signed numbers or values of enumerations.
#pragma once

#include <cstddef>
#include <utility>

namespace tessera {

/// container[i]; not checked.
template <typename Container, typename Index>
constexpr decltype(auto) at(Container&& container, Index i) {
  return std::forward<Container>(container)[static_cast<std::size_t>(i)];
}

}  // namespace tessera
