// The CUDA back end behind memory that tests can reach: an emulated GPU's, or a real one's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kernels/api/device.hpp"

namespace tessera::test {

/// A device whose calls take views of host memory. Each call's views are copied to device memory,
/// with the alignment that they have, and back; overlapping views stay so. Throws InternalError
/// when the operation writes beside its views, or into one that it says it reads.
std::unique_ptr<kernels::Device> make_cuda_test_device();

/// Why the GPU that is current multiplies no fp8 operands: it is older than compute capability 8.9.
/// Nothing where it does, as an emulated one.
std::optional<std::string> why_no_fp8();

}  // namespace tessera::test
