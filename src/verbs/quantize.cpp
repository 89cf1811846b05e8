// tessera quantize: a Hugging Face directory whose matrices are codes.
#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <numeric>

#include "comm/launcher.hpp"
#include "core/terminal.hpp"
#include "io/hf_codes.hpp"
#include "setup/inputs.hpp"
#include "train/state/starting_state.hpp"
#include "verbs/model_directory.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct QuantizeOptions {
  std::filesystem::path from, to;
  kernels::BlockFormat format{.type = kernels::BlockType::nf4, .block = 64};
  std::optional<DType> type;  // absent: the model's own
  bool finite = true;         // the weights must be
  std::string weights;
};

/// What holds the values of codes, which would be rounded again; adapters beside codes, which have
/// no format.
void refuse(const ModelSource& source, const kernels::BlockFormat& format) {
  if (source.model.adapter.kind != deck::AdapterKind::none) {
    throw DeckError(fmt::format(
        "{} has adapters: tessera export --merged adds them to the matrices, which can be "
        "quantised then",
        printable(source.name)));
  }
  const auto codes = source.codes ? source.codes : setup::frozen_codes(source.model.frozen);
  if (!codes || (!source.codes && codes == format)) return;
  throw DeckError(fmt::format(
      "{} has its matrices as {} already, which would be rounded once more: give the model that it "
      "was made of",
      printable(source.name), io::to_string(*codes)));
}

/// By name, how many columns those have that become codes.
using Matrices = std::map<std::string, std::int64_t, std::less<>>;
Matrices matrices_of(std::span<const model::UnitDesc> units) {
  Matrices matrices;
  for (const auto& unit : units) {
    for (const auto& p : unit.params) {
      if (model::may_be_codes(unit, p)) matrices[p.name] = p.elements() / p.shape[0];
    }
  }
  return matrices;
}

/// Runs cut matrices into blocks one row after the other, and files row by row: the same where rows
/// are whole blocks.
void check_block(const Matrices& matrices, std::int64_t block) {
  std::int64_t divisor = 0;
  for (const auto& [name, columns] : matrices) divisor = std::gcd(divisor, columns);
  if (divisor == 0) throw DeckError("the model has no layers whose matrices can become codes");
  if (block % 2 == 0 && divisor % block == 0) return;
  std::string legal;
  for (std::int64_t n = io::kSmallestBlock; n <= std::min(divisor, io::kLargestBlock); n += 2) {
    if (divisor % n == 0) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", n);
  }
  throw DeckError(fmt::format("--block {}: rows of matrices must be whole blocks; legal here: {}",
                              block, legal.empty() ? "none" : legal));
}

ExitCode run(const QuantizeOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone writes a model directory",
                      "start it once, as in srun --ntasks=1");
  const ModelSource source = open_model(
      o.from, o.finite ? std::optional(o.type.value_or(DType::f32)) : std::nullopt, o.weights);
  refuse(source, o.format);
  if (!source.left_out.empty()) fmt::print("{}\n", source.left_out);
  const auto units = model::model_units(setup::model_config(source.model, source.task));
  const auto matrices = matrices_of(units);
  check_block(matrices, o.format.block);
  std::vector<std::pair<std::string, double>> losses;
  write_model_directory(
      o.to, source, o.type.value_or(source.stored_type), "quantize",
      io::HfCodes{.format = o.format,
                  .has = [&](std::string_view name) { return matrices.contains(name); },
                  .tell =
                      [&](std::string_view name, double all, double lost) {
                        losses.emplace_back(name, lost == 0 ? 0 : std::sqrt(lost / all));
                      }});
  fmt::print("{} -> {}\n", printable(source.name), printable(o.to.string()));
  if (const auto note = train::losses_note(o.format, losses)) fmt::print("{}\n", *note);
  return ExitCode::ok;
}

}  // namespace

Verb quantize(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "quantize", "write a model as a Hugging Face directory whose matrices are codes");
  verb->footer(
      "The matrices of all layers, but routers, become integers (int8, int4) or quantiles of "
      "normal numbers (nf4)\nwith an f32 scale for each block of a row. Training with frozen.type "
      "and "
      "frozen.block of the same words\nkeeps these codes; whatever else reads the directory takes "
      "their values.\n");
  auto o = std::make_shared<QuantizeOptions>();
  verb->add_option("MODEL", o->from, "Hugging Face directory, checkpoint or run directory")
      ->required();
  verb->add_option("--to", o->to, "directory to make")->required();
  verb->add_option_function<std::string>(
          "--codes",
          [o](const std::string& word) {
            o->format.type = *enum_from_word<kernels::BlockType>(word);
          },
          "what a weight becomes")
      ->default_str("nf4")
      ->check(CLI::IsMember(std::vector<std::string>{"int8", "int4", "nf4"}));
  verb->add_option("--block", o->format.block, "weights that share a scale")
      ->capture_default_str()
      ->check(CLI::Range(io::kSmallestBlock, io::kLargestBlock));
  add_type(
      *verb, [o](DType type) { o->type = type; }, "MODEL's own", "element type of what is no code");
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
