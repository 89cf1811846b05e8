// What a trainer does when numbers or machines go wrong: skips, rollbacks, replicas, stragglers.
#include <algorithm>
#include <limits>

#include "plan/ir/print.hpp"
#include "train/non_finite.hpp"
#include "train/replicas.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMostRollbacks = 3;  // without getting beyond the step that they start from

}  // namespace

std::string Trainer::blame(const PreparedPlan& prepared, std::int64_t first_sample) {
  NonFiniteFinder finder(prepared.plan(), engine_->inputs(), engine_->tier());
  control_.together([&] { batches_->begin(first_sample, engine_->share(prepared.plan().shape)); });
  // Whatever comes out this time: the step stays skipped.
  StepInput input = last_input_;
  input[kernels::StepScalar::unscale] = std::numeric_limits<float>::quiet_NaN();
  const Executor::Hooks again = faults_->hooks(prepared), looks = finder.hooks();
  engine_->run(prepared, input, *batches_,
               {.before =
                    [&](const BoundPlan::BoundOp& op) {
                      if (again.before) again.before(op);
                      looks.before(op);
                    },
                .after = looks.after});
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const auto& found = finder.found();
  const std::int64_t op = found ? found->op : kNone, first = control_.min(op);
  if (first == kNone) return "all operations are finite when run again";
  const std::int64_t rank =
      control_.min(op == first ? std::int64_t{control_.rank()} : std::int64_t{control_.size()});
  const auto& plan_op = prepared.plan().ops[static_cast<std::size_t>(first)];
  const std::string text =
      rank == control_.rank()
          ? fmt::format("first in {} ({}), on rank {} of {}", found->tensor,
                        plan::op_name(plan_op, engine_->inputs()), rank, comm::host_name())
          : "";
  return control_.broadcast(text, static_cast<int>(rank));
}

void Trainer::count_skip(double loss) {
  ++consecutive_skips_;
  ++totals_.skips;
  const auto global = timeline_.global(progress_.step);
  // Overflows while the loss scale can still fall are how it is found, not a fault.
  const bool searching = scaler_.searching();
  std::string where;
  if (!searching && consecutive_skips_ == 1) {
    where = blame(engine_->prepared(shape(plan::PlanPurpose::train, global)),
                  progress_.samples - global);
  }
  report_.record(
      fmt::format("step {} skipped: the gradient is not finite (loss {}, {} in a row){}",
                  progress_.step, loss, consecutive_skips_, where.empty() ? "" : ": " + where),
      {{"event", "skip"},
       {"step", progress_.step},
       {"in_a_row", consecutive_skips_},
       {"loss_scale", scaler_.scale()},
       {"where", where}});
  if (searching) consecutive_skips_ = 0;
  control_.together([&] {
    if (progress_.step < run_steps_ || progress_.applied > 0) return;
    throw NonFiniteError(fmt::format(
        "not one of the run's {} steps was applied: each had a gradient that is not finite, so the "
        "model is what it was at the start: lower optimizer.lr or precision.loss_scale_power, or "
        "look at the data and the initial weights",
        progress_.step));
  });
  if (searching) return;
  const bool stop = deck_.guard.non_finite == deck::NonFinite::stop;
  if (stop || consecutive_skips_ > deck_.guard.max_skips) {
    if (return_to_proven()) return;
    control_.together([&] {  // every rank saw the same verdict: they leave in order
      throw NonFiniteError(
          fmt::format("the gradient is not finite, {} steps in a row (guard.non_finite = "
                      "\"{}\", guard.max_skips = {}): lower "
                      "optimizer.lr, or start from a checkpoint before step {}",
                      consecutive_skips_, stop ? "stop" : "skip", deck_.guard.max_skips,
                      progress_.step - consecutive_skips_ + 1));
    });
  }
}

/// A start that has met nothing but skips goes back to the newest checkpoint that a later step was
/// applied to, once: the one that it went on from may hold a state that no step can leave.
bool Trainer::return_to_proven() {
  if (!unproven_) return false;
  const CheckpointHeader from = *std::exchange(unproven_, std::nullopt);
  save_due_ = save_late_ = false;  // of states that are given up
  saver_->abandon();
  job_.whereabouts.begin("going back from", progress_.step);
  const auto unusable = [&](const auto& path, std::string_view why) { pass_over(path, why); };
  const auto target =
      load_proven_checkpoint(from.applied_updates, loaded_, control_, engine_->state(), unusable);
  if (!target) return false;
  const std::int64_t step = progress_.step;
  restore(*target);
  saved_step_ = progress_.step;
  consecutive_skips_ = 0;
  replicas_equal_at_ = progress_.step;
  set_run_length();
  report_.record(
      fmt::format("step {}: no step was applied since the checkpoint of step {}: back to "
                  "{}, the newest that a later step was applied to",
                  step, from.step, target->path.filename().string()),
      {{"event", "rollback"},
       {"step", step},
       {"to", progress_.step},
       {"why", "no step was applied since the checkpoint that this start went on from"}});
  set_checkpoints_aside_after(progress_.step);
  return true;
}

void Trainer::judge_loss(double loss) {
  if (deck_.guard.spike == deck::Spike::off) return;
  const auto z = spikes_.judge(loss);
  if (!z) return;
  if (deck_.guard.spike == deck::Spike::rollback) return roll_back(loss, *z);
  report_.record(
      fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its recent "
                  "median (guard.spike = \"warn\")",
                  progress_.step, loss, *z),
      {{"event", "spike"}, {"step", progress_.step}, {"loss", loss}, {"z", *z}});
}

/// Returns to the state of a checkpoint, but not to its data: the samples since then, and as many
/// that would have come next, are never used (Chowdhery et al. 2022, "PaLM", section 5.1).
void Trainer::roll_back(double loss, double z) {
  const std::int64_t from = progress_.step;
  rollbacks_ = from <= rolled_back_from_ ? rollbacks_ + 1 : 1;
  rolled_back_from_ = std::max(rolled_back_from_, from);
  if (rollbacks_ > kMostRollbacks) {
    control_.together([&] {
      throw NonFiniteError(fmt::format(
          "the loss leaps again after {} rollbacks: lower optimizer.lr, or set guard.spike",
          kMostRollbacks));
    });
  }
  save_due_ = save_late_ = false;  // of a state that is given up
  const std::int64_t latest = from - deck_.guard.rollback_steps;
  if (saver_->step() <= latest) {
    finish_save();  // where to go back to must not depend on how fast a disk is
  } else {
    saver_->abandon();
  }
  job_.whereabouts.begin("rolling back from", from);
  const auto unusable = [&](const auto& path, std::string_view why) { pass_over(path, why); };
  const auto target = load_checkpoint_before(latest, loaded_, control_, engine_->state(), unusable);
  if (!target) {
    report_.record(fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its "
                               "recent median, but there is no checkpoint to return to",
                               from, loss, z),
                   {{"event", "spike"}, {"step", from}, {"loss", loss}, {"z", z}});
    return;
  }
  const Range skipped{target->header.samples,
                      progress_.samples + progress_.samples - target->header.samples};
  const double factor = progress_.lr_factor * deck_.guard.rollback_lr_factor;
  restore(*target);
  progress_.samples = skipped.end;
  progress_.skipped.push_back(skipped);
  progress_.lr_factor = factor;
  saved_step_ = -1;  // other samples follow
  replicas_equal_at_ = std::min(replicas_equal_at_, progress_.step);
  set_run_length();
  set_checkpoints_aside_after(progress_.step);
  report_.record(
      fmt::format("step {}: the loss leaps to {:.6f}, {:.1f} deviations above its recent median: "
                  "back to {}; samples {} to {} are skipped; learning rate times {}",
                  from, loss, z, target->path.filename().string(), skipped.begin, skipped.end - 1,
                  factor),
      {{"event", "rollback"},
       {"step", from},
       {"to", progress_.step},
       {"loss", loss},
       {"z", z},
       {"skipped_samples", {skipped.begin, skipped.end}},
       {"lr_factor", factor}});
}

void Trainer::compare_replicas() {
  const auto [elements, difference] = compare_copies(engine_->state(), engine_->inputs(), control_);
  report_.event({{"event", "replicas"},
                 {"step", progress_.step},
                 {"elements", elements},
                 {"equal", !difference}});
  if (!difference) {
    replicas_equal_at_ = progress_.step;
    return;
  }
  // What was saved since the last comparison may hold the wrong bits.
  save_due_ = false;
  saver_->abandon();
  set_checkpoints_aside_after(replicas_equal_at_);
  report_.record(fmt::format("copies of the state differ: {}; they were equal after step {}",
                             *difference, replicas_equal_at_),
                 {{"event", "fault"},
                  {"what", "replicas"},
                  {"where", *difference},
                  {"equal_at_step", replicas_equal_at_}});
  control_.together([&] {
    throw CommError(fmt::format(
        "copies of the state differ: {}: memory or network of that node is not to be trusted; "
        "later checkpoints than step {} are set aside",
        *difference, replicas_equal_at_));
  });
}

void Trainer::judge_speed(const StepTimes& times) {
  double compute = 0;
  for (const double s : times.compute) compute += s;
  const auto all = control_.gather(compute);
  if (!report_) return;
  spread_ = guard::compute_spread(all);
  if (const auto rank = stragglers_.judge(*spread_)) {
    report_.record(fmt::format("rank {} is slower than the others, step after step: it computes "
                               "{:.1f} ms, the median rank {:.1f} ms",
                               *rank, spread_->most * 1e3, spread_->median * 1e3),
                   {{"event", "straggler"}, {"step", progress_.step}, {"rank", *rank}});
  }
  const auto tokens = static_cast<double>(timeline_.global(progress_.step) * deck_.batch.sequence);
  if (const auto change = pace_.judge(times.total / tokens)) {
    report_.record(fmt::format("the pace has changed at step {}: {:.0f} tokens/s, before {:.0f}",
                               progress_.step, 1 / change->now, 1 / change->before),
                   {{"event", "pace"},
                    {"step", progress_.step},
                    {"tokens_per_s", 1 / change->now},
                    {"before", 1 / change->before}});
  }
}

}  // namespace tessera::train
