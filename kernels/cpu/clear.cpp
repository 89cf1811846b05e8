#include "kernels/cpu/clear.hpp"

#include <cstring>

#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void clear_rows(const View& x, int threads) {
  const View m = x.matrix();
  const std::int64_t element = size_of(m.type), width = m.extent(1) * element;
  if (m.dense()) {
    parallel_ranges(threads, m.extent(0) * width, 4096, [&](Range bytes) {
      std::memset(m.data + bytes.begin, 0, static_cast<std::size_t>(bytes.count()));
    });
    return;
  }
  parallel_ranges(threads, m.extent(0), 1, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      std::memset(m.data + r * m.ld * element, 0, static_cast<std::size_t>(width));
    }
  });
}

}  // namespace tessera::kernels::cpu
