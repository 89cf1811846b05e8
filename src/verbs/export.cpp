// tessera export: a Hugging Face directory from a checkpoint.
#include <CLI/CLI.hpp>
#include <set>

#include "comm/launcher.hpp"
#include "core/terminal.hpp"
#include "io/peft.hpp"
#include "setup/inputs.hpp"
#include "verbs/export_proof.hpp"
#include "verbs/merged.hpp"
#include "verbs/model_directory.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ExportOptions {
  std::filesystem::path checkpoint, to;
  DType type = DType::f32;
  bool finite = true;  // the weights must be
  bool proof = true;
  bool merged = false;  // adapters are added to what they are beside
  std::string weights;
};

/// The adapters alone, for PEFT.
void export_adapters(const ExportOptions& o, const ModelSource& source, DType type) {
  const deck::AdapterSection& adapter = source.model.adapter;
  const auto units = model::model_units(setup::model_config(source.model, source.task));
  const auto by_name = by_name_of(units);
  std::set<std::string> stems;
  for (const auto& [name, parameter] : by_name) {
    if (const auto stem = model::adapted_by(name)) stems.insert(*stem);
  }
  const auto found = find_checkpoint(o.checkpoint);
  std::string base = found ? io::Checkpoint::open(found->path).header().source : "";
  std::optional<std::uint64_t> base_hash;
  if (!base.empty() && std::filesystem::exists(base)) {
    base = std::filesystem::absolute(io::base_directory(base)).string();
    base_hash = io::HfModel::open(base).value_hash();
  }
  io::export_peft({.directory = o.to,
                   .architecture = hf_architecture(source),
                   .type = type,
                   .rank = adapter.rank,
                   .alpha = adapter.alpha,
                   .sqrt_rank = adapter.kind == deck::AdapterKind::rslora,
                   .dropout = adapter.dropout,
                   .magnitudes = adapter.kind == deck::AdapterKind::dora,
                   .base = base,
                   .base_hash = base_hash},
                  stems, [&](std::string_view name, std::int64_t begin, std::span<float> out) {
                    source.parameters(*by_name.find(name)->second,
                                      {begin, begin + static_cast<std::int64_t>(out.size())}, out);
                  });
  fmt::print("{} -> {}\nadapters for PEFT, beside {}\n", printable(source.name),
             printable(o.to.string()),
             base.empty() ? "a model that came from no directory: --merged writes all of it"
                          : printable(base));
}

ExitCode run(const ExportOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone writes a model directory",
                      "start it once, as in srun --ntasks=1");
  const DType type = o.type;
  const auto finite_as = o.finite ? std::optional(type) : std::nullopt;
  const ModelSource opened = open_model(o.checkpoint, finite_as, o.weights);
  const bool adapted = opened.model.adapter.kind != deck::AdapterKind::none;
  if (o.merged && !adapted) {
    throw DeckError(fmt::format("--merged has no effect: {} has no adapters (leave it out)",
                                printable(opened.name)));
  }
  if (adapted && !o.merged) {
    export_adapters(o, opened, type);
    return ExitCode::ok;
  }
  const ModelSource source = adapted ? merged(opened, finite_as) : opened;
  write_model_directory(o.to, source, type, "export");
  fmt::print("{} -> {}\n", printable(source.name), printable(o.to.string()));
  if (o.proof) fmt::print("{}\n", prove_export(source, o.to, type));
  return ExitCode::ok;
}

}  // namespace

Verb export_model(CLI::App& app) {
  auto* verb =
      app.add_subcommand("export", "write a checkpoint's model as a Hugging Face directory");
  auto o = std::make_shared<ExportOptions>();
  verb->add_option("CHECKPOINT", o->checkpoint, "checkpoint or run directory")->required();
  verb->add_option("--to", o->to, "directory to make")->required();
  add_type(*verb, o->type, "element type");
  verb->add_flag(
      "!--no-proof", o->proof,
      "do not read the directory back and compare logits, for which the model must fit in memory");
  verb->add_flag("--merged", o->merged,
                 "of a model with adapters write all of it, with these added to its matrices, in "
                 "place of a PEFT directory of the adapters");
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
