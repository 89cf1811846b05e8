#include "train/reference.hpp"

#include <cstdio>
#include <numeric>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/tokenizers.hpp"
#include "io/file.hpp"
#include "io/log_probabilities.hpp"
#include "setup/inputs.hpp"
#include "setup/judges.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {
namespace {

/// Each sample of a step is a tally of its own.
void tally_samples(data::StepTokens& step) {
  for (std::size_t i = 0; i < step.samples.size(); ++i)
    step.tallies[i] = static_cast<std::int32_t>(step.samples[i] - step.first);
}

std::vector<double> log_probabilities(Engine& engine, const plan::PlanShape& shape,
                                      const comm::Control& control, const deck::Deck& pairs,
                                      const io::TokenCorpus& corpus, const std::string& name) {
  const auto documents =
      data::sequences_of(corpus, pairs, {0, corpus.tokens()}, name, io::Shuffle::no);
  const std::int64_t count = documents.count();
  data::Batches batches(
      corpus, [&](std::int64_t s) { return s < count ? documents[s] : data::Stretches(); },
      {.documents = data::document_rule(pairs), .masking = {}, .labels = {}, .references = {}});
  const PreparedPlan& prepared = engine.prepared(shape);
  std::vector<double> all;
  for (std::int64_t first = 0; first < count; first += shape.tallies) {
    control.together([&] { batches.begin(first, engine.share(shape)); });
    data::StepTokens step = batches.current();
    tally_samples(step);
    const StepOutput output = engine.run(prepared, {}, step);
    for (std::int64_t i = 0; i < std::min(shape.tallies, count - first); ++i)
      all.push_back(-exact_value(output.losses_of(i).words));
  }
  return all;
}

/// What is computed with: a hash of the model, and the files of each corpus.
io::LogProbabilities identify(const deck::Deck& deck,
                              std::span<const io::TokenCorpus* const> corpora) {
  io::LogProbabilities all{.model = data::hash_reference_model(deck), .corpora = {}};
  for (const io::TokenCorpus* corpus : corpora)
    all.corpora.push_back({.files = io::identify(*corpus), .documents = {}});
  return all;
}

/// DataError where that has changed since.
void check_unchanged(const io::LogProbabilities& all, const deck::Deck& deck,
                     std::span<const io::TokenCorpus* const> corpora) {
  const io::LogProbabilities now = identify(deck, corpora);
  std::string what = now.model == all.model ? "" : *deck.model.init_from;
  for (std::size_t i = 0; i < corpora.size() && what.empty(); ++i)
    what = io::find_difference(all.corpora[i].files, now.corpora[i].files).value_or("");
  if (!what.empty())
    throw DataError(fmt::format("{}: it has changed meanwhile; nothing is written", what));
}

}  // namespace

void write_reference(const deck::LoadedDeck& loaded, const Job& job) {
  const comm::Control& control = job.control;
  const deck::Deck& deck = loaded.deck;
  const auto begin = SteadyClock::now();
  control.together([&] {
    setup::check_on_ranks(loaded, control.size());
    if (deck::has_reference(deck.task.kind)) return;
    throw DeckError(fmt::format(
        "{}: task.kind = \"{}\" compares nothing with a reference model: --reference is of dpo and "
        "ipo",
        loaded.where("task.kind"), enum_word(deck.task.kind)));
  });
  const std::filesystem::path file = *deck.task.reference;
  const auto training = data::open_training(loaded, control);
  const auto validation = data::open_validation(loaded, control);
  std::vector<const io::TokenCorpus*> corpora{training.get()};
  if (validation) corpora.push_back(validation.get());
  io::LogProbabilities all;
  // Before and behind: what is computed meanwhile is of this model and data, and there is room.
  control.together([&] {
    if (control.rank() != 0) return;
    data::common_tokenizer(loaded, data::tokenizers_of_run(deck));
    all = identify(deck, corpora);
    if (file.has_parent_path()) io::create_directories(file.parent_path());
  });
  const std::int64_t data_ranks = setup::mesh_of(deck, control.size()).batch_ranks();
  plan::PlanShape shape = setup::evaluation_shape(deck.batch, data_ranks);
  shape.tallies = shape.micro_batches * shape.micro * data_ranks;
  shape.of_targets = true;
  const deck::LoadedDeck reference = setup::reference_deck(loaded);
  TrainedEngine trained(reference, job, shape, "master");
  std::int64_t documents = 0;
  for (std::size_t i = 0; i < corpora.size(); ++i) {
    const char* name = i == 0 ? "data.train" : "data.validation";
    auto log_p = log_probabilities(trained.engine(), shape, control, deck, *corpora[i], name);
    trained.check_loss(std::accumulate(log_p.begin(), log_p.end(), 0.0));
    documents += std::ssize(log_p);
    if (control.rank() == 0) all.corpora[i].documents = std::move(log_p);
  }
  control.together([&] {
    if (control.rank() != 0) return;
    check_unchanged(all, deck, corpora);
    io::write_log_probabilities(file, all);
  });
  if (control.rank() != 0) return;
  fmt::print("{}: log p of {} under {} | {:.1f} s\n", printable(file.string()),
             count_text(documents, "document"), printable(*deck.model.init_from),
             seconds_since(begin));
}

}  // namespace tessera::train
