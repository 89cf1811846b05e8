// How fast the CPU's memory is.
#pragma once

#include <cstdint>

namespace tessera::kernels::cpu {

/// a = b + 3 c over n elements each (STREAM's triad, McCalpin 1995), divided over the threads.
void triad(int threads, std::int64_t n, const float* b, const float* c, float* a);

}  // namespace tessera::kernels::cpu
