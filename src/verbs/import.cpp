// tessera import: a checkpoint from a Hugging Face directory.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "comm/launcher.hpp"
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
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ImportOptions {
  std::filesystem::path from, to;
  bool finite = true;  // the weights must be
};

std::filesystem::path in_full(const std::filesystem::path& path) {
  const auto full = std::filesystem::absolute(path).lexically_normal();
  return full.has_filename() ? full : full.parent_path();  // it ended in a slash
}

std::filesystem::path deck_file(const ImportOptions& o) { return o.to / "deck.toml"; }

/// A deck that trains the imported model on, complete but for the data.
std::string deck_text(const ImportOptions& o, const ModelSource& source) {
  const auto quoted = [](const std::filesystem::path& path) {
    return deck::value_text({path.string(), {}});
  };
  const std::filesystem::path directory = in_full(o.to);
  std::string text = fmt::format(
      "# Trains on what tessera import made of {}: the checkpoint of step 0 beside this file.\n"
      "# Make token files with the model's tokenizer, and name them in data.train; rates and\n"
      "# lengths are a beginning, for you to change:\n"
      "#   tessera tokenize TEXT --tokenizer {} --out PREFIX\n"
      "#   mpirun -n N tessera train {} --set 'data.train=[\"PREFIX\"]'\n\n"
      "[run]\nname = {}\ndir = {}\nsteps = 1000\nresume = \"must\"\n\n[model]\n",
      printable(source.name),
      source.tokenizer ? printable((directory / "tokenizer.json").string())
                       : "THE_MODELS_TOKENIZER.json",
      printable(deck_file(o).string()), quoted(directory.filename()), quoted(directory));
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

/// A checkpoint at step 0: the model's weights as master weights, for any optimizer to begin with.
ExitCode run(const ImportOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone writes a checkpoint",
                      "start it once, as in srun --ntasks=1");
  if (!std::filesystem::exists(o.from / "config.json")) {
    throw DataError(
        fmt::format("{} is no Hugging Face directory: it has no config.json", o.from.string()));
  }
  const auto checkpoints = o.to / "checkpoints";
  if (!io::list_checkpoints(checkpoints).empty()) {
    throw DeckError(fmt::format("{} already holds checkpoints: give another --to", o.to.string()));
  }
  if (io::path_exists(deck_file(o))) {
    throw DeckError(
        fmt::format("{} is there already, and a deck would be written into it: give another --to, "
                    "or move it away",
                    deck_file(o).string()));
  }
  const ModelSource source =
      open_model(o.from, o.finite ? std::optional(DType::f32) : std::nullopt);
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
  std::optional<ProgressLine> progress(std::in_place, "import", ProgressLine::Unit::bytes);
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
    io::copy_tokenizer(*source.tokenizer, o.to / "tokenizer.json");
  }
  io::CheckpointHeader header;
  header.deck = source.deck;
  header.source = in_full(o.from).string();
  header.info["version"] = kVersion;
  header.info["written"] = utc_text();
  const io::RankPart part = writer.finish();
  const auto checkpoint = io::commit_checkpoint(directory, header, std::span(&part, 1));
  const auto deck = deck_file(o);
  io::write_text(deck, deck_text(o, source));
  fmt::print("{} -> {}\nto train it on: tessera train {} --set 'data.train=[\"PREFIX\"]'\n",
             printable(source.name), printable(checkpoint.string()), printable(deck.string()));
  return ExitCode::ok;
}

}  // namespace

Verb import_model(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "import", "make a checkpoint from a Hugging Face directory, and a deck that trains it on");
  verb->footer(
      "A new run needs no import: model.init_from in its deck takes the weights from the directory "
      "when it\nstarts, and nothing else is written. Import where a checkpoint is wanted: one with "
      "checksums, for\nseveral runs to go on from (run.resume), or to evaluate.\n");
  auto o = std::make_shared<ImportOptions>();
  verb->add_option("HF_DIR", o->from, "directory with config.json and safetensors")->required();
  verb->add_option("--to", o->to, "run directory to make")->required();
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
