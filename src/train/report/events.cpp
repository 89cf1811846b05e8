#include "train/report/events.hpp"

#include <fmt/format.h>

namespace tessera::train {
namespace {

constexpr std::string_view kIntroduction = R"(# metrics.jsonl

One JSON object a line, each written at once, in the order in which things happened. A restart
appends; steps that are done again after it appear again, and the last one counts. Numbers have all
their digits. Programs must ignore fields and events that they do not know; fields are added, but
never renamed or given another unit or meaning (`.github/CONTRIBUTING.md`, "Versions and releases").

Every object has two fields: `event`, its kind, which is a heading below, and `time`, when it was
written, in Unix seconds (UTC) by the clock of rank 0's node (of an injected fault, of its rank's).

The tables are generated from `src/train/report/events.cpp`.
)";

// The fields of each event, then the events, in the order in which METRICS.md has them.
constexpr EventField kStartFields[] = {
    {"version", "", "of tessera"},
    {"commit", "", "that tessera was built from"},
    {"command", "", "the command line of rank 0"},
    {"deck", "", "`run.name`"},
    {"mesh", "ranks",
     "the sizes of the axes `data` (context ranks included), `pipeline` and `tensor`; where there "
     "are "
     "several, `experts` and `context`, which are neighbours of the data ranks; `nodes`"},
    {"zero_stage", "", "`zero.stage`"},
    {"meetings_of_stages", "",
     "messages and collectives between pipeline stages, all proved to fit"},
    {"parameters", "", "of the model, without padding"},
    {"predicted_bytes", "bytes", "of all arenas of rank 0"},
    {"arena_bytes", "bytes", "by pipeline stage, of the rank with most: each arena"}};
constexpr EventField kStartedFields[] = {
    {"seconds", "s", "of the whole start"},
    {"stages", "s", "what each stage took rank 0, in their order"}};
constexpr EventField kRecordedFields[] = {
    {"step", "", "during which that was, or since the one before"},
    {"seconds", "s", "that the GPU's driver took rank 0 for it"}};
constexpr EventField kTrafficFields[] = {{"what", "", "the choice, and why"}};
constexpr EventField kClocksFields[] = {{"rank", "", "the first whose clock differs from rank 0's"},
                                        {"ahead_s", "s", "by how much its clock is ahead"}};
constexpr EventField kResumeFields[] = {
    {"step", "", "of the checkpoint"},
    {"from", "", "its path"},
    {"done_again", "steps", "that an earlier start had done after it"},
    {"bytes_read", "bytes", "that the rank with most has read"},
    {"changed", "",
     "each key of the deck whose value differs from that of the run's last start (of a checkpoint "
     "of another run: from its deck), but `run.deadline`: `key`, `saved` (before) and `now`, as "
     "TOML"}};
constexpr EventField kLrMovedFields[] = {
    {"step", "", "that the run goes on from"},
    {"steps", "steps", "the run's length"},
    {"steps_before", "steps", "the length before"},
    {"lr", "", "of the next update"},
    {"lr_before", "", "what it would be with the deck of before"}};
constexpr EventField kDataChangedFields[] = {{"step", "", "that it goes on from"},
                                             {"what", "", "what differs"}};
constexpr EventField kStepFields[] = {
    {"step", "", "from 1; steps count attempts"},
    {"loss", "nats",
     "mean over the targets of the global batch that count, or over its pairs, before the update"},
    {"grad_norm", "", "of all gradients, before clipping"},
    {"lr", "",
     "learning rate of the update, with what `batch.lr_scaling` and rollbacks make of it"},
    {"tokens", "", "of all steps until now, those included that a rollback skips"},
    {"targets", "", "of the step that count; 0 makes a loss of 0"},
    {"corpora", "",
     "of a mixture, an entry for each of `data.train`: its `data`, mean `loss` in the step (null "
     "where none of its targets count), and `targets` that count; else null"},
    {"experts", "",
     "an entry for each `layer` of experts: the choices of the `most` chosen expert over the mean "
     "of all (1: all are chosen alike), how many are `unused`, and how many choices were `dropped` "
     "for want of capacity; null where there are none"},
    {"preferences", "",
     "of pairs of answers: the share of pairs whose chosen answer has the larger reward "
     "(`accuracy`), means of the rewards `reward_chosen` and `reward_rejected` and of their "
     "difference (`margin`), and of log p - log p_reference of all answers (`log_ratio`; "
     "null of a reward model); else null"},
    {"rollout", "",
     "of answers that the model drew (task.kind = \"grpo\" or \"ppo\"): how many `answers`, the "
     "mean "
     "`reward`, "
     "the standard deviation of rewards to one prompt (`reward_std`, mean over prompts), the share "
     "of prompts whose answers had all the same (`alike`), mean `tokens` of an answer, the share "
     "that the limit has `cut`, mean -log p of a token when it was drawn (`entropy`, in nats) "
     "and what that is less than under the model of init_from (`kl`, where task.kl is above 0), "
     "the share of the variance of returns that values foresaw (`explained`, of ppo, else null), "
     "half the squared error of what task.critic expects, mean over targets (`critic_loss`), and "
     "its `critic_grad_norm` (null without a critic), "
     "of the step, where the model has been updated since it drew (rollout.steps above 1, else "
     "null), the share of tokens that task.clip held (`clipped`) and the mean of log p when drawn "
     "less log p (`moved`, in nats), and "
     "how long the slowest ranks drew and judged (`drawing_ms`, `judging_ms`, within "
     "`data_exposed_ms` of the first step that learns from the answers); else null"},
    {"samples", "", "sequences of all steps until now, those included that a rollback skips"},
    {"sequence", "tokens", "of each sequence of the step"},
    {"step_ms", "ms",
     "from the end of the step before to the end of this one, on rank 0, without what checkpoints "
     "and evaluations took, which are reported by themselves"},
    {"tokens_per_s", "tokens/s", "of all ranks, over `step_ms`"},
    {"mfu", "",
     "matrix work of the model over the GPUs' peak in 16-bit types, also where products have fp8 "
     "operands; null in f32 and on CPUs"},
    {"gemm_share", "",
     "matrix work of the model over the rate of large products that was measured when the run "
     "began; null unless an \"auto\" had it measured"},
    {"tflops_per_rank", "TFLOP/s", "matrix work of the model: 6 N + 6 L C T a token"},
    {"comm_exposed_ms", "ms", "that rank 0 waited for communication"},
    {"pipeline_exposed_ms", "ms",
     "of it, for other pipeline stages: the bubble, and what messages take"},
    {"io_exposed_ms", "ms",
     "that rank 0 waited for what is offloaded, and for snapshots of the state"},
    {"data_exposed_ms", "ms", "that rank 0 waited for tokens"},
    {"wire_bytes", "bytes",
     "the most that any rank sent, by the ring count of each collective: within nodes (`intra`) "
     "and between them (`inter`)"},
    {"io_bytes", "bytes",
     "that rank 0 has read from files (`read`) and written (`write`) since the step before"},
    {"between_ms", "ms",
     "part of `step_ms` that is in none of the step's own times: since the end of the step before, "
     "in guards, reports and whatever held the program up"},
    {"compute_ms", "ms",
     "in kernels: the `min`, `median` and `max` of all ranks, and the `slowest_rank`"},
    {"own_ms", "ms",
     "of the step without waiting for other ranks: `min`, `median`, `max` and `slowest_rank`; a "
     "rank that holds up the others, wherever it does, is found by it"},
    {"skipped", "", "whether the update was left out, because the gradient was not finite"},
    {"loss_scale", "", "of f16; else 1"}};
constexpr EventField kEvaluateFields[] = {
    {"step", "", "after which it was"},
    {"loss", "nats", "mean over the targets that count of the validation data that it read"},
    {"perplexity", "",
     "e to the power of the loss; null where documents or words are classified, or answers "
     "compared"},
    {"bits_per_byte", "bits",
     "a byte of the text that the targets stand for, of which special tokens have none; null "
     "where no tokenizer is known"},
    {"accuracy", "",
     "the share of documents, or of words, whose class it found; null, as the next two, where none "
     "are classified"},
    {"f1", "", "the mean over classes of the harmonic mean of precision and recall"},
    {"confusion", "",
     "for each label, in the order of `labels.json`, how many of its documents or words were taken "
     "for each"},
    {"preferences", "", "of pairs of answers, as in `step`; else null"},
    {"experts", "",
     "an entry for each `layer` of experts: how many `choices` of all tokens that it computed, "
     "padding too, were each expert; null where there are none"},
    {"sequences", "", "that it read; where documents or their words are classified, documents"},
    {"targets", "", "of them that count"},
    {"sets", "",
     "an entry for each of `data.validation`: its `data`, and the same of it alone: `loss` "
     "to `preferences`, and `targets`"},
    {"ms", "ms", "that it took"}};
constexpr EventField kCheckpointFields[] = {
    {"step", "", "whose state it holds"},
    {"path", "", "of its directory"},
    {"bytes", "bytes", "of all its files"},
    {"ms", "ms", "from its begin until it was complete"},
    {"stall_ms", "ms",
     "that it kept training waiting: while it was begun, for its snapshot (which is also in that "
     "step's `io_exposed_ms`), between writing and commit, and at its end, be it that it was due "
     "or that the next save had to wait for it"}};
constexpr EventField kSkipFields[] = {{"step", "", ""},
                                      {"in_a_row", "steps", "skipped until now"},
                                      {"loss_scale", "", "of the step"},
                                      {"where", "",
                                       "the first tensor that was not finite, with operation, rank "
                                       "and host; empty while a loss scale is searched"}};
constexpr EventField kSpikeFields[] = {
    {"step", "", ""}, {"loss", "nats", ""}, {"z", "", "deviations above the recent median"}};
constexpr EventField kRollbackFields[] = {
    {"step", "", "that it goes back from"},
    {"to", "", "the step of the checkpoint"},
    {"why", "", "where no step was applied since a start; then nothing below is there"},
    {"loss", "nats", "that leaps"},
    {"z", "", "deviations above the recent median"},
    {"skipped_samples", "", "[first, end) of the samples that are never used"},
    {"lr_factor", "", "of the learning rate from now on, all rollbacks together"}};
constexpr EventField kReplicasFields[] = {{"step", "", ""},
                                          {"elements", "", "that several ranks hold"},
                                          {"equal", "", "whether all copies were"}};
constexpr EventField kStragglerFields[] = {{"step", "", ""}, {"rank", "", ""}};
constexpr EventField kPaceFields[] = {
    {"step", "", ""}, {"tokens_per_s", "tokens/s", "now"}, {"before", "tokens/s", ""}};
constexpr EventField kSignalFields[] = {{"step", "", "after which it stops"},
                                        {"what", "", "the signal, limit or file"}};
constexpr EventField kFaultFields[] = {
    {"what", "",
     "`checkpoint` (one cannot be used), `prune` (an old one cannot be removed), `replicas` "
     "(copies of the state differ); of injected faults `armed`, `injected` or `spent`"},
    {"path", "", "of the checkpoint"},
    {"why", "", "the error"},
    {"where", "", "of copies that differ: the tensor, and ranks"},
    {"equal_at_step", "", "the last step after which copies were equal"},
    {"fault", "", "as `fault.inject` has it"},
    {"rank", "", "that it is for"},
    {"step", "", "in which it was injected"}};
constexpr EventField kEndFields[] = {
    {"reason", "", "`done`, a request to stop, or the error"},
    {"step", "", "the last one"},
    {"skipped", "steps", "of this start"},
    {"predicted_bytes", "bytes", "of all arenas of rank 0"},
    {"arena_high_water", "bytes",
     "by pipeline stage, of the rank with most: how far operations reached into each arena"},
    {"resident_growth_bytes", "bytes", "by which memory in use grew, on the rank with most"},
    {"peak_resident_bytes", "bytes", "the most that a process had of the host's memory"},
    {"resident_before_bytes", "bytes", "that a process had before its arenas"},
    {"library_bytes", "bytes", "of a GPU, in use beside the arenas"}};

constexpr EventKind kKinds[] = {
    {"start", "A job has opened the run directory and made its plans", kStartFields},
    {"started", "A start is over, and the first step begins", kStartedFields},
    {"recorded", "Plans were recorded as graphs, which later steps and passes launch",
     kRecordedFields},
    {"traffic", "Keys about ZeRO's traffic that were \"auto\" are settled", kTrafficFields},
    {"clocks", "The clocks of two nodes differ by ten seconds or more", kClocksFields},
    {"resume", "The run goes on from a checkpoint", kResumeFields},
    {"lr_moved", "The run has another length than before, which makes the learning rate jump",
     kLrMovedFields},
    {"data_changed", "The run goes on with other training data (`data.accept_changes`)",
     kDataChangedFields},
    {"step", "After each step, applied or not", kStepFields},
    {"evaluate", "After an evaluation", kEvaluateFields},
    {"checkpoint", "A checkpoint is complete and has its name", kCheckpointFields},
    {"skip", "A step was skipped because its gradient was not finite", kSkipFields},
    {"spike", "The loss leaps (`guard.spike`), and the run goes on", kSpikeFields},
    {"rollback", "The run goes back to an earlier checkpoint", kRollbackFields},
    {"replicas", "Copies of the state were compared (`guard.check_replicas`)", kReplicasFields},
    {"straggler",
     "In 40 of 50 steps a rank's `own_ms` was the longest, and longer than the median by a fifth "
     "and by a millisecond",
     kStragglerFields},
    {"pace", "The median of 50 steps is a quarter slower or faster than before", kPaceFields},
    {"signal", "The run was asked to stop", kSignalFields},
    {"fault", "Something is broken, or `fault.inject` breaks it", kFaultFields},
    {"end", "A start of the run is over, in order", kEndFields}};

}  // namespace

std::span<const EventKind> event_kinds() { return kKinds; }

std::string events_markdown() {
  std::string text(kIntroduction);
  for (const EventKind& kind : event_kinds()) {
    text += fmt::format("\n## {}\n\n{}.\n\n| field | unit | meaning |\n|---|---|---|\n", kind.name,
                        kind.when);
    for (const EventField& f : kind.fields)
      text += fmt::format("| `{}` | {} | {} |\n", f.name, f.unit, f.meaning);
  }
  return text;
}

}  // namespace tessera::train
