// Declares the functions of HotKernels in the namespace of the instruction set being compiled for.
#pragma once

#include "kernels/cpu/hot/hot.hpp"
#include "kernels/cpu/hot/vec.hpp"

namespace tessera::kernels::TESSERA_ISA {

#define TESSERA_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__> name;
TESSERA_EACH_HOT_KERNEL(TESSERA_DECLARE)
#undef TESSERA_DECLARE

extern const HotKernels kTable;

}  // namespace tessera::kernels::TESSERA_ISA
