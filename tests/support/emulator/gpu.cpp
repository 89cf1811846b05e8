#include "emulator.hpp"
#include "support/cuda_test_device.hpp"

namespace tessera::test {

Gpu gpu() { return Gpu::emulated; }
void set_schedule(std::uint64_t seed) { emulator::set_seed(seed); }

}  // namespace tessera::test
