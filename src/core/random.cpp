#include "core/random.hpp"

#include <cmath>
#include <numbers>

namespace tessera {

double random_normal(RandomKey key, std::uint64_t stream, std::uint64_t index) {
  // Elements 2i and 2i + 1 are the cosine and sine of one draw of two 32-bit uniforms.
  const auto w = random_block(key, stream, index / 2);
  const double u = (static_cast<double>(w[0]) + 0.5) * 0x1p-32;
  const double v = (static_cast<double>(w[1]) + 0.5) * 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace tessera
