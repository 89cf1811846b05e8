// tessera merge: a checkpoint whose weights are the mean of others'.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>

#include "comm/launcher.hpp"
#include "core/terminal.hpp"
#include "deck/load.hpp"
#include "deck/resume.hpp"
#include "io/file.hpp"
#include "io/tokenizer.hpp"
#include "verbs/new_run.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace fs = std::filesystem;
namespace {

struct MergeOptions {
  std::vector<std::filesystem::path> from;
  std::filesystem::path to;
  bool finite = true;  // the weights must be
  std::string weights;
};

/// Only weights of one architecture have a mean.
void check_alike(const ModelSource& first, const ModelSource& other) {
  deck::Deck a, b;
  a.model = first.model, b.model = other.model;
  a.task = first.task, b.task = other.task;
  std::string differences;
  for (const auto& d : deck::compare_for_resume(a, b)) {
    if (d.rule == deck::OnResume::architecture)
      differences += fmt::format("\n  {} = {} and {}", d.key, d.saved, d.now);
  }
  if (first.model.adapter.kind != deck::AdapterKind::none) {
    throw DataError(fmt::format(
        "{} has adapters, and the mean of A and the mean of B do not make that of their product: "
        "export each with --merged, and import those",
        printable(first.name)));
  }
  if (!differences.empty()) {
    throw DataError(Lines{fmt::format("{} and {} are different models:{}", printable(first.name),
                                      printable(other.name), differences)});
  }
}

/// The mean of all sources, in double, of so many elements at once.
train::ParameterSource mean_of(std::vector<train::ParameterSource> sources) {
  return
      [sources = std::move(sources)](const model::ParamDesc& p, Range range, std::span<float> out) {
        constexpr std::int64_t kAtOnce = 1 << 20;
        std::vector<float> values;
        std::vector<double> sums;
        for (std::int64_t at = 0; at < range.count(); at += kAtOnce) {
          const Range part{range.begin + at, std::min(range.begin + at + kAtOnce, range.end)};
          const auto n = static_cast<std::size_t>(part.count());
          values.resize(n);
          sums.assign(n, 0);
          for (const train::ParameterSource& source : sources) {
            source(p, part, values);
            for (std::size_t i = 0; i < n; ++i) sums[i] += static_cast<double>(values[i]);
          }
          for (std::size_t i = 0; i < n; ++i) {
            out[static_cast<std::size_t>(at) + i] =
                static_cast<float>(sums[i] / static_cast<double>(sources.size()));
          }
        }
      };
}

/// The tokenizer of the sources that have one: it must be the same.
std::optional<fs::path> common_tokenizer(std::span<const ModelSource> models) {
  std::optional<fs::path> found;
  const ModelSource* of = nullptr;
  for (const ModelSource& model : models) {
    if (!model.tokenizer) continue;
    if (!found) {
      found = model.tokenizer, of = &model;
      continue;
    }
    const auto text = [](const fs::path& path) {
      return io::read_text(path, io::kLargestTokenizerFile);
    };
    if (text(*found) == text(*model.tokenizer)) continue;
    const std::string difference =
        io::Tokenizer::open(*found).difference(io::Tokenizer::open(*model.tokenizer));
    if (difference.empty()) continue;
    throw DataError(fmt::format("{} and {} have different tokenizers, {} and {}: {}", of->name,
                                model.name, found->string(), model.tokenizer->string(),
                                difference));
  }
  return found;
}

/// What is given several times weighs more, which nobody may have meant.
void tell_repeated(std::span<const ModelSource> models) {
  std::map<fs::path, int> times;
  for (const ModelSource& model : models) ++times[fs::weakly_canonical(model.name)];
  for (const auto& [path, count] : times) {
    if (count == 1) continue;
    tell(fmt::format("note: {} is given {} times, and counts as often in the mean\n",
                     printable(path.string()), count));
  }
}

/// The last source's, but for what the mean does not have.
std::string deck_of_mean(const ModelSource& last) {
  deck::Deck deck = deck::parse_deck(last.deck, last.name).deck;
  deck.optimizer.ema.reset();
  return to_toml(deck);
}

ExitCode run(const MergeOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone writes a checkpoint",
                      "start it once, as in srun --ntasks=1");
  refuse_to_overwrite(o.to);
  std::vector<ModelSource> models;
  for (const auto& path : o.from)
    models.push_back(
        open_model(path, o.finite ? std::optional(DType::f32) : std::nullopt, o.weights));
  std::vector<train::ParameterSource> sources;
  std::string origin = "the mean of ";
  for (const ModelSource& model : models) {
    check_alike(models.front(), model);
    sources.push_back(model.parameters);
    origin += fmt::format("{}{}", sources.size() > 1 ? ", " : "", in_full(model.name).string());
  }
  const auto tokenizer = common_tokenizer(models);
  tell_repeated(models);
  ModelSource merged = std::move(models.back());
  merged.deck = deck_of_mean(merged);
  merged.tokenizer = tokenizer;
  merged.name = origin;
  merged.parameters = mean_of(std::move(sources));
  write_new_run(o.to, merged, "merge", origin);
  return ExitCode::ok;
}

}  // namespace

Verb merge(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "merge", "average the weights of checkpoints, and make a deck that trains the mean on");
  verb->footer(
      "Checkpoints of one run at a constant learning rate, averaged, are about as good as one that "
      "the rate\nhas cooled down to, and cost nothing. The mean begins a run of its own, at step "
      "0, to evaluate, to\nexport or to train on. It has the last one's deck, and the tokenizer "
      "of those that have one.\n");
  auto o = std::make_shared<MergeOptions>();
  verb->add_option("CHECKPOINT", o->from,
                   "checkpoints, run directories (their newest) or Hugging Face directories")
      ->required()
      ->expected(2, 1 << 20);
  verb->add_option("--to", o->to, "run directory to make")->required();
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
