#include "train/generation/completions.hpp"

#include <algorithm>
#include <exception>

#include "core/error.hpp"

namespace tessera::train {

std::int64_t most_tokens(std::int64_t prompt, std::int64_t more, std::int64_t context) {
  return std::min(context, prompt + more);
}

Completions::Completions(Decoder& decoder, SamplingRule rule, StopRule stop, bool log_p)
    : decoder_(decoder),
      rule_(rule),
      stop_(std::move(stop)),
      log_p_(log_p),
      sequences_(static_cast<std::size_t>(decoder.slots())) {}

bool Completions::Room::take(std::int64_t of_pages) {
  if (slots == 0 || of_pages > pages) return false;
  --slots, pages -= of_pages;
  return true;
}

Completions::Room Completions::room() const {
  return {std::ranges::count(sequences_, false, &std::optional<Sequence>::has_value),
          decoder_.free_pages()};
}

std::int64_t Completions::most_of(std::int64_t prompt) const {
  return most_tokens(prompt, stop_.most, decoder_.context());
}

std::int64_t Completions::pages_of(std::int64_t prompt) const {
  return decoder_.pages_of(most_of(prompt));
}

void Completions::add(std::span<const Prompt> prompts) {
  std::vector<Decoder::Prompt> begun;
  for (const Prompt& prompt : prompts) {
    const auto place = std::ranges::find(sequences_, false, &std::optional<Sequence>::has_value);
    TESSERA_CHECK(place != sequences_.end(), "all {} slots are in use", sequences_.size());
    place->emplace().completion.number = prompt.number;
    (*place)->seen.assign(prompt.tokens.begin(), prompt.tokens.end());
    begun.push_back({.slot = place - sequences_.begin(),
                     .tokens = prompt.tokens,
                     .most = most_of(std::ssize(prompt.tokens))});
  }
  decoder_.begin(begun, [&](std::size_t which, std::span<const float> logits) {
    const auto slot = static_cast<std::size_t>(begun[which].slot);
    draw(slot, logits);
    take(slot);
  });
}

void Completions::step() {
  std::vector<std::int32_t> last(sequences_.size(), -1);
  for (std::size_t slot = 0; slot < last.size(); ++slot)
    if (sequences_[slot]) last[slot] = sequences_[slot]->seen.back();
  const std::span<const float> logits = decoder_.advance_each(last);
  const std::size_t vocab = logits.size() / last.size();
  std::vector<std::exception_ptr> failed(last.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t slot = 0; slot < last.size(); ++slot) {
    try {
      if (last[slot] >= 0) draw(slot, logits.subspan(slot * vocab, vocab));
    } catch (...) {
      failed[slot] = std::current_exception();
    }
  }
  for (std::size_t slot = 0; slot < last.size(); ++slot) {
    if (failed[slot]) std::rethrow_exception(failed[slot]);
    if (last[slot] >= 0) take(slot);
  }
}

void Completions::draw(std::size_t slot, std::span<const float> logits) {
  Sequence& sequence = *sequences_[slot];
  Completion& made = sequence.completion;
  const std::int32_t id =
      sample_token(logits, rule_, {made.number, std::ssize(made.tokens)}, sequence.seen);
  made.tokens.push_back(id);
  sequence.seen.push_back(id);
  if (log_p_) made.log_p.push_back(log_probability(logits, id));
}

void Completions::take(std::size_t slot) {
  const std::optional<Ending> ending = ending_of(slot);
  if (!ending) return;
  Completion ended = std::move(sequences_[slot]->completion);
  ended.ending = *ending;
  sequences_[slot].reset();
  decoder_.forget(static_cast<std::int64_t>(slot));
  done(std::move(ended));
}

std::optional<Ending> Completions::ending_of(std::size_t slot) {
  Completion& made = sequences_[slot]->completion;
  const std::int32_t id = made.tokens.back();
  if (std::ranges::count(stop_.ends, id) > 0) return Ending::end;
  const std::size_t text_before = made.text.size();
  made.text += stop_.text_of(id);
  std::size_t first = std::string::npos;
  for (const std::string& text : stop_.texts) {  // it may begin in tokens before this one
    const std::size_t overlap = std::min(text_before, text.size() - 1);
    first = std::min(first, made.text.find(text, text_before - overlap));
  }
  if (first != std::string::npos) {
    made.text.resize(first);
    return Ending::stop;
  }
  const bool full = decoder_.length(static_cast<std::int64_t>(slot)) >= decoder_.context();
  if (std::ssize(made.tokens) == stop_.most || full) return Ending::length;
  return std::nullopt;
}

}  // namespace tessera::train
