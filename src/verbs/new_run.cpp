#include "verbs/new_run.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "deck/schema.hpp"
#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_writer.hpp"
#include "io/file.hpp"
#include "io/tokenizer_files.hpp"
#include "setup/inputs.hpp"

namespace tessera::verbs {
namespace fs = std::filesystem;
namespace {

fs::path deck_file(const fs::path& run_directory) { return run_directory / "deck.toml"; }
fs::path tokenizer_file(const fs::path& run_directory) { return run_directory / "tokenizer.json"; }
fs::path labels_file(const fs::path& run_directory) { return run_directory / "labels.json"; }
fs::path checkpoints_of(const fs::path& run_directory) { return run_directory / "checkpoints"; }

/// A path in a command that is to be copied.
std::string in_shell(const fs::path& path) { return printable(shell_word(path.string())); }

/// A deck that trains the imported model on, complete but for the data.
std::string deck_text(const fs::path& run_directory, const ModelSource& source,
                      const std::string& verb) {
  const auto quoted = [](const fs::path& path) { return deck::value_text({path.string(), {}}); };
  const fs::path directory = in_full(run_directory);
  const bool pairs = deck::has_pairs(source.task.kind);
  std::string text = fmt::format(
      "# Trains on what tessera {} made of {}: the checkpoint of step 0 beside this file.\n"
      "# Make token files with the model's tokenizer, and name them in data.train; rates and\n"
      "# lengths are a beginning, for you to change:\n"
      "#   tessera tokenize {} --tokenizer {} --out PREFIX\n"
      "#   mpirun -n N tessera train {} --set 'data.train=[\"PREFIX\"]'\n\n"
      "[run]\nname = {}\ndir = {}\nsteps = 1000\nresume = \"must\"\n\n[model]\n",
      verb, printable(source.name), pairs ? "PAIRS.jsonl --pairs" : "TEXT",
      source.tokenizer ? in_shell(tokenizer_file(directory)) : "THE_MODELS_TOKENIZER.json",
      in_shell(deck_file(run_directory)), quoted(directory.filename()), quoted(directory));
  deck::Deck deck;
  deck.model = source.model, deck.task = source.task;
  std::string task, experts, adapter;
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    const deck::Value value = row.field.get(deck);
    const bool of_model = row.rules.on_resume == deck::OnResume::architecture;
    std::string* section = row.section == "task"      ? &task
                           : row.section == "moe"     ? &experts
                           : row.section == "adapter" ? &adapter
                           : of_model                 ? &text
                                                      : nullptr;
    if (value.unset() || section == nullptr) continue;
    *section += fmt::format("{} = {}\n", row.key, deck::value_text(value));
  }
  if (source.model.moe.experts > 0) text += "\n[moe]\n" + experts;
  if (source.model.adapter.kind != deck::AdapterKind::none) text += "\n[adapter]\n" + adapter;
  if (source.task != deck::TaskSection{}) text += "\n[task]\n" + task;
  text += "\n[data]\n# train = [\"PREFIX\"]\n\n[batch]\nglobal = 8\n";
  if (pairs) text += "micro = 2\n";
  text +=
      "\n[optimizer]\nlr = 1e-5\n"
      "\n[schedule]\nkind = \"cosine\"\nwarmup_steps = 50\n\n[checkpoint]\nevery = 200\n";
  return text;
}

/// The parts of a run directory that were not there, so that a failure can leave it as it was.
class Beginning {
 public:
  explicit Beginning(const fs::path& run_directory)
      : checkpoints_(checkpoints_of(in_full(run_directory))) {
    const fs::path directory = in_full(run_directory), tokenizer = tokenizer_file(directory);
    for (const fs::path& file :
         {io::checkpoint_path(checkpoints_, 0), tokenizer, io::tokenizer_config_of(tokenizer),
          labels_file(directory), deck_file(directory)}) {
      if (is_there(file)) continue;
      written_.push_back(file);
      for (fs::path d = file.parent_path(); !is_there(d); d = d.parent_path()) made_.push_back(d);
    }
    // What is within others comes before them.
    std::ranges::sort(made_, std::ranges::greater{},
                      [](const fs::path& d) { return std::distance(d.begin(), d.end()); });
  }

  /// Removes what is written into a run directory, and the directories that were made for it where
  /// nobody has put anything else. That some cannot be removed is no error: one has been found
  /// already.
  void undo() const noexcept {
    const auto attempt = [](auto&& removal) {
      try {
        removal();
      } catch (const std::exception&) {
        return;
      }
    };
    attempt([&] { io::clean_up_checkpoints(checkpoints_); });
    for (const fs::path& path : written_) attempt([&] { io::remove_tree(path); });
    for (const fs::path& path : made_) attempt([&] { fs::remove(path); });
  }

 private:
  /// Whether there is anything of that name, be it a link that leads nowhere.
  static bool is_there(const fs::path& path) {
    return fs::symlink_status(path).type() != fs::file_type::not_found;
  }

  fs::path checkpoints_;
  std::vector<fs::path> written_, made_;
};

/// Writes the checkpoint of step 0; returns where it is.
fs::path write_checkpoint(const fs::path& checkpoints, const ModelSource& source,
                          const std::string& verb, const std::string& origin) {
  const auto units = model::model_units(setup::model_config(source.model, source.task));
  std::vector<io::Piece> pieces;
  for (const auto& unit : units) {
    for (const auto& p : unit.params) {
      const io::Shape shape(p.shape);
      pieces.push_back({p.name, shape, "master", DType::f32, io::Box(shape)});
    }
  }
  const auto directory = io::begin_checkpoint(checkpoints, 0);
  io::CheckpointWriter writer(directory, 0, pieces);
  std::size_t piece = 0;
  std::optional<ProgressLine> progress(std::in_place, verb, ProgressLine::Unit::bytes);
  const auto parameters = tell_progress(source, *progress);
  for (const auto& unit : units) {
    for (const auto& p : unit.params) {
      std::vector<float> values(static_cast<std::size_t>(p.elements()));
      parameters(p, {0, p.elements()}, values);
      writer.write(piece++, std::as_bytes(std::span(values)));
    }
  }
  progress.reset();
  io::CheckpointHeader header;
  header.deck = source.deck;
  header.source = origin;
  header.info["version"] = kVersion;
  header.info["written"] = utc_text();
  const io::RankPart part = writer.finish();
  return io::commit_checkpoint(directory, header, std::span(&part, 1));
}

}  // namespace

fs::path in_full(const fs::path& path) {
  const auto full = fs::absolute(path).lexically_normal();
  return full.has_filename() ? full : full.parent_path();  // it ended in a slash
}

void refuse_to_overwrite(const fs::path& run_directory) {
  if (!io::committed_checkpoints(checkpoints_of(run_directory)).empty()) {
    throw DeckError(
        fmt::format("{} already holds checkpoints: give another --to", run_directory.string()));
  }
  if (io::path_exists(deck_file(run_directory))) {
    throw DeckError(
        fmt::format("{} is there already, and a deck would be written into it: give another --to, "
                    "or move it away",
                    deck_file(run_directory).string()));
  }
}

void write_new_run(const fs::path& run_directory, const ModelSource& source,
                   const std::string& verb, const std::string& origin) {
  const Beginning beginning(run_directory);
  const fs::path deck = deck_file(run_directory);
  fs::path checkpoint;
  try {
    checkpoint = write_checkpoint(checkpoints_of(run_directory), source, verb, origin);
    if (source.tokenizer) io::copy_tokenizer(*source.tokenizer, tokenizer_file(run_directory));
    if (source.labels) io::write_label_names(labels_file(run_directory), *source.labels);
    io::write_text(deck, deck_text(run_directory, source, verb));
  } catch (...) {
    beginning.undo();
    throw;
  }
  fmt::print("{} -> {}\nto train it on: tessera train {} --set 'data.train=[\"PREFIX\"]'\n",
             printable(source.name), printable(checkpoint.string()), in_shell(deck));
}

}  // namespace tessera::verbs
