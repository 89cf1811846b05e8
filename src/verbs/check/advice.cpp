// What a layout wastes, and what would make one fit: a table of rules, and deck values that are
// tried with real plans.
#include <algorithm>
#include <cmath>

#include "core/bytes.hpp"
#include "deck/presets.hpp"
#include "deck/ranks.hpp"
#include "plan/prediction/spread.hpp"
#include "setup/products.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {
namespace {

using Advice = std::optional<std::string>;

// --- Senseless combinations, each a rule

Advice tensor_over_nodes(const Checked& c) { return plan::tensor_over_nodes(c.planner.inputs); }

Advice zero_on_one_data_rank(const Checked& c) {
  if (c.deck().zero.stage == 0 || c.mesh().data > 1) return std::nullopt;
  return fmt::format("zero.stage = {} divides nothing over one data rank: zero.stage = 0 says so",
                     c.deck().zero.stage);
}

Advice gradients_over_uneven_nodes(const Checked& c) {
  const plan::PlanInputs& in = c.planner.inputs;
  if (!in.numerics.gradient_blocks) return std::nullopt;
  const comm::GroupShape group = group_shape(in, c.largest_rank().place, MeshGroup::data);
  const bool one_hop = gradient_route(in, c.largest_rank().place).hops.size() == 1;
  if (!one_hop || group.nodes == 1 || group.nodes == group.size) return std::nullopt;
  return fmt::format(
      "gradients cross nodes before they are added: zero.quantize.gradients adds them within nodes "
      "first where each node has as many of the {} data ranks",
      group.size);
}

/// The largest smaller batch.micro with four micro-batches a stage, or the smallest there is.
std::int64_t micro_for_stages(const Checked& c) {
  const auto legal = setup::runnable_micros(c.planner.loaded, c.mesh().size());
  const std::int64_t own = c.deck().batch.global / c.mesh().batch_ranks();
  std::int64_t best = legal.front();
  for (const std::int64_t micro : legal) {
    if (own / micro >= 4 * c.mesh().pipeline) best = micro;
  }
  return best;
}

Advice few_micro_batches(const Checked& c) {
  const std::int64_t stages = c.mesh().pipeline, count = c.micro_batches();
  if (stages == 1 || count >= 4 * stages) return std::nullopt;
  const Bubble& bubble = c.bubble;
  std::string text = fmt::format("{} {} stages busy {:.0f} % of the time",
                                 count_text(count, "micro-batch keeps", "micro-batches keep"),
                                 stages, 100 * (1 - bubble.equal));
  const std::int64_t micro = micro_for_stages(c);
  if (micro < c.deck().batch.micro) text += fmt::format("; batch.micro = {} makes more", micro);
  return text + fmt::format("; batch.global = {} would make {}",
                            4 * stages * c.deck().batch.micro * c.mesh().batch_ranks(), 4 * stages);
}

Advice gpipe_for_nothing(const Checked& c) {
  const std::int64_t stages = c.mesh().pipeline, count = c.micro_batches();
  if (stages == 1 || c.deck().parallel.schedule != PipelineSchedule::gpipe || count <= stages)
    return std::nullopt;
  return fmt::format(
      "parallel.schedule = \"gpipe\" keeps activations of {} micro-batches; \"1f1b\" has the same "
      "bubble and keeps at most {}",
      count, stages);
}

Advice unequal_stages(const Checked& c) {
  if (c.mesh().pipeline == 1) return std::nullopt;
  const Bubble& bubble = c.bubble;
  if (bubble.given - bubble.equal < 0.1) return std::nullopt;
  return fmt::format(
      "the stages' work differs, which costs {:.0f} % of their time: fewer stages, or another "
      "parallel.placement",
      100 * (bubble.given - bubble.equal));
}

Advice whole_sequences(const Checked& c) {
  const deck::ParallelSection& p = c.deck().parallel;
  const std::int64_t divisor = p.tensor * deck::context_chunks(c.deck());
  if (p.tensor == 1 || p.sequence || c.deck().batch.sequence % divisor != 0) return std::nullopt;
  return "parallel.sequence = true keeps fewer activations and sends the same bytes";
}

Advice large_staging(const Checked& c) {
  const plan::Ledger& ledger = c.largest_rank().ledger;
  const std::int64_t staging = ledger.of(plan::BufferPurpose::staging);
  constexpr std::int64_t kMuch = std::int64_t{1} << 30;
  if (staging < std::max(kMuch, ledger.device() / 10)) return std::nullopt;
  return fmt::format(
      "communication staging takes {} of {}: it grows with the {} data ranks, of which tensor or "
      "pipeline ranks would leave fewer",
      human_bytes(staging), human_bytes(ledger.device()), c.mesh().data);
}

Advice tiles_for_nothing(const Checked& c) {
  const deck::Deck& d = c.deck();
  const bool windows = d.offload.parameters != deck::OffloadTier::none ||
                       (d.zero.stage == kZeroStages - 1 && c.mesh().data > 1);
  if (d.zero.tiles == 1 || windows) return std::nullopt;
  return fmt::format("zero.tiles = {} makes nothing smaller: parameters stay whole on the device",
                     d.zero.tiles);
}

/// Without bias correction second moments that are frozen early are too small for ever.
Advice frozen_early(const Checked& c) {
  const auto& optimizer = c.deck().optimizer;
  if (!optimizer.compress_after) return std::nullopt;
  const double beta2 = (*optimizer.betas)[1],
               share = 1 - std::pow(beta2, static_cast<double>(*optimizer.compress_after));
  if (share > 1 - std::exp(-1.0)) return std::nullopt;
  return fmt::format(
      "optimizer.compress_after = {} freezes second moments, which are not corrected, at {:.0f} % "
      "of "
      "what they come to: updates stay {:.1f} times as large; at least 1 / (1 - beta2) = {:.0f} "
      "updates are usual",
      *optimizer.compress_after, 100 * share, 1 / std::sqrt(share), 1 / (1 - beta2));
}

Advice momentum_of_one(const Checked& c) {
  if (!c.deck().optimizer.compress_after || c.mesh().data > 1) return std::nullopt;
  return fmt::format(
      "optimizer.name = \"{}\" compresses nothing on one data rank, but freezes second "
      "moments all the same",
      enum_word(c.deck().optimizer.name));
}

constexpr std::array kRules = {frozen_early,
                               momentum_of_one,
                               tensor_over_nodes,
                               zero_on_one_data_rank,
                               gradients_over_uneven_nodes,
                               few_micro_batches,
                               gpipe_for_nothing,
                               unequal_stages,
                               whole_sequences,
                               large_staging,
                               tiles_for_nothing};

// --- Other values of the deck, tried with plans

struct Variant {
  std::string name;
  std::vector<std::string> sets;
};

std::int64_t total(const Checked& c) { return c.largest_rank().ledger.device(); }
std::int64_t sent(const Checked& c) { return c.sent().intra + c.sent().inter; }

Variant set_to(const std::string& key, const std::string& value) {
  return {key + " = " + value, {key + "=" + value}};
}

/// What makes a rank need less, in practice's order: compute twice before sending more.
std::vector<Variant> smaller(const Checked& c) {
  const deck::Deck& d = c.deck();
  std::vector<Variant> all;
  std::vector<std::string> so_far;
  const auto add = [&](Variant v) {  // each on top of the ones before
    so_far.insert(so_far.end(), v.sets.begin(), v.sets.end());
    if (!all.empty()) v.name = "and " + v.name;
    all.push_back({v.name, so_far});
  };
  if (d.recompute.policy == Recompute::none) add(set_to("recompute.policy", "\"selective\""));
  if (d.recompute.policy != Recompute::full) add(set_to("recompute.policy", "\"full\""));
  if (d.batch.micro > 1) add(set_to("batch.micro", "1"));
  const std::int64_t stages = deck::zero_stages(d.optimizer.name);
  for (auto stage = d.zero.stage + 1; stage < stages && c.mesh().data > 1; ++stage)
    add(set_to("zero.stage", std::to_string(stage)));
  const auto offload = [&](const char* key, deck::OffloadTier now) {
    if (now == deck::OffloadTier::none) add(set_to(key, "\"host\""));
  };
  offload("offload.activations", d.offload.activations);
  offload("offload.optimizer", d.offload.optimizer);
  offload("offload.gradients", d.offload.gradients);
  offload("offload.parameters", d.offload.parameters);
  return all;
}

std::string what_would_fit(const Checked& c, std::int64_t budget) {
  std::string text = fmt::format("a rank needs {} of {}. In the order that costs least:\n",
                                 human_bytes(total(c)), human_bytes(budget));
  for (const Variant& v : smaller(c)) {
    const auto other = check_variant(c.layout, v.sets);
    if (!other) continue;
    const bool fits = total(*other) <= budget;
    text += fmt::format("  {}: {}, {}\n", v.name, human_bytes(total(*other)),
                        fits ? "which fits" : "too much");
    if (fits) return text;
  }
  return text + "  more data, tensor or pipeline ranks\n";
}

/// What would cost less time and still fit.
std::string what_is_wasted(const Checked& c, std::int64_t budget) {
  const deck::Deck& d = c.deck();
  std::string text;
  const auto try_out = [&](const Variant& v, auto&& gain) {
    const auto other = check_variant(c.layout, v.sets);
    if (!other || total(*other) > budget) return false;
    const std::string what = gain(*other);
    if (what.empty()) return false;
    text += fmt::format("  {} fits too ({} of {}) and {}\n", v.name, human_bytes(total(*other)),
                        human_bytes(budget), what);
    return true;
  };
  const auto computes_less = [&](const Checked& other) {
    return other.flop() >= c.flop()
               ? ""
               : fmt::format("computes {:.0f} % less", 100 * (1 - other.flop() / c.flop()));
  };
  const auto sends_less = [&](const Checked& other) {
    return sent(other) >= sent(c) ? ""
                                  : fmt::format("sends {} instead of {}", human_bytes(sent(other)),
                                                human_bytes(sent(c)));
  };
  const auto recompute = [&](const char* policy) {
    return try_out(set_to("recompute.policy", policy), computes_less);
  };
  if (d.recompute.policy != Recompute::none && !recompute("\"none\"") &&
      d.recompute.policy == Recompute::full) {
    recompute("\"selective\"");
  }
  if (c.mesh().data == 1) return text;
  for (std::int64_t stage = 1; stage < d.zero.stage; ++stage) {
    Variant v = set_to("zero.stage", std::to_string(stage));
    const bool sharded = sharding_of(stage, c.mesh().data).gradients;
    v.sets.push_back(fmt::format("zero.reduce={}", sharded ? "micro" : "step"));
    if (try_out(v, sends_less)) return text;
  }
  if (d.zero.reduce == ReduceWhen::micro) try_out(set_to("zero.reduce", "\"step\""), sends_less);
  return text;
}

}  // namespace

std::string advice_text(const Checked& c) {
  std::string text;
  for (const auto rule : kRules) {
    if (const Advice advice = rule(c)) text += "  " + *advice + "\n";
  }
  if (const auto budget = device_budget(c.deck())) {
    text += total(c) > *budget ? "  " + what_would_fit(c, *budget) : what_is_wasted(c, *budget);
  }
  return text.empty() ? "" : "advice:\n" + text;
}

}  // namespace tessera::verbs
