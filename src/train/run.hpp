// What the parts of a training run share: its deck and job, data, directory, course and engine.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "data/corpora.hpp"
#include "data/labels.hpp"
#include "data/prompts.hpp"
#include "io/checkpoint_manifest.hpp"
#include "train/course.hpp"
#include "train/evaluation.hpp"
#include "train/execution/engine.hpp"
#include "train/report/run_directory.hpp"
#include "train/start_times.hpp"
#include "train/state/starting_state.hpp"

namespace tessera::train {

struct Run {
  Run(const deck::LoadedDeck& loaded, const Job& job);

  // What a start opens, in this order. Collective; each throws on all ranks alike.
  /// Checks the deck against the ranks, has them watch each other, and opens the token files.
  void open_data();
  /// Takes the directory for this job. Throws DeckError where another has it, or where it holds a
  /// run that run.resume = "never" must not touch.
  void take_directory();
  /// Settles what the deck leaves open; makes the plans, and what executes them.
  void open_engine();

  /// The shape of a step of the run.
  plan::PlanShape shape(plan::PlanPurpose purpose, std::int64_t step) const;
  /// The plan of training's step, when it saves nothing.
  const PreparedPlan& plan_of(std::int64_t step) const {
    return engine->prepared(shape(plan::PlanPurpose::train, step));
  }

  /// Says of a checkpoint in the log that it was passed over, and why.
  UnusableCheckpoint note_unusable();

  deck::LoadedDeck loaded;
  const deck::Deck& deck = loaded.deck;
  const Job& job;
  const comm::Control& control;
  std::filesystem::path directory;
  std::unique_ptr<RunLock> lock;  // on rank 0
  Reporter log;                   // speaks on rank 0
  // The former, or prompts that the model answers; the latter: if the deck names one.
  std::unique_ptr<io::TokenCorpus> corpus, validation;
  std::optional<data::Prompts> prompts;
  TextBytes validation_bytes;            // where there is validation data
  std::vector<io::DataFile> data_files;  // of corpus or prompts, on rank 0
  std::optional<io::LabelNames> labels;  // of the task's classes, on rank 0
  std::string unnamed_classes;           // what is said of the model's, on rank 0
  Course course;
  std::string traffic;   // how what the deck left open was settled, for people
  double gemm_rate = 0;  // of a rank in flop/s, where settling it took measuring; 0: not known
  std::optional<Engine> engine;
  StartTimes start_times;     // of this start
  plan::ArenaBytes beside{};  // of models beside the run's: those that are asked, and a critic
};

}  // namespace tessera::train
