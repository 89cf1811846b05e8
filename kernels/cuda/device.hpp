// The CUDA back end: every operation on the current device's memory, queued on a stream.
#pragma once

#include <memory>

#include "kernels/api/device.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/matmul.hpp"
#include "kernels/cuda/sdpa.hpp"

namespace tessera::kernels {

/// Libraries that the device uses, opened for the CUDA device that is current now. Whoever makes
/// them may ask and set how products are computed.
struct CudaLibraries {
  cuda::Matmul matmul;
  cuda::Sdpa sdpa;

  /// `most_scores`: bytes that cuDNN may have for the gradients of one sample's scores
  /// (cuda::sdpa_plan). `driver`: that of cuda::GemmMachine. Both are the same on all ranks.
  CudaLibraries(const cuda::Queue& queue, std::int64_t most_scores, int driver)
      : matmul(queue, driver), sdpa(queue, most_scores) {}
};

/// Runs on the CUDA device that is current now; `queue` and `libraries` must outlive it. run()
/// returns when the work is queued on the queue's stream of that moment. Bits of a result depend on
/// the call's shapes, types and settings only: not on addresses (a product's: on their alignment
/// alone), nor on how many multiprocessors there are, nor, without SumOrder::any, on the moment.
/// Throws InternalError for arguments that break an operation's contract. What lies in device
/// memory cannot be refused: a row with a token or a target outside of the vocabulary becomes NaN,
/// and EmbedBackward leaves it out.
std::unique_ptr<Device> make_cuda_device(const cuda::Queue& queue, CudaLibraries& libraries,
                                         const cuda::ProductRules& rules);

/// What Matmul::choose times in parts with, as such a device computes them.
cuda::OwnKernels own_kernels(const cuda::Queue& queue, CudaLibraries& libraries,
                             const cuda::ProductRules& rules);

}  // namespace tessera::kernels
