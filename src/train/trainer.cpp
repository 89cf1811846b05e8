#include "train/trainer.hpp"

#include <cmath>
#include <utility>

#include "core/exact_sum.hpp"
#include "deck/ranks.hpp"
#include "io/tokenizer_files.hpp"
#include "plan/ir/print.hpp"
#include "train/check_products.hpp"
#include "train/evaluation.hpp"
#include "train/leave.hpp"
#include "train/setup.hpp"
#include "train/tokenizers.hpp"
#include "train/watch.hpp"

namespace tessera::train {
namespace {

bool holds_a_run(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "metrics.jsonl") ||
         !list_checkpoints(directory / "checkpoints").empty();
}

}  // namespace

Trainer::Trainer(const deck::LoadedDeck& loaded, const Job& job)
    : loaded_(loaded),
      deck_(loaded.deck),
      job_(job),
      control_(job.control),
      directory_(deck::run_directory(deck_)),
      timeline_(deck_.batch, 0),
      scaler_(deck_.precision),
      stop_(deck_.run, directory_, control_.rank() == 0),
      spikes_(deck_.guard.spike_window, deck_.guard.spike_threshold) {
  or_leave_alone(job_, directory_, [&] { start(); });
}

void Trainer::start() {
  control_.together([&] {
    check_on_ranks(loaded_, control_.size());
    deck::check_quantized(loaded_, control_.size());
  });
  watch_peers(loaded_, job_, directory_);
  corpus_ = open_training(loaded_, control_);
  validation_ = open_validation(loaded_, control_);
  control_.together([&] {
    if (control_.rank() == 0) data_ = identify(*corpus_);
  });
  const std::int64_t sequences = corpus_->sequences(deck_.batch.sequence);
  timeline_ = optim::Timeline(deck_.batch, sequences);
  set_run_length();
  std::optional<std::filesystem::path> tokenizer;  // of the data, or else of the model
  control_.together([&] {
    if (control_.rank() == 0) tokenizer = common_tokenizer(loaded_, tokenizers_of_run(deck_));
  });
  take_directory();
  engine_.emplace(loaded_, job_, training_shapes(deck_, mesh_of(deck_, control_.size()).data));
  control_.together([&] { faults_.emplace(loaded_, control_.rank(), directory_, *engine_); });
  profiler_.emplace(deck_.log, job_, engine_->inputs(), directory_);
  control_.together([&] {
    if (control_.rank() == 0) report_ = Reporter(directory_);
  });
  const auto seed = static_cast<std::uint64_t>(deck_.run.seed);
  batches_.emplace(*corpus_,
                   Sampler(sequences, seed, deck_.data.shuffle ? Shuffle::yes : Shuffle::no),
                   deck_.batch.sequence);
  saver_.emplace(control_, directory_ / "checkpoints", deck_.checkpoint.keep,
                 deck_.checkpoint.keep_every, [this] { report_.sync(); });
  report_start();
  report_clocks();
  engine_->tune(directory_, true,
                [&](const std::string& line) { report_.say("kernels   " + line); });
  faults_->announce(report_);
  start_or_resume();
  set_run_length();
  control_.together([&] {
    if (control_.rank() != 0) return;
    AtomicFile resolved(directory_ / "resolved.toml"), text(directory_ / "plan.txt");
    resolved.append(to_toml(deck_));
    resolved.publish();
    const auto first = shape(plan::PlanPurpose::train, timeline_.global(1));
    text.append(to_text(engine_->prepared(first).plan(), engine_->inputs()));
    text.publish();
    if (tokenizer)  // for generate and export
      copy_tokenizer(*tokenizer, directory_ / "tokenizer.json");
  });
}

/// The rest of the run is as long as this deck says, whatever batches came before.
void Trainer::set_run_length() {
  run_steps_ =
      timeline_.run_steps(deck_.run, {.step = progress_.step, .samples = progress_.samples});
  rate_.emplace(deck_.schedule, deck_.optimizer.lr, timeline_, run_steps_);
}

void Trainer::take_directory() {
  control_.together([&] {
    if (control_.rank() != 0) return;
    lock_ = std::make_unique<RunLock>(directory_);
    remove_ended(directory_);
    const auto* word = std::get_if<deck::Resume>(&deck_.run.resume);
    const bool never = word != nullptr && *word == deck::Resume::never;
    if (never && holds_a_run(directory_)) {
      throw DeckError(fmt::format(
          "{}: run.resume = \"never\", but {} already holds a run: set another run.dir or "
          "run.name, or resume = \"auto\"",
          loaded_.where("run.resume"), directory_.string()));
    }
  });
}

plan::PlanShape Trainer::shape(plan::PlanPurpose purpose, std::int64_t global) const {
  return plan_shape(deck_.batch, purpose, global, engine_->data_ranks());
}

StepInput Trainer::step_input(std::int64_t global) const {
  const auto tokens = static_cast<double>(global * deck_.batch.sequence);
  StepInput input;
  const auto set = [&](kernels::StepScalar which, double value) {
    input[which] = static_cast<float>(value);
  };
  set(kernels::StepScalar::loss_gradient, scaler_.scale() / tokens);
  set(kernels::StepScalar::unscale, 1.0 / scaler_.scale());
  set(kernels::StepScalar::lr, progress_.lr_factor * rate_->at(progress_.applied + 1));
  engine_->inputs().optimizer.set_scalars(input.scalars, progress_.applied + 1);
  return input;
}

/// Makes the step's tokens current and starts reading the next step's. A rank that cannot read its
/// tokens takes part in the step all the same, with tokens of no meaning, so that no one waits for
/// it; then all ranks leave together and the step counts for nothing.
std::exception_ptr Trainer::read_batch(const plan::PlanShape& now) {
  std::exception_ptr unreadable;
  try {
    batches_->begin(progress_.samples, engine_->share(now));
  } catch (const Error&) {
    unreadable = std::current_exception();
    batches_->begin_blank(engine_->share(now));
  }
  const std::int64_t step = progress_.step + 1;
  if (step < run_steps_) {
    batches_->prefetch(progress_.samples + timeline_.global(step),
                       engine_->share(shape(plan::PlanPurpose::train, timeline_.global(step + 1))));
  }
  return unreadable;
}

StepResult Trainer::run_step() {
  using plan::PlanPurpose, plan::StepFlag;
  const double slowed = faults_->begin(progress_.step + 1);
  const std::int64_t global = timeline_.global(progress_.step + 1);
  const bool snapshot = std::exchange(save_due_, false);
  if (snapshot) finish_save();  // its buffers are about to be overwritten
  std::optional<CheckpointHeader> before;
  if (snapshot) before = header();
  const PreparedPlan& prepared =
      engine_->prepared(shape(snapshot ? PlanPurpose::train_snapshot : PlanPurpose::train, global));
  last_input_ = step_input(global);
  last_input_.set(StepFlag::saved, saver_->active() && saver_->phase_done());
  stop_reason_ = stop_.reason(slowest_step_s_ + slowest_save_s_);
  last_input_.set(StepFlag::stop, stop_reason_.has_value());
  const auto begin = Clock::now();
  const std::exception_ptr unreadable = read_batch(prepared.plan().shape);
  const double waited = seconds_since(begin);
  last_input_.set(StepFlag::no_tokens, unreadable != nullptr);
  StepProfile* profile = profiler_->begin(progress_.step + 1);
  const StepOutput output =
      engine_->run(prepared, last_input_, *batches_, faults_->hooks(prepared), profile);
  StepTimes times = output.times;
  times.data_exposed += waited;
  times.total += waited + slowed;
  times.compute.front() += slowed;
  slowest_step_s_ = std::max(slowest_step_s_, times.total);
  if (before) save_snapshot(*before, times);  // whatever became of the step
  if (output.count(StepFlag::no_tokens) > 0) {
    control_.together([&] {
      if (unreadable) std::rethrow_exception(unreadable);
    });
  }
  if (profile != nullptr) profiler_->write(prepared.plan());
  return finish_step(output, global, times);
}

StepResult Trainer::finish_step(const StepOutput& output, std::int64_t global,
                                const StepTimes& times) {
  const StepResult result{
      .loss =
          output.sum(plan::WordLayout::loss) / static_cast<double>(global * deck_.batch.sequence),
      .grad_norm = std::sqrt(output.sum(plan::WordLayout::norm)) / scaler_.scale(),
      .applied = output.applied,
      .times = times};
  ++progress_.step;
  progress_.samples += global;
  if (result.applied) ++progress_.applied;
  stop_agreed_ = output.count(plan::StepFlag::stop) > 0;
  if (saver_->active() && output.count(plan::StepFlag::saved) == control_.size()) advance_save();
  return result;
}

void Trainer::after_step(const StepResult& result) {
  if (lock_) lock_->check();
  judge_speed(result.times);
  report_step(result);
  scaler_.update(!result.applied);
  totals_.steps.add(result.times);
  if (rates_.best_step_s == 0 || result.times.total < rates_.best_step_s) {
    const auto tokens =
        static_cast<double>(timeline_.global(progress_.step) * deck_.batch.sequence);
    rates_.best_step_s = result.times.total;
    rates_.best_tokens_per_s = tokens / result.times.total;
    rates_.best_gflops = model::flop_per_token(engine_->inputs().config, deck_.batch.sequence) *
                         rates_.best_tokens_per_s / 1e9;
  }
  if (!result.applied) return count_skip(result.loss);
  consecutive_skips_ = 0;
  unproven_.reset();
  const std::int64_t every = deck_.guard.check_replicas;
  if (every > 0 && progress_.step % every == 0) compare_replicas();
  judge_loss(result.loss);
}

ExitCode Trainer::train() {
  return or_leave_alone(job_, directory_, [&] { return train_or_agree_to_fail(); });
}

ExitCode Trainer::train_or_agree_to_fail() {
  replicas_equal_at_ = progress_.step;  // as far as this start can tell
  set_checkpoints_aside_after(progress_.step);
  try {
    return train_steps();
  } catch (const AgreedError& e) {  // all ranks are here: what was saved before is worth keeping
    if (save_due_) save_now();
    finish_save();
    try {
      report_end(e.what());
    } catch (const IoError&) {  // on the disk that is full: the reason to leave is the other one
    }
    throw;
  }
}

ExitCode Trainer::train_steps() {
  const auto must_stop = [&] { return stop_agreed_ && progress_.step < run_steps_; };
  stop_reason_ = stop_.reason(0);  // starting may have taken long
  stop_agreed_ = control_.max(std::int64_t{stop_reason_ ? 1 : 0}) > 0;
  if (must_stop()) return stop_on_request();
  while (progress_.step < run_steps_) {
    const std::int64_t step = progress_.step + 1;
    job_.whereabouts.begin("training", step);
    try {
      after_step(run_step());
      if (!must_stop()) save_or_evaluate();
      if (must_stop()) return stop_on_request();
    } catch (Error& e) {
      e.add_context(fmt::format("step {}", step));
      throw;
    }
  }
  finish_save();
  report_end("done");
  if (control_.rank() == 0) stop_.obeyed();  // a request in the last step needs no other answer
  return ExitCode::ok;
}

ExitCode Trainer::stop_on_request() {
  const auto who = control_.min(stop_reason_ ? control_.rank() : std::int64_t{control_.size() - 1});
  const std::string why =
      control_.broadcast(stop_reason_.value_or("a request taken back"), static_cast<int>(who));
  report_.record("asked to stop: " + why,
                 {{"event", "signal"}, {"step", progress_.step}, {"what", why}});
  finish_save();
  if (saved_step_ != progress_.step) save_now();
  report_end("stopped on request: " + why);
  control_.together([&] {
    if (control_.rank() == 0 && stop_.obeyed())
      write_ended(directory_, ExitCode::stopped, "stopped on request: the file stop");
  });
  return ExitCode::stopped;
}

void Trainer::save_or_evaluate() {
  const bool last = progress_.step == run_steps_;
  const auto due = [&](std::int64_t every) {
    return every > 0 && (progress_.step % every == 0 || last);
  };
  if (saved_step_ != progress_.step && (due(deck_.checkpoint.every) || save_late_)) {
    // A state that no step can leave is no place to go on from: it waits for a step that is
    // applied.
    save_late_ = consecutive_skips_ > 0 && !last;
    if (last || !(save_late_ || deck_.checkpoint.async)) {
      save_now();
    } else {
      save_due_ = !save_late_;
    }
  }
  if (validation_ && due(deck_.evaluate.every)) evaluate();
}

void Trainer::evaluate() {
  job_.whereabouts.begin("evaluating after", progress_.step);
  const auto begin = Clock::now();
  const auto result = train::evaluate(*engine_, control_, deck_, *validation_, [&] {
    stop_reason_ = stop_.reason(slowest_save_s_);
    return stop_reason_ && progress_.step < run_steps_;
  });
  totals_.evaluation_s += seconds_since(begin);
  if (!result) {
    stop_agreed_ = true;
    report_.say("evaluation given up: asked to stop");
    return;
  }
  report_.record(fmt::format("evaluate at step {} | loss {:.6f} | {} sequences | {:.1f} s",
                             progress_.step, result->loss, result->sequences, result->seconds),
                 {{"event", "evaluate"},
                  {"step", progress_.step},
                  {"loss", result->loss},
                  {"sequences", result->sequences},
                  {"ms", result->seconds * 1e3}});
}

}  // namespace tessera::train
