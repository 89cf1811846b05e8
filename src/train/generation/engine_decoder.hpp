// Sequences that the ranks of a job go on with together: a plan for every pass through the model,
// as training has one for every step, on any layout, from parameters wherever they live.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "setup/generation.hpp"
#include "train/execution/engine.hpp"
#include "train/generation/completions.hpp"

namespace tessera::train {

/// On every rank of the job. The ranks of one model (tensor ranks and pipeline stages) make the
/// same calls with the same arguments, and get the same logits. Where data ranks divide parameters
/// or experts (in_step), they make as many passes, with sequences of their own.
class EngineDecoder final : public Decoder {
 public:
  /// The engine has the plans of setup::generation_shapes(), and outlives this. What goes wrong
  /// within a pass, other ranks wait for: this one leaves alone, and says why in the run's
  /// directory, if it has one.
  EngineDecoder(Engine& engine, const Job& job, const setup::DecoderSize& size,
                std::optional<std::filesystem::path> directory = {});

  std::int64_t context() const override { return size_.room; }
  std::int64_t slots() const override { return std::ssize(lengths_); }
  std::int64_t length(std::int64_t slot) const override { return at(lengths_, slot); }
  void forget(std::int64_t slot) override;
  std::int64_t free_pages() const override { return std::ssize(free_); }
  std::int64_t pages_of(std::int64_t tokens) const override { return kernels::pages_of(tokens); }
  void begin(std::span<const Prompt> prompts, const Begun& begun) override;
  std::span<const float> advance_each(std::span<const std::int32_t> tokens) override;

  /// To be called before the first pass, and wherever parameters have changed since the last one,
  /// by all ranks: what others update, and what nodes keep, stays from pass to pass.
  void renew();

  bool in_step() const;
  /// Passes that begin() makes of prompts of so many tokens; and that this rank has made.
  std::int64_t passes_of(std::span<const std::int64_t> lengths) const;
  std::int64_t passed() const { return passed_; }
  /// Passes without sequences until so many were made in all, for the sake of other ranks: as they
  /// are made of prompts, or of single tokens.
  void idle_prompts(std::int64_t passes);
  void idle_tokens(std::int64_t passes);

 private:
  /// Of a sequence in a pass: its next tokens, and how many are known in all that it has not seen.
  struct Next {
    std::int64_t slot = 0;
    std::span<const std::int32_t> tokens;
    std::int64_t all = 0;
  };
  /// Gives the prompts' slots their pages.
  void reserve(std::span<const Prompt> prompts);
  /// What a sequence of a pass has in the caches, and in which pages.
  void tell(const Next& next, kernels::CachedSample& cached, std::span<std::int32_t> pages) const;
  /// No tokens of any slot.
  std::vector<Next> no_tokens() const;
  /// The smallest shape of prompts' passes with room for so many tokens, or the largest.
  const plan::PlanShape& shape_for(std::int64_t tokens) const;
  /// One pass, of as many sequences as the shape has.
  std::span<const float> pass(const plan::PlanShape& shape, std::span<const Next> next);
  /// A prompt's passes but the last one, and that.
  Next all_but_last(const Prompt& prompt);
  void begin_each(std::span<const Prompt> prompts, const Begun& begun);
  void begin_all(std::span<const Prompt> prompts, const Begun& begun);

  Engine& engine_;
  const Job& job_;
  setup::DecoderSize size_;
  std::optional<std::filesystem::path> directory_;
  std::vector<plan::PlanShape> shapes_;    // of single tokens, then of prompts, from small to large
  std::vector<plan::PlanShape> together_;  // of several prompts, of most first
  std::vector<std::int64_t> lengths_;      // by slot
  std::vector<std::vector<std::int32_t>> pages_;  // by slot
  std::vector<std::int32_t> free_;                // the other pages
  std::vector<float> logits_;
  std::int64_t passed_ = 0;
};

/// Tokens that each sequence gets between two agreements of the ranks.
inline constexpr int kTokensAtOnce = 16;

/// Begins to continue `begun`, and gives every sequence kTokensAtOnce tokens, or those that it
/// still gets. Where ranks make their passes in step, as many are made whatever happens to this
/// one's sequences: `most_passes` for the prompts of the rank whose prompts need most of them, and
/// one for each token.
void go_on(EngineDecoder& decoder, Completions& completions,
           std::span<const Completions::Prompt> begun, std::int64_t most_passes);

}  // namespace tessera::train
