// The model's unit functions run eagerly on one process, with a cache of keys and values, or of
// latents, of several sequences.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/arena.hpp"
#include "model/block.hpp"
#include "model/ends.hpp"
#include "train/generation/decoder.hpp"
#include "train/state/model_state.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::train {

struct GeneratorOptions {
  DType type = DType::f32;           // of weights, activations and cache
  std::int64_t slots = 1;            // sequences that are gone on with at once
  std::optional<std::int64_t> most;  // tokens of one; not given: the model's context
  /// Columns of the widest heads that the device's attention takes. Where latents, from which keys
  /// and values of all heads are made, are no wider, the cache has them in their place.
  std::int64_t most_head_dim = std::numeric_limits<std::int64_t>::max();
};

/// What a generator keeps in the device's memory.
struct GeneratorBytes {
  std::int64_t model = 0, cache = 0;
};
GeneratorBytes generator_bytes(const model::ModelConfig& config, const GeneratorOptions& options);

class Generator final : public Decoder {
 public:
  /// Holds the whole model, in the memory that the device computes in, and keys and values of each
  /// slot.
  Generator(const model::ModelConfig& config, kernels::Device& device, memory::Tier& tier,
            const ParameterSource& parameters, GeneratorOptions options = {});

  std::int64_t context() const override { return context_; }
  std::int64_t slots() const override { return std::ssize(lengths_); }
  std::int64_t length(std::int64_t slot = 0) const override {
    return lengths_[static_cast<std::size_t>(slot)];
  }
  void forget(std::int64_t slot = 0) override { lengths_[static_cast<std::size_t>(slot)] = 0; }
  void begin(std::span<const Prompt> prompts, const Begun& begun) override;

  /// Appends tokens (at most context() in all) to a slot; returns the logits (vocab) after the last
  /// one. What a slot gets does not depend on the others, to the bit.
  std::span<const float> advance(std::span<const std::int32_t> tokens, std::int64_t slot = 0);
  std::span<const float> advance_each(std::span<const std::int32_t> tokens) override;
  /// Forgets what the first slot has seen; returns the logits of a sample: (tokens, vocab), or
  /// (classes) where outputs are pooled.
  std::span<const float> whole(std::span<const std::int32_t> tokens);

 private:
  void set_parameters(const ParameterSource& parameters);
  View make(DType type, std::initializer_list<std::int64_t> extents);
  /// The elements of a part of a unit, in the type that they are kept in.
  void load(const View& part, const std::function<void(std::span<float>)>& read);
  model::UnitContext context_of(const model::MicroBatch& batch);
  /// The next layer's turn; and what the layer leaves, where it is not the layer's own but of the
  /// one before, as its own.
  void next_turn();
  View own(model::UnitContext& u, const View& left) const;
  /// Sequences of equally many tokens, of which there are `counts`, each behind what its slot has
  /// seen, from slot `first` on; and what the head reads of them.
  model::Carry through_layers(std::span<const std::int32_t> tokens, std::int64_t first,
                              std::span<const std::int32_t> counts);
  /// The same of one sample from its beginning; forgets what the first slot has seen.
  model::Carry carry_of(std::span<const std::int32_t> tokens);
  /// These rows of a sequence's.
  model::Carry rows_of(const model::Carry& carry, Range rows) const;
  /// The head's logits, without their padding.
  std::span<const float> logits_of(std::int64_t sequences, const model::Carry& carry);

  model::ModelConfig config_;
  DType type_;
  std::int64_t context_;
  kernels::Device& device_;
  memory::Tier& tier_;
  std::vector<model::UnitDesc> descs_;
  std::vector<View> flats_;  // of each unit
  std::vector<model::UnitViews> units_;
  std::vector<model::KvCache> caches_;  // of each layer
  View cached_;                         // (slots, 3), of the call under way
  View pages_;                          // (slots, 1): a slot is a page
  std::vector<std::int64_t> lengths_;   // of each slot
  std::vector<float> logits_;
  std::vector<std::unique_ptr<memory::Arena>> owned_;
  /// What a layer needs: blocks that are kept, and used from their begin again.
  class Scratch {
   public:
    explicit Scratch(memory::Tier& tier) : tier_(tier) {}
    std::byte* take(std::int64_t bytes);
    void reset() { block_ = 0, used_ = 0; }
    bool has(const std::byte* at) const;

   private:
    memory::Tier& tier_;
    std::vector<std::unique_ptr<memory::Arena>> blocks_;
    std::size_t block_ = 0;
    std::int64_t used_ = 0;  // of this block
  };
  /// Layers take turns: what a layer makes lives until the one behind it has read it.
  std::array<Scratch, 2> scratch_;
  std::size_t turn_ = 0;
};

}  // namespace tessera::train
