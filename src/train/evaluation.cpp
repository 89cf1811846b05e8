#include "train/evaluation.hpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/tokenizers.hpp"
#include "io/finite.hpp"
#include "optim/optimizer.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "train/state/starting_state.hpp"

namespace tessera::train {

std::optional<double> TextLoss::bits_per_byte() const {
  if (bytes == 0) return std::nullopt;
  return loss * static_cast<double>(targets) / (bytes * std::numbers::ln2);
}

std::string to_text(const TextLoss& loss) {
  const auto bits = loss.bits_per_byte();
  return fmt::format("loss {:.6f} | perplexity {:.6g}{}", loss.loss, loss.perplexity(),
                     bits ? fmt::format(" | {:.6f} bits a byte", *bits) : "");
}

TextBytes validation_bytes(const deck::Deck& deck, const comm::Control& control) {
  TextBytes bytes;
  control.together([&] {
    if (control.rank() == 0) bytes = data::text_bytes_of_validation(deck).value_or(TextBytes());
  });
  const std::string packed = control.broadcast(
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof(bytes[0])));
  bytes.resize(packed.size() / sizeof(bytes[0]));
  std::memcpy(bytes.data(), packed.data(), packed.size());
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

}  // namespace

std::optional<Evaluation> evaluate(Engine& engine, const comm::Control& control,
                                   const deck::Deck& deck, const io::TokenCorpus& validation,
                                   const TextBytes& text_bytes, const std::function<bool()>& stop) {
  const auto begin = SteadyClock::now();
  const plan::PlanShape shape = setup::evaluation_shape(deck.batch, engine.data_ranks());
  const std::int64_t global = shape.micro_batches * shape.micro * engine.data_ranks();
  const PreparedPlan& prepared = engine.prepared(shape);
  Evaluation evaluation;
  LossSum all;
  for (std::size_t set = 0; set < validation.entries().size(); ++set) {
    const auto sequences =
        data::sequences_of(validation, deck, validation.entries()[set], deck.data.validation[set]);
    const std::int64_t rounds = std::min(deck.evaluate.batches, sequences.count() / global);
    data::Batches batches(
        validation, [&](std::int64_t s) { return sequences[s]; }, data::batch_rules(deck));
    LossSum sum;
    double bytes = 0;
    for (std::int64_t round = 0; round < rounds; ++round) {
      StepInput input;
      input.set(plan::StepFlag::stop, stop());
      control.together([&] { batches.begin(round * global, engine.share(shape)); });
      const StepOutput output = engine.run(prepared, input, batches.current());
      if (output.count(plan::StepFlag::stop) > 0) return std::nullopt;
      sum.add(output.losses());
      if (engine.counts_targets()) bytes += bytes_of(batches.current(), text_bytes);
    }
    all.add(sum);
    bytes = control.sum(bytes);
    evaluation.bytes += bytes;
    evaluation.sequences += rounds * global;
    evaluation.sets.push_back({{sum.mean(), sum.targets, bytes}, deck.data.validation[set]});
  }
  evaluation.loss = all.mean();
  evaluation.targets = all.targets;
  evaluation.seconds = seconds_since(begin);
  return evaluation;
}

namespace {

/// Whether the state is one whose loss means something: throws what is wrong with it.
void check_start(const deck::LoadedDeck& loaded, const std::optional<LoadedCheckpoint>& start,
                 std::string_view weights, int threads) {
  const deck::Deck& deck = loaded.deck;
  if (!start && !deck.model.init_from) {
    throw DeckError(fmt::format(
        "{}: nothing to evaluate but random weights: {} has no checkpoint{}, and model.init_from "
        "is unset; train first, name a run or a checkpoint in place of the deck, or set "
        "run.resume or model.init_from",
        loaded.name, deck::run_directory(deck),
        deck.run.resume == std::variant<deck::Resume, std::string>(deck::Resume::never)
            ? " that run.resume = \"never\" allows"
            : ""));
  }
  if (!start && weights == optim::kEma) {
    throw DataError(fmt::format(
        "{} has no checkpoint, so there are no averaged weights to evaluate: leave out --ema",
        printable(deck::run_directory(deck))));
  }
  if (!start) return;
  if (start->lacks_averaged_weights) throw no_averaged_weights(start->path);
  check_same_threads(loaded, *start, threads);
  if (const auto& bad = start->non_finite; bad && !deck.model.accept_non_finite) {
    throw io::non_finite_error(
        fmt::format("{}: {}{}", start->path.string(), bad->parameter, bad->index), bad->value,
        bad->type, "--allow-non-finite");
  }
}

}  // namespace

void evaluate_deck(const deck::LoadedDeck& loaded, const Job& job, std::string_view weights) {
  const comm::Control& control = job.control;
  const deck::Deck& deck = loaded.deck;
  control.together([&] {
    setup::check_on_ranks(loaded, control.size());
    if (deck.data.validation.empty()) {
      throw DeckError(
          fmt::format("{}: data.validation is empty: name token files, as by --set "
                      "'data.validation=[\"PREFIX\"]'",
                      loaded.where("data.validation")));
    }
  });
  const auto validation = data::open_validation(loaded, control);
  control.together([&] {
    if (control.rank() != 0) return;
    auto known = data::tokenizers_of_model(deck);
    for (auto& data : data::tokenizers_of_data("data.validation", deck.data.validation))
      known.push_back(std::move(data));
    data::common_tokenizer(loaded, known);
  });
  const plan::PlanShape shape =
      setup::evaluation_shape(deck.batch, setup::mesh_of(deck, control.size()).data);
  Engine engine(loaded, job, std::span(&shape, 1));
  const auto remark = [&](const std::string& line) {
    if (control.rank() == 0) tell(line + "\n");
  };
  engine.tune(deck::run_directory(deck), false,
              [&](const std::string& line) { remark("kernels   " + line); });
  engine.state().take_for_weights(weights);
  const auto start = load_checkpoint(
      loaded, deck::OnResume::architecture, control, engine.state(),
      [&](const std::filesystem::path& path, std::string_view why) {
        remark(fmt::format("checkpoint {} cannot be used: {}", printable(path.string()), why));
      });
  control.together([&] { check_start(loaded, start, weights, engine.threads()); });
  if (!start) {
    if (const auto note = set_initial_state(deck, control, engine.state()); !note.empty())
      remark(note);
  }
  const TextBytes text_bytes = validation_bytes(deck, control);
  if (text_bytes.empty()) remark(kNoTextBytes);
  const auto result =
      evaluate(engine, control, deck, *validation, text_bytes, [] { return false; });
  if (control.rank() == 0) {
    fmt::print("evaluate {}{} at step {} | {} | {} | {:.1f} s\n",
               weights == optim::kEma ? "the averaged weights of " : "",
               start ? printable(start->path.string()) : "initial weights",
               start ? start->header.step : 0, to_text(*result),
               count_text(result->sequences, "sequence"), result->seconds);
    for (std::size_t i = 0; result->sets.size() > 1 && i < result->sets.size(); ++i)
      fmt::print("  {} | {}\n", printable(result->sets[i].path), to_text(result->sets[i]));
  }
  control.together([&] {
    if (std::isfinite(result->loss) || deck.model.accept_non_finite) return;
    throw NonFiniteError(fmt::format(
        "the loss is {} although every weight is finite: the model's activations overflow in "
        "precision.compute = \"{}\" (--allow-non-finite takes that for a result)",
        result->loss, enum_word(deck.precision.compute)));
  });
}

}  // namespace tessera::train
