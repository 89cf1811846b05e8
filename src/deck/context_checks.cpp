#include <bit>

#include "core/bytes.hpp"
#include "deck/curriculum.hpp"
#include "deck/deck_checker.hpp"
#include "deck/ranks.hpp"

namespace tessera::deck {

namespace {

class ContextChecker : DeckChecker {
 public:
  using DeckChecker::DeckChecker;

  void run() {
    if (!usable({"parallel.context", "run.reproducible", "run.reproducible_context"})) return;
    needs("parallel.context_kind", p_.context_kind != ContextKind::automatic, p_.context > 1,
          "parallel.context");
    layout_mode();
    if (context_shares(deck_) == 1) return;
    lengths();
    if (p_.context_kind == ContextKind::heads) heads();
    others();
  }

 private:
  bool layout() const { return deck_.run.reproducible == Reproducible::layout; }
  /// What cuts sequences, for messages.
  std::string cuts() const {
    return layout() ? fmt::format("run.reproducible_context = {}", deck_.run.reproducible_context)
                    : fmt::format("parallel.context = {}", p_.context);
  }

  void layout_mode() {
    const std::int64_t most = deck_.run.reproducible_context;
    if (!layout()) {
      needs("run.reproducible_context", most > 1, false, "run.reproducible = \"layout\"");
      return;
    }
    if (!std::has_single_bit(static_cast<std::uint64_t>(most))) {
      problem("run.reproducible_context",
              fmt::format("run.reproducible_context = {} must be a power of two: sums over chunks "
                          "of sequences are whole trees (give 2, 4, ..)",
                          most));
    } else if (most % p_.context != 0) {
      problem("parallel.context",
              fmt::format("run.reproducible = \"layout\" needs a divisor of "
                          "run.reproducible_context = {} as parallel.context, which is {}",
                          most, p_.context));
    }
    not_with("run.reproducible = \"layout\"", "parallel.context_kind",
             p_.context_kind == ContextKind::heads,
             "its products would have other shapes on other layouts", "use \"gather\"");
    not_with("run.reproducible = \"layout\"", "parallel.context_kind",
             p_.context_kind == ContextKind::ring,
             "it adds up what keys give in the order in which they come by", "use \"gather\"");
    if (most > 1) {
      not_with(fmt::format("run.reproducible_context = {}", most), "zero.reduce",
               usable({"zero.reduce"}) && deck_.zero.reduce != ReduceWhen::micro,
               "sums over chunks of a sequence come before those over sequences", "use \"micro\"");
      not_with(fmt::format("run.reproducible_context = {}", most), "moe.experts",
               usable({"moe.experts"}) && deck_.model.moe.experts > 0,
               "products of experts have as many rows as a rank's tokens give them",
               "use 0, or run.reproducible_context = 1");
    }
  }

  /// Chunks are equal, and each divides over tensor ranks.
  void lengths() {
    if (!usable({"batch.sequence", "batch.curriculum", "parallel.tensor", "parallel.sequence"}))
      return;
    const std::int64_t chunks = context_chunks(deck_),
                       within = layout()      ? deck_.run.reproducible_tensor
                                : p_.sequence ? p_.tensor
                                              : 1,
                       divisor = chunks * within;
    const auto check = [&](const char* key, std::int64_t length, const std::string& what) {
      if (length % divisor == 0) return;
      const std::int64_t below = length / divisor * divisor;
      problem(key, fmt::format("{} = {} is not a multiple of {}: {} cuts it into {} chunks{} "
                               "(nearest: {})",
                               what, length, divisor, cuts(), chunks,
                               within > 1 ? fmt::format(" of {} parts", within) : "",
                               below > 0 ? fmt::format("{} or {}", below, below + divisor)
                                         : std::to_string(divisor)));
    };
    const char* given = loaded_.explicitly_set("batch.sequence") ? "batch.sequence"
                        : deck_.batch.token_budget               ? "batch.token_budget"
                                                                 : "model.context";
    check(given, deck_.batch.sequence, given);
    if (deck_.batch.curriculum.empty() ||
        curriculum_problem(deck_.batch.curriculum, deck_.batch.sequence))
      return;
    for (const LengthEntry& phase : phases(deck_.batch)) {
      check("batch.curriculum", phase.length,
            fmt::format("batch.curriculum: the length of sequences from step {} on", phase.step));
    }
  }

  void heads() {
    if (!usable({"model.kv_heads", "parallel.tensor", "zero.tiles"})) return;
    if (heads_divide(deck_)) return;
    problem(
        "parallel.context_kind",
        fmt::format("parallel.context_kind = \"heads\" needs model.kv_heads = {} to divide over "
                    "parallel.context x parallel.tensor x zero.tiles = {} (use \"gather\", or "
                    "fewer context ranks)",
                    deck_.model.kv_heads, tensor_chunks(deck_) * p_.context));
  }

  void others() {
    not_with(cuts(), "task.kind",
             usable({"task.kind"}) &&
                 ((has_classes(deck_.task.kind) && deck_.task.kind != TaskKind::tokens) ||
                  has_pairs(deck_.task.kind)),
             "its loss is of a whole sequence", "use one context rank");
    not_with(cuts(), "moe.aux_loss",
             usable({"moe.aux_loss", "moe.aux_over"}) && deck_.model.moe.experts > 0 &&
                 deck_.model.moe.aux_loss > 0 && deck_.model.moe.aux_over == AuxOver::sequence,
             "it balances the experts of a whole sequence",
             "use 0, or moe.aux_over = \"global_batch\"");
    not_with(
        cuts(), "moe.capacity",
        usable({"moe.capacity"}) && deck_.model.moe.experts > 0 && deck_.model.moe.capacity > 0,
        "what is dropped depends on the tokens of a rank", "use 0, which drops none");
  }

  const ParallelSection& p_ = deck_.parallel;
};

}  // namespace

void check_context(const LoadedDeck& loaded, Problems& problems) {
  ContextChecker(loaded, problems).run();
}

}  // namespace tessera::deck
