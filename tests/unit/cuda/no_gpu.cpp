// What links the emulated kernels has no real back end of a GPU.
#ifdef TESSERA_HAVE_CUDA
#include "backend/cuda/cuda_backend.hpp"

namespace tessera::backend {
Backend make_cuda_backend(const Settings&, const Ranks*) {
  throw DeviceError("a test without a GPU");
}
}  // namespace tessera::backend
#endif
