// Clearing a matrix with the team.
#pragma once

#include "core/view.hpp"

namespace tessera::kernels::cpu {

/// Sets a matrix to 0, gaps between rows excluded.
void clear_rows(const View& x, int threads);

}  // namespace tessera::kernels::cpu
