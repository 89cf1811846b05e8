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

namespace tessera::verbs {

void LayoutOptions::add_to(CLI::App& app) {
  deck.add_to(app);
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 24);
  app.add_option("--ranks", ranks, "number of ranks")->required()->check(count);
  app.add_option("--nodes", nodes, "number of nodes they are on")->check(count);
}

plan::Survey Planner::survey(std::span<const MeshPlace> places) const {
  return plan::survey(inputs, shapes, places, devices);
}

std::optional<std::int64_t> device_budget(const deck::Deck& deck) {
  const auto* bytes = std::get_if<deck::Bytes>(&deck.memory.device);
  return bytes == nullptr ? std::nullopt : std::optional(bytes->count);
}

Planner make_planner(const LayoutOptions& layout) {
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
  bool nccl = false, device_is_host = false;
  for (int i = 0; i < cores_each(alone); ++i) {
    auto planning = backend::make_planning_device(p.loaded.deck.run.backend, threads);
    p.devices.push_back(std::move(planning.device));
    nccl = planning.nccl;
    device_is_host = planning.device_is_host;
    p.device_name = planning.name;
  }
  p.shapes =
      setup::training_shapes(p.loaded.deck, setup::mesh_of(p.loaded.deck, layout.ranks).data);
  std::vector<int> node_of;
  for (std::int64_t r = 0; r < layout.ranks; ++r) node_of.push_back(static_cast<int>(r / local));

  p.inputs = setup::plan_inputs(p.loaded.deck, p.shapes, node_of, *p.devices.front());
  p.inputs.layout.nccl = nccl;
  p.inputs.offload.device_is_host = device_is_host;
  return p;
}

}  // namespace tessera::verbs
