// What a user sees of a run: the start-up block, the step line, metrics.jsonl, and where the time
// went.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>

#include "core/terminal.hpp"
#include "core/version.hpp"
#include "plan/ir/print.hpp"
#include "plan/passes/blocks.hpp"
#include "plan/prediction/ledger.hpp"
#include "plan/prediction/spread.hpp"
#include "train/replicas.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

std::string count_text(double n) {
  if (n >= 1e9) return fmt::format("{:.2f}B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.1f}M", n / 1e6);
  if (n >= 1e3) return fmt::format("{:.1f}k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

/// How this process was started, as the kernel knows it.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  std::replace(text.begin(), text.end(), '\0', ' ');
  if (!text.empty()) text.pop_back();
  return text;
}

/// By pipeline stage, of the rank that has most.
nlohmann::ordered_json stages_json(const std::vector<plan::ArenaBytes>& stages) {
  auto all = nlohmann::ordered_json::array();
  for (const plan::ArenaBytes& bytes : stages) {
    auto& stage = all.emplace_back(nlohmann::ordered_json::object());
    for (const auto& [id, word] : EnumWords<plan::ArenaId>::table)
      stage[word] = bytes[static_cast<std::size_t>(id)];
  }
  return all;
}

}  // namespace

void Trainer::report_start() {
  const auto stages = engine_->of_largest_ranks(engine_->arenas());
  if (!report_) return;
  const plan::PlanInputs& inputs = engine_->inputs();
  const plan::Ledger ledger = engine_->ledger();
  const auto parameters = model::parameter_count(inputs.units);
  const std::int64_t ranks = engine_->data_ranks(), global = timeline_.global(1);
  const plan::PlanShape first = shape(plan::PlanPurpose::train, global);
  const auto& wire = engine_->prepared(first).wire;
  const comm::GroupShape& world = engine_->prepared(first).plan().group(MeshGroup::world);
  report_.say(
      fmt::format("tessera {} | run {} in {}", kVersion, deck_.run.name, directory_.string()));
  report_.say(fmt::format(
      "model     {} parameters: {} layers, hidden {}, {} heads, vocabulary {}, sequence {}",
      count_text(static_cast<double>(parameters)), inputs.config.layers, inputs.config.hidden,
      inputs.config.heads, inputs.config.vocab, deck_.batch.sequence));
  report_.say(fmt::format("layout    {}, ZeRO-{}, {} ranks a node, each on {}",
                          to_string(inputs.mesh), inputs.stage, world.local,
                          engine_->device_name()));
  report_.say(fmt::format(
      "batch     {} sequences a step = {} data ranks x {} micro-batches x {}, {} tokens; {} steps",
      global, ranks, first.micro_batches, first.micro,
      count_text(static_cast<double>(global * deck_.batch.sequence)), run_steps_));
  report_.say(fmt::format("data      {} tokens, {} sequences an epoch",
                          count_text(static_cast<double>(corpus_->tokens())),
                          corpus_->sequences(deck_.batch.sequence)));
  report_.say(fmt::format("traffic   a rank sends {} in its node and {} across nodes a step",
                          plan::human_bytes(wire.intra), plan::human_bytes(wire.inter)));
  for (const std::string& note : engine_->notes()) report_.say("          " + note);
  if (const auto blocks = plan::blocks_text(inputs, engine_->prepared(first).plan().place);
      !blocks.empty()) {
    report_.say("          " + blocks);
  }
  report_.say(fmt::format("memory    {} a rank:", plan::human_bytes(engine_->device_bytes())));
  std::string rows = plan::to_text(std::array{&ledger});
  rows.pop_back();
  report_.say(rows);
  if (const auto gpu = engine_->tier().apart(); gpu.total > 0) {
    report_.say(fmt::format(
        "          of the GPU's {}; {} are in use besides (driver, NCCL, others)",
        plan::human_bytes(gpu.total), plan::human_bytes(gpu.in_use - engine_->device_bytes())));
  }
  if (const auto apart = plan::tensor_over_nodes(inputs)) report_.say("note      " + *apart);
  if (const auto& steps = deck_.log.profile) {
    report_.say(fmt::format("profile   of steps {} to {} in {}: tessera plan --profile {} draws it",
                            steps->front(), steps->back(), (directory_ / "profile").string(),
                            directory_.string()));
  }
  if (deck_.guard.check_replicas > 0 && !keeps_copies(inputs)) {
    report_.say(
        fmt::format("note      guard.check_replicas has nothing to compare: ZeRO-{} on this layout "
                    "keeps no copies between steps",
                    inputs.stage));
  }
  report_.note(fmt::format(
      "started by tessera {} ({}) on {} ranks of {} nodes, rank 0 on {}: ZeRO-{}, {} threads a "
      "rank, run {}, {} sequences a step, {} steps",
      kVersion, kCommit, control_.size(), world.nodes, comm::host_name(), inputs.stage,
      engine_->threads(), deck_.run.name, global, run_steps_));
  nlohmann::ordered_json mesh;
  for (const Axis& a : kAxes) mesh[a.name] = inputs.mesh.*a.size;
  mesh["nodes"] = world.nodes;
  report_.event({{"event", "start"},
                 {"version", kVersion},
                 {"commit", kCommit},
                 {"command", command_line()},
                 {"deck", deck_.run.name},
                 {"mesh", std::move(mesh)},
                 {"zero_stage", inputs.stage},
                 {"meetings_of_stages", engine_->meetings()},
                 {"parameters", parameters},
                 {"predicted_bytes", engine_->bytes()},
                 {"arena_bytes", stages_json(stages)}});
}

/// Nodes' clocks matter to people who read logs of several, and to run.deadline.
void Trainer::report_clocks() {
  constexpr double kSameTime = 10;  // seconds
  control_.barrier();
  const auto now = static_cast<double>(std::time(nullptr));
  if (control_.max(now) + control_.max(-now) < kSameTime) return;
  const auto times = control_.gather(now);
  const auto hosts = control_.gather(comm::host_name());
  for (std::size_t rank = 1; rank < times.size(); ++rank) {
    if (std::abs(times[rank] - times[0]) < kSameTime) continue;
    report_.record(
        fmt::format("clocks disagree: rank {} on {} is {:.0f} s {} rank 0 on {}, whose clock "
                    "run.deadline goes by",
                    rank, hosts[rank], std::abs(times[rank] - times[0]),
                    times[rank] > times[0] ? "ahead of" : "behind", hosts[0]),
        {{"event", "clocks"}, {"rank", rank}, {"ahead_s", times[rank] - times[0]}});
    return;
  }
}

void Trainer::report_resume(const LoadedCheckpoint& from, std::int64_t bytes_read) {
  const CheckpointHeader& h = from.header;
  const std::int64_t again = std::max<std::int64_t>(0, report_.last_step() - h.step);
  std::string text = fmt::format("resumed from {}: step {}, {} samples; {} steps are done again",
                                 printable(from.path.string()), h.step, progress_.samples, again);
  if (h.layout != layout_of(engine_->inputs())) {
    text += fmt::format("; the layout was {} with ZeRO-{}", to_string(h.layout.mesh),
                        h.layout.zero_stage);
  }
  auto changed = nlohmann::ordered_json::array();
  for (const auto& d : from.differences) {
    if (d.rule != deck::OnResume::event) continue;
    text += fmt::format("; {} = {}, was {}", d.key, d.now, d.saved);
    changed.push_back({{"key", d.key}, {"saved", d.saved}, {"now", d.now}});
  }
  report_.record(text, {{"event", "resume"},
                        {"step", h.step},
                        {"from", from.path.string()},
                        {"done_again", again},
                        {"bytes_read", bytes_read},
                        {"changed", changed}});
}

void Trainer::report_step(const StepResult& r) {
  if (!report_) return;
  const std::int64_t step = progress_.step, global = timeline_.global(step),
                     ranks = control_.size();
  const auto tokens = static_cast<double>(global * deck_.batch.sequence);
  const double rate = tokens / r.times.total;
  const double tflops = model::flop_per_token(engine_->inputs().config, deck_.batch.sequence) *
                        rate / static_cast<double>(ranks) / 1e12;
  const double peak = engine_->peak_rate();
  const double lr = progress_.lr_factor * rate_->at(progress_.applied + (r.applied ? 0 : 1));
  const auto& wire = engine_->prepared(shape(plan::PlanPurpose::train, global)).wire;
  const IoBytes io = io_bytes();
  report_.event({{"event", "step"},
                 {"step", step},
                 {"loss", r.loss},
                 {"grad_norm", r.grad_norm},
                 {"lr", lr},
                 {"tokens", progress_.samples * deck_.batch.sequence},
                 {"samples", progress_.samples},
                 {"step_ms", r.times.total * 1e3},
                 {"tokens_per_s", rate},
                 {"mfu", peak > 0 ? nlohmann::json(tflops * 1e12 / peak) : nlohmann::json()},
                 {"tflops_per_rank", tflops},
                 {"comm_exposed_ms", r.times.comm_exposed * 1e3},
                 {"pipeline_exposed_ms", r.times.pipeline_exposed * 1e3},
                 {"io_exposed_ms", r.times.copy_exposed * 1e3},
                 {"data_exposed_ms", r.times.data_exposed * 1e3},
                 {"wire_bytes", {{"intra", wire.intra}, {"inter", wire.inter}}},
                 {"io_bytes", {{"read", io.read - io_.read}, {"write", io.written - io_.written}}},
                 {"compute_ms",
                  {{"min", spread_->least * 1e3},
                   {"median", spread_->median * 1e3},
                   {"max", spread_->most * 1e3},
                   {"slowest_rank", spread_->slowest}}},
                 {"skipped", !r.applied},
                 {"loss_scale", scaler_.scale()}});
  io_ = io;
  if (step % std::max<std::int64_t>(1, deck_.log.every) != 0 && step != run_steps_) return;
  report_.say(fmt::format(
      "step {}/{} | loss {:.6f} | norm {:.4f} | lr {:.1e} | {:.1f} ms (comm {:.1f}%, "
      "io {:.1f}%) | {} MFU | {} tok/s | "
      "{:.1f} GiB",
      step, run_steps_, r.loss, r.grad_norm, lr, r.times.total * 1e3,
      100 * r.times.comm_exposed / r.times.total, 100 * r.times.copy_exposed / r.times.total,
      peak > 0 ? fmt::format("{:.1f}%", 100 * tflops * 1e12 / peak) : "n/a", count_text(rate),
      static_cast<double>(engine_->device_bytes()) / 0x1p30));
}

void Trainer::report_end(std::string_view reason) {
  // The slowest rank's step is everyone's: what others spend waiting for it is part of their
  // exposed communication.
  const double slowest = control_.max([&] {
    double compute = 0;
    for (double s : totals_.steps.compute) compute += s;
    return compute;
  }());
  const std::int64_t grown = control_.max(engine_->memory_growth()),
                     libraries = control_.max(engine_->library_bytes());
  const auto high_water = engine_->of_largest_ranks(engine_->high_water());
  if (!report_) return;
  const StepTimes& spent = totals_.steps;
  const plan::PlanInputs& inputs = engine_->inputs();
  const std::int64_t steps = progress_.step - first_step_ + 1;
  double compute = 0, blocks = 0, ends = 0;
  for (std::size_t i = 0; i < spent.compute.size(); ++i) {
    compute += spent.compute[i];
    const bool block = i > 0 && inputs.units[i - 1].kind == model::UnitKind::block;
    (block ? blocks : ends) += spent.compute[i];
  }
  const double total = std::max(1e-9, spent.total + totals_.checkpoints_s + totals_.evaluation_s);
  const auto row = [&](std::string_view name, double seconds) {
    report_.say(
        fmt::format("  {:<36}{:>10.2f} s {:>6.1f} %", name, seconds, 100 * seconds / total));
  };
  const std::string summary = fmt::format("{} after step {} ({} steps, {} skipped)", reason,
                                          progress_.step, steps, totals_.skips);
  report_.say(summary + ". Where rank 0's time went:");
  report_.note(summary);
  row("compute: blocks", blocks);
  row("compute: ends, norm, optimizer", ends);
  row("waiting for communication", spent.comm_exposed);
  if (inputs.mesh.pipeline > 1) row("  of it, for other stages", spent.pipeline_exposed);
  row("  of it, for the slowest rank", std::clamp(slowest - compute, 0.0, spent.comm_exposed));
  row("waiting for snapshots", spent.copy_exposed);
  row("waiting for data", spent.data_exposed);
  row("checkpoints", totals_.checkpoints_s);
  row("evaluation", totals_.evaluation_s);
  row("everything else", std::max(0.0, spent.total - compute - spent.comm_exposed -
                                           spent.copy_exposed - spent.data_exposed));
  if (spent.comm_exposed > 0.1 * total) {
    report_.say(
        "  for more speed: communication is exposed; a larger batch.micro or more micro-batches a "
        "step, a lower "
        "zero.stage if memory allows, or zero.prefetch = 2 hide more of it");
  } else if (spent.data_exposed > 0.05 * total) {
    report_.say("  for more speed: steps wait for tokens; put the token files on a faster disk");
  } else if (inputs.recompute == Recompute::full) {
    report_.say(
        "  for more speed: recompute.policy = \"selective\" computes less twice, if memory allows");
  } else {
    report_.say(
        "  for more speed: compute dominates; precision.compute = \"bf16\" is the next lever where "
        "it is not on");
  }
  const std::int64_t predicted = engine_->bytes();
  report_.say(fmt::format("  memory: {} predicted for the arenas, memory in use grew by {}",
                          plan::human_bytes(predicted), plan::human_bytes(grown)));
  if (engine_->tier().apart().total > 0) {
    report_.say(fmt::format(
        "  beside the arenas {} more of the GPU are in use than at the start: libraries, graphs",
        plan::human_bytes(libraries)));
  }
  report_.event({{"event", "end"},
                 {"reason", reason},
                 {"step", progress_.step},
                 {"skipped", totals_.skips},
                 {"predicted_bytes", predicted},
                 {"arena_high_water", stages_json(high_water)},
                 {"resident_growth_bytes", grown},
                 {"library_bytes", libraries}});
}

}  // namespace tessera::train
