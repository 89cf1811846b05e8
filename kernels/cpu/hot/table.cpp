// The table of the loops that are compiled for one instruction set.
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {

#define TESSERA_ENTRY(name, ...) .name = name,
constinit const HotKernels kTable{TESSERA_EACH_HOT_KERNEL(TESSERA_ENTRY)};
#undef TESSERA_ENTRY

}  // namespace tessera::kernels::TESSERA_ISA
