#include "verbs/check/check.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/bytes.hpp"
#include "core/terminal.hpp"
#include "deck/codec.hpp"
#include "deck/ranks.hpp"
#include "deck/remarks.hpp"
#include "plan/passes/repeat.hpp"
#include "plan/prediction/size.hpp"
#include "setup/adapters.hpp"
#include "setup/budget.hpp"
#include "setup/generation.hpp"
#include "setup/groups.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "setup/traffic.hpp"
#include "train/execution/executor.hpp"

namespace tessera::verbs {

const plan::RankFigures& Checked::largest_rank() const {
  return *std::ranges::max_element(figures, {},
                                   [](const plan::RankFigures& f) { return f.ledger.device(); });
}

comm::WireBytes Checked::sent() const {
  comm::WireBytes most;
  for (const auto& f : figures) {
    const comm::WireBytes sent = f.sent();
    most = {std::max(most.intra, sent.intra), std::max(most.inter, sent.inter)};
  }
  return most;
}

double Checked::flop() const {
  return std::ranges::max_element(figures, {}, &plan::RankFigures::flop)->flop;
}

namespace {

/// Of what the deck leaves open, as what needs most memory.
Checked planned(const LayoutOptions& layout) {
  Checked checked{.layout = layout,
                  .planner = make_planner(layout),
                  .figures = {},
                  .meetings = 0,
                  .bubble = {}};
  Planner& p = checked.planner;
  std::int64_t most = -1;
  setup::Traffic largest;
  for (const setup::Traffic& form : p.open) {
    p.set(form);
    for (const plan::ArenaBytes& arenas : setup::largest_arenas(p.inputs, p.shapes)) {
      const std::int64_t bytes = plan::device_bytes(arenas) + plan::host_bytes(arenas);
      if (bytes > most) most = bytes, largest = form;
    }
  }
  if (!p.open.empty()) p.set(largest);
  return checked;
}

/// Visits of a unit by a micro-batch that are planned and proved within some seconds.
constexpr std::int64_t kSoon = 1 << 15;
/// Micro-batches of a step of which it is said what planning them costs.
constexpr std::int64_t kMany = 100;

/// Tells who waits for large plans why, before they are made. Those that are too large are refused
/// at once.
void announce(const Checked& checked, std::size_t places) {
  const plan::PlanInputs& in = checked.planner.inputs;
  std::int64_t visits = 0, longest = 0;
  for (const plan::PlanShape& shape : checked.planner.shapes) {
    if (plan::is_too_long(in, shape)) return;
    plan::PlanShape planned = shape;
    planned.micro_batches = scheduled_at_first(in, shape).value_or(shape.micro_batches);
    visits += plan::visits_of(in, planned) * static_cast<std::int64_t>(places);
    longest = std::max(longest, shape.micro_batches);
  }
  if (visits <= kSoon) return;
  tell(fmt::format(
      "tessera: {} visits of the model's {} units by micro-batches are planned and proved, {} a "
      "step: this takes a while; a larger batch.micro makes it short\n",
      visits, std::ssize(in.model.units), count_text(longest, "micro-batch", "micro-batches")));
}

/// What the plan of a step of many micro-batches costs a rank's host.
std::string plan_text(const Checked& checked) {
  const plan::PlanInputs& in = checked.planner.inputs;
  const plan::PlanShape& step = checked.planner.shapes.front();
  if (step.micro_batches < kMany) return "";
  const plan::PlanSize size = plan::size_of_step(in, step, checked.largest_rank().place);
  // Operations with real addresses, beside those of the plan.
  const double bound = size.operations * static_cast<double>(sizeof(train::BoundPlan::BoundOp));
  return fmt::format(
      "the plan of a step of {}: {} visits of units, {:.4g} operations, {} of the host's memory a "
      "rank, about {:.1f} s to make and prove{}\n",
      count_text(step.micro_batches, "micro-batch", "micro-batches"), plan::visits_of(in, step),
      size.operations, human_bytes(static_cast<std::int64_t>(size.bytes + bound)), size.seconds,
      scheduled_at_first(in, step) ? "" : "; a larger batch.micro makes it shorter");
}

void survey(Checked& checked, const std::vector<MeshPlace>& places) {
  plan::Survey survey = checked.planner.survey(places);
  checked.figures = std::move(survey.ranks);
  checked.meetings = survey.meetings;
}

}  // namespace

Checked check_layout(const LayoutOptions& layout) {
  Checked checked = planned(layout);
  setup::check_traffic(checked.planner.loaded, checked.planner.inputs.layout.node_of);
  setup::check_cache(checked.planner.loaded);
  const auto places = plan::distinct_places(checked.planner.inputs);
  announce(checked, places.size());
  survey(checked, places);
  checked.bubble = bubble_of(checked.planner);
  return checked;
}

Checked check_other(const LayoutOptions& layout, const std::vector<std::string>& sets) {
  LayoutOptions other = layout;
  other.deck.sets.insert(other.deck.sets.end(), sets.begin(), sets.end());
  Checked checked = planned(other);
  // Nothing needs more than the largest steps that train and save.
  checked.planner.shapes = setup::largest_shapes(checked.planner.shapes);
  survey(checked, plan::largest_places(checked.planner.inputs));
  return checked;
}

std::string plans_text(const Checked& checked) {
  return rank_map(checked.planner.inputs) + pipeline_text(checked) + traffic_text(checked) +
         memory_text(checked) + advice_text(checked);
}

std::optional<Checked> check_variant(const LayoutOptions& layout,
                                     const std::vector<std::string>& sets) {
  try {
    Checked checked = check_other(layout, sets);
    setup::check_traffic(checked.planner.loaded, checked.planner.inputs.layout.node_of);
    return checked;
  } catch (const DeckError&) {
    return std::nullopt;
  }
}

namespace {

void report(const LayoutOptions& layout) {
  const Checked checked = check_layout(layout);
  const deck::Deck& deck = checked.deck();
  const plan::PlanShape& step = checked.planner.shapes.front();
  const std::int64_t global = step.micro_batches * step.micro * checked.mesh().batch_ranks();
  fmt::print("parameters {}; a step: {} of {}, {} a rank, {:.4g} flop a rank in {}\n",
             model::parameter_count(checked.planner.inputs.model.units),
             count_text(global, "sequence"), step.sequence,
             count_text(checked.micro_batches(), "micro-batch", "micro-batches"), checked.flop(),
             setup::types_text(deck.precision));
  if (const Planner& p = checked.planner; !p.open.empty()) {
    fmt::print(
        "planned with {}, which needs most memory; a run measures its links when it starts, and "
        "\"auto\" takes what makes steps shorter\n",
        setup::open_keys(p.as_given, setup::traffic_of(p.loaded.deck)));
  }
  fmt::print("{}{}{}{}", deck::remarks_text(checked.planner.loaded),
             setup::groups_text(deck) + setup::adapter_text(deck),
             plans_text(checked) + plan_text(checked), data_text(checked.planner.loaded));
  const plan::Ledger& most = checked.largest_rank().ledger;
  setup::check_budget(checked.planner.loaded, checked.mesh(), most.arenas);
  fmt::print("run directory {}\n", deck::run_directory(deck));
  fmt::print("{}: good for {}\n", printable(layout.deck.path), count_text(layout.ranks, "rank"));
}

struct CheckOptions {
  LayoutOptions layout;
  const CLI::Option *ranks = nullptr, *nodes = nullptr;
  std::string device_memory, generation, format = "text";
  bool options = false, fit = false, schedule = false;
};

ExitCode print_check(const CheckOptions& o) {
  LayoutOptions layout = o.layout;
  layout.device_memory = o.device_memory;
  if (o.schedule) {
    const bool fits = o.ranks->count() > 0;
    fmt::print("{}", schedule_text(layout.deck, fits ? std::optional(layout.ranks) : std::nullopt,
                                   o.format == "svg" ? PictureFormat::svg : PictureFormat::text));
  } else if (o.options) {
    fmt::print("{}", options_text(layout));
  } else if (o.fit) {
    fmt::print("{}", fit_text(layout));
  } else if (!o.generation.empty()) {
    if (o.nodes->count() == 0) layout.nodes = 0;  // as many as the machine's ranks a node make
    fmt::print("{}", generation_text(layout, o.generation));
  } else {
    report(layout);
  }
  return ExitCode::ok;
}

/// The picture is of the deck alone.
void add_schedule(CLI::App& verb, CheckOptions& o, CLI::Option* ranks) {
  auto* schedule =
      verb.add_flag("--schedule", o.schedule,
                    "learning rate, batch and sequences over the run instead, as a picture");
  for (const char* other : {"--options", "--fit", "--generation", "--device-memory", "--nodes"})
    schedule->excludes(verb.get_option(other));
  verb.add_option("--format", o.format, "of --schedule: text for a terminal, svg for a browser")
      ->check(CLI::IsMember({"text", "svg"}))
      ->needs(schedule);
  ranks->required(false)->description("number of ranks; required but for --schedule");
  verb.callback([&o, ranks] {
    if (!o.schedule && ranks->count() == 0) throw CLI::RequiredError("--ranks");
  });
}

}  // namespace

Verb check(CLI::App& app) {
  auto* verb = app.add_subcommand("check", "check a deck and say what a run needs, without MPI");
  auto o = std::make_shared<CheckOptions>();
  o->layout.add_to(*verb);
  CLI::Option* ranks = verb->get_option("--ranks");
  o->ranks = ranks;
  o->nodes = verb->get_option("--nodes");
  verb->add_option("--device-memory", o->device_memory,
                   "bytes of a rank's device, like 32GB: in place of memory.device")
      ->check([](const std::string& text) {
        return deck::parse_bytes(text) ? "" : "must be bytes like 32GB or 12GiB";
      });
  auto* options = verb->add_flag("--options", o->options,
                                 "model states for all ZeRO stages and offload choices instead");
  auto* fit = verb->add_flag("--fit", o->fit, "the largest batch.micro that fits instead")
                  ->excludes(options);
  verb->add_option(
          "--generation", o->generation,
          "instead, how many sequences to generate at once on the machine of this file, as "
          "in slurm/machines")
      ->excludes(options)
      ->excludes(fit);
  add_schedule(*verb, *o, ranks);
  return {.launch = Launch::single, .run = [o] { return print_check(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
