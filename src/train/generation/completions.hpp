// Many prompts continued at once: a sequence that ends gives its slot to the next one ("continuous
// batching", Yu et al. 2022, Orca).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enums.hpp"
#include "train/generation/decoder.hpp"
#include "train/generation/sampling.hpp"

namespace tessera::train {

/// Tokens that a prompt of so many comes to with up to `more` behind it, in a context.
std::int64_t most_tokens(std::int64_t prompt, std::int64_t more, std::int64_t context);

/// When a completion ends.
struct StopRule {
  std::int64_t most = 0;           // tokens of it, at least 1
  std::vector<std::int32_t> ends;  // it ends with one of these tokens, or
  std::vector<std::string> texts;  // where it says one of these, which are not empty
  /// The bytes that a token stands for.
  std::function<std::string_view(std::int32_t)> text_of;
};

/// Why one ended. `length`: it has as many tokens as it may, or fills the model's context.
enum class Ending : std::uint8_t { end, stop, length };

struct Completion {
  std::uint64_t number = 0;          // the caller's, which its random numbers are keyed by
  std::string text;                  // without a stop text and what is behind it
  std::vector<std::int32_t> tokens;  // with the one of StopRule::ends that ended it
  std::vector<double> log_p;         // of each under softmax(logits), where these are wanted
  Ending ending = Ending::length;
};

/// What becomes of a prompt depends on it, its number and how many slots there are
/// alone, to the bit, not on what is continued beside it; but for layers of experts, whose products
/// have as many rows as tokens were routed to each.
class Completions {
 public:
  /// `log_p`: whether these are wanted. The decoder outlives this.
  Completions(Decoder& decoder, SamplingRule rule, StopRule stop, bool log_p);

  /// What there is for prompts that are added now.
  struct Room {
    std::int64_t slots = 0, pages = 0;
    /// A slot and so many pages less, where they are there.
    bool take(std::int64_t of_pages);
  };
  Room room() const;
  /// Pages that a prompt of so many tokens takes with what follows it.
  std::int64_t pages_of(std::int64_t prompt) const;
  bool idle() const { return room().slots == decoder_.slots(); }
  /// A prompt of at least one token, and at most so many as a slot can see.
  struct Prompt {
    std::uint64_t number = 0;
    std::span<const std::int32_t> tokens;
  };
  /// At most so many as there is room() for. Calls done() at once where the first token ends one.
  void add(std::span<const Prompt> prompts);
  /// The next token of each.
  void step();
  /// Called for each that has ended; it adds none.
  std::function<void(Completion&&)> done;

 private:
  std::int64_t most_of(std::int64_t prompt) const;
  struct Sequence {
    Completion completion;
    std::vector<std::int32_t> seen;  // the prompt and what follows it
  };
  /// The sequence's next token.
  void draw(std::size_t slot, std::span<const float> logits);
  /// Ends the sequence where that token does.
  void take(std::size_t slot);
  /// Adds the text of its last token; whether that ends it.
  std::optional<Ending> ending_of(std::size_t slot);

  Decoder& decoder_;
  SamplingRule rule_;
  StopRule stop_;
  bool log_p_;
  std::vector<std::optional<Sequence>> sequences_;  // of each slot
};

}  // namespace tessera::train

template <>
struct tessera::EnumWords<tessera::train::Ending> {
  using enum tessera::train::Ending;
  static constexpr std::array table = {std::pair{end, "end"}, std::pair{stop, "stop"},
                                       std::pair{length, "length"}};
};
