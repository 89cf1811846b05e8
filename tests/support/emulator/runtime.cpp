// CUDA's runtime functions for memory and devices, on the host's memory.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "cuda_runtime_api.h"
#include "emulator.hpp"
#include "support/emulator/streams.hpp"

using tessera::emulator::queue_work;

namespace {

constexpr int kMultiprocessors = 3;  // few, so that tests' grids wrap around

struct Opted {
  std::mutex mutex;
  std::size_t most = tessera::emulator::kSharedBytes;
  std::map<const void*, std::size_t> bytes;  // by kernel
};
Opted& opted() {
  static Opted one;
  return one;
}

}  // namespace

void tessera::emulator::set_shared_bytes(std::size_t bytes) {
  Opted& all = opted();
  const std::lock_guard lock(all.mutex);
  all.most = bytes;
}

std::size_t tessera::emulator::shared_limit(const void* kernel) {
  Opted& all = opted();
  const std::lock_guard lock(all.mutex);
  const auto found = all.bytes.find(kernel);
  return found == all.bytes.end() ? kSharedBytesByDefault : found->second;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  Opted& all = opted();
  const std::lock_guard lock(all.mutex);
  if (value < 0 || static_cast<std::size_t>(value) > all.most) return cudaErrorInvalidValue;
  all.bytes[kernel] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: {
      const std::lock_guard lock(opted().mutex);
      *value = static_cast<int>(opted().most);
      break;
    }
  }
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  *p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;  // of memory that there need not be
  return queue_work(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) {
  return queue_work(stream, [=] { std::memset(p, value, bytes); });
}
cudaError_t cudaMemset2DAsync(void* p, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  return queue_work(stream, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memset(static_cast<char*>(p) + row * pitch, value, width);
  });
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 40;
  return cudaSuccess;
}
