// Chooses the loops of the best instruction set that this CPU has.
#include "core/error.hpp"
#include "kernels/cpu/hot/hot.hpp"

#ifdef TESSERA_X86_LEVELS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
namespace isa_amx {  // of these there are TESSERA_EACH_MATRIX_KERNEL
#define TESSERA_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__> name;
TESSERA_EACH_HOT_KERNEL(TESSERA_DECLARE)
#undef TESSERA_DECLARE
}  // namespace isa_amx

namespace {

/// What there is with instructions for matrices; all else is without.
const HotKernels& amx_table() {
  static const HotKernels table = [] {
    HotKernels t = isa_v4::kTable;
#define TESSERA_REPLACE(name) t.name = isa_amx::name;
    TESSERA_EACH_MATRIX_KERNEL(TESSERA_REPLACE)
#undef TESSERA_REPLACE
    return t;
  }();
  return table;
}

/// Whether the processor multiplies matrices of bf16 and rounds to it, and the kernel lets this
/// process have the registers for it, which it is asked for (arch_prctl(2), ARCH_REQ_XCOMP_PERM).
bool has_matrices() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if (__builtin_cpu_supports("avx512bf16") == 0) return false;
  constexpr unsigned kBf16 = 1U << 22, kTiles = 1U << 24;
  if ((d & kBf16) == 0 || (d & kTiles) == 0) return false;
  constexpr long kAsk = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
}

}  // namespace
#endif

Isa best_isa() {
#ifdef TESSERA_X86_LEVELS
  static const Isa best = [] {
    if (__builtin_cpu_supports("x86-64-v4")) return has_matrices() ? Isa::amx : Isa::v4;
    if (__builtin_cpu_supports("x86-64-v3")) return Isa::v3;
    return Isa::baseline;
  }();
  return best;
#else
  return Isa::baseline;
#endif
}

const HotKernels& hot_kernels(Isa isa) {
  TESSERA_CHECK(isa <= best_isa(), "instruction set {} on a machine that has {}", enum_word(isa),
                enum_word(best_isa()));
#ifdef TESSERA_X86_LEVELS
  if (isa == Isa::amx) return amx_table();
  if (isa == Isa::v4) return isa_v4::kTable;
  if (isa == Isa::v3) return isa_v3::kTable;
#endif
  return isa_baseline::kTable;
}

}  // namespace tessera::kernels
