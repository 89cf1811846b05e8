// The instruction sets that hot loops are compiled for.
#pragma once

#include "core/enums.hpp"

namespace tessera::kernels {

/// Levels of x86-64 (SSE2; AVX2 with FMA; AVX-512), and the last one with instructions for matrices
/// of bf16 (AMX); other processors have the baseline only.
enum class Isa : std::uint8_t { baseline, v3, v4, amx };

/// The best level of this machine.
Isa best_isa();

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::Isa> {
  static constexpr std::array table = {std::pair{tessera::kernels::Isa::baseline, "baseline"},
                                       std::pair{tessera::kernels::Isa::v3, "x86-64-v3"},
                                       std::pair{tessera::kernels::Isa::v4, "x86-64-v4"},
                                       std::pair{tessera::kernels::Isa::amx, "x86-64-v4 with AMX"}};
};
