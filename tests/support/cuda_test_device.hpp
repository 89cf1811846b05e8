// The CUDA back end for tests that hold their data in host memory; the GPU is an emulated one or a
// real one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/api/device.hpp"

namespace tessera::test {

/// The GPU of this program. Without one, as under a sanitizer for threads, nothing else here may be
/// called.
enum class Gpu { none, emulated, real };
Gpu gpu();

/// Has an emulated GPU run its threads in another order. A real one has its own.
void set_schedule(std::uint64_t seed);

/// A device whose calls take views of host memory. Each call's views are copied to device memory,
/// with the alignment that they have, and back; views that overlap still do there. Throws
/// InternalError when the operation writes outside of its views, or into one that it declares as
/// read.
std::unique_ptr<kernels::Device> make_cuda_test_device();

/// Why the current GPU cannot multiply fp8 operands (it is older than compute capability 8.9);
/// nothing where it can, as the emulated one does.
std::optional<std::string> why_no_fp8();

}  // namespace tessera::test
