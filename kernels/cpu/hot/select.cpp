// Chooses the loops of the best instruction set that this CPU has.
#include "core/error.hpp"
#include "kernels/cpu/hot/hot.hpp"

namespace tessera::kernels {

namespace isa_baseline {
extern const HotKernels kTable;
}
#ifdef TESSERA_X86_LEVELS
namespace isa_v3 {
extern const HotKernels kTable;
}
namespace isa_v4 {
extern const HotKernels kTable;
}
#endif

Isa best_isa() {
#ifdef TESSERA_X86_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) return Isa::v4;
  if (__builtin_cpu_supports("x86-64-v3")) return Isa::v3;
#endif
  return Isa::baseline;
}

const HotKernels& hot_kernels(Isa isa) {
  TESSERA_CHECK(isa <= best_isa(), "instruction set {} on a machine that has {}", enum_word(isa),
                enum_word(best_isa()));
#ifdef TESSERA_X86_LEVELS
  if (isa == Isa::v4) return isa_v4::kTable;
  if (isa == Isa::v3) return isa_v3::kTable;
#endif
  return isa_baseline::kTable;
}

}  // namespace tessera::kernels
