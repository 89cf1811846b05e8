// tessera import: a checkpoint from a Hugging Face directory.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/terminal.hpp"
#include "core/version.hpp"
#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_writer.hpp"
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

/// A checkpoint at step 0: the model's weights as master weights, for any optimizer to begin with.
ExitCode run(const ImportOptions& o) {
  if (!std::filesystem::exists(o.from / "config.json")) {
    throw DataError(
        fmt::format("{} is no Hugging Face directory: it has no config.json", o.from.string()));
  }
  const auto checkpoints = o.to / "checkpoints";
  if (!io::list_checkpoints(checkpoints).empty()) {
    throw DeckError(fmt::format("{} already holds checkpoints: give another --to", o.to.string()));
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
  header.info["version"] = kVersion;
  header.info["imported from"] = o.from.string();
  const io::RankPart part = writer.finish();
  const auto checkpoint = io::commit_checkpoint(directory, header, std::span(&part, 1));
  fmt::print("{} -> {}\n", printable(source.name), printable(checkpoint.string()));
  return ExitCode::ok;
}

}  // namespace

Verb import_model(CLI::App& app) {
  auto* verb = app.add_subcommand("import", "make a checkpoint from a Hugging Face directory");
  auto o = std::make_shared<ImportOptions>();
  verb->add_option("HF_DIR", o->from, "directory with config.json and safetensors")->required();
  verb->add_option("--to", o->to, "run directory to make")->required();
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
