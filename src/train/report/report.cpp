#include "train/report/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

#include "comm/launcher.hpp"
#include "comm/mpi/fabric.hpp"
#include "comm/mpi/session.hpp"
#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "deck/curriculum.hpp"
#include "plan/ir/print.hpp"
#include "plan/passes/blocks.hpp"
#include "plan/prediction/ledger.hpp"
#include "plan/prediction/spread.hpp"
#include "setup/inputs.hpp"
#include "train/expert_loads.hpp"
#include "train/guards/replicas.hpp"
#include "train/guards/stop.hpp"
#include "train/report/moved_rate.hpp"
#include "train/report/resolved.hpp"
#include "train/report/step_line.hpp"

namespace tessera::train {
namespace {

/// How this process was started, as the kernel knows it.
std::string command_line() {
  std::ifstream in("/proc/self/cmdline");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  std::replace(text.begin(), text.end(), '\0', ' ');
  if (!text.empty()) text.pop_back();
  return text;
}

/// A path as it can be pasted into a shell in any directory.
std::string pasted(const std::filesystem::path& path) {
  return shell_word(std::filesystem::absolute(path).lexically_normal().string());
}

/// By pipeline stage, of the rank that has most.
nlohmann::ordered_json stages_json(const std::vector<plan::ArenaBytes>& stages) {
  auto all = nlohmann::ordered_json::array();
  for (const plan::ArenaBytes& bytes : stages) {
    auto& stage = all.emplace_back(nlohmann::ordered_json::object());
    for (const auto& [id, word] : EnumWords<plan::ArenaId>::table) stage[word] = bytes[id];
  }
  return all;
}

nlohmann::ordered_json spread_json(const guard::RankSpread& spread) {
  return {{"min", spread.least * 1e3},
          {"median", spread.median * 1e3},
          {"max", spread.most * 1e3},
          {"slowest_rank", spread.slowest}};
}

nlohmann::ordered_json share_json(double share) {
  return share > 0 ? nlohmann::ordered_json(share) : nlohmann::ordered_json();
}

/// What would make steps faster, by where their time went.
std::string_view advice(const StepTimes& spent, double total, Recompute recompute, bool draws) {
  if (spent.comm_exposed > 0.1 * total) {
    return "communication is exposed; a larger batch.micro or more micro-batches a step, a lower "
           "zero.stage if memory allows, or a larger zero.prefetch hide more of it";
  }
  if (draws && spent.data_exposed > 0.5 * total) {
    return "steps wait for answers; with more rollout.slots more are drawn at once, and a lower "
           "rollout.tokens cuts the longest";
  }
  if (!draws && spent.data_exposed > 0.05 * total)
    return "steps wait for tokens; put the token files on a faster disk";
  if (spent.between > 0.1 * total) {
    return "time passes between steps (between_ms and own_ms of metrics.jsonl say in which, and on "
           "which rank): a slow disk below the run directory, a busy host, or very small steps";
  }
  if (recompute == Recompute::full)
    return "recompute.policy = \"selective\" computes less twice, if memory allows";
  return "compute dominates; precision.compute = \"bf16\" is the next lever where it is not on";
}

}  // namespace

void Report::start() const {
  const auto stages = run_.engine->of_largest_ranks(run_.engine->arenas());
  if (!run_.log) return;
  say_model_and_layout();
  say_memory();
  say_notes();
  say_how_to_stop();
  const Engine& engine = *run_.engine;
  const std::int64_t global = run_.course.sequences(1);
  const comm::GroupShape& world = run_.plan_of(1).plan().group(MeshGroup::world);
  run_.log.note(fmt::format(
      "started by tessera {} ({}) on {} of {}, rank 0 on {}: ZeRO-{}, {} a rank, run {}, {} a "
      "step, {}",
      kVersion, kCommit, count_text(run_.control.size(), "rank"), count_text(world.nodes, "node"),
      comm::host_name(), engine.inputs().sharding.stage, count_text(engine.threads(), "thread"),
      run_.deck.run.name, count_text(global, "sequence"), count_text(run_.course.steps(), "step")));
  nlohmann::ordered_json mesh;
  const Mesh& sizes = engine.inputs().layout.mesh;
  for (const Axis& a : kAxes) mesh[a.name] = sizes.*a.size;
  for (const Division& d : kDivisions)
    if (sizes.*d.ranks > 1) mesh[d.name] = sizes.*d.ranks;
  mesh["nodes"] = world.nodes;
  run_.log.event({{"event", "start"},
                  {"version", kVersion},
                  {"commit", kCommit},
                  {"command", command_line()},
                  {"deck", run_.deck.run.name},
                  {"mesh", std::move(mesh)},
                  {"zero_stage", engine.inputs().sharding.stage},
                  {"meetings_of_stages", engine.meetings()},
                  {"parameters", model::parameter_count(engine.inputs().model.units)},
                  {"predicted_bytes", engine.bytes()},
                  {"arena_bytes", stages_json(stages)}});
}

void Report::say_model_and_layout() const {
  const Engine& engine = *run_.engine;
  const plan::PlanInputs& in = engine.inputs();
  const std::int64_t global = run_.course.sequences(1), sequence = run_.deck.batch.sequence;
  const PreparedPlan& prepared = run_.plan_of(1);
  const plan::PlanShape& first = prepared.plan().shape;
  run_.log.say(fmt::format("tessera {} | run {} in {}", kVersion, run_.deck.run.name,
                           run_.directory.string()));
  run_.log.say(fmt::format("model     {} parameters: {}, hidden {}, {}, vocabulary {}, sequence {}",
                           human_count(static_cast<double>(model::parameter_count(in.model.units))),
                           count_text(in.model.config.layers, "layer"), in.model.config.hidden,
                           count_text(in.model.config.heads, "head"), in.model.config.vocab,
                           sequence));
  run_.log.say(fmt::format(
      "layout    {}, ZeRO-{}, {} a node, each on {}", to_string(in.layout.mesh), in.sharding.stage,
      count_text(prepared.plan().group(MeshGroup::world).local, "rank"), engine.device_name()));
  run_.log.say("messages  by " + comm::fabric().text());
  run_.log.say(
      fmt::format("batch     {} a step = {} x {} x {}, {} tokens; {}",
                  count_text(global, "sequence"), count_text(engine.batch_ranks(), "data rank"),
                  count_text(first.micro_batches, "micro-batch", "micro-batches"), first.micro,
                  human_count(run_.course.tokens(1)), count_text(run_.course.steps(), "step")));
  if (!run_.deck.batch.curriculum.empty()) run_.log.say("lengths   " + lengths_text());
  run_.log.say("data      " + data_text());
  run_.log.say(fmt::format("traffic   a rank sends {} in its node and {} across nodes a step",
                           human_bytes(prepared.wire.intra), human_bytes(prepared.wire.inter)));
  for (const std::string& note : engine.notes()) run_.log.say("          " + note);
  const auto blocks = plan::blocks_text(in, prepared.plan().place);
  if (!blocks.empty()) run_.log.say("          " + blocks);
}

std::string Report::data_text() const {
  if (run_.prompts) {
    return fmt::format("{}, {} to each", count_text(std::ssize(run_.prompts->all), "prompt"),
                       count_text(run_.deck.rollout.samples, "answer"));
  }
  return fmt::format("{} tokens, {} an epoch",
                     human_count(static_cast<double>(run_.corpus->tokens())),
                     count_text(data::epoch_samples(*run_.corpus, run_.deck), "sequence"));
}

/// Of the deck's curriculum.
std::string Report::lengths_text() const {
  const deck::BatchSection& batch = run_.deck.batch;
  const auto phases = deck::phases(batch);
  const deck::LengthEntry& last = phases.back();
  const std::string lengths =
      phases.size() == 1
          ? fmt::format("{} tokens a sequence", last.length)
          : fmt::format("{} tokens a sequence in step 1, {} from step {} on, {} phases",
                        run_.course.sequence(1), last.length, last.step, phases.size());
  return lengths + (batch.curriculum.cuts_anew()
                        ? "; each phase has the corpus cut anew"
                        : fmt::format("; each the beginning of one of {}", batch.sequence));
}

void Report::say_memory() const {
  Engine& engine = *run_.engine;
  run_.log.say(fmt::format("memory    {} a rank:", human_bytes(engine.device_bytes())));
  const plan::Ledger ledger = engine.ledger();
  std::string rows = plan::to_text(std::array{&ledger});
  rows.pop_back();
  run_.log.say(rows);
  if (const memory::DiskTier* disks = engine.disks()) {
    for (const auto& path : disks->removed())
      run_.log.say("          removed, as a job that was killed had left it: " + path.string());
    for (const auto& path : disks->buffered())
      run_.log.say("          through the page cache, as its file system has no other way: " +
                   path.string());
  }
  const auto gpu = engine.tier().device_memory();
  if (gpu.total == 0) return;
  run_.log.say(
      fmt::format("          of the GPU's {}; {} are in use besides (driver, NCCL, others)",
                  human_bytes(gpu.total), human_bytes(gpu.in_use - engine.device_bytes())));
}

void Report::say_how_to_stop() const {
  const char* job = std::getenv("SLURM_JOB_ID");
  run_.log.say(fmt::format(
      "stop      kill -USR1 {} on {},{} or touch {}: after the step under way, with a checkpoint",
      ::getpid(), comm::host_name(),
      job != nullptr ? fmt::format(" scancel --signal=USR1 {},", job) : "",
      pasted(run_.directory / kStopFile)));
  if (const auto seconds = comm::seconds_to_kill()) {
    run_.log.say(
        fmt::format("          {} has mpirun kill the ranks within {} s, whatever the step has "
                    "come to (README.md, \"Stopping and restarting\")",
                    comm::ctrl_c_is_the_parents() ? "Ctrl-C or SIGTERM" : "SIGTERM", *seconds));
  }
}

void Report::say_notes() const {
  const plan::PlanInputs& in = run_.engine->inputs();
  if (const auto note = plan::tensor_over_nodes(in)) run_.log.say("note      " + *note);
  if (const auto& steps = run_.deck.log.profile) {
    run_.log.say(fmt::format(
        "profile   of steps {} to {} in {}: tessera plan --profile {} draws it", steps->front(),
        steps->back(), (run_.directory / "profile").string(), pasted(run_.directory)));
  }
  if (run_.validation && run_.validation_bytes.empty() && predicts_text(run_.deck))
    run_.log.say(fmt::format("note      {}", kNoTextBytes));
  if (run_.deck.guard.check_replicas > 0 && !keeps_copies(in)) {
    run_.log.say(
        fmt::format("note      guard.check_replicas has nothing to compare: ZeRO-{} on this layout "
                    "keeps no copies between steps",
                    in.sharding.stage));
  }
}

void Report::started() const {
  const StartTimes& times = run_.start_times;
  nlohmann::ordered_json stages;
  for (const auto& [stage, word] : EnumWords<StartStage>::table)
    stages[std::string(word)] = times.of(stage);
  run_.log.record("start     " + times.text(),
                  {{"event", "started"}, {"seconds", times.total()}, {"stages", stages}});
}

void Report::recorded() {
  const double before = std::exchange(recording_, run_.engine->recording_seconds());
  if (recording_ == before) return;
  const std::int64_t step = run_.course.progress.step;
  run_.log.record(fmt::format("step {}: plans were recorded, to be repeated, in {:.2f} s", step,
                              recording_ - before),
                  {{"event", "recorded"}, {"step", step}, {"seconds", recording_ - before}});
}

void Report::clocks() const {
  constexpr double kSameTime = 10;  // seconds
  run_.control.barrier();
  const auto now = static_cast<double>(std::time(nullptr));
  if (run_.control.max(now) + run_.control.max(-now) < kSameTime) return;
  const auto times = run_.control.gather(now);
  const auto hosts = run_.control.gather(comm::host_name());
  for (std::size_t rank = 1; rank < times.size(); ++rank) {
    if (std::abs(times[rank] - times[0]) < kSameTime) continue;
    run_.log.record(
        fmt::format("clocks disagree: rank {} on {} is {:.0f} s {} rank 0 on {}, whose clock "
                    "run.deadline goes by",
                    rank, hosts[rank], std::abs(times[rank] - times[0]),
                    times[rank] > times[0] ? "ahead of" : "behind", hosts[0]),
        {{"event", "clocks"}, {"rank", rank}, {"ahead_s", times[rank] - times[0]}});
    return;
  }
}

/// What is compared with the deck of now: the deck of the run's last start; of a checkpoint of
/// another run, the deck that made it. A model that no step was applied to has no past.
std::optional<deck::Deck> Report::deck_before(const LoadedCheckpoint& from, bool own) const {
  auto last = own ? last_resolved(run_.directory) : std::nullopt;
  if (!last && from.header.step > 0) last = from.deck;
  return last;
}

void Report::warn_of_moved_rate(const deck::Deck& before) {
  const auto moved = run_.course.rate_moved_by_length(before);
  if (!moved) return;
  const std::int64_t step = run_.course.progress.step, steps = run_.course.steps();
  run_.log.record(moved_rate_text(*moved, step, steps, before, run_.deck),
                  {{"event", "lr_moved"},
                   {"step", step},
                   {"steps", steps},
                   {"steps_before", moved->steps_before},
                   {"lr", moved->now},
                   {"lr_before", moved->before}});
}

void Report::resume(const LoadedCheckpoint& from, bool own, std::int64_t bytes_read) {
  const io::CheckpointHeader& h = from.header;
  first_step_ = h.step + 1;
  if (!run_.log) return;
  const std::int64_t again = std::max<std::int64_t>(0, run_.log.last_step() - h.step);
  std::string text =
      fmt::format("resumed from {}: step {}, {}; {} done again", printable(from.path.string()),
                  h.step, count_text(run_.course.progress.samples, "sample"),
                  count_text(again, "step is", "steps are"));
  if (h.layout != setup::layout_of(run_.engine->inputs())) {
    text += fmt::format("; the layout was {} with ZeRO-{}", to_string(h.layout.mesh),
                        h.layout.zero_stage);
  }
  const plan::PlanInputs& inputs = run_.engine->inputs();
  const bool lost =
      inputs.layout.mesh.data > 1 &&
      (!inputs.optimizer.momentum ||
       plan::compression_at(inputs.optimizer, h.applied_updates) == plan::Compression::on);
  if (inputs.numerics.error_feedback && lost)
    text += "; what roundings have lost goes on as the sum of all ranks', not to the bit";
  auto changed = nlohmann::ordered_json::array();
  const auto before = deck_before(from, own);
  for (const auto& d :
       before ? changes(*before, run_.deck) : std::vector<deck::ResumeDifference>()) {
    text += fmt::format("; {} = {}, was {}", d.key, d.now, d.saved);
    changed.push_back({{"key", d.key}, {"saved", d.saved}, {"now", d.now}});
  }
  run_.log.record(text, {{"event", "resume"},
                         {"step", h.step},
                         {"from", from.path.string()},
                         {"done_again", again},
                         {"bytes_read", bytes_read},
                         {"changed", changed}});
  if (before) warn_of_moved_rate(*before);
}

/// The matrix work of the step that has just run, of all ranks.
double Report::flop() const {
  const std::int64_t step = run_.course.progress.step;
  return model::flop_per_token(run_.engine->inputs().model.config, run_.course.sequence(step)) *
         run_.course.tokens(step);
}

double Report::tflops(const StepResult& r) const {
  return flop() / r.times.total / static_cast<double>(run_.control.size()) / 1e12;
}

/// The step's matrix work as a share of this rate in flop/s; 0 where that is not known.
double Report::share_of(double rate, const StepResult& r) const {
  return rate > 0 ? tflops(r) * 1e12 / rate : 0;
}

void Report::begin() { begin_ = SteadyClock::now(); }

/// By the pace of this start, its first step apart, which may be slower than the others.
std::optional<double> Report::seconds_left(const StepResult& r) const {
  const auto left = static_cast<double>(run_.course.steps() - run_.course.progress.step);
  if (left <= 0) return std::nullopt;
  if (steps_done_ < 2) return left * r.times.total;
  const double since = std::chrono::duration<double>(SteadyClock::now() - first_end_).count();
  return left * since / static_cast<double>(steps_done_ - 1);
}

void Report::step(const StepResult& r, const std::optional<StepSpreads>& spreads) {
  const std::int64_t step = run_.course.progress.step;
  if (++steps_done_ == 1) first_end_ = SteadyClock::now();
  if (spreads) {
    step_event(r, *spreads);
    if (step % std::max<std::int64_t>(1, run_.deck.log.every) == 0 || step == run_.course.steps())
      step_line(r);
  }
  steps_.add(r.times);
  if (!r.applied) ++skips_;
  if (rates_.best_step_s > 0 && r.times.total >= rates_.best_step_s) return;
  rates_.best_step_s = r.times.total;
  rates_.best_tokens_per_s = run_.course.tokens(step) / r.times.total;
  rates_.best_gflops = flop() / r.times.total / 1e9;
}

/// The entries of data.train and what a step showed of each; null unless they are a mixture.
nlohmann::json Report::corpora_json(const StepResult& r) const {
  nlohmann::json all;
  for (std::size_t i = 0; i < r.by_corpus.size(); ++i) {
    const LossSum& losses = r.by_corpus[i];
    all.push_back({{"data", run_.deck.data.train[i].path},
                   {"loss", losses.targets > 0 ? nlohmann::json(losses.mean()) : nullptr},
                   {"targets", losses.targets}});
  }
  return all;
}

namespace {

/// null where no layer has experts.
nlohmann::json experts_json(const model::ModelConfig& config, const StepResult& r) {
  nlohmann::json all;
  for (const ExpertLoads& loads : expert_loads(config, r.choices))
    all.push_back({{"layer", loads.layer},
                   {"most", loads.most()},
                   {"unused", loads.unused()},
                   {"dropped", loads.dropped}});
  return all;
}
/// null where samples are no pairs.
nlohmann::json preferences_json(const std::optional<Preferences>& p, const deck::Deck& deck) {
  if (!p) return {};
  const double beta = deck.task.beta.value_or(1);
  return {{"accuracy", p->accuracy},
          {"margin", beta * p->margin()},
          {"reward_chosen", beta * p->chosen},
          {"reward_rejected", beta * p->rejected},
          {"log_ratio", deck.task.beta ? nlohmann::json(p->log_ratio()) : nlohmann::json()}};
}
/// null where the model draws nothing.
nlohmann::json rollout_json(const std::optional<RolloutSummary>& r) {
  if (!r) return {};
  const auto or_null = [](const std::optional<double>& x) {
    return x ? nlohmann::json(*x) : nlohmann::json();
  };
  return {{"answers", r->answers},
          {"reward", r->reward},
          {"reward_std", r->deviation},
          {"alike", r->alike},
          {"tokens", r->tokens},
          {"cut", r->cut},
          {"entropy", r->entropy},
          {"kl", r->kl},
          {"explained", or_null(r->explained)},
          {"critic_loss", or_null(r->critic_loss)},
          {"critic_grad_norm", or_null(r->critic_norm)},
          {"clipped", or_null(r->clipped)},
          {"moved", or_null(r->moved)},
          {"drawing_ms", r->drawing_s * 1e3},
          {"judging_ms", r->judging_s * 1e3}};
}
nlohmann::json choices_json(const model::ModelConfig& config, const Evaluation& evaluation) {
  nlohmann::json all;
  for (const ExpertLoads& loads : expert_loads(config, evaluation.choices))
    all.push_back({{"layer", loads.layer}, {"choices", loads.choices}});
  return all;
}

}  // namespace

void Report::step_event(const StepResult& r, const StepSpreads& spreads) {
  const Progress& at = run_.course.progress;
  const double peak = run_.engine->peak_rate();
  const auto& wire = run_.engine->prepared(r.shape).wire;
  const io::IoBytes io = io::io_bytes();
  run_.log.event({{"event", "step"},
                  {"step", at.step},
                  {"loss", r.loss},
                  {"grad_norm", r.grad_norm},
                  {"lr", r.lr},
                  {"tokens", at.tokens},
                  {"targets", r.targets},
                  {"corpora", corpora_json(r)},
                  {"experts", experts_json(run_.engine->inputs().model.config, r)},
                  {"preferences", preferences_json(r.preferences, run_.deck)},
                  {"rollout", rollout_json(r.rollout)},
                  {"samples", at.samples},
                  {"sequence", run_.course.sequence(at.step)},
                  {"step_ms", r.times.total * 1e3},
                  {"tokens_per_s", run_.course.tokens(at.step) / r.times.total},
                  {"mfu", share_json(share_of(peak, r))},
                  {"gemm_share", share_json(share_of(run_.gemm_rate, r))},
                  {"tflops_per_rank", tflops(r)},
                  {"comm_exposed_ms", r.times.comm_exposed * 1e3},
                  {"pipeline_exposed_ms", r.times.pipeline_exposed * 1e3},
                  {"io_exposed_ms", r.times.copy_exposed * 1e3},
                  {"data_exposed_ms", r.times.data_exposed * 1e3},
                  {"wire_bytes", {{"intra", wire.intra}, {"inter", wire.inter}}},
                  {"io_bytes", {{"read", io.read - io_.read}, {"write", io.written - io_.written}}},
                  {"between_ms", r.times.between * 1e3},
                  {"compute_ms", spread_json(spreads.compute)},
                  {"own_ms", spread_json(spreads.own)},
                  {"skipped", !r.applied},
                  {"loss_scale", run_.course.scaler.scale()}});
  io_ = io;
}

void Report::step_line(const StepResult& r) const {
  const std::int64_t step = run_.course.progress.step;
  const StepTimes& times = r.times;
  const auto part = [&](double seconds) { return seconds / times.total; };
  run_.log.say(to_text(StepLine{.step = step,
                                .steps = run_.course.steps(),
                                .loss = r.loss,
                                .grad_norm = r.grad_norm,
                                .lr = r.lr,
                                .seconds = times.total,
                                .tokens_per_s = run_.course.tokens(step) / times.total,
                                .mfu = share_of(run_.engine->peak_rate(), r),
                                .gemm_share = share_of(run_.gemm_rate, r),
                                .shares = {{{"comm", part(times.comm_exposed)},
                                            {"io", part(times.copy_exposed)},
                                            {"data", part(times.data_exposed)},
                                            {"between", part(times.between)}}},
                                .elapsed = seconds_since(begin_),
                                .left = seconds_left(r)}));
  std::string corpora;
  for (std::size_t i = 0; i < r.by_corpus.size(); ++i) {
    const LossSum& losses = r.by_corpus[i];
    corpora +=
        fmt::format(" | {} {} of {}", printable(run_.deck.data.train[i].path),
                    losses.targets > 0 ? fmt::format("loss {:#.5g}", losses.mean()) : "no loss",
                    count_text(losses.targets, "target"));
  }
  if (!corpora.empty()) run_.log.say(" " + corpora);
  if (r.preferences) run_.log.say("  | " + to_text(*r.preferences, run_.deck.task.beta));
  if (r.rollout) run_.log.say("  | " + to_text(*r.rollout));
}

namespace {

/// null where documents were classified or compared: it is of text.
nlohmann::json perplexity_json(const TextLoss& loss) {
  return loss.confusion.classes() > 0 || loss.preferences ? nlohmann::json()
                                                          : nlohmann::json(loss.perplexity());
}
nlohmann::json bits_json(const TextLoss& loss) {
  const auto bits = loss.bits_per_byte();
  return bits ? nlohmann::json(*bits) : nlohmann::json();
}

/// null where nothing was classified.
nlohmann::json accuracy_json(const Confusion& c) {
  return c.classes() > 0 ? nlohmann::json(c.accuracy()) : nlohmann::json();
}
nlohmann::json f1_json(const Confusion& c) {
  return c.classes() > 0 ? nlohmann::json(c.f1()) : nlohmann::json();
}
nlohmann::json counts_json(const Confusion& c) {
  nlohmann::json rows;
  for (std::int64_t label = 0; label < c.classes(); ++label) {
    nlohmann::json& row = rows.emplace_back();
    for (std::int64_t p = 0; p < c.classes(); ++p) row.push_back(c.count(label, p));
  }
  return rows;
}

nlohmann::json set_json(const Evaluation::Set& set, const deck::Deck& deck) {
  return {{"data", set.path},
          {"loss", set.loss},
          {"perplexity", perplexity_json(set)},
          {"bits_per_byte", bits_json(set)},
          {"accuracy", accuracy_json(set.confusion)},
          {"f1", f1_json(set.confusion)},
          {"confusion", counts_json(set.confusion)},
          {"preferences", preferences_json(set.preferences, deck)},
          {"targets", set.targets}};
}

}  // namespace

void Report::evaluated(const Evaluation& evaluation) {
  const std::int64_t step = run_.course.progress.step;
  nlohmann::json sets = nlohmann::json::array();
  for (const auto& set : evaluation.sets) sets.push_back(set_json(set, run_.deck));
  run_.log.record(
      fmt::format("evaluate at step {} | {} | {} | {:.1f} s", step,
                  to_text(evaluation, run_.deck.task.beta),
                  count_text(evaluation.sequences, samples_word(evaluation)), evaluation.seconds),
      {{"event", "evaluate"},
       {"step", step},
       {"loss", evaluation.loss},
       {"perplexity", perplexity_json(evaluation)},
       {"bits_per_byte", bits_json(evaluation)},
       {"accuracy", accuracy_json(evaluation.confusion)},
       {"f1", f1_json(evaluation.confusion)},
       {"confusion", counts_json(evaluation.confusion)},
       {"preferences", preferences_json(evaluation.preferences, run_.deck)},
       {"experts", choices_json(run_.engine->inputs().model.config, evaluation)},
       {"sequences", evaluation.sequences},
       {"targets", evaluation.targets},
       {"sets", sets},
       {"ms", evaluation.seconds * 1e3}});
  for (const std::string& line :
       details(evaluation, run_.labels ? run_.labels->names : std::vector<std::string>(),
               run_.deck.task.beta))
    run_.log.say("  " + line);
}

void Report::end(std::string_view reason, double waited_for_saves) const {
  const Engine& engine = *run_.engine;
  const double slowest = run_.control.max(steps_.own());
  const std::int64_t grown = run_.control.max(engine.memory_growth()),
                     libraries = run_.control.max(engine.library_bytes()),
                     peak = run_.control.max(memory::peak_resident_bytes()),
                     before = run_.control.max(engine.resident_before());
  const auto high_water = engine.of_largest_ranks(engine.high_water());
  if (!run_.log) return;
  const std::int64_t step = run_.course.progress.step;
  const std::string summary = fmt::format("{} after step {} ({}, {} skipped)", reason, step,
                                          count_text(step - first_step_ + 1, "step"), skips_);
  run_.log.say(summary + ". Where rank 0's time went:");
  run_.log.note(summary);
  const double total = say_times(waited_for_saves, slowest);
  run_.log.say(fmt::format("  for more speed: {}", advice(steps_, total, engine.inputs().recompute,
                                                          run_.prompts.has_value())));
  const std::int64_t predicted = engine.bytes();
  run_.log.say(fmt::format("  memory: {} predicted for the arenas, memory in use grew by {}",
                           human_bytes(predicted), human_bytes(grown)));
  run_.log.say(
      fmt::format("  the process had at most {} of the host's memory, {} of them before the arenas",
                  human_bytes(peak), human_bytes(before)));
  if (run_.engine->tier().device_memory().total > 0) {
    run_.log.say(fmt::format(
        "  beside the arenas {} more of the GPU are in use than at the start: libraries, graphs",
        human_bytes(libraries)));
  }
  run_.log.event({{"event", "end"},
                  {"reason", reason},
                  {"step", step},
                  {"skipped", skips_},
                  {"predicted_bytes", predicted},
                  {"arena_high_water", stages_json(high_water)},
                  {"resident_growth_bytes", grown},
                  {"peak_resident_bytes", peak},
                  {"resident_before_bytes", before},
                  {"library_bytes", libraries}});
}

/// The table of this start's time, which is returned. The slowest rank's step is everyone's: what
/// others spend waiting for it is part of their exposed communication.
double Report::say_times(double waited_for_saves, double slowest_own) const {
  const plan::PlanInputs& in = run_.engine->inputs();
  double blocks = 0, ends = 0;
  for (std::size_t i = 0; i < steps_.compute.size(); ++i) {
    const auto of = [&](model::UnitKind kind) {
      return i > 0 && in.model.units[i - 1].kind == kind;
    };
    const bool block = of(model::UnitKind::block) || of(model::UnitKind::block_part);
    (block ? blocks : ends) += steps_.compute[i];
  }
  const double compute = steps_.computed();
  const double total = std::max(1e-9, steps_.total + waited_for_saves + evaluations_.seconds);
  const auto row = [&](std::string_view name, double seconds) {
    run_.log.say(
        fmt::format("  {:<36}{:>10.2f} s {:>6.1f} %", name, seconds, 100 * seconds / total));
  };
  row("compute: blocks", blocks);
  row("compute: ends, norm, optimizer", ends);
  row("waiting for communication", steps_.comm_exposed);
  if (in.layout.mesh.pipeline > 1) row("  of it, for other stages", steps_.pipeline_exposed);
  row("  of it, for the slowest rank",
      std::clamp(slowest_own - steps_.own(), 0.0, steps_.comm_exposed));
  row("waiting for offloads, snapshots", steps_.copy_exposed);
  row("waiting for data", steps_.data_exposed);
  row("checkpoints", waited_for_saves);
  row("evaluation", evaluations_.seconds);
  row("between steps", steps_.between);
  row("  of it, for other ranks", steps_.for_others);
  row("everything else",
      std::max(0.0, steps_.total - compute - steps_.comm_exposed - steps_.copy_exposed -
                        steps_.data_exposed - steps_.between));
  return total;
}

}  // namespace tessera::train
