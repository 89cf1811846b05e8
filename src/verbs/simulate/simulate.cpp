#include "verbs/simulate/simulate.hpp"

#include <CLI/CLI.hpp>

#include "core/bytes.hpp"
#include "plan/ir/print.hpp"
#include "plan/prediction/estimate.hpp"
#include "plan/prediction/items.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/traffic.hpp"
#include "verbs/bounds.hpp"

namespace tessera::verbs {
namespace {

struct Options {
  LayoutOptions layout;
  std::string machine;
  bool search = false, items = false;
  double within = 300;  // s
};

/// A line for each simulated rank: what it computes and what it waits for.
void print_ranks(const plan::Simulation& s) {
  std::vector<std::size_t> waits;
  for (std::size_t i = 1; i < kStreams; ++i) {
    if (std::ranges::any_of(s.ranks, [&](const auto& r) { return r.exposed[i] > 0; }))
      waits.push_back(i);
  }
  fmt::print("{:<22}{:>10}", "ms, by stage", "compute");
  for (const std::size_t i : waits) fmt::print("{:>18}", enum_word(static_cast<Stream>(i)));
  fmt::print("   (waits by stream)\n");
  for (const plan::SimulatedRank& r : s.ranks) {
    fmt::print("{:<22}{:>10.1f}",
               fmt::format("  {}{}", r.place.pipeline,
                           r.place.tensor > 0 ? fmt::format(", tensor {}", r.place.tensor) : ""),
               r.compute * 1e3);
    for (const std::size_t i : waits) fmt::print("{:>18.1f}", r.exposed[i] * 1e3);
    fmt::print("\n");
  }
}

void print_memory(const plan::Prediction& p, std::int64_t has) {
  const std::int64_t held = p.device_memory(), host = p.host_memory();
  fmt::print(
      "memory a rank          {}{}{}\n", human_bytes(held),
      has == 0 ? "" : fmt::format(" of {}{}", human_bytes(has), held > has ? ": does not fit" : ""),
      host == 0 ? "" : fmt::format("; {} of the host's", human_bytes(host)));
}

/// The steps beside the first of full length: of a curriculum or ramp, and before momentum travels
/// compressed.
void print_other_shapes(const Planner& p, const deck::Machine& machine) {
  for (const plan::PlanShape& shape : std::span(p.shapes).subspan(1)) {
    if (shape.purpose != plan::PlanPurpose::train) continue;
    const double step = plan::estimate_step(p.inputs, shape, machine);
    const Speed speed = speed_of(p, shape, step, machine);
    fmt::print(
        "  {:>6} tokens x {:<6}  {:.1f} ms, {:.5g} tokens/s, {:.4g} TFLOP/s a rank{}{}\n",
        shape.sequence, shape.micro_batches * shape.micro * p.inputs.layout.mesh.batch_ranks(),
        step * 1e3, speed.tokens_per_s, speed.flop_rate / 1e12,
        speed.mfu ? fmt::format(", MFU {:.1f}%", 100 * *speed.mfu) : "", phase_text(p, shape));
  }
}

void report(const LayoutOptions& layout, const deck::Machine& given, bool items) {
  Planner p = make_planner(layout);
  const deck::Machine machine = given.multiplying(p.loaded.deck.precision.matmul);
  if (p.open.empty()) setup::check_traffic(p.loaded, p.inputs.layout.node_of);
  const std::string settled = settle_traffic(p, machine);
  const plan::PlanShape& shape = p.shapes.front();
  const plan::Prediction found =
      plan::predict(plan::simulated_plans(p.inputs, shape), p.inputs, machine);
  const plan::Simulation& s = found.simulation;
  const Speed speed = speed_of(p, shape, s.step, machine);
  const deck::Deck& deck = p.loaded.deck;
  fmt::print("{} on {} of {}, {}: {}, ZeRO-{}, {} of {}, {}\n", deck.run.name,
             count_text(layout.ranks, "rank"), machine.name, count_text(layout.nodes, "node"),
             to_string(p.inputs.layout.mesh), p.inputs.sharding.stage,
             count_text(shape.micro_batches, "micro-batch", "micro-batches"), shape.micro,
             setup::types_text(deck.precision));
  if (!settled.empty()) fmt::print("{}\n", settled);
  fmt::print("step                   {:.1f} ms\n", s.step * 1e3);
  fmt::print("speed                  {:.5g} tokens/s, {:.4g} TFLOP/s a rank, MFU {}\n",
             speed.tokens_per_s, speed.flop_rate / 1e12,
             speed.mfu ? fmt::format("{:.1f}%", 100 * *speed.mfu) : "n/a");
  print_other_shapes(p, machine);
  fmt::print(
      "compute stands still   {:.1f}% of the step; the bubble alone, with links that take no "
      "time, {:.1f}%\n",
      100 * plan::idle_share(s), 100 * found.bubble);
  print_ranks(s);
  fmt::print("a rank sends           {} in its node, {} across nodes\n",
             human_bytes(found.sent.intra), human_bytes(found.sent.inter));
  print_memory(found, device_memory(deck, machine));
  if (machine.disk_write > 0) {
    // Of master weights, in f32, and of what the optimizer keeps.
    const std::int64_t each =
        size_of(DType::f32) + optim::saved_bytes_per_element(p.inputs.optimizer);
    const auto bytes = static_cast<double>(model::parameter_count(p.inputs.model.units) * each);
    const double rate_of_all = machine.disk_write * static_cast<double>(layout.nodes);
    fmt::print("a checkpoint           {:.1f} s to write, {:.1f} s to read\n", bytes / rate_of_all,
               bytes / rate_of_all * machine.disk_write / machine.disk_read);
  }
  if (items) fmt::print("\n{}", to_text(plan::items_of(found, machine), s.step));
}

ExitCode run(const Options& o) {
  const deck::Machine machine = deck::load_machine(o.machine);
  const LayoutOptions layout = on_machine(o.layout, machine);
  if (o.search) {
    fmt::print("{}", search_text(layout, machine, o.within));
  } else {
    report(layout, machine, o.items);
  }
  return ExitCode::ok;
}

}  // namespace

std::int64_t device_memory(const deck::Deck& deck, const deck::Machine& machine) {
  return device_budget(deck).value_or(machine.memory.count);
}

LayoutOptions on_machine(LayoutOptions layout, const deck::Machine& machine) {
  layout.threads = static_cast<int>(machine.threads);
  if (layout.nodes > 0) return layout;
  layout.nodes = ceil_div(layout.ranks, machine.ranks_per_node);
  if (layout.ranks % layout.nodes != 0) {
    throw DeckError(
        fmt::format("--ranks {} do not fill nodes of {} ({}: ranks_per_node) evenly: give other "
                    "--ranks, or --nodes",
                    layout.ranks, machine.ranks_per_node, machine.file));
  }
  return layout;
}

std::string settle_traffic(Planner& p, const deck::Machine& machine) {
  if (p.open.empty()) return "";
  const std::int64_t budget = device_memory(p.as_given, machine);
  const auto choice = setup::choose_traffic(
      p.as_given, p.open, [&](const deck::Deck& deck) { return p.inputs_of(deck); },
      [&](const plan::ArenaBytes& bytes) {
        return budget == 0 || plan::device_bytes(bytes) <= budget;
      },
      machine);
  p.set(choice.chosen);
  return setup::explain(p.as_given, choice, machine);
}

Speed speed_of(const Planner& p, const plan::PlanShape& shape, double step,
               const deck::Machine& machine) {
  const auto tokens = static_cast<double>(shape.micro_batches * shape.micro *
                                          p.inputs.layout.mesh.batch_ranks() * shape.sequence);
  const double flop = model::flop_per_token(p.inputs.model.config, shape.sequence) * tokens;
  Speed speed{.tokens_per_s = tokens / step,
              .flop_rate = flop / step / static_cast<double>(p.inputs.layout.mesh.size())};
  if (const auto peak = machine.peak.find(p.inputs.numerics.compute); peak != machine.peak.end())
    speed.mfu = speed.flop_rate / peak->second;
  return speed;
}

Verb simulate(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "simulate", "predict the time of a step on a machine that is not at hand, without MPI");
  auto options = std::make_shared<Options>();
  options->layout.nodes = 0;  // as many as the machine's ranks a node make
  options->layout.add_to(*verb);
  verb->add_option("--machine", options->machine, "machine file, as in slurm/machines")->required();
  auto* search =
      verb->add_flag("--search", options->search,
                     "the best layouts for the deck's model and batch instead of the deck's own");
  verb->add_flag(
          "--items", options->items,
          "also what the step is made of: calls, bytes, flop and time of each operation, and "
          "how near it comes to what the machine can do")
      ->excludes(search);
  verb->add_option("--within", options->within, "seconds after which it looks at no more layouts")
      ->check(bounds(0.0))
      ->capture_default_str()
      ->needs(search);
  return {.launch = Launch::single, .run = [options] { return run(*options); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
