#include "train/trained_engine.hpp"

#include <cmath>

#include "core/bytes.hpp"
#include "core/terminal.hpp"
#include "io/finite.hpp"
#include "optim/optimizer.hpp"
#include "setup/products.hpp"

namespace tessera::train {
namespace {

/// Whether the state is one whose loss means something: throws what is wrong with it.
void check_start(const deck::LoadedDeck& loaded, const std::optional<LoadedCheckpoint>& start,
                 std::string_view weights) {
  const deck::Deck& deck = loaded.deck;
  const bool fresh_head = deck.model.init_head == HeadWeights::fresh;
  if (!start && (!deck.model.init_from || fresh_head)) {
    throw DeckError(fmt::format(
        "{}: nothing to evaluate but random weights: {} has no checkpoint{}, and {}; train first, "
        "name a run or a checkpoint in place of the deck, or set "
        "run.resume or model.init_from",
        loaded.name, deck::run_directory(deck),
        deck.run.resume == std::variant<deck::Resume, std::string>(deck::Resume::never)
            ? " that run.resume = \"never\" allows"
            : "",
        fresh_head ? "the head of model.init_from is a fresh one" : "model.init_from is unset"));
  }
  if (!start && weights == optim::kEma) {
    throw DataError(fmt::format(
        "{} has no checkpoint, so there are no averaged weights to evaluate: leave out --ema",
        printable(deck::run_directory(deck))));
  }
  if (!start) return;
  if (start->lacks_averaged_weights) throw no_averaged_weights(start->path);
  if (const auto& bad = start->non_finite; bad && !deck.model.accept_non_finite) {
    throw io::non_finite_error(
        fmt::format("{}: {}{}", start->path.string(), bad->parameter, bad->index), bad->value,
        bad->type, "--allow-non-finite");
  }
}

}  // namespace

void remark(const comm::Control& control, const std::string& line) {
  if (control.rank() == 0) tell(line + "\n");
}

TrainedEngine::TrainedEngine(const deck::LoadedDeck& loaded, const Job& job,
                             const plan::PlanShape& shape, std::string_view weights)
    : deck_(loaded.deck), control_(job.control), engine_(loaded, job, std::span(&shape, 1)) {
  engine_.tune(deck::run_directory(deck_), false,
               [&](const std::string& line) { remark(control_, "kernels   " + line); });
  engine_.state().take_for_weights(weights);
  const auto start = load_checkpoint(
      loaded, deck::OnResume::architecture, control_, engine_.state(),
      [&](const std::filesystem::path& path, std::string_view why) {
        remark(control_,
               fmt::format("checkpoint {} cannot be used: {}", printable(path.string()), why));
      });
  control_.together([&] { check_start(loaded, start, weights); });
  if (start) {
    check_same_codes(loaded, *start, control_, engine_.state());
    if (const auto note = code_errors_note(deck_.model.frozen, control_, engine_.state()))
      remark(control_, *note);
  } else {
    for (const auto& note : set_initial_state(deck_, control_, engine_.state()))
      remark(control_, note);
  }
  name_ = fmt::format("{}{} at step {}", weights == optim::kEma ? "the averaged weights of " : "",
                      start ? printable(start->path.string()) : "initial weights",
                      start ? start->header.step : 0);
}

void TrainedEngine::check_loss(double loss) const {
  control_.together([&] {
    if (std::isfinite(loss) || deck_.model.accept_non_finite) return;
    throw NonFiniteError(fmt::format(
        "the loss is {} although every weight is finite: the model's activations overflow in "
        "precision.compute = \"{}\" (--allow-non-finite takes that for a result)",
        loss, enum_word(deck_.precision.compute)));
  });
}

}  // namespace tessera::train
