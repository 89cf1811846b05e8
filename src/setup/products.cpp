#include "setup/products.hpp"

#include <algorithm>
#include <numeric>

#include "core/bytes.hpp"
#include "deck/curriculum.hpp"
#include "deck/problems.hpp"
#include "deck/ranks.hpp"
#include "kernels/api/linear.hpp"
#include "model/block.hpp"
#include "setup/adapters.hpp"
#include "setup/groups.hpp"
#include "setup/inputs.hpp"

namespace tessera::setup {
namespace {

class ProductCheck {
 public:
  explicit ProductCheck(const deck::LoadedDeck& loaded)
      : loaded_(loaded),
        deck_(loaded.deck),
        config_(model_config(deck_.model, deck_.task)),
        layout_mode_(deck_.run.reproducible == deck::Reproducible::layout),
        chunks_(deck::tensor_chunks(deck_)),
        shares_(deck::context_shares(deck_)) {}

  void run() {
    const auto& [micro, sequence] = std::pair{deck_.batch.micro, deck_.batch.sequence};
    const std::int64_t multiple = kGranule * shares_ / std::gcd(kGranule * shares_, micro);
    const std::string shared =
        shares_ == 1
            ? ""
            : fmt::format(" / {} = {}",
                          layout_mode_ ? "run.reproducible_context" : "parallel.context", shares_);
    check("batch.sequence", micro * sequence / shares_,
          fmt::format("batch.micro x batch.sequence{} = {} x {}", shared, micro, sequence),
          multiple);
    for (const deck::LengthEntry& phase : deck::phases(deck_.batch)) {
      if (deck_.batch.curriculum.empty()) break;
      check("batch.curriculum", micro * phase.length / shares_,
            fmt::format("batch.micro x the length from step {} on{} = {} x {}", phase.step, shared,
                        micro, phase.length),
            multiple, "the lengths of batch.curriculum");
    }
    check("model.hidden", config_.hidden, "model.hidden", kGranule);
    for (std::int64_t i = 0; i < chunks_; ++i) check_chunk(i);
    problems_.throw_if_any();
  }

 private:
  static constexpr std::int64_t kGranule = kernels::kFp8Granule;

  void check_chunk(std::int64_t chunk) {
    if (config_.latent) return check_latents();
    const model::HeadPart part = model::heads_of(config_, chunk, chunks_);
    const std::int64_t q = part.heads.count() * config_.head_dim,
                       kv = part.kv_heads.count() * config_.head_dim;
    const bool joined = config_.kv_heads >= chunks_;
    const std::string heads = fmt::format(
        "{} and {} of model.head_dim = {}{}", count_text(part.heads.count(), "head"),
        count_text(part.kv_heads.count(), "kv head"), config_.head_dim, of_chunk(chunk));
    check("model.head_dim", q, "the columns of " + heads, kGranule);
    check("model.head_dim", joined ? q + 2 * kv : kv, "what is projected to " + heads, kGranule);
    check_feed_forward(chunk);
  }
  /// All chunks have the same heads and parts of latents.
  void check_latents() {
    const auto part = [&](const char* key, std::int64_t columns) {
      check(key, columns / chunks_,
            fmt::format("{} = {} over {}", key, columns, count_text(chunks_, "part")),
            kGranule * chunks_);
    };
    const std::int64_t heads = config_.heads / chunks_;
    part("model.kv_latent", config_.latent.kv);
    part("model.q_latent", config_.latent.q);
    part("model.rope_dim", config_.latent.rope);
    const auto of_heads = [&](const char* key, std::int64_t columns) {
      check(key, heads * columns,
            fmt::format("what {} of {} = {} have", count_text(heads, "head"), key, columns),
            kGranule);
    };
    of_heads("model.head_dim", config_.head_dim);
    of_heads("model.value_dim", config_.values());
    check("model.head_dim", heads * (config_.head_dim - config_.latent.rope),
          "the columns of heads without positions", kGranule);
    check_feed_forward(0);
  }
  void check_feed_forward(std::int64_t chunk) {
    check("model.ffn_hidden", even_part(config_.ffn_hidden, chunk, chunks_).count(),
          fmt::format("the part of model.ffn_hidden = {}{}", config_.ffn_hidden, of_chunk(chunk)),
          kGranule * chunks_);
  }
  std::string of_chunk(std::int64_t chunk) const {
    if (chunks_ == 1) return "";
    return fmt::format(", part {} of {} = {},", chunk,
                       layout_mode_            ? "run.reproducible_tensor"
                       : deck_.zero.tiles == 1 ? "parallel.tensor"
                                               : "parallel.tensor x zero.tiles",
                       chunks_);
  }

  void check(const char* key, std::int64_t extent, const std::string& what, std::int64_t multiple,
             std::string_view given = "") {
    if (extent % kGranule == 0 || problems_.about(key)) return;
    problems_.add(
        loaded_.place(key), key,
        fmt::format("precision.matmul = \"fp8\" needs multiples of {}, but {} is {} (give "
                    "a multiple of {} as {}, or precision.matmul = \"same\")",
                    kGranule, what, extent, multiple, given.empty() ? key : given));
  }

  const deck::LoadedDeck& loaded_;
  const deck::Deck& deck_;
  model::ModelConfig config_;
  bool layout_mode_;
  std::int64_t chunks_, shares_;
  deck::Problems problems_;
};

}  // namespace

void check_products(const deck::LoadedDeck& loaded) {
  if (loaded.deck.precision.matmul == deck::Matmul::fp8) ProductCheck(loaded).run();
}

std::string types_text(const deck::PrecisionSection& precision) {
  std::string text(enum_word(precision.compute));
  if (precision.matmul != deck::Matmul::same)
    text += fmt::format(" with {} products", enum_word(precision.matmul));
  return text;
}

std::vector<std::int64_t> runnable_micros(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  auto all = deck::legal_micros(loaded, ranks);
  if (loaded.deck.precision.matmul == deck::Matmul::fp8) {
    std::erase_if(all, [&](std::int64_t micro) {
      const auto is_whole = [&](std::int64_t sequence) {
        return micro * sequence / deck::context_shares(loaded.deck) % kernels::kFp8Granule == 0;
      };
      return !is_whole(loaded.deck.batch.sequence) ||
             !std::ranges::all_of(deck::phases(loaded.deck.batch), is_whole,
                                  &deck::LengthEntry::length);
    });
  }
  if (deck::has_pairs(loaded.deck.task.kind))
    std::erase_if(all, [](std::int64_t micro) { return micro % 2 != 0; });
  return all;
}

void check_on_ranks(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  deck::check_ranks(loaded, ranks);
  check_products(loaded);
  check_adapter_targets(loaded);
  check_frozen_layers(loaded);
  check_groups(loaded);  // of what these leave
}

}  // namespace tessera::setup
