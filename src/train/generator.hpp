// Text generation: the model's unit functions run eagerly on one process, with a cache of keys and
// values.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "model/block.hpp"
#include "model/ends.hpp"
#include "train/model_state.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::train {

/// How the next token is drawn from the logits.
struct SamplingRule {
  double temperature = 1;  // 0: always the most likely token
  std::int64_t top_k = 0;  // only the k most likely; 0: all
  double top_p =
      1;  // only the most likely ones that make up this probability (Holtzman et al. 2020)
  std::uint64_t seed = 1;
};

/// Draws from logits[0 .. vocab). `position` numbers the draws, so that a run can be repeated.
/// Throws NonFiniteError for logits that are not numbers.
std::int32_t sample_token(std::span<const float> logits, const SamplingRule& rule,
                          std::int64_t position);

class Generator {
 public:
  /// Holds the whole model in f32.
  Generator(const model::ModelConfig& config, kernels::Device& device,
            const ParameterSource& parameters);

  std::int64_t context() const { return config_.context; }
  /// Tokens seen so far.
  std::int64_t length() const { return length_; }
  /// Appends tokens (at most context() in all) and returns the logits (vocab) after the last one.
  std::span<const float> advance(std::span<const std::int32_t> tokens);

 private:
  struct Unit {
    zero::UnitLayout layout;
    model::ParameterViews parameters;
  };
  View make(DType type, std::initializer_list<std::int64_t> extents);
  const Unit* find(model::UnitKind kind) const;

  model::ModelConfig config_;
  kernels::Device& device_;
  std::vector<model::UnitDesc> descs_;
  std::vector<Unit> units_;
  std::vector<model::KvCache> caches_;
  std::int64_t length_ = 0;
  std::vector<float> logits_;
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory allocate(std::int64_t bytes);
  std::deque<Memory> owned_;
};

}  // namespace tessera::train
