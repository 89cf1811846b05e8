// tessera bench plan: how fast plans are made, and what check and a search over layouts take.
#include <limits>

#include "core/cores.hpp"
#include "plan/passes/make_plan.hpp"
#include "verbs/bench/bench.hpp"
#include "verbs/check/check.hpp"
#include "verbs/simulate/simulate.hpp"

namespace tessera::verbs {
namespace {

// Relative to the current directory, as the commands in README.md name them.
constexpr const char* kSmallDeck = "inputs/gpt2_124m.toml";
constexpr const char* kLargeDeck = "inputs/gpt2_1.5b.toml";
constexpr const char* kMachine = "slurm/machines/h100-dgx.toml";
constexpr std::int64_t kManyRanks = 64;
constexpr double kLeast = 0.2;  // seconds that a repeat takes
constexpr double kHoweverLong = std::numeric_limits<double>::infinity();

void require_files() {
  for (const char* file : {kSmallDeck, kLargeDeck, kMachine}) {
    if (std::filesystem::exists(file)) continue;
    throw DeckError(fmt::format(
        "bench plan reads {}, which is not in the current directory: run it in a checkout, in a "
        "folder of tools/pack, or in share/tessera of an installation",
        file));
  }
}

double fastest(std::int64_t repeats, const auto& work) {
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < repeats; ++i) {
    const auto begin = SteadyClock::now();
    work();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

void print_time(std::string_view name, const LayoutOptions& layout, double seconds,
                std::optional<double> plans = std::nullopt) {
  const std::string deck = std::filesystem::path(layout.deck.path).filename().string();
  const std::string shape = fmt::format("{} --ranks {}", deck, layout.ranks);
  fmt::print("{:<28}{:<30}{:>12.3f} ms{}\n", name, shape, seconds * 1e3,
             plans ? fmt::format("{:>12.1f} plans/s", *plans / seconds) : "");
}

/// Rank 0's plans of a step, one after another.
void time_plans(const LayoutOptions& layout, std::int64_t repeats) {
  const Planner p = make_planner(layout);
  const auto make = [&] {
    (void)plan::make_plan(p.inputs, p.shapes.front(), p.inputs.layout.mesh.place_of(0));
  };
  const double once = fastest(1, make);
  const auto calls = static_cast<std::int64_t>(std::max(1.0, kLeast / once));
  const double seconds = fastest(repeats, [&] {
    for (std::int64_t i = 0; i < calls; ++i) make();
  });
  print_time("plan", layout, seconds / static_cast<double>(calls), 1);
}

void time_check(const LayoutOptions& layout, std::int64_t repeats) {
  std::size_t plans = 0;
  const double seconds = fastest(repeats, [&] {
    const Checked checked = check_layout(layout);
    (void)plans_text(checked);
    plans = checked.figures.size() * checked.planner.shapes.size();
  });
  print_time("check", layout, seconds, static_cast<double>(plans));
}

}  // namespace

/// On rank 0. Plans are made on one core, check and search use all that the rank may use.
void bench_plan(const BenchOptions& o, const train::Job& job) {
  job.control.together([&] {
    if (job.mpi.rank() != 0) return;
    require_files();
    const deck::Machine machine = deck::load_machine(kMachine);
    const auto layout = [&](const char* deck, std::int64_t ranks) {
      return on_machine({.deck = {deck, o.sets}, .ranks = ranks, .nodes = 0}, machine);
    };
    fmt::print(
        "# on {}, by {}; the fastest of {}, the search once; plan: on one core; check and simulate "
        "--search: on {}\n",
        comm::host_name(), machine.file, o.repeats, cores_each(std::array{own_cores()}));
    const LayoutOptions large = layout(kLargeDeck, kManyRanks);
    time_plans(layout(kSmallDeck, 1), o.repeats);
    time_plans(large, o.repeats);
    time_check(large, o.repeats);
    const auto search = [&] { (void)search_text(large, machine, kHoweverLong); };
    print_time("simulate --search", large, fastest(1, search));
  });
}

}  // namespace tessera::verbs
