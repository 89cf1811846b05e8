// A trained model that goes on with several sequences: what is known of them, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace tessera::train {

class Decoder {
 public:
  virtual ~Decoder() = default;

  /// Tokens that a slot can see, and slots, each of one sequence.
  virtual std::int64_t context() const = 0;
  virtual std::int64_t slots() const = 0;
  /// Tokens that a slot has seen.
  virtual std::int64_t length(std::int64_t slot) const = 0;
  /// The slot begins anew; its pages are free.
  virtual void forget(std::int64_t slot) = 0;
  /// Pages that the slots share, which are free; and those that a sequence takes, from its prompt
  /// until it is forgotten, which sees so many tokens at most. None where each slot has its own
  /// room.
  virtual std::int64_t free_pages() const { return 0; }
  virtual std::int64_t pages_of(std::int64_t /*tokens*/) const { return 0; }

  /// Tokens, at least one, of a slot that has seen none, and will see `most` of them at most.
  struct Prompt {
    std::int64_t slot = 0;
    std::span<const std::int32_t> tokens;
    std::int64_t most = 0;
  };
  /// Logits after the last token of prompt number `which`.
  using Begun = std::function<void(std::size_t which, std::span<const float> logits)>;
  /// What a slot gets does not depend on the others, to the bit. `begun` adds no prompt.
  virtual void begin(std::span<const Prompt> prompts, const Begun& begun) = 0;
  /// Appends to each slot its token, and returns the logits after it, (slots, vocab). A token below
  /// 0: the slot is empty, or stays as it is, and its logits mean nothing. Products have the rows
  /// of all slots, however many of them are used, so that the bits of each are always the same.
  virtual std::span<const float> advance_each(std::span<const std::int32_t> tokens) = 0;
};

}  // namespace tessera::train
