// The back end of NVIDIA GPUs; a part of the program where it is built with CUDA.
#pragma once

#include "backend/backend.hpp"

namespace tessera::backend {

/// Makes a GPU this rank's, and all that computes on it. Collective over the ranks, if there are
/// any. Throws on every rank: DeckError where one has no GPU to use, DeviceError where a GPU that
/// is there does not serve, or where GPUs differ.
Backend make_cuda_backend(const Settings& settings, const Ranks* ranks);

}  // namespace tessera::backend
