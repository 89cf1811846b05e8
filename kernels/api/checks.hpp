// What every back end checks of an operation's arguments before it runs: types, shapes and ranges
// of settings, not what memory holds. An operation's `check` stands with its struct and throws
// InternalError; these are the checks that several of them share.
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

/// Documents of B samples of T tokens: absent, or (B, T, 2) i32, which says for each token with
/// which token of its sample its document begins, and behind which it ends. Documents follow one
/// another without gaps.
void check_documents(const View& documents, std::int64_t samples, std::int64_t tokens);

/// 0 <= p < 1, first >= 0, and when p > 0 one i64 index a sample; 0 <= jitter < 1 where the
/// operation can have one, and not both.
void check_dropout(const Dropout& dropout, std::int64_t samples, bool may_jitter = false);

}  // namespace tessera::kernels
