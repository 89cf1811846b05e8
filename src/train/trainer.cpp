#include "train/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "data/tokenizers.hpp"
#include "io/tokenizer_files.hpp"
#include "plan/ir/print.hpp"
#include "setup/inputs.hpp"
#include "train/evaluation.hpp"
#include "train/guards/leave.hpp"
#include "train/report/resolved.hpp"

namespace tessera::train {

Trainer::Trainer(const deck::LoadedDeck& loaded, const Job& job)
    : run_(loaded, job),
      report_(run_),
      stop_(loaded.deck.run, run_.directory, job.control.rank() == 0),
      since_step_(job.control) {
  or_leave_alone(job, run_.directory, [&] { start(); });
}

void Trainer::start() {
  const deck::Deck& deck = run_.deck;
  const comm::Control& control = run_.control;
  run_.start_times.add(StartStage::mpi, run_.job.mpi_seconds);
  run_.open_data();
  std::optional<std::filesystem::path> tokenizer;  // of the data, or else of the model
  control.together([&] {
    if (control.rank() == 0)
      tokenizer = data::common_tokenizer(run_.loaded, data::tokenizers_of_run(deck));
  });
  run_.start_times.ended(StartStage::data);
  run_.take_directory();
  run_.open_engine();
  control.together(
      [&] { faults_.emplace(run_.loaded, control.rank(), run_.directory, *run_.engine); });
  profiler_.emplace(deck.log, run_.job, run_.engine->inputs(), run_.directory);
  control.together([&] {
    if (control.rank() == 0) run_.log = Reporter(run_.directory);
  });
  run_.start_times.ended(StartStage::other);
  open_tokens();
  run_.start_times.ended(StartStage::data);
  saves_.emplace(run_, *faults_);
  guards_.emplace(run_, *saves_, *faults_, *tokens_);
  report_.start();
  if (!run_.traffic.empty())
    run_.log.record("traffic   " + run_.traffic, {{"event", "traffic"}, {"what", run_.traffic}});
  report_.clocks();
  run_.start_times.ended(StartStage::other);
  run_.engine->tune(run_.directory, true,
                    [&](const std::string& line) { run_.log.say("kernels   " + line); });
  run_.start_times.ended(StartStage::tuning);
  faults_->announce(run_.log);
  if (!run_.unnamed_classes.empty()) run_.log.say("note: " + printable(run_.unnamed_classes));
  start_or_resume();
  run_.start_times.ended(StartStage::parameters);
  check_switch();
  control.together([&] {
    if (control.rank() != 0) return;
    write_resolved(deck, run_.directory);
    io::write_text(run_.directory / "plan.txt",
                   to_text(run_.plan_of(1).plan(), run_.engine->inputs()));
    if (tokenizer)  // for generate and export
      io::copy_tokenizer(*tokenizer, run_.directory / "tokenizer.json");
    if (run_.labels) io::write_label_names(run_.directory / "labels.json", *run_.labels);
  });
  run_.start_times.ended(StartStage::other);
  report_.started();
}

void Trainer::open_tokens() {
  const deck::Deck& deck = run_.deck;
  if (run_.prompts) {
    auto rollouts = std::make_unique<Rollouts>(run_);
    rollouts_ = rollouts.get();
    tokens_ = std::move(rollouts);
    return;
  }
  run_.control.together([&] {
    tokens_ =
        std::make_unique<data::Batches>(*run_.corpus, data::training_samples(*run_.corpus, deck),
                                        data::batch_rules(deck, *run_.corpus));
    if (run_.validation && deck.evaluate.every > 0)
      validation_rules_ = data::batch_rules(deck, *run_.validation);
  });
}

void Trainer::start_or_resume() {
  const comm::Control& control = run_.control;
  Engine& engine = *run_.engine;
  const std::filesystem::path checkpoints = run_.directory / "checkpoints";
  control.together([&] {
    if (control.rank() == 0) io::clean_up_checkpoints(checkpoints);
  });
  const std::int64_t read_before = io::io_bytes().read;
  const auto from = load_checkpoint(run_.loaded, deck::OnResume::refused, control, engine.state(),
                                    run_.note_unusable());
  if (!from) {
    for (const auto& note : set_initial_state(run_.deck, control, engine.state()))
      run_.log.say(note);
    if (Critic* critic = this->critic()) {
      for (const auto& note : critic->begin()) run_.log.say(note);
    }
    source_ = source_of(run_.deck);
    if (!source_.empty()) say_source("begin as");
    guards_->begin(nullptr, true);
    run_.course.set_length();
    return;
  }
  check_same_codes(run_.loaded, *from, control, engine.state());
  check_data(*from);
  const bool own = from->path.parent_path() == checkpoints;
  guards_->begin(&*from, own);
  run_.course.set_length();
  report_.resume(*from, own, control.max(io::io_bytes().read - read_before));
  if (const auto note = code_errors_note(run_.deck.model.frozen, control, engine.state()))
    run_.log.say(*note);
  source_ = source_of(*from);
  if (!source_.empty()) say_source("began as");
  if (own) saves_->set_saved_step(run_.course.progress.step);
}

/// Of a run that begins, whose length its data may decide.
void Trainer::check_switch() {
  const auto& after = run_.deck.optimizer.compress_after;
  run_.control.together([&] {
    if (!after || *after < run_.course.steps() || run_.course.progress.step > 0) return;
    throw DeckError(fmt::format(
        "{}: optimizer.compress_after = {} is not before the end of the run, which has {} steps: "
        "nothing would be compressed (give less, or use adamw or lamb)",
        run_.loaded.where("optimizer.compress_after"), *after, run_.course.steps()));
  });
}

/// Tells people which model directory the weights come from.
void Trainer::say_source(std::string_view verb) {
  const std::string text = printable(fmt::format("{} those of {}", verb, source_));
  run_.log.say("weights   " + text);
  run_.log.note("the weights " + text);
}

/// Refuses other data under the same names: the same sample would be another text.
void Trainer::check_data(const LoadedCheckpoint& from) {
  run_.control.together([&] {
    if (run_.control.rank() != 0 || from.header.data.empty()) return;
    const auto difference = io::find_difference(from.header.data, run_.data_files);
    if (!difference) return;
    if (!run_.deck.data.accept_changes) {
      throw DeckError(
          fmt::format("{}: cannot go on from {}: the training data is not what it was: {}: give "
                      "the run its data "
                      "back, start a new run (run.dir), or set data.accept_changes = true",
                      run_.loaded.where("data.train"), from.path.string(), *difference));
    }
    run_.log.record(fmt::format("the training data is not what it was (data.accept_changes): {}",
                                printable(*difference)),
                    {{"event", "data_changed"}, {"step", from.header.step}, {"what", *difference}});
  });
}

io::CheckpointHeader Trainer::header() const {
  io::CheckpointHeader h;
  run_.course.save_to(h);
  guards_->save_to(h);
  h.data = run_.data_files;
  h.layout = setup::layout_of(run_.engine->inputs());
  // Exceptions that the user has accepted count for this start, not for those that resume from
  // here.
  deck::Deck deck = run_.deck;
  deck.data.accept_changes = deck.data.accept_tokenizer = deck.model.accept_non_finite = false;
  h.deck = to_toml(deck);
  h.source = source_;
  h.info["version"] = kVersion;
  h.info["written"] = utc_text();
  return h;
}

/// Of the update of the step whose tokens are current. All ranks add up how many targets count
/// where the rate depends on it.
double Trainer::learning_rate() const {
  const Course& course = run_.course;
  const std::int64_t step = course.progress.step + 1;
  double scale = 1;
  if (course.timeline().lr_follows_targets()) {
    const bool counts = run_.engine->counts_targets();
    const double targets =
        run_.control.sum(counts ? static_cast<double>(tokens_->current().count()) : 0.0);
    scale = course.timeline().lr_scale_of_targets(step, static_cast<std::int64_t>(targets));
  }
  return course.lr(course.progress.applied + 1, step) * scale;
}

StepInput Trainer::step_input(const plan::Plan& plan, double lr) const {
  const Course& course = run_.course;
  const std::int64_t update = course.progress.applied + 1;
  StepInput input;
  const auto set = [&](kernels::StepScalar which, double value) {
    input[which] = static_cast<float>(value);
  };
  set(kernels::StepScalar::loss_gradient,
      course.scaler.scale() / static_cast<double>(plan::targets_of(plan)));
  set(kernels::StepScalar::unscale, 1.0 / course.scaler.scale());
  set(kernels::StepScalar::lr, lr);
  run_.engine->inputs().optimizer.set_scalars(input.scalars, update);
  return input;
}

/// Makes the step's tokens current and starts reading the next step's. A rank that cannot read its
/// tokens takes part in the step all the same, with tokens of no meaning, so that no one waits for
/// it; then all ranks leave together and the step counts for nothing.
std::exception_ptr Trainer::read_batch(const plan::PlanShape& now) {
  const Course& course = run_.course;
  const Engine& engine = *run_.engine;
  const std::int64_t samples = course.progress.samples, step = course.progress.step + 1;
  const std::exception_ptr unreadable = tokens_->begin_or_blank(samples, engine.share(now));
  if (step < course.steps()) {
    tokens_->prefetch(samples + course.sequences(step),
                      engine.share(run_.shape(plan::PlanPurpose::train, step + 1)));
  }
  return unreadable;
}

StepResult Trainer::run_step() {
  using plan::PlanPurpose, plan::StepFlag;
  const std::int64_t step = run_.course.progress.step + 1;
  faults_->begin(step);
  // A flush before the last save does a part of what a step does, and a round is not left.
  const std::int64_t steps =
      (plan::leaves_work(run_.engine->inputs()) ? 2 : 1) + run_.deck.rollout.steps - 1;
  stop_reason_ = stop_.reason(static_cast<double>(steps) * slowest_step_s_ + saves_->slowest());
  const auto begin = SteadyClock::now();
  const std::exception_ptr unreadable = read_batch(run_.shape(PlanPurpose::train, step));
  const double waited = seconds_since(begin);
  std::optional<io::CheckpointHeader> before;  // of the state that the step copies, if it does
  if (saves_->take_snapshot_due()) before = header();
  const PreparedPlan& prepared = run_.engine->prepared(
      run_.shape(before ? PlanPurpose::train_snapshot : PlanPurpose::train, step));
  const double lr = learning_rate();
  StepInput input = step_input(prepared.plan(), lr);
  input.set(StepFlag::saved, saves_->phase_done());
  input.set(StepFlag::stop, stop_reason_.has_value());
  input.set(StepFlag::no_tokens, unreadable != nullptr);
  StepProfile* profile = profiler_->begin(step);
  Executor::Hooks hooks = faults_->hooks(prepared);
  if (before) {
    saves_->open(*before);
    hooks.save = saves_->tiles_of(run_.engine->unsettled_state());
  }
  const StepOutput output = run_.engine->run(prepared, input, tokens_->current(), hooks, profile);
  StepTimes times = output.times;
  const auto critic = train_critic(prepared.plan().shape.purpose, times);
  times.data_exposed += waited;
  times.total += waited;
  if (before) saves_->begin_snapshot(*before, times);  // whatever became of the step
  measure_to_end(times);
  slowest_step_s_ = std::max(slowest_step_s_, times.total);
  if (output.count(StepFlag::no_tokens) > 0) {
    run_.control.together([&] {
      if (unreadable) std::rethrow_exception(unreadable);
    });
  }
  if (profile != nullptr) profiler_->write(prepared.plan());
  return finish_step(prepared.plan(), output, input, lr, times, critic);
}

std::optional<Critic::Step> Trainer::train_critic(plan::PlanPurpose purpose, StepTimes& times) {
  Critic* critic = this->critic();
  if (critic == nullptr) return std::nullopt;
  Executor::SaveTile save;
  if (purpose == plan::PlanPurpose::train_snapshot)
    save = saves_->tiles_of(critic->unsettled_state());
  Critic::Step step = critic->train(purpose, tokens_->current(), save);
  times.add(step.times);
  return step;
}

/// A step takes from the end of the one before to its own end, so that nothing is left out but
/// saves and evaluations, which are counted by themselves.
void Trainer::measure_to_end(StepTimes& times) {
  Spent apart = saves_->spent();
  apart += report_.evaluations();
  const Spent all = since_step_.restart() - (apart - std::exchange(apart_, apart));
  times.between = std::max(0.0, all.seconds - times.total);
  times.for_others = std::clamp(all.waiting, 0.0, times.between);
  times.total += times.between;
}

/// The round that the step learned from, and what it says of the model since.
RolloutSummary Trainer::rollout_of(const plan::Plan& plan, const StepOutput& output,
                                   const std::optional<Critic::Step>& critic) const {
  RolloutSummary summary = rollouts_->summary();
  if (critic) {
    summary.critic_loss = critic->loss, summary.critic_norm = critic->grad_norm;
    summary.critic_applied = critic->applied;
  }
  if (!plan.statistics) return summary;
  summary.clipped = output.policy(0);
  summary.moved = output.policy(1);
  return summary;
}

StepResult Trainer::finish_step(const plan::Plan& plan, const StepOutput& output,
                                const StepInput& input, double lr, const StepTimes& times,
                                const std::optional<Critic::Step>& critic) {
  Course& course = run_.course;
  const auto targets = static_cast<double>(output.targets());
  const auto all_targets = static_cast<double>(plan::targets_of(plan));
  std::vector<LossSum> tallies;
  for (std::int64_t i = 0; i < output.tallies; ++i) tallies.push_back(output.losses_of(i));
  const StepResult result{.loss = output.losses().mean(),
                          .grad_norm = std::sqrt(output.sum(plan::WordLayout::norm)) /
                                       course.scaler.scale() * (all_targets / targets),
                          .lr = lr,
                          .targets = output.losses().targets,
                          .by_corpus = std::move(tallies),
                          .choices = output.choices,
                          .preferences = plan.statistics && rollouts_ == nullptr
                                             ? std::optional(output.preferences().means())
                                             : std::nullopt,
                          .rollout = rollouts_ != nullptr
                                         ? std::optional(rollout_of(plan, output, critic))
                                         : std::nullopt,
                          .applied = output.applied,
                          .times = times,
                          .input = input,
                          .shape = plan.shape};
  course.count_step(result.applied);
  stop_agreed_ = output.count(plan::StepFlag::stop) > 0;
  if (saves_->active() && output.count(plan::StepFlag::saved) == run_.control.size())
    saves_->advance();
  return result;
}

void Trainer::after_step(const StepResult& result) {
  if (run_.lock) run_.lock->check();
  report_.step(result, guards_->judge_speed(result.times));
  report_.recorded();
  keep_answers();
  run_.course.scaler.update(!result.applied);
  guards_->judge(result);
}

void Trainer::keep_answers() {
  const std::int64_t every = run_.deck.rollout.keep_every;
  if (rollouts_ == nullptr || every == 0 || !run_.course.due(every)) return;
  run_.control.together([&] {
    if (run_.control.rank() != 0) return;
    const auto directory = run_.directory / "rollouts";
    io::create_directories(directory);
    io::write_text(directory / fmt::format("step_{:08}.jsonl", run_.course.progress.step),
                   rollouts_->to_lines());
  });
}

ExitCode Trainer::train() {
  return or_leave_alone(run_.job, run_.directory, [&] { return train_or_agree_to_fail(); });
}

ExitCode Trainer::train_or_agree_to_fail() {
  saves_->set_aside_after(run_.course.progress.step);
  try {
    return train_steps();
  } catch (const AgreedError& e) {  // all ranks are here: what was saved before is worth keeping
    saves_->save_if_due([&] { return header(); });
    saves_->finish();
    try {
      report_.end(e.what(), saves_->spent().seconds);
    } catch (const IoError&) {  // on the disk that is full: the reason to leave is the other one
    }
    throw;
  }
}

ExitCode Trainer::train_steps() {
  stop_reason_ = stop_.reason(0);  // starting may have taken long
  stop_agreed_ = run_.control.max(std::int64_t{stop_reason_ ? 1 : 0}) > 0;
  if (must_stop()) return stop_on_request();
  report_.begin();
  since_step_.restart();
  while (!run_.course.over()) {
    const std::int64_t step = run_.course.progress.step + 1;
    run_.job.whereabouts.begin("training", step);
    try {
      after_step(run_step());
      if (!must_stop()) {
        const bool within = rollouts_ != nullptr && !rollouts_->round_over();
        saves_->after_step(guards_->skipping() || within, [&] { return header(); });
        evaluate_if_due();
      }
      if (must_stop()) return stop_on_request();
    } catch (Error& e) {
      e.add_context(fmt::format("step {}", step));
      throw;
    }
  }
  saves_->finish();
  report_.end("done", saves_->spent().seconds);
  // A request in the last step needs no other answer.
  if (run_.control.rank() == 0) stop_.obeyed();
  return ExitCode::ok;
}

ExitCode Trainer::stop_on_request() {
  const comm::Control& control = run_.control;
  const std::int64_t step = run_.course.progress.step;
  const auto who = control.min(stop_reason_ ? control.rank() : std::int64_t{control.size() - 1});
  const std::string why =
      control.broadcast(stop_reason_.value_or("a request taken back"), static_cast<int>(who));
  run_.log.record("asked to stop: " + why, {{"event", "signal"}, {"step", step}, {"what", why}});
  saves_->finish();
  if (saves_->saved_step() != step) saves_->save_now(header());
  report_.end("stopped on request: " + why, saves_->spent().seconds);
  control.together([&] {
    if (control.rank() == 0 && stop_.obeyed())
      write_ended(run_.directory, ExitCode::stopped, "stopped on request: the file stop");
  });
  return ExitCode::stopped;
}

void Trainer::evaluate_if_due() {
  if (!validation_rules_ || !run_.course.due(run_.deck.evaluate.every)) return;
  run_.job.whereabouts.begin("evaluating after", run_.course.progress.step);
  const Stopwatch watch(run_.control);
  const auto result = evaluate(*run_.engine, run_.control, run_.deck, *run_.validation,
                               *validation_rules_, run_.validation_bytes, [&] {
                                 stop_reason_ = stop_.reason(saves_->slowest());
                                 return stop_reason_ && !run_.course.over();
                               });
  report_.add_evaluation(watch.read());
  if (result) return report_.evaluated(*result);
  stop_agreed_ = true;
  run_.log.say("evaluation given up: asked to stop");
}

}  // namespace tessera::train
