#include "train/state/starting_state.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "core/bytes.hpp"
#include "core/progress.hpp"
#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/file.hpp"
#include "io/finite.hpp"
#include "io/hf_codes.hpp"
#include "setup/inputs.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

fs::path checkpoints_of(const deck::Deck& deck) {
  return fs::path(deck::run_directory(deck)) / "checkpoints";
}

/// Checkpoints to try, the best first; made on rank 0.
using Candidates = std::function<std::vector<fs::path>()>;

std::vector<fs::path> paths(const std::vector<io::CheckpointEntry>& entries) {
  std::vector<fs::path> all;
  for (const auto& entry : entries) all.push_back(entry.path);
  return all;
}

/// What run.resume allows.
std::vector<fs::path> chosen_by_deck(const deck::Deck& deck) {
  if (const auto* given = std::get_if<std::string>(&deck.run.resume)) return {*given};
  if (std::get<deck::Resume>(deck.run.resume) == deck::Resume::never) return {};
  return paths(io::committed_checkpoints(checkpoints_of(deck)));
}

/// Those at or before `step`, newest first, then the others, oldest first.
std::vector<fs::path> before_step(const deck::Deck& deck, std::int64_t step) {
  std::vector<fs::path> good, late;
  for (const auto& entry : io::committed_checkpoints(checkpoints_of(deck))) {
    (entry.step <= step ? good : late).push_back(entry.path);
  }
  good.insert(good.end(), late.rbegin(), late.rend());
  return good;
}

/// Holds the checkpoint where it can be held; false if it has gone since it was listed.
bool still_there(const fs::path& path, std::optional<io::CheckpointHold>& hold) {
  using namespace std::chrono_literals;
  for (const auto until = std::chrono::steady_clock::now() + 1s;;) {
    try {
      hold.emplace(path);
      return true;
    } catch (const DataError&) {
      if (!io::path_exists(path)) return false;
      // Just being removed, or without a manifest, which is to be reported.
      if (std::chrono::steady_clock::now() > until) return true;
      std::this_thread::sleep_for(10ms);
    }
  }
}

/// The best checkpoint that was not tried yet, the same on every rank; empty if there is none.
/// Lists anew each time: a job at work in the directory makes new ones and removes old ones, but
/// not the one that rank 0 holds.
fs::path next_candidate(const Candidates& make, const comm::Control& control,
                        const std::vector<fs::path>& tried,
                        std::optional<io::CheckpointHold>& hold) {
  fs::path best;
  control.together([&] {
    if (control.rank() != 0) return;
    hold.reset();
    for (const fs::path& path : make()) {
      if (std::ranges::find(tried, path) != tried.end() || !still_there(path, hold)) continue;
      best = path;
      return;
    }
  });
  return control.broadcast(best.string());
}

/// Refuses a manifest whose numbers do not fit each other, because the run counts on from them.
/// How long its sequences were may have changed on the way.
void check_tokens(const LoadedCheckpoint& from) {
  const std::int64_t samples = from.header.samples, length = from.deck.batch.sequence;
  std::int64_t most = 0;
  if (!__builtin_mul_overflow(samples, length, &most) && samples <= from.header.tokens &&
      from.header.tokens <= most)
    return;
  throw DataError(
      fmt::format("{}/{}: header.tokens is {}, not that of {} samples of 1 to {} tokens: damaged, "
                  "or not written by tessera",
                  from.path.string(), io::kManifestFile, from.header.tokens, samples, length));
}

/// Throws DeckError for differences that are not allowed.
void check_differences(const deck::LoadedDeck& now, const LoadedCheckpoint& from,
                       deck::OnResume fixed) {
  std::string refused;
  for (const auto& difference : from.differences) {
    if (difference.rule < fixed) continue;
    refused += '\n';
    refused += printable(fmt::format("{}: {} = {} differs from the checkpoint's {}",
                                     now.where(difference.key), difference.key, difference.now,
                                     difference.saved));
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
  std::optional<io::CheckpointHold> hold;
  while (true) {
    LoadedCheckpoint found{.path = next_candidate(candidates, control, tried, hold)};
    if (found.path.empty()) return std::nullopt;
    tried.push_back(found.path);
    try {
      control.together([&] {
        io::Checkpoint checkpoint = io::Checkpoint::open(found.path);
        if (control.rank() == 0) checkpoint.check_files();
        found.header = checkpoint.header();
        found.deck =
            deck::parse_deck(found.header.deck, found.path.string() + "/manifest.json: deck").deck;
        check_tokens(found);
        found.differences = deck::compare_for_resume(found.deck, loaded.deck);
        check_differences(loaded, found,
                          found.header.step == 0 ? deck::OnResume::architecture : fixed);
        found.lacks_averaged_weights = state.lacks_averaged_weights(checkpoint);
        if (found.lacks_averaged_weights) return;  // an older one would be another model
        ProgressLine progress("loading " + found.path.filename().string(),
                              ProgressLine::Unit::bytes, Screen::terminal(control.rank()));
        found.non_finite = state.load(
            checkpoint, [&](std::int64_t done, std::int64_t all) { progress.at(done, all); });
      });
      return found;
    } catch (const Error& e) {
      // A disk that fails says nothing about the checkpoint: it may be good when it works again.
      if (e.exit_code() != ExitCode::data) throw;
      unusable(found.path, e.what());
    }
  }
}

/// As load_first(), for a run under way: what fails to load has overwritten a part of the state.
std::optional<LoadedCheckpoint> load_earlier(const Candidates& candidates,
                                             const deck::LoadedDeck& loaded,
                                             const comm::Control& control, ModelState& state,
                                             const UnusableCheckpoint& unusable) {
  std::vector<fs::path> tried;
  auto found =
      load_first(candidates, loaded, deck::OnResume::refused, control, state, unusable, tried);
  control.together([&] {
    if (found || tried.empty()) return;
    throw DataError(fmt::format("none of {} can be used (see above)",
                                count_text(std::ssize(tried), "checkpoint")));
  });
  return found;
}

}  // namespace

std::optional<LoadedCheckpoint> load_checkpoint_before(std::int64_t step,
                                                       const deck::LoadedDeck& loaded,
                                                       const comm::Control& control,
                                                       ModelState& state,
                                                       const UnusableCheckpoint& unusable) {
  return load_earlier([&] { return before_step(loaded.deck, step); }, loaded, control, state,
                      unusable);
}

std::optional<LoadedCheckpoint> load_proven_checkpoint(std::int64_t applied_updates,
                                                       const deck::LoadedDeck& loaded,
                                                       const comm::Control& control,
                                                       ModelState& state,
                                                       const UnusableCheckpoint& unusable) {
  const auto proven = [&] {
    return paths(io::proven_checkpoints(checkpoints_of(loaded.deck), applied_updates));
  };
  return load_earlier(proven, loaded, control, state, unusable);
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
          "none of {} can be used (see above): repair or remove what is damaged, or set another "
          "run.dir",
          count_text(std::ssize(tried), "checkpoint")));
    }
    if (const auto* given = std::get_if<std::string>(&loaded.deck.run.resume)) {
      throw DataError(fmt::format("{}: run.resume{}: there is no {}{}", loaded.where("run.resume"),
                                  loaded.path_hint("run.resume", *given), *given,
                                  full_path_text(*given)));
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

io::HfModel open_init_from(const deck::Deck& deck) {
  std::optional<io::HfFreshHead> fresh;
  if (deck.model.init_head == HeadWeights::fresh)
    fresh = {.task = std::string(enum_word(deck.task.kind)), .hidden = deck.model.head_hidden};
  io::HfModel source = io::HfModel::open(*deck.model.init_from, fresh);
  const auto wanted = setup::frozen_codes(deck.model.frozen);
  if (source.codes() && wanted && wanted != source.codes()) {
    throw DeckError(fmt::format(
        "frozen.type: {} has its matrices as {}, which would be rounded once more as {}: set "
        "frozen.type = \"{}\" and frozen.block = {}, or give the directory that it was made of",
        printable(*deck.model.init_from), io::to_string(*source.codes()), io::to_string(*wanted),
        enum_word(source.codes()->type), source.codes()->block));
  }
  return source;
}

std::vector<std::string> init_from_notes(const deck::Deck& deck, const io::HfModel& source) {
  const std::string& directory = *deck.model.init_from;
  std::vector<std::string> notes, fresh;
  if (source.stored_dtype() == DType::bf16 && deck.precision.compute == deck::Precision::f16) {
    notes.push_back(fmt::format(
        "note: {} holds bf16 weights; f16 has a smaller range, so large values may overflow",
        printable(directory)));
  }
  if (source.codes() && !setup::frozen_codes(deck.model.frozen))
    notes.push_back(io::values_taken_note(directory, *source.codes()));
  for (const auto& unit : model::model_units(setup::model_config(deck.model, deck.task))) {
    if (unit.has_adapters() || unit.kind == model::UnitKind::value_head) continue;
    for (const auto& p : unit.params) {
      if (!source.has(p.name) && !p.name.ends_with(model::kRouterShares)) fresh.push_back(p.name);
    }
  }
  if (!fresh.empty()) {
    notes.push_back(fmt::format("note: {} are not of {}, but drawn anew from run.seed = {}",
                                fmt::join(fresh, ", "), printable(directory), deck.run.seed));
  }
  if (const std::string note = source.left_out(directory); !note.empty()) notes.push_back(note);
  return notes;
}

namespace {

/// "mlp.expert.N.up.weight" of "block.3.mlp.expert.7.up.weight", and the layer's number.
std::pair<std::string, std::string> kind_and_layer(std::string_view name) {
  std::string kind, layer;
  for (std::size_t at = name.find('.') + 1; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool number = part.find_first_not_of("0123456789") == std::string_view::npos;
    if (layer.empty()) {
      layer = part;
    } else {
      kind += fmt::format("{}{}", kind.empty() ? "" : ".", number ? "N" : part);
    }
    at = end + 1;
  }
  return {kind, layer};
}

}  // namespace

/// What each parameter has lost as it became codes, of its root mean square; of all ranks.
static std::vector<std::pair<std::string, double>> code_losses(const comm::Control& control,
                                                               const ModelState& state) {
  std::vector<double> sums;
  for (const auto& [name, lost, all] : state.code_errors()) sums.insert(sums.end(), {lost, all});
  control.sum(sums);
  std::vector<std::pair<std::string, double>> losses;
  for (const auto& error : state.code_errors()) {
    const double lost = sums[2 * losses.size()], all = sums[2 * losses.size() + 1];
    losses.emplace_back(error.parameter, lost == 0 ? 0 : std::sqrt(lost / all));
  }
  return losses;
}

std::optional<std::string> losses_note(const kernels::BlockFormat& format,
                                       std::span<const std::pair<std::string, double>> losses) {
  struct Worst {
    std::string kind, layer;
    double share = 0;
  };
  std::vector<Worst> kinds;
  for (const auto& [name, share] : losses) {
    const auto [kind, layer] = kind_and_layer(name);
    auto it = std::ranges::find(kinds, kind, &Worst::kind);
    if (it == kinds.end()) it = kinds.insert(it, {.kind = kind, .layer = layer});
    if (share > it->share) it->share = share, it->layer = layer;
  }
  if (std::ranges::none_of(kinds, [](const Worst& w) { return w.share > 0; })) return std::nullopt;
  std::string text;
  for (const auto& [kind, layer, share] : kinds)
    text += fmt::format("{} {} {:.4f} (block {})", text.empty() ? "" : ",", kind, share, layer);
  return fmt::format("note: {} loses, of a matrix's root mean square, at most{}",
                     io::to_string(format), text);
}

std::optional<std::string> code_errors_note(const deck::FrozenSection& frozen,
                                            const comm::Control& control, const ModelState& state) {
  const auto format = setup::frozen_codes(frozen);
  if (!format) return std::nullopt;
  return losses_note(*format, code_losses(control, state));
}

/// The first parameter that has lost something as it became codes, and how much; of all ranks.
static std::optional<std::pair<std::string, double>> first_loss(const comm::Control& control,
                                                                const ModelState& state) {
  const auto losses = code_losses(control, state);
  const auto lossy = std::ranges::find_if(losses, [](const auto& loss) { return loss.second > 0; });
  return lossy == losses.end() ? std::nullopt : std::optional(*lossy);
}

/// Of what the directory has as codes, what this run keeps whole: it trains it, or tensor ranks
/// share it.
static std::optional<std::string> whole_note(const deck::Deck& deck, const io::HfModel& source,
                                             const ModelState& state) {
  if (!source.codes() || !setup::frozen_codes(deck.model.frozen)) return std::nullopt;
  std::set<std::string_view> codes;
  for (const auto& error : state.code_errors()) codes.insert(error.parameter);
  std::vector<std::string_view> whole;
  for (const auto& p : source.parameters()) {
    if (source.is_codes(p.parameter) && !codes.contains(p.parameter)) whole.push_back(p.parameter);
  }
  if (whole.empty()) return std::nullopt;
  const std::size_t shown = std::min<std::size_t>(whole.size(), 6);
  return fmt::format(
      "note: {} has {}{} as {} too; this run keeps them whole, and they begin with the values of "
      "their codes",
      printable(*deck.model.init_from), fmt::join(std::span(whole).first(shown), ", "),
      whole.size() > shown ? fmt::format(" and {} more", whole.size() - shown) : "",
      io::to_string(*source.codes()));
}

/// Where blocks are of other elements than in a directory of the same codes, on this layout.
static void check_same_codes(const deck::Deck& deck, const io::HfModel& source,
                             const comm::Control& control, const ModelState& state) {
  if (!source.codes() || !setup::frozen_codes(deck.model.frozen)) return;
  const auto loss = first_loss(control, state);
  if (!loss) return;
  control.together([&] {
    throw DeckError(fmt::format(
        "frozen.block: on this layout blocks of {} are of other elements than in {}: {} would be "
        "rounded once more, and lose {:.2g} of its root mean square. Use fewer tensor ranks or "
        "zero.tiles, so that each has whole blocks of every row, or give the directory that it "
        "was made of",
        deck.model.frozen.block, printable(*deck.model.init_from), loss->first, loss->second));
  });
}

void check_same_codes(const deck::LoadedDeck& loaded, const LoadedCheckpoint& from,
                      const comm::Control& control, const ModelState& state) {
  const deck::FrozenSection &now = loaded.deck.model.frozen, &then = from.deck.model.frozen;
  if (from.header.step == 0 || now.type != then.type || now.block != then.block) return;
  const auto loss = first_loss(control, state);
  if (!loss) return;
  control.together([&] {
    throw DeckError(fmt::format(
        "{}: {} was made on another layout, where blocks of {} were of other elements: {} would "
        "be rounded once more, and lose {:.2g} of its root mean square. Use the layout that it "
        "was made on (parallel.tensor = {}, parallel.experts = {}, zero.tiles = {}); to evaluate, "
        "frozen.type = \"none\" has the same numbers on any",
        loaded.where("frozen.block"), printable(from.path.string()), now.block, loss->first,
        loss->second, from.deck.parallel.tensor, from.deck.parallel.experts, from.deck.zero.tiles));
  });
}

std::vector<std::string> set_initial_state(const deck::Deck& deck, const comm::Control& control,
                                           ModelState& state) {
  std::vector<std::string> notes;
  std::optional<io::HfModel> source;
  control.together([&] {
    const ParameterSource drawn = initial_values(static_cast<std::uint64_t>(deck.run.seed));
    const auto units = model::model_units(setup::model_config(deck.model, deck.task));
    // Magnitudes are those of rows as they are kept, so that the model begins as it is without.
    const auto fresh_values = [&](const ParameterSource& all) {
      const ParameterSource kept = state.as_kept(all);
      return [&, kept](const model::ParamDesc& p, Range range, std::span<float> out) {
        if (model::measured_by(p.name)) return fill_row_lengths(p, units, kept, range, out);
        drawn(p, range, out);
      };
    };
    if (!deck.model.init_from) {
      state.set_parameters(fresh_values(drawn));
      return;
    }
    source = open_init_from(deck);
    notes = init_from_notes(deck, *source);
    ProgressLine progress("reading " + *deck.model.init_from, ProgressLine::Unit::bytes,
                          Screen::terminal(control.rank()));
    const bool fresh = deck.model.init_head == HeadWeights::fresh ||
                       deck.model.adapter.kind != deck::AdapterKind::none;
    std::int64_t done = 0;
    const ParameterSource read = [&](const model::ParamDesc& p, Range range, std::span<float> out) {
      source->read(p.name, range.begin, out);
      progress.at(done += static_cast<std::int64_t>(out.size_bytes()), 0);
    };
    const ParameterSource others = fresh_values(read);
    const auto bad =
        state.set_parameters([&](const model::ParamDesc& p, Range range, std::span<float> out) {
          const bool in_no_file =
              p.name.ends_with(model::kRouterShares) || p.name.starts_with(model::kValueHead);
          ((fresh || in_no_file) && !source->has(p.name) ? others : read)(p, range, out);
        });
    if (bad && source->has(bad->parameter) && !deck.model.accept_non_finite) {
      throw io::non_finite_error(source->place(bad->parameter, bad->element), bad->value, bad->type,
                                 "model.accept_non_finite = true");
    }
  });
  if (source) {
    check_same_codes(deck, *source, control, state);
    if (auto note = whole_note(deck, *source, state)) notes.push_back(std::move(*note));
  }
  if (auto note = code_errors_note(deck.model.frozen, control, state))
    notes.push_back(std::move(*note));
  return notes;
}

std::string source_of(const deck::Deck& deck) {
  if (!deck.model.init_from) return "";
  return fs::absolute(*deck.model.init_from).lexically_normal().string();
}

std::string source_of(const LoadedCheckpoint& checkpoint) {
  const std::string& in_full = checkpoint.header.source;
  return in_full.empty() ? checkpoint.deck.model.init_from.value_or("") : in_full;
}

}  // namespace tessera::train
