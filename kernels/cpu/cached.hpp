// Checks what a table of cached samples holds. Only a back end that reads it on the host can.
#pragma once

#include "kernels/api/cached.hpp"

namespace tessera::kernels::cpu {

/// Refuses more tokens than the call has of a sample, or fewer than none.
void check_cached_rows(const View& cached, std::int64_t tokens);
/// The same, and tokens in pages that a cache (pages, N, C) does not have, or in none.
void check_cached_rows(const View& cached, std::int64_t tokens, const View& pages,
                       const View& cache);

}  // namespace tessera::kernels::cpu
