#include "setup/traffic.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "core/bytes.hpp"
#include "deck/ranks.hpp"
#include "optim/timeline.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/prediction/estimate.hpp"
#include "plan/prediction/survey.hpp"
#include "setup/inputs.hpp"
#include "setup/shapes.hpp"

namespace tessera::setup {
namespace {

using deck::QuantizedGradients, deck::QuantizedWeights, deck::Secondary;

constexpr double kWorth = 0.02;  // of a step: gains below it are not worth rounding or memory

/// Why zero.secondary = "node" would do nothing on ranks on these nodes; empty where it would.
std::string why_no_secondary(const deck::Deck& deck, std::span<const int> found) {
  plan::PlanInputs in;
  in.layout.mesh = mesh_of(deck, std::ssize(found));
  in.layout.node_of = nodes_of(deck, found);
  const std::int64_t data = in.layout.mesh.data;
  for (std::int64_t r = 0; r < in.layout.mesh.size(); ++r) {
    const MeshPlace place = in.layout.mesh.place_of(r);
    if (place.data > 0) continue;
    const comm::GroupShape group = group_shape(in, place, MeshGroup::data);
    if (group.nodes == 1)
      return fmt::format("has no effect: the {} data ranks of a group are on one node", data);
    if (group.nodes < group.size && gradient_route(in, place).hops.size() == 1)
      return "needs as many data ranks on every node, in order";
  }
  return "";
}

/// The same of parallel.expert_exchange = "by_node".
std::string why_not_by_node(const deck::Deck& deck, std::span<const int> found) {
  plan::PlanInputs in;
  in.layout.mesh = mesh_of(deck, std::ssize(found));
  in.layout.node_of = nodes_of(deck, found);
  std::map<std::int64_t, std::string> by_neighbours;  // of each number one group's nodes
  for (std::int64_t r = 0; r < in.layout.mesh.size(); ++r) {
    std::vector<int> nodes;
    for (const int of : in.layout.mesh.members(r, MeshGroup::experts))
      nodes.push_back(at(in.layout.node_of, of));
    by_neighbours.try_emplace(comm::neighbours_of_nodes(nodes),
                              fmt::format("{}", fmt::join(nodes, ", ")));
  }
  if (const auto uneven = by_neighbours.find(0); uneven != by_neighbours.end()) {
    return fmt::format(
        "needs as many neighbours on every node, but ranks that divide experts are on nodes {}",
        uneven->second);
  }
  if (by_neighbours.size() > 1) {
    return fmt::format(
        "needs all groups of ranks that divide experts to lie on nodes alike, but some are on "
        "nodes {}, others on {}",
        by_neighbours.begin()->second, by_neighbours.rbegin()->second);
  }
  return by_neighbours.begin()->first < in.layout.mesh.experts
             ? ""
             : "has no effect: all ranks that divide experts are on one node";
}

bool says(const deck::ZeroSection& zero, Secondary word) {
  const auto* secondary = std::get_if<Secondary>(&zero.secondary);
  return secondary != nullptr && *secondary == word;
}

std::string word_of(const std::variant<Secondary, std::int64_t>& secondary) {
  const auto* ranks = std::get_if<std::int64_t>(&secondary);
  return ranks != nullptr ? std::to_string(*ranks)
                          : std::string(enum_word(std::get<Secondary>(secondary)));
}

/// A micro-batch alone has none beside it.
void check_overlap(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  const deck::Deck& deck = loaded.deck;
  if (!deck.parallel.expert_overlap) return;
  const std::int64_t samples = mesh_of(deck, ranks).batch_ranks() * deck.batch.micro;
  std::int64_t most = 0;
  const optim::Timeline timeline(deck.batch, 0);
  for (const optim::Phase& phase : timeline.phases()) most = std::max(most, phase.global);
  if (most >= 2 * samples) return;
  throw DeckError(fmt::format(
      "{}: parallel.expert_overlap = true has no effect: the {} samples of a step are a "
      "single micro-batch of batch.micro = {} on each of {} (give a smaller batch.micro, or "
      "leave it out)",
      loaded.where("parallel.expert_overlap"), most, deck.batch.micro,
      count_text(samples / deck.batch.micro, "data rank")));
}

/// In how many keys two forms differ.
int distance(const Traffic& a, const Traffic& b) {
  return int{a.secondary != b.secondary} + int{a.weights != b.weights} +
         int{a.gradients != b.gradients};
}

}  // namespace

void check_traffic(const deck::LoadedDeck& loaded, std::span<const int> found) {
  deck::check_quantized(loaded, std::ssize(found));
  if (loaded.deck.parallel.expert_exchange == ExpertExchange::by_node) {
    if (const std::string why = why_not_by_node(loaded.deck, found); !why.empty()) {
      throw DeckError(
          fmt::format("{}: parallel.expert_exchange = \"by_node\" {} (use \"direct\"; "
                      "parallel.ranks_per_node says where ranks count as those of a node)",
                      loaded.where("parallel.expert_exchange"), why));
    }
  }
  check_overlap(loaded, std::ssize(found));
  if (!says(loaded.deck.zero, Secondary::node)) return;
  const std::string why = why_no_secondary(loaded.deck, found);
  if (why.empty()) return;
  throw DeckError(fmt::format(
      "{}: zero.secondary = \"node\" {} (give a number of neighbouring data ranks below {} that "
      "divides it, or leave it at \"none\")",
      loaded.where("zero.secondary"), why, mesh_of(loaded.deck, std::ssize(found)).data));
}

bool leaves_traffic_open(const deck::Deck& deck) {
  const deck::QuantizeSection& q = deck.zero.quantize;
  return says(deck.zero, Secondary::automatic) || q.weights == QuantizedWeights::automatic ||
         q.gradients == QuantizedGradients::automatic;
}

std::vector<Traffic> open_traffic(const deck::LoadedDeck& loaded, std::span<const int> found) {
  const deck::Deck& deck = loaded.deck;
  const deck::QuantizeSection& q = deck.zero.quantize;
  const bool several = mesh_of(deck, std::ssize(found)).data > 1;
  const bool gathers = several && deck.zero.stage >= first_stage(&Sharding::parameters);
  const bool rounds = deck.run.reproducible != deck::Reproducible::layout;
  std::vector<std::variant<Secondary, std::int64_t>> secondaries{deck.zero.secondary};
  if (says(deck.zero, Secondary::automatic)) {
    secondaries = {Secondary::none};
    if (gathers && why_no_secondary(deck, found).empty()) secondaries.emplace_back(Secondary::node);
  }
  std::vector<QuantizedWeights> weights{q.weights};
  if (q.weights == QuantizedWeights::automatic) {
    weights = {QuantizedWeights::none};
    if (gathers && rounds) weights.push_back(QuantizedWeights::int8);
  }
  std::vector<QuantizedGradients> gradients{q.gradients};
  if (q.gradients == QuantizedGradients::automatic) {
    gradients = {QuantizedGradients::none};
    const bool theirs = deck.precision.gradients == deck::SumPrecision::f32;
    if (several && rounds && theirs) gradients.push_back(QuantizedGradients::int4);
  }
  std::vector<Traffic> forms;
  for (const auto& s : secondaries) {
    for (const auto w : weights) {
      for (const auto g : gradients)
        forms.push_back({.secondary = s, .weights = w, .gradients = g});
    }
  }
  return forms;
}

Traffic traffic_of(const deck::Deck& deck) {
  return {.secondary = deck.zero.secondary,
          .weights = deck.zero.quantize.weights,
          .gradients = deck.zero.quantize.gradients};
}

void set_traffic(deck::Deck& deck, const Traffic& traffic) {
  deck.zero.secondary = traffic.secondary;
  deck::QuantizeSection& q = deck.zero.quantize;
  q.weights = traffic.weights;
  q.gradients = traffic.gradients;
  const bool reduces = q.gradients != QuantizedGradients::none;
  if (!reduces) q.error_feedback = q.stochastic = false;
  if (!reduces && q.weights == QuantizedWeights::none) q = {};
}

std::string open_keys(const deck::Deck& deck, const Traffic& traffic) {
  const deck::QuantizeSection& q = deck.zero.quantize;
  std::vector<std::string> keys;
  const auto add = [&](std::string_view key, std::string_view word) {
    keys.push_back(fmt::format("{} = \"{}\"", key, word));
  };
  if (says(deck.zero, Secondary::automatic)) add("zero.secondary", word_of(traffic.secondary));
  if (q.weights == QuantizedWeights::automatic)
    add("zero.quantize.weights", enum_word(traffic.weights));
  if (q.gradients == QuantizedGradients::automatic)
    add("zero.quantize.gradients", enum_word(traffic.gradients));
  return fmt::format("{}", fmt::join(keys, ", "));
}

std::vector<plan::ArenaBytes> largest_arenas(const plan::PlanInputs& inputs,
                                             std::span<const plan::PlanShape> shapes) {
  const auto largest = largest_shapes(shapes);
  std::vector<plan::ArenaBytes> all;
  for (const MeshPlace& place : plan::largest_places(inputs)) {
    plan::ArenaBytes most{};
    for (const plan::PlanShape& shape : largest)
      most = plan::most_of(most, plan::placed_plan(inputs, shape, place).arena_bytes);
    all.push_back(most);
  }
  return all;
}

TrafficChoice choose_traffic(const deck::Deck& deck, std::span<const Traffic> forms,
                             const std::function<plan::PlanInputs(const deck::Deck&)>& inputs_of,
                             const std::function<bool(const plan::ArenaBytes&)>& fits,
                             const deck::Machine& machine) {
  const auto settled = [&](const Traffic& form) {
    deck::Deck as = deck;
    set_traffic(as, form);
    return as;
  };
  TrafficChoice choice{.tried = {}, .chosen = forms.front()};
  for (const Traffic& form : forms) {
    const deck::Deck as = settled(form);
    const plan::PlanInputs inputs = inputs_of(as);
    const auto shapes = training_shapes(as, inputs.layout.mesh.batch_ranks());
    choice.tried.push_back(
        {.traffic = form, .step = plan::estimate_step(inputs, shapes.front(), machine)});
  }
  for (;;) {  // until the best of those that may fit does
    double shortest = std::numeric_limits<double>::max();
    for (const auto& t : choice.tried) shortest = t.fits ? std::min(shortest, t.step) : shortest;
    const auto order = [&](const TrafficChoice::Tried& of) {
      return std::pair(distance(of.traffic, forms.front()), of.step);
    };
    TrafficChoice::Tried* best = nullptr;
    for (auto& t : choice.tried) {
      const bool good = t.fits && t.step <= shortest * (1 + kWorth);
      if (good && (best == nullptr || order(t) < order(*best))) best = &t;
    }
    if (best == nullptr) return choice;
    const deck::Deck as = settled(best->traffic);
    const plan::PlanInputs inputs = inputs_of(as);
    best->fits = std::ranges::all_of(
        largest_arenas(inputs, training_shapes(as, inputs.layout.mesh.batch_ranks())), fits);
    if (!best->fits) continue;
    choice.chosen = best->traffic;
    return choice;
  }
}

std::string explain(const deck::Deck& open, const TrafficChoice& choice,
                    const deck::Machine& machine) {
  const std::string keys = open_keys(open, choice.chosen);
  if (choice.tried.size() == 1)
    return fmt::format("\"auto\" makes {}: nothing else can be used with this deck on these ranks",
                       keys);
  const auto& first = choice.tried.front();
  const auto& last = choice.tried.back();
  const auto at = std::ranges::find(choice.tried, choice.chosen, &TrafficChoice::Tried::traffic);
  const auto ms = [](double seconds) { return fmt::format("{:.4g} ms", seconds * 1e3); };
  std::vector<std::string> links;
  const auto link = [&](std::string_view where, const std::optional<deck::Link>& of) {
    if (of) links.push_back(fmt::format("{:.3g} GB/s a rank {}", of->rate / 1e9, where));
  };
  link("within nodes", machine.intra);
  link("between nodes", machine.inter);
  const auto& other = choice.chosen == first.traffic ? last : first;
  std::string text = fmt::format(
      "\"auto\" makes {}: at {}, a step is predicted to take {}, and {} with {}", keys,
      fmt::join(links, ", "), ms(at->step), ms(other.step), open_keys(open, other.traffic));
  const auto misfit = std::ranges::find(choice.tried, false, &TrafficChoice::Tried::fits);
  if (misfit != choice.tried.end())
    return fmt::format("{}; with {} it would not fit memory", text,
                       open_keys(open, misfit->traffic));
  if (choice.chosen == first.traffic)
    return fmt::format("{}; no form is {:.0f} % shorter", text, 100 * kWorth);
  return text;
}

}  // namespace tessera::setup
