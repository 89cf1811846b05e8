#include "core/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "core/error.hpp"

namespace tessera {

CoreMask own_cores() {
  constexpr int kCores = CoreMask().size();
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kCores),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kCores);
  if (!set) throw std::bad_alloc();
  TESSERA_CHECK(sched_getaffinity(0, bytes, set.get()) == 0, "sched_getaffinity: {}",
                errno_text(errno));
  CoreMask mask;
  for (std::size_t core = 0; core < mask.size(); ++core)
    mask[core] = CPU_ISSET_S(core, bytes, set.get()) != 0;
  return mask;
}

int cores_each(std::span<const CoreMask> masks) {
  std::vector<int> sharers(CoreMask().size());
  for (const CoreMask& mask : masks) {
    for (std::size_t core = 0; core < mask.size(); ++core) sharers[core] += mask[core] ? 1 : 0;
  }
  double least = std::numeric_limits<int>::max();
  for (const CoreMask& mask : masks) {
    double share = 1e-6;  // thirds add up to a little less than 1
    for (std::size_t core = 0; core < mask.size(); ++core)
      share += mask[core] ? 1.0 / sharers[core] : 0.0;
    least = std::min(least, share);
  }
  return std::max(1, static_cast<int>(least));
}

}  // namespace tessera
