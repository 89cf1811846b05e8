#include "train/trainer.hpp"

#include <omp.h>
#include <cmath>
#include <numeric>

#include "comm/self_group.hpp"
#include "core/exact_sum.hpp"
#include "core/hash.hpp"
#include "core/version.hpp"
#include "deck/ranks.hpp"
#include "io/hugging_face.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/ledger.hpp"
#include "plan/print.hpp"

namespace tessera::train {
namespace {

enum Flag : std::int64_t {
  kSaveWritten,
  kStop,
  kNoTokens
};  // words that the host sets before a step and reads summed after it

std::unique_ptr<comm::Group> make_data_group(const comm::GroupShape& shape) {
  if (shape.size == 1) return comm::make_self_group();
  std::vector<int> members(static_cast<std::size_t>(shape.size));
  std::iota(members.begin(), members.end(), 0);
  return comm::make_mpi_group(members, shape.local);
}

bool holds_a_run(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "metrics.jsonl") ||
         !list_checkpoints(directory / "checkpoints").empty();
}

std::unique_ptr<TokenCorpus> open_corpus(const deck::LoadedDeck& loaded, const char* key,
                                         const std::vector<std::string>& entries) {
  try {
    return std::make_unique<TokenCorpus>(entries, loaded.deck.model.vocab);
  } catch (Error& e) {
    e.add_context(fmt::format("{}: {}", loaded.where(key), key));
    throw;
  }
}

}  // namespace

Trainer::Trainer(const deck::LoadedDeck& loaded, const comm::MpiSession& mpi,
                 const comm::Control& control)
    : loaded_(loaded),
      deck_(loaded.deck),
      mpi_(mpi),
      control_(control),
      directory_(deck::run_directory(deck_)),
      timeline_(deck_.batch, 0),
      scaler_(deck_.precision),
      stop_(deck_.run, directory_) {
  control_.together([&] { deck::check_ranks(loaded_, mpi_.size()); });
  control_.together([&] {
    corpus_ = open_corpus(loaded_, "data.train", deck_.data.train);
    if (corpus_->sequences(deck_.batch.sequence) == 0) {
      throw DataError(fmt::format(
          "{}: data.train holds {} tokens, fewer than one sequence of {} and its target",
          loaded_.where("data.train"), corpus_->tokens(), deck_.batch.sequence));
    }
    if (!deck_.data.validation.empty()) {
      validation_ = open_corpus(loaded_, "data.validation", deck_.data.validation);
      const std::int64_t have = validation_->sequences(deck_.batch.sequence);
      if (have < timeline_.global(1)) {
        throw DataError(fmt::format(
            "{}: data.validation holds {} sequences of {} tokens, fewer than one global batch of "
            "{}",
            loaded_.where("data.validation"), have, deck_.batch.sequence, timeline_.global(1)));
      }
    }
  });
  timeline_ = optim::Timeline(deck_.batch, corpus_->sequences(deck_.batch.sequence));
  run_steps_ = timeline_.run_steps(deck_.run);
  rate_.emplace(deck_.schedule, deck_.optimizer.lr, timeline_, run_steps_);

  const int threads = thread_count(deck_.run, mpi_.local_size());
  omp_set_num_threads(threads);
  device_ = kernels::make_cpu_device({.threads = threads});
  const comm::GroupShape shape =
      data_group(deck_, mpi_.size(), control_.max(std::int64_t{mpi_.local_size()}));
  data_ = {.gather = make_data_group(shape), .reduce = make_data_group(shape)};
  inputs_ = plan_inputs(deck_, shape, *device_);

  control_.together([&] {
    if (control_.rank() != 0) return;
    lock_ = std::make_unique<RunLock>(directory_);
    const bool never = deck_.run.resume == decltype(deck_.run.resume){deck::Resume::never};
    if (never && holds_a_run(directory_)) {
      throw DeckError(fmt::format(
          "{}: run.resume = \"never\", but {} already holds a run: set another run.dir or "
          "run.name, or resume = \"auto\"",
          loaded_.where("run.resume"), directory_.string()));
    }
  });
  make_plans();
  allocate();
  control_.together([&] {
    if (control_.rank() != 0) return;
    report_ = Reporter(directory_);
  });
  streams_.emplace();
  executor_.emplace(*device_, data_, *streams_);
  batches_.emplace(
      *corpus_,
      Sampler(corpus_->sequences(deck_.batch.sequence), static_cast<std::uint64_t>(deck_.run.seed),
              deck_.data.shuffle ? Shuffle::yes : Shuffle::no),
      deck_.batch.sequence);
  saver_.emplace(control_, directory_ / "checkpoints", deck_.checkpoint.keep,
                 deck_.checkpoint.keep_every);
  report_start();
  start_or_resume();
  // The rest of the run is as long as this deck says, whatever batches came before.
  run_steps_ =
      timeline_.run_steps(deck_.run, {.step = progress_.step, .samples = progress_.samples});
  rate_.emplace(deck_.schedule, deck_.optimizer.lr, timeline_, run_steps_);
  control_.together([&] {
    if (control_.rank() != 0) return;
    AtomicFile resolved(directory_ / "resolved.toml"), text(directory_ / "plan.txt");
    resolved.append(to_toml(deck_));
    resolved.publish();
    const std::int64_t count =
        micro_batches(deck_.batch, timeline_.global(1), inputs_.data_group.size);
    text.append(to_text(plan(plan::PlanPurpose::train, count), inputs_));
    text.publish();
  });
}

void Trainer::make_plans() {
  control_.together([&] {
    for (const auto& shape : plan_shapes(deck_, inputs_.data_group.size)) {
      plans_.emplace(shape, plan::make_plan(inputs_, shape, data_.reduce->rank()));
    }
  });
  agree_on_plans();
  for (const auto& [shape, plan] : plans_) {
    const auto mine = total_wire_bytes(plan);
    wire_[shape] = {.intra = control_.max(mine.intra), .inter = control_.max(mine.inter)};
  }
}

/// Ranks that were started with different decks or binaries would deadlock later; they learn it
/// here.
void Trainer::agree_on_plans() {
  Hasher hash;
  hash.add(std::string_view(to_toml(deck_))).add(std::string_view(kVersion));
  for (const auto& [shape, plan] : plans_) hash.add(plan_hash(plan));
  hash.add(std::string_view(kCommit)).add(run_steps_).add(corpus_->tokens());
  hash.add(validation_ ? validation_->tokens() : std::int64_t{0});
  const auto value = static_cast<std::int64_t>(hash.value() >> 1);
  if (control_.min(value) != control_.max(value)) {
    control_.together([] {  // every rank sees it
      throw CommError(
          "ranks made different plans: they must run one binary with one deck and see the same "
          "token files");
    });
  }
}

void Trainer::allocate() {
  std::int64_t state = 0, step = 0;
  for (const auto& [shape, plan] : plans_) {
    state = std::max(state, plan.arena_bytes[0]);
    step = std::max(step, plan.arena_bytes[1]);
  }
  control_.together([&] {
    check_budget(loaded_, state, step);
    // All ranks of the node take theirs at once: what one sees free must do for all.
    if (const std::int64_t free = memory::available_bytes();
        (state + step) * mpi_.local_size() > free) {
      throw MemoryError(fmt::format(
          "{} ranks on this node need {} each, but it has {} left: use fewer ranks a node, a "
          "higher zero.stage, a smaller batch.micro, or recompute.policy = \"full\"",
          mpi_.local_size(), plan::human_bytes(state + step), plan::human_bytes(free)));
    }
  });
  control_.together([&] {  // once all have looked at what is free
    resident_before_ = memory::resident_bytes();
    state_arena_.emplace("state", memory::Tier::device, state);
    step_arena_.emplace("step", memory::Tier::device, step);
  });
  for (const auto& [shape, plan] : plans_) {
    bound_.emplace(shape,
                   BoundPlan(plan, {.state = state_arena_->base(), .step = step_arena_->base()}));
  }
  state_.emplace(inputs_, data_.reduce->rank(), *state_arena_);
}

const plan::Plan& Trainer::plan(plan::PlanPurpose purpose, std::int64_t count) {
  return plans_.at({.purpose = purpose,
                    .sequence = deck_.batch.sequence,
                    .micro = deck_.batch.micro,
                    .micro_batches = count});
}

const BoundPlan& Trainer::bound(plan::PlanPurpose purpose, std::int64_t count) {
  return bound_.at(plan(purpose, count).shape);
}

StepResult Trainer::run_step(bool snapshot) {
  const std::int64_t step = progress_.step + 1, global = timeline_.global(step),
                     ranks = inputs_.data_group.size;
  const std::int64_t count = micro_batches(deck_.batch, global, ranks);
  const BoundPlan& plan =
      bound(snapshot ? plan::PlanPurpose::train_snapshot : plan::PlanPurpose::train, count);

  const auto tokens = static_cast<double>(global * deck_.batch.sequence);
  const auto t = static_cast<double>(progress_.applied + 1);
  float* scalars = plan.real(plan.plan().scalars).as<float>();
  const auto set = [&](kernels::StepScalar which, double value) {
    scalars[static_cast<std::size_t>(which)] = static_cast<float>(value);
  };
  set(kernels::StepScalar::loss_gradient, scaler_.scale() / tokens);
  set(kernels::StepScalar::unscale, 1.0 / scaler_.scale());
  set(kernels::StepScalar::lr, rate_->at(progress_.applied + 1));
  set(kernels::StepScalar::bias_correction1, 1.0 - std::pow(deck_.optimizer.betas[0], t));
  set(kernels::StepScalar::bias_correction2, 1.0 - std::pow(deck_.optimizer.betas[1], t));
  auto* words = plan.real(plan.plan().words).as<std::int64_t>();
  words[plan::WordLayout::flags + kSaveWritten] = saver_->active() && saver_->written() ? 1 : 0;
  stop_reason_ = stop_.reason(slowest_step_s_ + slowest_save_s_);
  words[plan::WordLayout::flags + kStop] = stop_reason_ ? 1 : 0;

  const auto share_of = [&](std::int64_t at) {
    return BatchShare{.data_ranks = ranks,
                      .data_rank = data_.reduce->rank(),
                      .micro = deck_.batch.micro,
                      .micro_batches = micro_batches(deck_.batch, timeline_.global(at), ranks),
                      .reduce = inputs_.reduce};
  };
  // A rank that cannot read its tokens takes part in the step all the same, with tokens of no
  // meaning, so that no one waits for it; then all ranks leave together and the step counts for
  // nothing.
  const auto begin = std::chrono::steady_clock::now();
  std::exception_ptr unreadable;
  try {
    batches_->begin(progress_.samples, share_of(step));
  } catch (const Error&) {
    unreadable = std::current_exception();
    batches_->begin_blank(share_of(step));
  }
  const double waited =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  words[plan::WordLayout::flags + kNoTokens] = unreadable ? 1 : 0;
  if (step < run_steps_) batches_->prefetch(progress_.samples + global, share_of(step + 1));
  StepTimes times = executor_->run(
      plan, [&](std::int64_t k, const plan::LoadBatch& views) { batches_->load(k, views); });
  times.data_exposed += waited;
  times.total += waited;
  slowest_step_s_ = std::max(slowest_step_s_, times.total);
  if (words[plan::WordLayout::flags + kNoTokens] > 0) {
    control_.together([&] {
      if (unreadable) std::rethrow_exception(unreadable);
    });
  }

  const auto sum = [&](std::int64_t at) {
    return exact_value(ConstExactWords(words + at, kExactSumWords));
  };
  const float* verdict = plan.real(plan.plan().verdict).as<float>();
  StepResult result{.loss = sum(plan::WordLayout::loss) / tokens,
                    .grad_norm = std::sqrt(sum(plan::WordLayout::norm)) / scaler_.scale(),
                    .applied = verdict[static_cast<std::size_t>(kernels::VerdictField::apply)] != 0,
                    .times = times};
  progress_.step = step;
  progress_.samples += global;
  if (result.applied) ++progress_.applied;
  stop_agreed_ = words[plan::WordLayout::flags + kStop] > 0;
  if (saver_->active() && words[plan::WordLayout::flags + kSaveWritten] == ranks) finish_save();
  return result;
}

void Trainer::after_step(const StepResult& result) {
  report_step(result);
  scaler_.update(!result.applied);
  spent_.add(result.times);
  if (rates_.best_step_s == 0 || result.times.total < rates_.best_step_s) {
    const auto tokens =
        static_cast<double>(timeline_.global(progress_.step) * deck_.batch.sequence);
    rates_.best_step_s = result.times.total;
    rates_.best_tokens_per_s = tokens / result.times.total;
    rates_.best_gflops = model::flop_per_token(inputs_.config, deck_.batch.sequence) *
                         rates_.best_tokens_per_s / 1e9;
  }
  consecutive_skips_ = result.applied ? 0 : consecutive_skips_ + 1;
  if (result.applied) return;
  ++skips_;
  report_.say(fmt::format("step {} skipped: the gradient is not finite (loss {}, {} in a row)",
                          progress_.step, result.loss, consecutive_skips_));
  report_.event({{"event", "skip"},
                 {"step", progress_.step},
                 {"in_a_row", consecutive_skips_},
                 {"loss_scale", scaler_.scale()}});
  // Overflows while the loss scale can still fall are how it is found, not a fault.
  if (scaler_.searching()) {
    consecutive_skips_ = 0;
    return;
  }
  const bool stop = deck_.guard.non_finite == deck::NonFinite::stop;
  if (stop || consecutive_skips_ > deck_.guard.max_skips) {
    control_.together([&] {  // every rank saw the same verdict: they leave in order
      throw NonFiniteError(
          fmt::format("step {}: the gradient is not finite, {} steps in a row (guard.non_finite = "
                      "\"{}\", guard.max_skips = {}): lower "
                      "optimizer.lr, or start from a checkpoint before step {}",
                      progress_.step, consecutive_skips_, stop ? "stop" : "skip",
                      deck_.guard.max_skips, progress_.step - consecutive_skips_ + 1));
    });
  }
}

ExitCode Trainer::train() {
  control_.together([&] {
    if (control_.rank() != 0) return;
    for (const auto& entry : set_aside_after(directory_ / "checkpoints", progress_.step)) {
      report_.say(fmt::format("a later checkpoint of another branch is set aside: {}",
                              entry.path.string()));
    }
  });
  try {
    return train_steps();
  } catch (const AgreedError& e) {  // all ranks are here: what was saved before is worth keeping
    if (saver_->active()) finish_save();
    report_end(e.what());
    throw;
  }
}

ExitCode Trainer::train_steps() {
  const std::int64_t every = deck_.checkpoint.every;
  bool snapshot_due = false;
  std::optional<CheckpointHeader> snapshot_header;
  while (progress_.step < run_steps_) {
    if (snapshot_due && saver_->active()) finish_save();  // its buffers are about to be overwritten
    if (snapshot_due) snapshot_header = header();
    const StepResult result = run_step(snapshot_due);
    if (snapshot_due) saver_->begin(*state_, ModelState::From::snapshot, *snapshot_header);
    snapshot_due = false;
    after_step(result);
    const bool last = progress_.step == run_steps_;
    if (stop_agreed_ && !last) {
      const std::string why = stop_reason_.value_or("another rank's request");
      report_.event({{"event", "signal"}, {"step", progress_.step}, {"what", why}});
      save_now();
      report_end("stopped on request: " + why);
      if (control_.rank() == 0) stop_.obeyed();
      return ExitCode::stopped;
    }
    if (every > 0 && (progress_.step % every == 0 || last)) {
      if (deck_.checkpoint.async && !last) {
        snapshot_due = true;
      } else {
        save_now();
      }
    }
    if (validation_ && deck_.evaluate.every > 0 &&
        (progress_.step % deck_.evaluate.every == 0 || last))
      evaluate();
  }
  if (saver_->active()) finish_save();
  report_end("done");
  return ExitCode::ok;
}

double Trainer::evaluate() {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t ranks = inputs_.data_group.size, sequence = deck_.batch.sequence;
  const std::int64_t count = micro_batches(deck_.batch, timeline_.global(1), ranks);
  const std::int64_t global = count * deck_.batch.micro * ranks,
                     have = validation_->sequences(sequence);
  const std::int64_t rounds = std::min(deck_.evaluate.batches, have / global);
  const BoundPlan& plan = bound(plan::PlanPurpose::evaluate, count);
  Batches batches(*validation_, Sampler(have, 0, Shuffle::no), sequence);
  std::array<std::int64_t, kExactSumWords> total{};
  for (std::int64_t round = 0; round < rounds; ++round) {
    const BatchShare share{.data_ranks = ranks,
                           .data_rank = data_.reduce->rank(),
                           .micro = deck_.batch.micro,
                           .micro_batches = count,
                           .reduce = inputs_.reduce};
    auto* words = plan.real(plan.plan().words).as<std::int64_t>();
    for (std::int64_t flag = 0; flag < plan::WordLayout::flag_count; ++flag) {
      words[plan::WordLayout::flags + flag] = 0;
    }
    control_.together([&] { batches.begin(round * global, share); });
    executor_->run(plan,
                   [&](std::int64_t k, const plan::LoadBatch& views) { batches.load(k, views); });
    exact_merge(total, ConstExactWords(words + plan::WordLayout::loss, kExactSumWords));
  }
  const double loss = exact_value(total) / static_cast<double>(rounds * global * sequence);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  evaluation_time_ += seconds;
  report_.say(fmt::format("evaluate at step {} | loss {:.6f} | {} sequences | {:.1f} s",
                          progress_.step, loss, rounds * global, seconds));
  report_.event({{"event", "evaluate"},
                 {"step", progress_.step},
                 {"loss", loss},
                 {"sequences", rounds * global},
                 {"ms", seconds * 1e3}});
  return loss;
}

double Trainer::evaluate_once() {
  if (!validation_)
    throw DeckError(fmt::format("{}: data.validation is empty", loaded_.where("data.validation")));
  return evaluate();
}

}  // namespace tessera::train
