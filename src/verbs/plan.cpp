#include "plan/print.hpp"

#include <CLI/CLI.hpp>

#include <future>
#include <set>

#include "core/cores.hpp"
#include "deck/ranks.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/check.hpp"
#include "plan/ledger.hpp"
#include "train/setup.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct Layout {
  DeckOptions deck;
  std::int64_t ranks = 1, nodes = 1;
  void add_to(CLI::App& app) {
    deck.add_to(app);
    app.add_option("--ranks", ranks, "number of ranks")->required()->check(CLI::PositiveNumber);
    app.add_option("--nodes", nodes, "number of nodes they are on")->check(CLI::PositiveNumber);
  }
};

/// What plans are made from; the CPU device says how much scratch its kernels want.
struct Planner {
  deck::LoadedDeck loaded;
  std::unique_ptr<kernels::Device> device;
  std::vector<plan::PlanShape> shapes;
  plan::PlanInputs inputs;
};

Planner make_planner(const Layout& layout) {
  Planner p;
  p.loaded = deck::load_deck(layout.deck.path, layout.deck.sets, train::read_architecture);
  deck::check_ranks(p.loaded, layout.ranks);
  if (layout.ranks % layout.nodes != 0) {
    throw DeckError(
        fmt::format("--ranks {} does not divide over --nodes {}", layout.ranks, layout.nodes));
  }
  const std::int64_t local = layout.ranks / layout.nodes;
  // Threads as if this machine were one of the nodes.
  const std::vector<CoreMask> masks(static_cast<std::size_t>(local), own_cores());
  p.device = kernels::make_cpu_device(
      {.threads = train::thread_count(p.loaded.deck.run, cores_each(masks))});
  p.shapes =
      train::training_shapes(p.loaded.deck, train::mesh_of(p.loaded.deck, layout.ranks).data);
  std::vector<int> node_of;
  for (std::int64_t r = 0; r < layout.ranks; ++r) node_of.push_back(static_cast<int>(r / local));
  p.inputs = train::plan_inputs(p.loaded.deck, p.shapes, node_of, *p.device);
  return p;
}

}  // namespace

Verb plan(CLI::App& app) {
  auto* verb = app.add_subcommand("plan", "print the operations of one step, without MPI");
  auto layout = std::make_shared<Layout>();
  auto rank = std::make_shared<std::int64_t>(0);
  auto format = std::make_shared<std::string>("text");
  layout->add_to(*verb);
  verb->add_option("--rank", *rank, "whose plan")->check(CLI::NonNegativeNumber);
  verb->add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  return {.launch = Launch::single,
          .run =
              [layout, rank, format] {
                if (*rank >= layout->ranks)
                  throw DeckError(fmt::format("--rank {} of {} ranks", *rank, layout->ranks));
                const Planner p = make_planner(*layout);
                const plan::Plan plan =
                    plan::make_plan(p.inputs, p.shapes.front(), p.inputs.mesh.place_of(*rank));
                fmt::print("{}\n",
                           *format == "json" ? to_json(plan, p.inputs) : to_text(plan, p.inputs));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

Verb check(CLI::App& app) {
  auto* verb = app.add_subcommand("check", "check a deck and say what a run needs, without MPI");
  auto layout = std::make_shared<Layout>();
  layout->add_to(*verb);
  return {.launch = Launch::single,
          .run =
              [layout] {
                const Planner p = make_planner(*layout);
                const auto& deck = p.loaded.deck;
                std::vector<plan::Plan> plans;
                for (const auto& shape : p.shapes) {
                  // Ranks differ in their shard and their neighbours only: the first, the last and
                  // the middle stand for all.
                  std::vector<std::future<std::uint64_t>> others;
                  for (const std::int64_t r :
                       std::set<std::int64_t>{layout->ranks / 2, layout->ranks - 1}) {
                    if (r == 0) continue;
                    others.push_back(std::async(std::launch::async, [&, r] {
                      return plan_hash(plan::make_plan(p.inputs, shape, p.inputs.mesh.place_of(r)));
                    }));
                  }
                  plans.push_back(plan::make_plan(p.inputs, shape, {}));
                  std::vector<std::uint64_t> hashes{plan_hash(plans.back())};
                  for (auto& other : others) hashes.push_back(other.get());
                  plan::check_together(hashes);
                }
                std::vector<const plan::Plan*> all;
                for (const auto& each : plans) all.push_back(&each);
                const plan::Ledger ledger = plan::make_ledger(all);
                const auto wire = total_wire_bytes(plans.front());
                fmt::print(
                    "parameters {}; a step: {} sequences of {}, {} micro-batches a rank, {:.4g} "
                    "flop a rank\n",
                    model::parameter_count(p.inputs.units), deck.batch.global, deck.batch.sequence,
                    plans.front().shape.micro_batches, total_flop(plans.front()));
                fmt::print("a rank sends {} in its node and {} across nodes a step\n",
                           plan::human_bytes(wire.intra), plan::human_bytes(wire.inter));
                fmt::print("memory a rank:\n{}", to_text(ledger));
                train::check_budget(p.loaded, ledger.state_bytes, ledger.step_bytes);
                fmt::print("run directory {}\n", deck::run_directory(deck));
                fmt::print("{}: good for {} ranks\n", layout->deck.path, layout->ranks);
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
