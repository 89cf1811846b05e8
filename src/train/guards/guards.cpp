#include "train/guards/guards.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/mpi/session.hpp"
#include "core/bytes.hpp"
#include "plan/ir/print.hpp"
#include "train/guards/non_finite.hpp"
#include "train/guards/replicas.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMostRollbacks = 3;  // without getting beyond the step that they start from

}  // namespace

Guards::Guards(Run& run, Saves& saves, FaultInjection& faults, data::StepSource& tokens)
    : run_(run),
      saves_(saves),
      faults_(faults),
      tokens_(tokens),
      spikes_(run.deck.guard.spike_window, run.deck.guard.spike_threshold) {}

void Guards::begin(const LoadedCheckpoint* from, bool own) {
  if (from != nullptr) {
    go_on_from(*from);
    if (own) unproven_ = from->header;
  }
  replicas_equal_at_ = run_.course.progress.step;  // as far as this start can tell
}

/// Progress, loss scale and the losses of before are a checkpoint's, as the state already is.
void Guards::go_on_from(const LoadedCheckpoint& from) {
  run_.course.restore(from.header, from.deck);
  spikes_.restore(from.header.spike_window);
}

void Guards::judge(const StepResult& result) {
  if (!result.applied) return count_skip(result);
  consecutive_skips_ = 0;
  unproven_.reset();
  judge_critic(result);
  const std::int64_t every = run_.deck.guard.check_replicas;
  if (every > 0 && run_.course.progress.step % every == 0) compare_replicas();
  judge_loss(result.loss);
}

/// What the other model skips too is its affair.
void Guards::judge_critic(const StepResult& result) {
  if (!result.rollout || result.rollout->critic_applied) {
    critic_skips_ = 0;
    return;
  }
  const std::int64_t step = run_.course.progress.step;
  ++critic_skips_;
  run_.log.record(
      fmt::format("step {}: the critic's gradient is not finite (loss {}, {} in a row): it stays "
                  "as it is",
                  step, result.rollout->critic_loss.value_or(0), critic_skips_),
      {{"event", "fault"}, {"what", "critic"}, {"step", step}, {"why", "gradient not finite"}});
  run_.control.together([&] {
    const deck::GuardSection& guard = run_.deck.guard;
    if (guard.non_finite != deck::NonFinite::stop && critic_skips_ <= guard.max_skips) return;
    throw NonFiniteError(fmt::format(
        "{}: the critic's gradient is not finite: lower task.critic_lr, or look at the rewards",
        critic_skips_ == 1 ? fmt::format("step {}", step)
                           : fmt::format("steps {} to {}", step - critic_skips_ + 1, step)));
  });
}

/// Which tensor of which rank first was not finite in the step that has just run: runs it again and
/// looks at what each operation writes.
std::string Guards::blame(const StepInput& ran) {
  Engine& engine = *run_.engine;
  const Progress& at = run_.course.progress;
  const PreparedPlan& prepared = run_.plan_of(at.step);
  // Shared with its hooks: where a rank fails, the thread of the streams may still call them.
  const auto finder =
      std::make_shared<NonFiniteFinder>(prepared.plan(), engine.inputs(), engine.tier());
  run_.control.together([&] {
    tokens_.begin(at.samples - run_.course.sequences(at.step), engine.share(prepared.plan().shape));
  });
  // An infinite factor, so that the step is skipped again, whatever comes out this time; and error
  // feedback, which divides by it, leaves gradients alone.
  StepInput input = ran;
  input[kernels::StepScalar::unscale] = std::numeric_limits<float>::infinity();
  const Executor::Hooks again = faults_.hooks(prepared), looks = finder->hooks();
  engine.run(prepared, input, tokens_.current(),
             {.before =
                  [finder, again, looks](const BoundPlan::BoundOp& op, const plan::OpRun& run) {
                    if (again.before) again.before(op, run);
                    looks.before(op, run);
                  },
              .after = looks.after});
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const comm::Control& control = run_.control;
  const auto& found = finder->found();
  const std::int64_t own = found ? found->run : kNone, first = control.min(own);
  if (first == kNone) return "all operations are finite when run again";
  const std::int64_t rank =
      control.min(own == first ? std::int64_t{control.rank()} : std::int64_t{control.size()});
  const plan::OpRun run = run_at(prepared.plan(), first);
  const std::string text =
      rank == control.rank()
          ? fmt::format("first in {} ({}), on rank {} of {}", found->tensor,
                        plan::op_name(prepared.plan().op(run.op), engine.inputs(),
                                      micro_batch_of(prepared.plan(), run)),
                        rank, comm::host_name())
          : "";
  return control.broadcast(text, static_cast<int>(rank));
}

void Guards::count_skip(const StepResult& result) {
  const Progress& at = run_.course.progress;
  const optim::LossScaler& scaler = run_.course.scaler;
  ++consecutive_skips_;
  // Overflows while the loss scale can still fall are how it is found, not a fault.
  const bool searching = scaler.searching();
  const std::string where = !searching && consecutive_skips_ == 1 ? blame(result.input) : "";
  run_.log.record(
      fmt::format("step {} skipped: the gradient is not finite (loss {}, {} in a row){}", at.step,
                  result.loss, consecutive_skips_, where.empty() ? "" : ": " + where),
      {{"event", "skip"},
       {"step", at.step},
       {"in_a_row", consecutive_skips_},
       {"loss_scale", scaler.scale()},
       {"where", where}});
  if (searching) consecutive_skips_ = 0;
  run_.control.together([&] {
    if (at.step < run_.course.steps() || at.applied > 0) return;
    throw NonFiniteError(fmt::format(
        "no update was made in {}: each had a gradient that is not finite, so the model is what it "
        "was at the start: lower optimizer.lr or precision.loss_scale_power, or look at the data "
        "and the initial weights",
        count_text(at.step, "step")));
  });
  if (searching) return;
  const bool stop = run_.deck.guard.non_finite == deck::NonFinite::stop;
  if (stop || consecutive_skips_ > run_.deck.guard.max_skips) {
    if (return_to_proven()) return;
    run_.control.together([&] {  // every rank saw the same verdict: they leave in order
      throw NonFiniteError(
          fmt::format("the gradient is not finite, {} in a row (guard.non_finite = "
                      "\"{}\", guard.max_skips = {}): lower "
                      "optimizer.lr, or start from a checkpoint before step {}",
                      count_text(consecutive_skips_, "step"), stop ? "stop" : "skip",
                      run_.deck.guard.max_skips, at.step - consecutive_skips_ + 1));
    });
  }
}

/// A start that has met nothing but skips goes back to the newest checkpoint that a later step was
/// applied to, once: the one that it went on from may hold a state that no step can leave.
bool Guards::return_to_proven() {
  if (!unproven_) return false;
  const io::CheckpointHeader from = *std::exchange(unproven_, std::nullopt);
  Progress& progress = run_.course.progress;
  const std::int64_t step = progress.step;
  saves_.abandon();
  run_.job.whereabouts.begin("going back from", step);
  const auto target = load_proven_checkpoint(from.applied_updates, run_.loaded, run_.control,
                                             run_.engine->state(), run_.note_unusable());
  if (!target) return false;
  go_on_from(*target);
  saves_.set_saved_step(progress.step);
  consecutive_skips_ = critic_skips_ = 0;
  replicas_equal_at_ = progress.step;
  run_.course.set_length();
  run_.log.record(
      fmt::format("step {}: no step was applied since the checkpoint of step {}: back to "
                  "{}, the newest that a later step was applied to",
                  step, from.step, target->path.filename().string()),
      {{"event", "rollback"},
       {"step", step},
       {"to", progress.step},
       {"why", "no step was applied since the checkpoint that this start went on from"}});
  saves_.set_aside_after(progress.step);
  return true;
}

void Guards::judge_loss(double loss) {
  const Progress& progress = run_.course.progress;
  if (run_.deck.guard.spike == deck::Spike::off) return;
  const auto z = spikes_.judge(loss);
  if (!z) return;
  if (run_.deck.guard.spike == deck::Spike::rollback) return roll_back(loss, *z);
  run_.log.record(
      fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its recent "
                  "median (guard.spike = \"warn\")",
                  progress.step, loss, *z),
      {{"event", "spike"}, {"step", progress.step}, {"loss", loss}, {"z", *z}});
}

/// Returns to the state of a checkpoint, but not to its data: the samples since then, and as many
/// that would have come next, are never used (Chowdhery et al. 2022, "PaLM", section 5.1).
void Guards::roll_back(double loss, double z) {
  Progress& progress = run_.course.progress;
  const std::int64_t from = progress.step;
  rollbacks_ = from <= rolled_back_from_ ? rollbacks_ + 1 : 1;
  rolled_back_from_ = std::max(rolled_back_from_, from);
  if (rollbacks_ > kMostRollbacks) {
    run_.control.together([&] {
      throw NonFiniteError(fmt::format(
          "the loss leaps again after {} rollbacks: lower optimizer.lr, or set guard.spike",
          kMostRollbacks));
    });
  }
  saves_.forget_due();  // of a state that is given up
  critic_skips_ = 0;
  const std::int64_t latest = from - run_.deck.guard.rollback_steps;
  if (saves_.step() <= latest) {
    saves_.finish();  // where to go back to must not depend on how fast a disk is
  } else {
    saves_.abandon();
  }
  run_.job.whereabouts.begin("rolling back from", from);
  const auto target = load_checkpoint_before(latest, run_.loaded, run_.control,
                                             run_.engine->state(), run_.note_unusable());
  if (!target) {
    run_.log.record(fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its "
                                "recent median, but there is no checkpoint to return to",
                                from, loss, z),
                    {{"event", "spike"}, {"step", from}, {"loss", loss}, {"z", z}});
    return;
  }
  const Range skipped{target->header.samples,
                      progress.samples + progress.samples - target->header.samples};
  const double factor = progress.lr_factor * run_.deck.guard.rollback_lr_factor;
  go_on_from(*target);
  run_.course.skip_to(skipped.end);
  progress.skipped.push_back(skipped);
  progress.lr_factor = factor;
  saves_.set_saved_step(-1);  // other samples follow
  replicas_equal_at_ = std::min(replicas_equal_at_, progress.step);
  run_.course.set_length();
  saves_.set_aside_after(progress.step);
  run_.log.record(
      fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its recent median: "
                  "back to {}; samples {} to {} are skipped; learning rate times {}",
                  from, loss, z, target->path.filename().string(), skipped.begin, skipped.end - 1,
                  factor),
      {{"event", "rollback"},
       {"step", from},
       {"to", progress.step},
       {"loss", loss},
       {"z", z},
       {"skipped_samples", {skipped.begin, skipped.end}},
       {"lr_factor", factor}});
}

void Guards::compare_replicas() {
  const Progress& progress = run_.course.progress;
  auto [elements, difference] =
      compare_copies(run_.engine->state(), run_.engine->inputs(), run_.control);
  if (const Engine* beside = run_.engine->beside()) {
    const auto of_critic =
        compare_copies(beside->unsettled_state(), beside->inputs(), run_.control);
    elements += of_critic.elements;
    if (!difference && of_critic.difference) difference = "of the critic, " + *of_critic.difference;
  }
  run_.log.event({{"event", "replicas"},
                  {"step", progress.step},
                  {"elements", elements},
                  {"equal", !difference}});
  if (!difference) {
    replicas_equal_at_ = progress.step;
    return;
  }
  // What was saved since the last comparison may hold the wrong bits.
  saves_.abandon();
  saves_.set_aside_after(replicas_equal_at_);
  run_.log.record(fmt::format("copies of the state differ: {}; they were equal after step {}",
                              *difference, replicas_equal_at_),
                  {{"event", "fault"},
                   {"what", "replicas"},
                   {"where", *difference},
                   {"equal_at_step", replicas_equal_at_}});
  run_.control.together([&] {
    throw CommError(fmt::format(
        "copies of the state differ: {}: memory or network of that node is not to be trusted; "
        "later checkpoints than step {} are set aside",
        *difference, replicas_equal_at_));
  });
}

std::optional<StepSpreads> Guards::judge_speed(const StepTimes& times) {
  const auto computed = run_.control.gather(times.computed());
  const auto own = run_.control.gather(times.own());
  if (!run_.log) return std::nullopt;
  const std::int64_t step = run_.course.progress.step;
  const StepSpreads spreads{guard::rank_spread(computed), guard::rank_spread(own)};
  if (const auto rank = stragglers_.judge(spreads.own)) {
    run_.log.record(
        fmt::format("rank {} is slower than the others, step after step: by itself it takes "
                    "{:.1f} ms, the median rank {:.1f} ms",
                    *rank, spreads.own.most * 1e3, spreads.own.median * 1e3),
        {{"event", "straggler"}, {"step", step}, {"rank", *rank}});
  }
  if (const auto change = pace_.judge(times.total / run_.course.tokens(step))) {
    run_.log.record(fmt::format("the pace has changed at step {}: {:.0f} tokens/s, before {:.0f}",
                                step, 1 / change->now, 1 / change->before),
                    {{"event", "pace"},
                     {"step", step},
                     {"tokens_per_s", 1 / change->now},
                     {"before", 1 / change->before}});
  }
  return spreads;
}

}  // namespace tessera::train
