#include "deck/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

class Checker {
 public:
  Checker(const LoadedDeck& loaded, Problems& problems)
      : loaded_(loaded), deck_(loaded.deck), problems_(problems) {}

  void model() {
    const ModelSection& m = deck_.model;
    if (usable({"model.hidden", "model.heads"}) && !set("model.head_dim") &&
        m.hidden % m.heads != 0) {
      problem("model.hidden",
              fmt::format("model.hidden = {} is not a multiple of model.heads = {} (give a "
                          "multiple, or model.head_dim)",
                          m.hidden, m.heads));
    }
    if (usable({"model.heads", "model.kv_heads"}) && m.heads % m.kv_heads != 0) {
      problem("model.kv_heads", fmt::format("model.kv_heads = {} does not divide model.heads = {}",
                                            m.kv_heads, m.heads));
    }
    if (usable({"model.activation"}) && m.activation == Activation::swiglu &&
        !set("model.ffn_hidden")) {
      problem("model.ffn_hidden",
              "model.ffn_hidden is missing: activation swiglu has no default width (8/3 of "
              "model.hidden, rounded up, keeps the size of a gelu layer)");
    }
    if (usable({"model.position", "model.head_dim", "model.hidden", "model.heads"}) &&
        m.position == Position::rope && m.head_dim % 2 != 0) {
      problem("model.head_dim",
              fmt::format("model.head_dim = {} is odd, but position rope turns pairs (give an even "
                          "one)",
                          m.head_dim));
    }
  }

  void layout() {
    at_most("parallel.tensor", deck_.parallel.tensor, "model.heads", deck_.model.heads);
    at_most("parallel.pipeline", deck_.parallel.pipeline, "model.layers", deck_.model.layers);
  }

  void data_and_batch() {
    if (usable({"data.train"}) && deck_.data.train.empty()) {
      problem("data.train", "data.train = [] names no token file");
    }
    if (usable({"data.validation", "evaluate.every"}) && deck_.evaluate.every > 0 &&
        deck_.data.validation.empty()) {
      problem("evaluate.every",
              fmt::format("evaluate.every = {} needs data.validation", deck_.evaluate.every));
    }
    at_most("batch.sequence", deck_.batch.sequence, "model.context", deck_.model.context);
    const auto& ramp = deck_.batch.ramp;
    const auto stalled =
        std::adjacent_find(ramp.begin(), ramp.end(),
                           [](const RampEntry& a, const RampEntry& b) { return a.step >= b.step; });
    if (usable({"batch.ramp"}) && stalled != ramp.end()) {
      problem("batch.ramp", fmt::format("batch.ramp has step {} after step {} (steps must grow)",
                                        (stalled + 1)->step, stalled->step));
    }
  }

  void lengths() {
    if (!set("run.steps") && !set("run.epochs") && !set("run.tokens")) {
      problem("run.steps", "the run has no end: give run.steps, run.epochs or run.tokens");
    }
    at_most_one({"schedule.warmup_steps", "schedule.warmup_tokens", "schedule.warmup_epochs"});
    at_most_one({"schedule.decay_steps", "schedule.decay_tokens", "schedule.decay_epochs"});
    const ScheduleSection& s = deck_.schedule;
    if (usable({"schedule.kind"}) && s.kind == ScheduleKind::step && !set("schedule.step_size")) {
      problem("schedule.kind", "schedule.kind = \"step\" needs schedule.step_size");
    }
    if (usable({"schedule.min_lr", "optimizer.lr"}) && s.min_lr > deck_.optimizer.lr) {
      problem("schedule.min_lr", fmt::format("schedule.min_lr = {} is more than optimizer.lr = {}",
                                             s.min_lr, deck_.optimizer.lr));
    }
  }

  void faults() {
    const auto& all = deck_.fault.inject;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto begin = all.begin(), end = begin + static_cast<std::ptrdiff_t>(i);
      if (std::find(begin, end, all[i]) == end) continue;
      problem("fault.inject",
              fmt::format("fault.inject has \"{}\" twice, but each happens once in a run",
                          to_text(all[i])));
    }
  }

  void availability() {
    for (const SchemaRow& row : schema_rows()) {
      if (problems_.about(row.name) || row.is_built(deck_)) continue;
      problem(row.name, fmt::format("{} = {} is not available in this version ({})", row.name,
                                    value_excerpt(row.field.get(deck_)), row.available()));
    }
  }

 private:
  bool set(std::string_view key) const { return loaded_.origins.contains(key); }

  bool usable(std::initializer_list<std::string_view> keys) const {
    return std::none_of(keys.begin(), keys.end(),
                        [&](std::string_view key) { return problems_.about(key); });
  }

  void problem(std::string_view key, std::string text) {
    problems_.add(loaded_.place(key), key, std::move(text));
  }

  void at_most(std::string_view key, std::int64_t value, std::string_view limit_key,
               std::int64_t limit) {
    if (!usable({key, limit_key}) || value <= limit) return;
    problem(key, fmt::format("{} = {} is more than {} = {} (at most {})", key, value, limit_key,
                             limit, limit));
  }

  void at_most_one(std::initializer_list<std::string_view> keys) {
    std::string_view first;
    for (const std::string_view key : keys) {
      if (find_row(key)->field.get(deck_).unset()) continue;
      if (first.empty()) {
        first = key;
      } else {
        problem(key, fmt::format("{} and {} ({}) say the same thing: keep one", key, first,
                                 loaded_.where(first)));
      }
    }
  }

  const LoadedDeck& loaded_;
  const Deck& deck_;
  Problems& problems_;
};

}  // namespace

void check_deck(const LoadedDeck& loaded, Problems& problems) {
  Checker checker(loaded, problems);
  checker.model();
  checker.layout();
  checker.data_and_batch();
  checker.lengths();
  checker.faults();
  checker.availability();
}

}  // namespace tessera::deck
