// What host code uses of the driver's functions.
#pragma once

#include <cstdint>

#include "cuda_runtime_api.h"

using CUdeviceptr = unsigned long long;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUstreamWaitValue_flags { CU_STREAM_WAIT_VALUE_GEQ = 0 };
using PFN_cuStreamWaitValue32_v11070 = CUresult (*)(cudaStream_t stream, CUdeviceptr address,
                                                    std::uint32_t value, unsigned flags);
