// Attention by cuDNN's fused kernels. A plan is built on the first call of its shape and kept.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/api/attention.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

class Sdpa {
 public:
  /// Opens the library; `most_scores` is sdpa_plan's. Throws DeviceError.
  Sdpa(const Queue& queue, std::int64_t most_scores);
  ~Sdpa();
  Sdpa(const Sdpa&) = delete;
  Sdpa& operator=(const Sdpa&) = delete;

  /// Queues the operation, or does nothing and returns false: where sdpa_plan has nothing for the
  /// call, an address is not a multiple of 16 bytes, or the library refuses the shape or needs more
  /// workspace than planned. Calls of equal shapes get equal answers.
  bool run(const Attention& call);
  bool run(const AttentionBackward& call);

  /// Asks the library now for what run() would ask for later.
  void prepare(const Attention& call);
  void prepare(const AttentionBackward& call);

  /// For each shape that was asked for, whether the library takes it, else why not.
  struct Choice {
    std::string shape, refusal;
  };
  std::vector<Choice> choices() const;
  /// The version of the library.
  std::uint64_t version() const;
  std::int64_t most_scores() const { return most_scores_; }

 private:
  struct Library;
  std::int64_t most_scores_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::kernels::cuda
