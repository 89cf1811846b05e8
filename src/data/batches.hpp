// The tokens of a step, read ahead by a thread of their own so that loading does not stall a step.
#pragma once

#include <future>
#include <thread>
#include <vector>

#include "data/samples.hpp"
#include "io/token_files.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::data {

/// Which samples of a step a data rank's micro-batches have. The set and order of a step's samples
/// never depend on the layout; only which rank computes them does. Under zero.reduce "step" a rank
/// has consecutive micro-batches, under "micro" every D-th, so that both add gradients in one order
/// (aligned trees).
struct BatchShare {
  std::int64_t data_ranks = 1, data_rank = 0;
  std::int64_t sequence = 0;  // tokens of each sample
  std::int64_t micro = 1, micro_batches = 1;
  ReduceWhen reduce = ReduceWhen::step;

  /// Offset, within the step's global batch, of the first sample of micro-batch k.
  std::int64_t first_sample(std::int64_t k) const {
    const std::int64_t leaf =
        reduce == ReduceWhen::step ? data_rank * micro_batches + k : k * data_ranks + data_rank;
    return leaf * micro;
  }
  bool operator==(const BatchShare&) const = default;
};

class Batches {
 public:
  Batches(const io::TokenCorpus& corpus, SampleBegin begin_of)
      : corpus_(corpus), begin_of_(std::move(begin_of)) {}

  /// Starts reading the step whose first global sample is `first`.
  void prefetch(std::int64_t first, const BatchShare& share);
  /// Makes that step current: waits until it was read. Rethrows DataError and IoError.
  void begin(std::int64_t first, const BatchShare& share);
  /// A step of zeros, for a rank whose tokens cannot be read.
  void begin_blank(const BatchShare& share);
  /// Copies micro-batch k of the current step into the plan's buffers.
  void load(std::int64_t k, const plan::LoadBatch& views) const;

 private:
  struct Step {
    std::int64_t first = -1;
    BatchShare share;
    std::vector<std::int32_t> tokens;   // per sequence T + 1
    std::vector<std::int64_t> samples;  // per sequence
  };
  Step read(std::int64_t first, const BatchShare& share) const;

  const io::TokenCorpus& corpus_;
  SampleBegin begin_of_;
  Step current_;
  std::future<Step> pending_;
  std::jthread reader_;  // last: it uses the others
};

}  // namespace tessera::data
