// Checks what a table of cached samples holds. Only a back end that reads it on the host can.
#pragma once

#include "kernels/api/cached.hpp"

namespace tessera::kernels::cpu {

/// Refuses more tokens than the call has of a sample, or fewer than none.
void check_cached_rows(const View& cached, std::int64_t tokens);
/// The same, and slots and tokens that a cache (slots, N, C) has no room for.
void check_cached_rows(const View& cached, std::int64_t tokens, const View& cache);

}  // namespace tessera::kernels::cpu
