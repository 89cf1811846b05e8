// The trainer's side of checkpoints: where a run starts, and what it leaves behind.
#include "core/exact_sum.hpp"
#include "core/version.hpp"
#include "deck/resume.hpp"
#include "io/hugging_face.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

std::vector<std::filesystem::path> from_lines(const std::string& text) {
  std::vector<std::filesystem::path> paths;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    paths.emplace_back(text.substr(begin, end - begin));
  }
  return paths;
}

}  // namespace

CheckpointHeader Trainer::header() const {
  const auto ranks = static_cast<int>(inputs_.data_group.size);
  CheckpointHeader h;
  h.step = progress_.step;
  h.applied_updates = progress_.applied;
  h.samples = progress_.samples;
  h.tokens = progress_.samples * deck_.batch.sequence;
  h.loss_scale = scaler_.state().scale;
  h.scaler_good_steps = scaler_.state().good_steps;
  h.scaler_hysteresis_left = scaler_.state().hysteresis;
  h.threads = thread_count(deck_.run, mpi_.local_size());
  h.layout = {.world = mpi_.size(), .data = ranks, .zero_stage = inputs_.stage};
  h.deck = to_toml(deck_);
  h.info["version"] = kVersion;
  return h;
}

void Trainer::restore(const CheckpointHeader& h, const deck::PrecisionSection& saved) {
  progress_ = {.step = h.step, .applied = h.applied_updates, .samples = h.samples};
  // A scale found for another type, or before the deck fixed one, says nothing now.
  if (saved.compute != deck_.precision.compute || saved.loss_scale != deck_.precision.loss_scale)
    return;
  scaler_.restore({.scale = h.loss_scale,
                   .good_steps = h.scaler_good_steps,
                   .hysteresis = h.scaler_hysteresis_left});
}

/// Loads a checkpoint if every rank can; otherwise says why not, and nobody has accepted it.
bool Trainer::try_checkpoint(const std::filesystem::path& path) {
  CheckpointHeader header;
  deck::PrecisionSection precision;
  auto changed = nlohmann::ordered_json::array();
  try {
    control_.together([&] {
      Checkpoint checkpoint = Checkpoint::open(path);
      header = checkpoint.header();
      const auto saved = deck::parse_deck(header.deck, path.string() + "/manifest.json: deck");
      precision = saved.deck.precision;
      std::string refused;
      for (const auto& difference : deck::compare_for_resume(saved.deck, deck_)) {
        if (difference.rule == deck::OnResume::event) {
          changed.push_back(
              {{"key", difference.key}, {"saved", difference.saved}, {"now", difference.now}});
        }
        // An imported model has no past to be faithful to: only its architecture must agree.
        const bool imported = header.step == 0;
        const bool architecture =
            difference.key.starts_with("model.") && difference.key != "model.init_from";
        if (difference.rule == deck::OnResume::refused && (!imported || architecture)) {
          refused += fmt::format("\n{}: {} = {} differs from the checkpoint's {}",
                                 loaded_.where(difference.key), difference.key, difference.now,
                                 difference.saved);
        }
      }
      if (!refused.empty()) {
        throw DeckError(
            fmt::format("cannot resume from {}: these keys may not change within a run:{}",
                        path.string(), refused));
      }
      state_->load(checkpoint);
    });
  } catch (const Error& e) {
    if (e.exit_code() != ExitCode::data && e.exit_code() != ExitCode::io) throw;
    report_.say(fmt::format("checkpoint {} cannot be used: {}", path.string(), e.what()));
    report_.event(
        {{"event", "fault"}, {"what", "checkpoint"}, {"path", path.string()}, {"why", e.what()}});
    return false;
  }
  restore(header, precision);
  report_.say(fmt::format("resumed from {}: step {}, {} samples", path.string(), header.step,
                          header.samples));
  for (const auto& c : changed) {
    report_.say(fmt::format("changed since: {} = {}, was {}", c["key"].get<std::string>(),
                            c["now"].get<std::string>(), c["saved"].get<std::string>()));
  }
  report_.event(
      {{"event", "resume"}, {"step", header.step}, {"from", path.string()}, {"changed", changed}});
  return true;
}

void Trainer::start_or_resume() {
  std::string lines;
  const auto* given = std::get_if<std::string>(&deck_.run.resume);
  const auto* rule = std::get_if<deck::Resume>(&deck_.run.resume);
  control_.together([&] {
    if (control_.rank() != 0) return;
    if (given != nullptr) {
      lines = *given + "\n";
    } else if (*rule != deck::Resume::never) {
      for (const auto& entry : list_checkpoints(directory_ / "checkpoints"))
        lines += entry.path.string() + "\n";
    }
  });
  const auto candidates = from_lines(control_.broadcast(lines));
  for (const auto& path : candidates) {
    if (try_checkpoint(path)) {
      first_step_ = progress_.step + 1;
      return;
    }
  }
  control_.together([&] {  // every rank comes to the same verdict: they leave in order
    if (!candidates.empty()) {
      throw DataError(fmt::format(
          "none of the {} checkpoints can be used (see the log): repair or remove them, or set "
          "another run.dir",
          candidates.size()));
    }
    if (rule != nullptr && *rule == deck::Resume::must) {
      throw DataError(fmt::format("{}: run.resume = \"must\", but {} holds no checkpoint",
                                  loaded_.where("run.resume"),
                                  (directory_ / "checkpoints").string()));
    }
  });
  control_.together([&] {
    if (!deck_.model.init_from) {
      state_->set_parameters(initial_values(static_cast<std::uint64_t>(deck_.run.seed)));
      return;
    }
    const HfModel source = HfModel::open(*deck_.model.init_from);
    if (source.stored_dtype() == DType::bf16 && inputs_.compute == DType::f16) {
      report_.say(fmt::format(
          "note: {} holds bf16 weights; f16 has a smaller range, so large values may overflow",
          *deck_.model.init_from));
    }
    state_->set_parameters([&](const model::ParamDesc& p, Range range, std::span<float> out) {
      source.read(p.name, range.begin, out);
    });
  });
}

void Trainer::finish_save() {
  const auto begin = std::chrono::steady_clock::now();
  const SaveResult saved = saver_->finish();
  const double stall =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  checkpoint_stall_ += stall;
  slowest_save_s_ = std::max(slowest_save_s_, saved.seconds);
  report_.say(fmt::format("checkpoint {} | {:.1f} MiB in {:.2f} s", saved.path.string(),
                          static_cast<double>(saved.bytes) / 0x1p20, saved.seconds));
  report_.event({{"event", "checkpoint"},
                 {"step", saved.step},
                 {"path", saved.path.string()},
                 {"bytes", saved.bytes},
                 {"ms", saved.seconds * 1e3},
                 {"stall_ms", stall * 1e3}});
}

void Trainer::save_now() {
  if (saver_->active()) finish_save();
  saver_->begin(*state_, ModelState::From::live, header());
  finish_save();
}

}  // namespace tessera::train
