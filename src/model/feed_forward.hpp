// The products of the feed-forward layer of a block: dense, or of experts beside what all tokens go
// through.
#pragma once

#include <optional>
#include <vector>

#include "model/block.hpp"

namespace tessera::model {

/// What the layer makes of saved.h2, in summands of `sum`.
void feed_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, BlockSaved& saved,
                  ChunkSum& sum);

/// The way back, in the order of its functions.
class FeedForwardBackward {
 public:
  /// `d_out`: the gradient of the layer's output, at all positions; `gradients`: of parameters.
  FeedForwardBackward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                      const BlockSaved& saved, const View& d_out, const BlockWeights& gradients,
                      kernels::Write write);
  /// The gradient of what the layer has read, in summands of `sum`. The first of all chunks has the
  /// router's beside its own. Each chunk's matrices are used at once, so that a tile of them is
  /// wanted once.
  void input(ChunkSum& sum);
  /// Gradients of the parameters; those of a dense layer whose rows go through it in groups are
  /// there before.
  void weights() const;

 private:
  void groups(std::size_t i, const View& d_x);

  UnitContext& u_;
  const ModelConfig& c_;
  const BlockWeights& w_;
  const BlockSaved& s_;
  const BlockWeights& g_;
  kernels::Write write_;
  View d_out_;
  bool grouped_;            // UnitContext::inner_rows
  std::vector<View> d_up_;  // of each chunk
  std::optional<ExpertsBackward> experts_;
};

}  // namespace tessera::model
