// tessera import: a checkpoint from a Hugging Face directory.
#include <CLI/CLI.hpp>

#include "comm/launcher.hpp"
#include "io/hf_codes.hpp"
#include "verbs/new_run.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ImportOptions {
  std::filesystem::path from, to;
  bool finite = true;  // the weights must be
};

ExitCode run(const ImportOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone writes a checkpoint",
                      "start it once, as in srun --ntasks=1");
  if (!io::is_model_directory(o.from)) {
    throw DataError(
        fmt::format("{} is no Hugging Face directory: it has no config.json", o.from.string()));
  }
  refuse_to_overwrite(o.to);
  const ModelSource source =
      open_model(o.from, o.finite ? std::optional(DType::f32) : std::nullopt);
  if (!source.left_out.empty()) fmt::print("{}\n", source.left_out);
  if (source.codes) fmt::print("{}\n", io::values_taken_note(source.name, *source.codes));
  write_new_run(o.to, source, "import", in_full(o.from).string());
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
