// Checks that several operations share, whatever the back end.
#pragma once

#include <initializer_list>

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// Absent views pass; the others must be f32, bf16 or f16.
void check_floats(std::initializer_list<View> views);
/// All present views have the first one's type.
void check_same_type(std::initializer_list<View> views);
/// All present views have the first one's rows and columns.
void check_same_matrix(std::initializer_list<View> views);
/// All are present, dense, and hold `count` elements of `type`.
void check_flat(std::initializer_list<View> views, DType type, std::int64_t count);
/// 0 <= p < 1, first >= 0, and when p > 0 one i64 index a sample.
void check_dropout(const Dropout& dropout, std::int64_t samples);

}  // namespace tessera::kernels
