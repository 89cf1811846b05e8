#include "train/run.hpp"

#include "core/terminal.hpp"
#include "data/pairs.hpp"
#include "deck/ranks.hpp"
#include "io/checkpoint_directory.hpp"
#include "setup/generation.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "setup/traffic.hpp"
#include "train/guards/watch.hpp"
#include "train/traffic.hpp"

namespace tessera::train {
namespace {

bool holds_a_run(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "metrics.jsonl") ||
         !io::list_checkpoints(directory / "checkpoints").empty();
}

}  // namespace

Run::Run(const deck::LoadedDeck& from, const Job& of)
    : loaded(from),
      job(of),
      control(of.control),
      directory(deck::run_directory(deck)),
      course(deck) {}

void Run::open_data() {
  control.together([&] {
    setup::check_on_ranks(loaded, control.size());
    setup::check_traffic(loaded, job.mpi.node_of());
    setup::check_cache(loaded);
  });
  watch_peers(loaded, job, directory);
  if (deck::draws_answers(deck.task.kind)) {
    prompts.emplace(data::open_prompts(loaded, control));
    course.set_data(std::ssize(prompts->all) * deck.rollout.samples);
    control.together([&] {
      if (control.rank() != 0) return;
      for (const deck::DataEntry& entry : deck.data.train)
        data_files.push_back(io::identify(std::filesystem::path(entry.path)));
      if (deck.task.kl > 0)
        data_files.push_back({*deck.model.init_from, 0, data::hash_reference_model(deck)});
      if (deck.reward.kind == deck::RewardKind::model)
        data_files.push_back({*deck.reward.model, 0, io::hash_model(*deck.reward.model)});
    });
    return;
  }
  corpus = data::open_training(loaded, control);
  validation = data::open_validation(loaded, control);
  if (validation) validation_bytes = train::validation_bytes(deck, control);
  control.together([&] {
    if (control.rank() != 0) return;
    data_files = io::identify(*corpus);
    labels = data::common_labels(loaded, corpus.get(), validation.get());
    if (labels) unnamed_classes = data::check_labels(loaded, *labels, directory);
    if (deck::has_reference(deck.task.kind)) {
      data::check_reference_model(loaded);
      data_files.push_back(io::identify(std::filesystem::path(*deck.task.reference)));
    }
  });
  course.set_data(data::epoch_samples(*corpus, deck));
}

void Run::take_directory() {
  control.together([&] {
    if (control.rank() != 0) return;
    lock = std::make_unique<RunLock>(directory);
    remove_ended(directory);
    const auto* word = std::get_if<deck::Resume>(&deck.run.resume);
    const bool never = word != nullptr && *word == deck::Resume::never;
    if (never && holds_a_run(directory)) {
      throw DeckError(fmt::format(
          "{}: run.resume = \"never\", but {} already holds a run: set another run.dir or "
          "run.name, or resume = \"auto\"",
          loaded.where("run.resume"), directory.string()));
    }
  });
}

void Run::open_engine() {
  Hardware hardware(deck, job, deck::draws_answers(deck.task.kind));
  start_times.ended(StartStage::device);
  loaded.deck.zero.prefetch =
      setup::prefetch_of(deck, job.mpi.node_of(), computes_on(hardware.backend).nccl);
  const SettledTraffic settled = settle_traffic(loaded, job, hardware, directory);
  traffic = settled.what;
  gemm_rate = settled.gemm_rate;
  start_times.ended(StartStage::traffic);
  try {
    engine.emplace(loaded, job,
                   setup::training_shapes(deck, setup::mesh_of(deck, control.size()).batch_ranks()),
                   std::move(hardware));
  } catch (Error& e) {
    if (!traffic.empty()) e.add_context(traffic);
    throw;
  }
  start_times.add(engine->start_times());
  control.together([&] {
    if (control.rank() == 0) keep_traffic(settled, directory);
  });
}

plan::PlanShape Run::shape(plan::PlanPurpose purpose, std::int64_t step) const {
  plan::PlanShape shape = setup::training_shape(
      deck, purpose, {.global = course.sequences(step), .sequence = course.sequence(step)},
      engine->batch_ranks());
  shape.compression = plan::compression_at(engine->inputs().optimizer, course.progress.applied);
  return shape;
}

UnusableCheckpoint Run::note_unusable() {
  return [this](const std::filesystem::path& path, std::string_view why) {
    log.record(fmt::format("checkpoint {} cannot be used: {}", printable(path.string()), why),
               {{"event", "fault"}, {"what", "checkpoint"}, {"path", path.string()}, {"why", why}});
  };
}

}  // namespace tessera::train
