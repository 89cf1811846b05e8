// What a run directory's metrics.jsonl says of a run, as `tessera report` draws it.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::verbs {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // not recorded

/// A step, in the units of metrics.jsonl.
struct StepRecord {
  std::int64_t step = 0;
  bool skipped = false;
  double time = kNone;  // unix seconds
  double loss = kNone, grad_norm = kNone, lr = kNone, loss_scale = kNone;
  double tokens = kNone;  // since the run began
  double step_ms = kNone, tokens_per_s = kNone, mfu = kNone, tflops_per_rank = kNone;
  double comm_exposed_ms = kNone, pipeline_exposed_ms = kNone, io_exposed_ms = kNone,
         data_exposed_ms = kNone, compute_ms = kNone;  // the last: of the median rank
  double wire_intra = kNone, wire_inter = kNone, io_read = kNone, io_write = kNone;  // bytes
  // The choices of the most chosen expert over the mean of a layer's: of the worst layer, and the
  // mean over layers.
  double most_chosen = kNone, most_chosen_mean = kNone;
  std::vector<double> by_corpus;  // losses, as RunRecord::corpora names them
  double elapsed = 0;  // hours: by the clock where all steps have a time, else in steps alone
};

struct Evaluation {
  std::int64_t step = 0;
  double loss = kNone;
};

/// What is marked on the axis of steps.
enum class EventKind : std::uint8_t {
  restart,
  fault,
  rollback,
  skip,
  warning,  // a spike, a straggler, a change of pace or of the data
  stop,
  checkpoint,
};
struct RunEvent {
  EventKind kind = EventKind::fault;
  std::int64_t step = 0;
  std::string text;
};

struct KeyChange {
  std::string key, saved, now;
};

/// One start of the run and how it ended.
struct Start {
  std::int64_t after = 0;  // the step that it went on from
  std::int64_t done_again = 0;
  double time = kNone;  // unix seconds
  std::string version, commit, command, layout;
  std::int64_t ranks = 1, nodes = 1;
  double parameters = kNone, predicted_bytes = kNone;
  std::vector<KeyChange> changed;  // of the deck, since the start before
  struct End {
    std::string reason;
    std::int64_t step = 0;
    double peak_resident_bytes = kNone, resident_growth_bytes = kNone;
  };
  std::optional<End> end;  // none: killed, or still at work
};

struct RunRecord {
  std::filesystem::path directory;
  std::string name;                  // run.name
  std::vector<StepRecord> steps;     // ascending; of a step that was done again, the last
  std::vector<std::string> corpora;  // of a mixture: what `by_corpus` is of
  std::vector<Evaluation> evaluations;
  std::vector<RunEvent> events;
  std::vector<Start> starts;
  bool by_the_clock = false;  // what `elapsed` is
};

/// Reads a run directory. A last line without its end is one that a killed run did not finish, and
/// left out. Throws DataError naming file, line and place where there is no run or it is damaged.
RunRecord read_run(const std::filesystem::path& directory);

}  // namespace tessera::verbs
