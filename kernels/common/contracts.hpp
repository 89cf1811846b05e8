// What every back end checks of an operation's arguments before it runs: types, shapes and ranges
// of settings, not what memory holds. Each throws InternalError.
#pragma once

#include "kernels/api/device.hpp"

namespace tessera::kernels {

#define TESSERA_DECLARE(Operation) void check(const Operation&);
TESSERA_EACH_OPERATION(TESSERA_DECLARE)
#undef TESSERA_DECLARE

/// Whether the call has as many bytes of scratch as it needs.
void check_scratch(const KernelCall& call, std::int64_t needed);

/// The part of NormBackward's that its scratch needs.
void check_groups(const NormBackward&);

}  // namespace tessera::kernels
