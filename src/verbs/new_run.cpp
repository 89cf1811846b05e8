#include "verbs/new_run.hpp"

#include <algorithm>

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
namespace {

std::filesystem::path deck_file(const std::filesystem::path& run_directory) {
  return run_directory / "deck.toml";
}

/// A deck that trains the imported model on, complete but for the data.
std::string deck_text(const std::filesystem::path& run_directory, const ModelSource& source,
                      const std::string& verb) {
  const auto quoted = [](const std::filesystem::path& path) {
    return deck::value_text({path.string(), {}});
  };
  const std::filesystem::path directory = in_full(run_directory);
  std::string text = fmt::format(
      "# Trains on what tessera {} made of {}: the checkpoint of step 0 beside this file.\n"
      "# Make token files with the model's tokenizer, and name them in data.train; rates and\n"
      "# lengths are a beginning, for you to change:\n"
      "#   tessera tokenize TEXT --tokenizer {} --out PREFIX\n"
      "#   mpirun -n N tessera train {} --set 'data.train=[\"PREFIX\"]'\n\n"
      "[run]\nname = {}\ndir = {}\nsteps = 1000\nresume = \"must\"\n\n[model]\n",
      verb, printable(source.name),
      source.tokenizer ? printable((directory / "tokenizer.json").string())
                       : "THE_MODELS_TOKENIZER.json",
      printable(deck_file(run_directory).string()), quoted(directory.filename()),
      quoted(directory));
  deck::Deck deck;
  deck.model = source.model;
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    const deck::Value value = row.field.get(deck);
    if (row.rules.on_resume == deck::OnResume::architecture && !value.unset())
      text += fmt::format("{} = {}\n", row.key, deck::value_text(value));
  }
  text +=
      "\n[data]\n# train = [\"PREFIX\"]\n\n[batch]\nglobal = 8\n\n[optimizer]\nlr = 1e-5\n"
      "\n[schedule]\nkind = \"cosine\"\nwarmup_steps = 50\n\n[checkpoint]\nevery = 200\n";
  return text;
}

std::filesystem::path checkpoints_of(const std::filesystem::path& run_directory) {
  return run_directory / "checkpoints";
}

}  // namespace

std::filesystem::path in_full(const std::filesystem::path& path) {
  const auto full = std::filesystem::absolute(path).lexically_normal();
  return full.has_filename() ? full : full.parent_path();  // it ended in a slash
}

void refuse_to_overwrite(const std::filesystem::path& run_directory) {
  if (!io::list_checkpoints(checkpoints_of(run_directory)).empty()) {
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

void write_new_run(const std::filesystem::path& run_directory, const ModelSource& source,
                   const std::string& verb, const std::string& origin) {
  const auto checkpoints = checkpoints_of(run_directory);
  const auto units = model::model_units(setup::model_config(source.model));
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
  const auto write = [&](const model::ParamDesc& p) {
    std::vector<float> values(static_cast<std::size_t>(p.elements()));
    parameters(p, {0, p.elements()}, values);
    writer.write(piece++, std::as_bytes(std::span(values)));
  };
  try {
    for (const auto& unit : units) std::ranges::for_each(unit.params, write);
    progress.reset();
  } catch (const Error&) {
    io::clean_up_checkpoints(checkpoints);  // what was written is large and of no use
    throw;
  }
  if (source.tokenizer) {
    io::copy_tokenizer(*source.tokenizer, run_directory / "tokenizer.json");
  }
  io::CheckpointHeader header;
  header.deck = source.deck;
  header.source = origin;
  header.info["version"] = kVersion;
  header.info["written"] = utc_text();
  const io::RankPart part = writer.finish();
  const auto checkpoint = io::commit_checkpoint(directory, header, std::span(&part, 1));
  const auto deck = deck_file(run_directory);
  io::write_text(deck, deck_text(run_directory, source, verb));
  fmt::print("{} -> {}\nto train it on: tessera train {} --set 'data.train=[\"PREFIX\"]'\n",
             printable(source.name), printable(checkpoint.string()), printable(deck.string()));
}

}  // namespace tessera::verbs
