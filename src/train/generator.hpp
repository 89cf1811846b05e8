// Text generation: the model's unit functions run eagerly on one process, with a cache of keys and
// values.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/arena.hpp"
#include "model/block.hpp"
#include "model/ends.hpp"
#include "train/state/model_state.hpp"
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
  /// Holds the whole model in f32, in the memory that the device computes in, and keys and values
  /// of the model's context, or of `most` tokens if that is less.
  Generator(const model::ModelConfig& config, kernels::Device& device, memory::Tier& tier,
            const ParameterSource& parameters, std::optional<std::int64_t> most = std::nullopt);

  /// Tokens that it can see.
  std::int64_t context() const { return context_; }
  /// Tokens seen so far.
  std::int64_t length() const { return length_; }
  /// Appends tokens (at most context() in all) and returns the logits (vocab) after the last one.
  std::span<const float> advance(std::span<const std::int32_t> tokens);
  /// Forgets what it has seen; returns the logits of a sample: (tokens, vocab), or (classes) where
  /// outputs are pooled.
  std::span<const float> whole(std::span<const std::int32_t> tokens);

 private:
  View make(DType type, std::initializer_list<std::int64_t> extents);
  /// So many tokens, the first of them at `first`.
  model::UnitContext context_of(std::int64_t tokens, std::byte* first);
  /// From tokens, which are appended to those seen, to what the head reads of all of them.
  model::Carry through_layers(model::UnitContext& u, std::span<const std::int32_t> tokens);
  std::span<const float> read(const View& logits);

  model::ModelConfig config_;
  std::int64_t context_;
  kernels::Device& device_;
  memory::Tier& tier_;
  std::vector<model::UnitDesc> descs_;
  std::vector<model::UnitViews> units_;
  std::vector<model::KvCache> caches_;
  std::int64_t length_ = 0;
  std::vector<float> logits_;
  std::vector<std::unique_ptr<memory::Arena>> owned_;
  /// What one call of advance() needs: blocks that are kept, and used from their begin again.
  class Scratch {
   public:
    explicit Scratch(memory::Tier& tier) : tier_(tier) {}
    std::byte* take(std::int64_t bytes);
    void reset() { block_ = 0, used_ = 0; }

   private:
    memory::Tier& tier_;
    std::vector<std::unique_ptr<memory::Arena>> blocks_;
    std::size_t block_ = 0;
    std::int64_t used_ = 0;  // of this block
  };
  Scratch scratch_;
};

}  // namespace tessera::train
