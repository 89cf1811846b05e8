#include "train/starting_state.hpp"

#include <algorithm>

#include "core/terminal.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/hugging_face.hpp"
#include "train/setup.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

fs::path checkpoints_of(const deck::Deck& deck) {
  return fs::path(deck::run_directory(deck)) / "checkpoints";
}

/// Checkpoints to try, the best first; made on rank 0.
using Candidates = std::function<std::vector<fs::path>()>;

/// What run.resume allows.
std::vector<fs::path> chosen_by_deck(const deck::Deck& deck) {
  if (const auto* given = std::get_if<std::string>(&deck.run.resume)) return {*given};
  std::vector<fs::path> all;
  if (std::get<deck::Resume>(deck.run.resume) == deck::Resume::never) return all;
  for (const auto& entry : committed_checkpoints(checkpoints_of(deck))) all.push_back(entry.path);
  return all;
}

/// Those at or before `step`, newest first, then the others, oldest first.
std::vector<fs::path> before_step(const deck::Deck& deck, std::int64_t step) {
  std::vector<fs::path> good, late;
  for (const auto& entry : committed_checkpoints(checkpoints_of(deck))) {
    (entry.step <= step ? good : late).push_back(entry.path);
  }
  good.insert(good.end(), late.rbegin(), late.rend());
  return good;
}

/// The best checkpoint that was not tried yet, the same on every rank; empty if there is none.
/// Lists anew each time: a job at work in the directory makes new ones and removes old ones.
fs::path next_candidate(const Candidates& make, const comm::Control& control,
                        const std::vector<fs::path>& tried) {
  std::vector<fs::path> candidates;
  control.together([&] {
    if (control.rank() == 0) candidates = make();
  });
  std::erase_if(candidates, [&](const fs::path& path) {
    return std::find(tried.begin(), tried.end(), path) != tried.end();
  });
  return control.broadcast(candidates.empty() ? "" : candidates.front().string());
}

/// Throws DeckError for differences that are not allowed.
void check_differences(const deck::LoadedDeck& now, const LoadedCheckpoint& from,
                       deck::OnResume fixed) {
  std::string refused;
  for (const auto& difference : from.differences) {
    if (difference.rule < fixed) continue;
    refused += "\n" + printable(fmt::format("{}: {} = {} differs from the checkpoint's {}",
                                            now.where(difference.key), difference.key,
                                            difference.now, difference.saved));
  }
  if (refused.empty()) return;
  throw DeckError(Lines{fmt::format("cannot go on from {}: these keys may not change:{}",
                                    printable(from.path.string()), refused)});
}

/// The first of the candidates that can be used; all that were tried are in `tried`.
std::optional<LoadedCheckpoint> load_first(const Candidates& candidates,
                                           const deck::LoadedDeck& loaded, deck::OnResume fixed,
                                           const comm::Control& control, ModelState& state,
                                           const UnusableCheckpoint& unusable,
                                           std::vector<fs::path>& tried) {
  while (true) {
    LoadedCheckpoint found{.path = next_candidate(candidates, control, tried)};
    if (found.path.empty()) return std::nullopt;
    tried.push_back(found.path);
    try {
      control.together([&] {
        Checkpoint checkpoint = Checkpoint::open(found.path);
        if (control.rank() == 0) checkpoint.check_files();
        found.header = checkpoint.header();
        found.deck =
            deck::parse_deck(found.header.deck, found.path.string() + "/manifest.json: deck").deck;
        found.differences = deck::compare_for_resume(found.deck, loaded.deck);
        check_differences(loaded, found,
                          found.header.step == 0 ? deck::OnResume::architecture : fixed);
        state.load(checkpoint);
      });
      return found;
    } catch (const Error& e) {
      // A disk that fails says nothing about the checkpoint: it may be good when it works again.
      if (e.exit_code() != ExitCode::data) throw;
      unusable(found.path, e.what());
    }
  }
}

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint_before(std::int64_t step,
                                                       const deck::LoadedDeck& loaded,
                                                       const comm::Control& control,
                                                       ModelState& state,
                                                       const UnusableCheckpoint& unusable) {
  std::vector<fs::path> tried;
  auto found = load_first([&] { return before_step(loaded.deck, step); }, loaded,
                          deck::OnResume::refused, control, state, unusable, tried);
  control.together([&] {  // what failed to load has overwritten a part of the state
    if (found || tried.empty()) return;
    throw DataError(
        fmt::format("none of the {} checkpoints can be used (see above)", tried.size()));
  });
  return found;
}

std::optional<LoadedCheckpoint> load_checkpoint(const deck::LoadedDeck& loaded,
                                                deck::OnResume fixed, const comm::Control& control,
                                                ModelState& state,
                                                const UnusableCheckpoint& unusable) {
  std::vector<fs::path> tried;
  if (auto found = load_first([&] { return chosen_by_deck(loaded.deck); }, loaded, fixed, control,
                              state, unusable, tried)) {
    return found;
  }
  control.together([&] {  // every rank comes to the same verdict: they leave in order
    if (!tried.empty()) {
      throw DataError(fmt::format(
          "none of the {} checkpoints can be used (see above): repair or remove them, or set "
          "another run.dir",
          tried.size()));
    }
    const auto* rule = std::get_if<deck::Resume>(&loaded.deck.run.resume);
    if (rule != nullptr && *rule == deck::Resume::must) {
      throw DataError(fmt::format("{}: run.resume = \"must\", but {} holds no checkpoint",
                                  loaded.where("run.resume"),
                                  checkpoints_of(loaded.deck).string()));
    }
  });
  return std::nullopt;
}

std::string set_initial_state(const deck::Deck& deck, const comm::Control& control,
                              ModelState& state) {
  std::string note;
  control.together([&] {
    if (!deck.model.init_from) {
      state.set_parameters(initial_values(static_cast<std::uint64_t>(deck.run.seed)));
      return;
    }
    const HfModel source = HfModel::open(*deck.model.init_from);
    if (source.stored_dtype() == DType::bf16 && deck.precision.compute == deck::Precision::f16) {
      note = fmt::format(
          "note: {} holds bf16 weights; f16 has a smaller range, so large values may overflow",
          printable(*deck.model.init_from));
    }
    state.set_parameters([&](const model::ParamDesc& p, Range range, std::span<float> out) {
      source.read(p.name, range.begin, out);
    });
  });
  return note;
}

}  // namespace tessera::train
