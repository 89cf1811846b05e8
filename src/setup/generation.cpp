#include "setup/generation.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "core/sharding.hpp"
#include "setup/judges.hpp"

namespace tessera::setup {
namespace {

/// Tokens of a prompt that go through the model in one pass: so many or, of those that are fewer,
/// the next smaller number that has room for them.
constexpr std::array<std::int64_t, 7> kPromptTokens = {16, 32, 64, 128, 256, 512, 1024};
/// Tokens of all prompts in one pass.
constexpr std::int64_t kTokensOfAll = 4096;
/// Tokens of several prompts in one pass, at most; and of one of them, at least: a CPU multiplies
/// fewer rows in another way, so that a prompt's bits would depend on whether others are there.
constexpr std::int64_t kTokensTogether = 512, kLeastTogether = 64;

}  // namespace

void check_continues(const deck::ModelSection& model, const deck::TaskSection& task,
                     std::string_view name) {
  if (deck::has_own_head(task.kind)) {
    throw DeckError(fmt::format("{}: it {}: tessera classify asks it", name,
                                deck::has_classes(task.kind)
                                    ? "says which class a document or word is of"
                                    : "says how good an answer is"));
  }
  if (model.attention != AttentionMask::causal) {
    throw DeckError(fmt::format(
        "{}: its attention is {}: it was trained to fill in masked tokens, not to continue a text",
        name, enum_word(model.attention)));
  }
}

DecoderSize decoder_size(const deck::Deck& deck, std::int64_t slots, std::int64_t room) {
  const bool layouts = deck.run.reproducible == deck::Reproducible::layout,
             experts = deck.parallel.experts > 1,
             shards = deck.zero.stage >= first_stage(&Sharding::parameters),
             fetched = shards || deck.offload.parameters != deck::OffloadTier::none;
  // Products of experts have as many rows as tokens of the pass were routed to each.
  const bool alone = layouts || (!fetched && deck.model.moe.experts > 0);
  return {.slots = slots,
          .room = room,
          .prefill = experts   ? Prefill::all_alike
                     : alone   ? Prefill::one
                     : fetched ? Prefill::all
                               : Prefill::several,
          .micro_batches = layouts || shards || experts ? 1 : deck.parallel.pipeline};
}

std::vector<plan::PlanShape> decoder_shapes(const DecoderSize& size) {
  const std::int64_t count = std::min(size.micro_batches, size.slots),
                     micro = ceil_div(size.slots, count);
  const plan::PlanShape each{
      .purpose = plan::PlanPurpose::generate,
      .sequence = 1,
      .micro = micro,
      .micro_batches = count,
      .slots = micro * count,
      .room = size.room,
      .pages = size.pages > 0 ? size.pages : micro * count * kernels::pages_of(size.room)};
  std::vector<plan::PlanShape> shapes{each};
  plan::PlanShape prompts = each;
  if (!is_side_by_side(size.prefill)) prompts.micro = prompts.micro_batches = 1;
  std::int64_t most = std::min(kPromptTokens.back(), std::max<std::int64_t>(2, size.room));
  if (is_side_by_side(size.prefill))
    most = std::clamp<std::int64_t>(kTokensOfAll / each.slots, 2, most);
  for (const std::int64_t tokens : kPromptTokens) {
    prompts.sequence = std::min(tokens, most);
    if (tokens >= most || size.prefill != Prefill::all_alike) shapes.push_back(prompts);
    if (tokens >= most) break;
  }
  return shapes;
}

std::int64_t pages_for(std::vector<std::int64_t> sequences, const DecoderSize& size,
                       std::optional<std::int64_t> most_tokens) {
  std::ranges::sort(sequences, std::greater());
  const auto slots = static_cast<std::size_t>(decoder_shapes(size).front().slots);
  if (sequences.size() > slots) sequences.resize(slots);
  std::int64_t pages = 0;
  for (const std::int64_t tokens : sequences) pages += kernels::pages_of(tokens);
  if (!most_tokens) return pages;
  return std::clamp(*most_tokens / kernels::kPageTokens, kernels::pages_of(sequences.front()),
                    pages);
}

std::vector<plan::PlanShape> together_shapes(const DecoderSize& size) {
  std::vector<plan::PlanShape> shapes;
  if (size.prefill != Prefill::several) return shapes;
  const std::vector<plan::PlanShape> all = decoder_shapes(size);
  for (plan::PlanShape shape : std::span(all).subspan(1)) {
    if (shape.sequence < kLeastTogether) continue;
    const auto most =
        static_cast<std::uint64_t>(std::min(size.slots, kTokensTogether / shape.sequence));
    for (std::uint64_t micro = std::bit_floor(most); micro > 1; micro /= 2) {
      shape.micro = static_cast<std::int64_t>(micro);
      shapes.push_back(shape);
    }
  }
  return shapes;
}

plan::PlanShape renewing_shape(const DecoderSize& size) {
  plan::PlanShape shape = decoder_shapes(size).front();
  shape.renews = true;
  return shape;
}

std::vector<plan::PlanShape> generation_shapes(const deck::Deck& deck, const DecoderSize& size) {
  std::vector<plan::PlanShape> shapes = decoder_shapes(size);
  std::ranges::copy(together_shapes(size), std::back_inserter(shapes));
  const auto* secondary = std::get_if<deck::Secondary>(&deck.zero.secondary);
  const bool kept = secondary == nullptr || *secondary == deck::Secondary::node,
             shards = deck.zero.stage >= first_stage(&Sharding::parameters);
  if (shards ? kept : deck.zero.stage > 0) shapes.push_back(renewing_shape(size));
  return shapes;
}

void check_cache(const deck::LoadedDeck& loaded) {
  const deck::Deck& deck = loaded.deck;
  if (deck.offload.cache == deck::CacheTier::none || deck::draws_answers(deck.task.kind)) return;
  throw DeckError(fmt::format(
      "{}: offload.cache = \"{}\" has no effect with task.kind = \"{}\", which draws nothing "
      "(leave it out)",
      loaded.where("offload.cache"), enum_word(deck.offload.cache), enum_word(deck.task.kind)));
}

DecoderSize rollout_size(const deck::Deck& deck) {
  DecoderSize size = decoder_size(deck, deck.rollout.slots, deck.batch.sequence);
  const std::vector<std::int64_t> sequences(static_cast<std::size_t>(kMostSequences), size.room);
  size.pages = pages_for(sequences, size, deck.rollout.cache_tokens);
  return size;
}

std::vector<plan::PlanShape> rollout_shapes(const deck::Deck& deck, std::int64_t data_ranks) {
  if (!deck::draws_answers(deck.task.kind)) return {};
  std::vector<plan::PlanShape> shapes = generation_shapes(deck, rollout_size(deck));
  if (deck.task.kl > 0 && deck.model.adapter.kind != deck::AdapterKind::none)
    shapes.push_back(base_shape(deck, data_ranks));
  if (has_value_head(deck.task))
    shapes.push_back(score_shape(deck, plan::Scores::values, data_ranks));
  return shapes;
}

}  // namespace tessera::setup
