#include "train/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/labels.hpp"
#include "data/tokenizers.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

std::optional<double> TextLoss::bits_per_byte() const {
  if (bytes == 0) return std::nullopt;
  return loss * static_cast<double>(targets) / (bytes * std::numbers::ln2);
}

std::string to_text(const TextLoss& loss, std::optional<double> beta) {
  if (loss.preferences) {
    return fmt::format("loss {:.6f} | {}", loss.loss, to_text(*loss.preferences, beta));
  }
  if (const Confusion& c = loss.confusion; c.classes() > 0) {
    return fmt::format("loss {:.6f} | accuracy {:.4f} | F1 {:.4f}", loss.loss, c.accuracy(),
                       c.f1());
  }
  const auto bits = loss.bits_per_byte();
  return fmt::format("loss {:.6f} | perplexity {:.6g}{}", loss.loss, loss.perplexity(),
                     bits ? fmt::format(" | {:.6f} bits a byte", *bits) : "");
}

std::vector<std::string> details(const Evaluation& evaluation, std::span<const std::string> names,
                                 std::optional<double> beta) {
  std::vector<std::string> lines;
  const auto add_classes = [&](const TextLoss& loss) {
    if (loss.confusion.classes() == 0) return;
    std::ranges::copy(to_lines(loss.confusion, names), std::back_inserter(lines));
  };
  if (evaluation.sets.size() == 1) add_classes(evaluation);
  for (std::size_t i = 0; evaluation.sets.size() > 1 && i < evaluation.sets.size(); ++i) {
    const Evaluation::Set& set = evaluation.sets[i];
    lines.push_back(fmt::format("{} | {}", printable(set.path), to_text(set, beta)));
    add_classes(set);
  }
  return lines;
}

bool predicts_text(const deck::Deck& deck) { return deck.task.kind == deck::TaskKind::lm; }

TextBytes validation_bytes(const deck::Deck& deck, const comm::Control& control) {
  TextBytes bytes;
  if (!predicts_text(deck)) return bytes;
  control.together([&] {
    if (control.rank() == 0) bytes = data::text_bytes_of_validation(deck).value_or(TextBytes());
  });
  const std::string packed = control.broadcast(
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof(bytes[0])));
  bytes.resize(packed.size() / sizeof(bytes[0]));
  if (!bytes.empty()) std::memcpy(bytes.data(), packed.data(), packed.size());
  return bytes;
}

namespace {

/// The bytes of text that a rank's targets stand for.
double bytes_of(const data::StepTokens& tokens, const TextBytes& text_bytes) {
  std::int64_t bytes = 0;
  for (const std::int32_t target : tokens.targets) {
    if (target >= 0 && target < std::ssize(text_bytes))
      bytes += text_bytes[static_cast<std::size_t>(target)];
  }
  return static_cast<double>(bytes);
}

void add_choices(std::vector<std::int64_t>& sum, std::span<const std::int64_t> more) {
  sum.resize(std::max(sum.size(), more.size()));
  for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

/// What batches of a set add up to.
struct SetSums {
  LossSum losses;
  Confusion confusion;
  PreferenceSums preferences;
  std::vector<std::int64_t> choices;
  double bytes = 0;  // of text that this rank's targets are
};

/// Of so many rounds of batches; nothing where some rank's `stop` gives them up.
std::optional<SetSums> sums_of(Engine& engine, const comm::Control& control,
                               const PreparedPlan& prepared, data::Batches& batches,
                               std::int64_t rounds, const TextBytes& text_bytes,
                               const std::function<bool()>& stop) {
  const data::BatchShare share = engine.share(prepared.plan().shape);
  const std::int64_t global = share.micro_batches * share.micro * share.data_ranks;
  SetSums sums;
  for (std::int64_t round = 0; round < rounds; ++round) {
    StepInput input;
    input.set(plan::StepFlag::stop, stop());
    control.together([&] { batches.begin(round * global, share); });
    const StepOutput output = engine.run(prepared, input, batches.current());
    if (output.count(plan::StepFlag::stop) > 0) return std::nullopt;
    sums.losses.add(output.losses());
    if (!output.confusion.empty()) sums.confusion.add(output.confusion);
    sums.preferences.add(output.preferences());
    add_choices(sums.choices, output.choices);
    if (engine.counts_targets()) sums.bytes += bytes_of(batches.current(), text_bytes);
  }
  return sums;
}

}  // namespace

std::optional<Evaluation> evaluate(Engine& engine, const comm::Control& control,
                                   const deck::Deck& deck, const io::TokenCorpus& validation,
                                   const data::BatchRules& rules, const TextBytes& text_bytes,
                                   const std::function<bool()>& stop) {
  const auto begin = SteadyClock::now();
  const plan::PlanShape shape = setup::evaluation_shape(deck.batch, engine.batch_ranks());
  const std::int64_t global = shape.micro_batches * shape.micro * engine.batch_ranks();
  const PreparedPlan& prepared = engine.prepared(shape);
  Evaluation evaluation;
  const bool paired = static_cast<bool>(prepared.plan().statistics);
  LossSum all;
  PreferenceSums all_preferences;
  for (std::size_t set = 0; set < validation.entries().size(); ++set) {
    const auto sequences = data::sequences_of(validation, deck, validation.entries()[set],
                                              deck.data.validation[set], io::Shuffle::no);
    const std::int64_t count = sequences.count(),
                       all_rounds = deck::one_document_each(deck.task.kind)
                                        ? ceil_div(count, global)
                                        : count / global;
    const std::int64_t rounds =
        deck.evaluate.batches > 0 ? std::min(deck.evaluate.batches, all_rounds) : all_rounds;
    data::Batches batches(
        validation, [&](std::int64_t s) { return s < count ? sequences[s] : data::Stretches(); },
        rules);
    const auto sums = sums_of(engine, control, prepared, batches, rounds, text_bytes, stop);
    if (!sums) return std::nullopt;
    const LossSum& sum = sums->losses;
    if (sum.targets == 0) {
      throw DataError(
          fmt::format("data.validation: {}: none of the targets that an evaluation reads of it "
                      "counts, so there is no loss: leave it out, or give a larger "
                      "evaluate.batches",
                      deck.data.validation[set]));
    }
    all.add(sum);
    const double bytes = control.sum(sums->bytes);
    evaluation.bytes += bytes;
    evaluation.confusion.add(sums->confusion);
    add_choices(evaluation.choices, sums->choices);
    evaluation.sequences += sequences.stretches(std::min(rounds * global, count));
    evaluation.sets.push_back({{sum.mean(), sum.targets, bytes, sums->confusion,
                                paired ? std::optional(sums->preferences.means()) : std::nullopt},
                               deck.data.validation[set]});
    all_preferences.add(sums->preferences);
  }
  evaluation.loss = all.mean();
  if (paired) evaluation.preferences = all_preferences.means();
  evaluation.targets = all.targets;
  evaluation.seconds = seconds_since(begin);
  return evaluation;
}

DeckEvaluation::DeckEvaluation(const deck::LoadedDeck& loaded, const Job& job)
    : loaded_(loaded), control_(job.control) {
  const deck::Deck& deck = loaded.deck;
  control_.together([&] {
    setup::check_on_ranks(loaded, control_.size());
    if (deck.data.validation.empty()) {
      throw DeckError(
          fmt::format("{}: data.validation is empty: name token files, as by --set "
                      "'data.validation=[\"PREFIX\"]'",
                      loaded.where("data.validation")));
    }
  });
  validation_ = data::open_validation(loaded, control_);
  control_.together([&] {
    if (control_.rank() != 0) return;
    if (deck::has_reference(deck.task.kind)) data::check_reference_model(loaded);
    auto known = data::tokenizers_of_model(deck);
    for (auto& data : data::tokenizers_of_data("data.validation", deck.data.validation))
      known.push_back(std::move(data));
    data::common_tokenizer(loaded, known);
  });
  text_bytes_ = validation_bytes(deck, control_);
  if (text_bytes_.empty() && predicts_text(deck)) remark(control_, kNoTextBytes);
  control_.together([&] { rules_ = data::batch_rules(deck, *validation_); });
}

plan::PlanShape DeckEvaluation::shape() const {
  return setup::evaluation_shape(loaded_.deck.batch,
                                 setup::mesh_of(loaded_.deck, control_.size()).batch_ranks());
}

void DeckEvaluation::say(TrainedEngine& trained, const std::string& name) const {
  const deck::Deck& deck = loaded_.deck;
  const auto result = evaluate(trained.engine(), control_, deck, *validation_, rules_, text_bytes_,
                               [] { return false; });
  if (control_.rank() == 0) {
    fmt::print("evaluate {} | {} | {} | {:.1f} s\n", name, to_text(*result, deck.task.beta),
               count_text(result->sequences, samples_word(*result)), result->seconds);
    const auto labels = data::common_labels(loaded_, nullptr, validation_.get());
    for (const std::string& line :
         details(*result, labels ? labels->names : std::vector<std::string>(), deck.task.beta))
      fmt::print("  {}\n", line);
  }
  trained.check_loss(result->loss);
}

void evaluate_deck(const deck::LoadedDeck& loaded, const Job& job, std::string_view weights) {
  const DeckEvaluation evaluation(loaded, job);
  TrainedEngine trained(loaded, job, evaluation.shape(), weights);
  evaluation.say(trained, trained.name());
}

}  // namespace tessera::train
