#include "verbs/planner.hpp"

#include <CLI/CLI.hpp>

#include "backend/backend.hpp"
#include "core/cores.hpp"
#include "setup/architecture.hpp"
#include "setup/budget.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "setup/threads.hpp"
#include "verbs/bounds.hpp"

namespace tessera::verbs {

void LayoutOptions::add_to(CLI::App& app) {
  deck.add_to(app);
  const auto count = bounds(std::int64_t{1}, std::optional(std::int64_t{1} << 24));
  app.add_option("--ranks", ranks, "number of ranks")->required()->check(count);
  app.add_option("--nodes", nodes, "number of nodes they are on")->check(count);
}

plan::Survey Planner::survey(std::span<const MeshPlace> places) const {
  return plan::survey(inputs, shapes, places, devices);
}

plan::PlanInputs Planner::inputs_of(const deck::Deck& deck,
                                    std::span<const plan::PlanShape> shapes_of_deck) const {
  return setup::plan_inputs(
      deck, shapes_of_deck, node_of,
      {.device = *devices.front(), .nccl = nccl, .device_is_host = device_is_host});
}

void Planner::set(const setup::Traffic& traffic) {
  loaded.deck = as_given;
  setup::set_traffic(loaded.deck, traffic);
  inputs = inputs_of(loaded.deck);
}

std::optional<std::int64_t> device_budget(const deck::Deck& deck) {
  const auto* bytes = std::get_if<deck::Bytes>(&deck.memory.device);
  return bytes == nullptr ? std::nullopt : std::optional(bytes->count);
}

Planner make_planner(const LayoutOptions& layout, bool generates) {
  Planner p;
  p.loaded = deck::load_deck(layout.deck.path, layout.deck.sets, setup::read_architecture);
  setup::check_on_ranks(p.loaded, layout.ranks);
  if (layout.ranks % layout.nodes != 0) {
    throw DeckError(
        fmt::format("--ranks {} does not divide over --nodes {}", layout.ranks, layout.nodes));
  }
  const std::int64_t local = layout.ranks / layout.nodes;
  const std::vector<CoreMask> masks(static_cast<std::size_t>(local), own_cores());
  const int threads = layout.threads > 0
                          ? layout.threads
                          : setup::thread_count(p.loaded.deck.run, cores_each(masks));
  const std::array alone{own_cores()};
  const deck::Deck& deck = p.loaded.deck;
  const auto memory_of_run = deck.memory.device;
  if (!layout.device_memory.empty()) {
    std::vector<std::string> sets = layout.deck.sets;
    sets.push_back("memory.device=\"" + layout.device_memory + "\"");
    p.loaded = deck::load_deck(layout.deck.path, sets, setup::read_architecture);
  }
  for (int i = 0; i < cores_each(alone); ++i) {
    auto planning =
        backend::make_planning_device({.kind = deck.run.backend,
                                       .threads = threads,
                                       .few_rows = generates || deck::draws_answers(deck.task.kind),
                                       .memory = memory_of_run});
    p.devices.push_back(std::move(planning.device));
    p.nccl = planning.nccl;
    p.device_is_host = planning.device_is_host;
    p.device_name = planning.name;
  }
  p.shapes = setup::training_shapes(p.loaded.deck,
                                    setup::mesh_of(p.loaded.deck, layout.ranks).batch_ranks());
  for (std::int64_t r = 0; r < layout.ranks; ++r) p.node_of.push_back(static_cast<int>(r / local));
  p.as_given = p.loaded.deck;
  if (setup::leaves_traffic_open(p.as_given)) {
    p.open = setup::open_traffic(p.loaded, p.node_of);
    setup::set_traffic(p.loaded.deck, p.open.back());
  }
  p.inputs = p.inputs_of(p.loaded.deck);
  return p;
}

std::string phase_text(const Planner& p, const plan::PlanShape& shape) {
  if (!p.inputs.optimizer.momentum) return "";
  switch (shape.compression) {
    case plan::Compression::none: return ", before momentum is compressed";
    case plan::Compression::begins: return ", as its compression begins";
    case plan::Compression::on: return ", with momentum compressed";
  }
  throw InternalError("a step without a phase");
}

}  // namespace tessera::verbs
