#include "verbs/generate/layout.hpp"

#include <algorithm>
#include <array>

#include "deck/schema.hpp"
#include "setup/products.hpp"
#include "setup/traffic.hpp"
#include "train/state/fit_ranks.hpp"

namespace tessera::verbs {
namespace {

/// What --set may set: sections, which end with a dot, and keys.
constexpr std::array<std::string_view, 17> kKeys = {"parallel.tensor",
                                                    "parallel.pipeline",
                                                    "parallel.placement",
                                                    "parallel.experts",
                                                    "parallel.expert_exchange",
                                                    "parallel.ranks_per_node",
                                                    "zero.stage",
                                                    "zero.prefetch",
                                                    "zero.secondary",
                                                    "offload.parameters",
                                                    "offload.cache",
                                                    "offload.nvme",
                                                    "offload.ahead",
                                                    "offload.block",
                                                    "offload.depth",
                                                    "frozen.",
                                                    "memory."};
constexpr std::array<std::string_view, 3> kRunKeys = {"run.threads", "run.reproducible",
                                                      "run.reproducible_tensor"};

bool is_of(std::string_view set, std::string_view key) {
  if (!key.ends_with('.')) return train::sets_key(set, key);
  set.remove_prefix(std::min(set.find_first_not_of(" \t"), set.size()));
  return set.starts_with(key);
}

void check_sets(std::span<const std::string> sets) {
  for (const std::string& set : sets) {
    const auto known = [&](std::string_view key) { return is_of(set, key); };
    if (std::ranges::any_of(kKeys, known) || std::ranges::any_of(kRunKeys, known)) continue;
    throw DeckError(fmt::format("--set {}: generation has no use for it; what it heeds is {}, {}",
                                set, fmt::join(kKeys, ", "), fmt::join(kRunKeys, ", ")));
  }
}

bool sets_key(std::span<const std::string> sets, std::string_view key) {
  return std::ranges::any_of(sets, [&](const std::string& set) { return is_of(set, key); });
}

}  // namespace

deck::LoadedDeck generation_deck(const GenerateOptions& o, const ModelSource& source,
                                 std::int64_t ranks) {
  check_sets(o.sets);
  deck::Deck plain = deck::parse_deck(
                         "run.steps = 1\nmodel.preset = \"gpt2_124m\"\ndata.train = [\"none\"]\n"
                         "batch.micro = 1\nbatch.global = 1\noptimizer.lr = 1.0\n",
                         source.name)
                         .deck;
  plain.model = source.model;
  plain.model.frozen = {};
  plain.batch.sequence = source.model.context;
  plain.parallel.sequence = false;  // of a single token there is nothing to split
  std::vector<std::string> sets{fmt::format("precision.compute=\"{}\"", to_string(o.type))};
  if (o.backend) sets.push_back(fmt::format("run.backend=\"{}\"", enum_word(*o.backend)));
  const bool codes = sets_key(o.sets, "frozen.type");
  if (codes && !sets_key(o.sets, "frozen.layers") &&
      source.model.adapter.kind == deck::AdapterKind::none)
    sets.emplace_back("frozen.layers=[\"block.*\"]");
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  deck::LoadedDeck loaded = deck::parse_deck(to_toml(plain), source.name, sets);
  const auto& p = loaded.deck.parallel;
  loaded.deck.batch.global = std::max<std::int64_t>(1, ranks / (p.tensor * p.pipeline));
  setup::check_on_ranks(loaded, ranks);
  if (setup::leaves_traffic_open(loaded.deck)) {
    throw DeckError(
        "--set zero.secondary=\"auto\": generation measures no links: give \"node\", or a number "
        "of neighbouring data ranks");
  }
  if (p.experts > 1 && loaded.deck.run.reproducible == deck::Reproducible::layout) {
    throw DeckError(
        "--set parallel.experts: with run.reproducible = \"layout\" no layout changes a bit, but "
        "what divided experts say depends on how many tokens of other sequences they get: use "
        "\"run\"");
  }
  const std::int64_t stage = loaded.deck.zero.stage;
  if (stage == 1 || stage == 2) {
    throw DeckError(fmt::format(
        "zero.stage = {}: without an optimizer a rank has whole parameters (0) or shards (3)",
        stage));
  }
  return loaded;
}

}  // namespace tessera::verbs
