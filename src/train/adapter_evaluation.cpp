#include "train/adapter_evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "core/terminal.hpp"
#include "io/finite.hpp"
#include "io/hugging_face.hpp"
#include "io/peft.hpp"
#include "setup/architecture.hpp"
#include "train/evaluation.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

/// A directory of adapters, and what they add is multiplied with.
struct Directory {
  std::string name;
  io::PeftAdapters adapters;
  double scale() const {
    const auto rank = static_cast<double>(adapters.rank());
    return adapters.alpha() / (adapters.config().sqrt_rank ? std::sqrt(rank) : rank);
  }
};

std::vector<Directory> open_all(const deck::LoadedDeck& loaded,
                                std::span<const std::string> directories) {
  const auto& from = loaded.deck.model.init_from;
  if (!from) {
    throw DeckError(
        fmt::format("{}: model.init_from is unset: --adapters are beside the model that it names",
                    loaded.where("model.init_from")));
  }
  const fs::path base = io::base_directory(*from);
  const io::HfModel model = io::HfModel::open(base);
  std::optional<std::uint64_t> hash;  // read once, if any directory asks for it
  const auto value_hash = [&] { return hash ? *hash : hash.emplace(model.value_hash()); };
  std::vector<Directory> all;
  for (const std::string& name : directories) {
    if (!fs::exists(fs::path(name) / io::kPeftConfigFile)) {
      throw DataError(fmt::format("--adapters {}: it has no {}, so it is no directory of adapters",
                                  printable(name), io::kPeftConfigFile));
    }
    const fs::path own = io::read_peft_config(name).base;
    if (!fs::equivalent(own, base) && io::HfModel::open(own).value_hash() != value_hash()) {
      throw DataError(fmt::format("--adapters {}: they are of {}, not of model.init_from = {}",
                                  printable(name), printable(own.string()),
                                  printable(base.string())));
    }
    all.push_back({.name = name, .adapters = io::PeftAdapters(name, model.architecture())});
    all.back().adapters.check_base(value_hash);
  }
  return all;
}

/// Adapters that all of these are, beside the model that they are of.
deck::AdapterSection common_section(std::span<const Directory> all) {
  const io::PeftAdapters& first = all.front().adapters;
  const bool magnitudes = first.config().magnitudes;
  std::int64_t rank = 0;
  std::set<std::string> targets;
  for (const Directory& directory : all) {
    const io::PeftAdapters& adapters = directory.adapters;
    if (adapters.config().magnitudes != magnitudes ||
        (magnitudes && adapters.targets() != first.targets())) {
      throw DataError(
          fmt::format("--adapters {} and {}: {}: evaluate them by themselves",
                      printable(all.front().name), printable(directory.name),
                      adapters.config().magnitudes != magnitudes
                          ? "one has magnitudes (DoRA), the other has none"
                          : "both have magnitudes (DoRA), but beside different matrices"));
    }
    rank = std::max(rank, adapters.rank());
    for (const std::string& target : adapters.targets()) targets.insert(target);
  }
  deck::AdapterSection section;
  section.kind = magnitudes ? deck::AdapterKind::dora : deck::AdapterKind::lora;
  section.rank = rank;
  section.alpha = all.front().scale() * static_cast<double>(rank);
  section.targets.assign(targets.begin(), targets.end());
  return section;
}

deck::LoadedDeck adapted_deck(const deck::LoadedDeck& loaded, std::span<const Directory> all) {
  deck::Deck deck = loaded.deck;
  deck.run.resume = deck::Resume::never;
  deck.model.init_from = io::base_directory(*deck.model.init_from).string();
  deck.model.adapter = common_section(all);
  deck.model.frozen.layers.clear();
  return deck::parse_deck(to_toml(deck), loaded.name + " with --adapters",
                          std::vector<std::string>(), setup::read_architecture);
}

/// The directory's matrices with as many ranks as `rank`, and B times what makes up for another
/// factor of the sum: zeros where it has none.
ParameterSource padded(const Directory& directory, std::int64_t rank, double scale) {
  return [&directory, rank, factor = directory.scale() / scale](const model::ParamDesc& p,
                                                                Range range, std::span<float> out) {
    const io::PeftAdapters& adapters = directory.adapters;
    std::ranges::fill(out, 0.0F);
    if (!adapters.has(p.name)) return;
    const bool a = p.name.ends_with(io::kPeftA), b = p.name.ends_with(io::kPeftB);
    const std::int64_t columns = p.shape.size() > 1 ? p.shape[1] : 1;
    // Rows of A, or columns of B, are those of a rank each.
    const std::int64_t own = b ? adapters.rank() : columns,
                       most = a ? adapters.rank() * columns : p.elements();
    TESSERA_CHECK((a ? p.shape[0] : b ? columns : rank) == rank, "{} of another rank", p.name);
    for (std::int64_t at = range.begin; at < range.end;) {
      const std::int64_t row = at / columns, column = at % columns,
                         end = std::min({range.end, (row + 1) * columns, most}),
                         there = std::min(end, row * columns + own) - at;
      const std::span<float> part =
          out.subspan(static_cast<std::size_t>(at - range.begin),
                      static_cast<std::size_t>(std::max<std::int64_t>(0, there)));
      if (!part.empty()) adapters.read(p.name, row * own + column, part);
      for (float& x : part) x = b ? static_cast<float>(factor * static_cast<double>(x)) : x;
      if (at >= most) return;
      at = std::max(end, at + 1);
    }
  };
}

}  // namespace

void evaluate_adapters(const deck::LoadedDeck& loaded, const Job& job,
                       std::span<const std::string> directories) {
  const comm::Control& control = job.control;
  std::vector<Directory> all;
  deck::LoadedDeck adapted;
  control.together([&] {
    all = open_all(loaded, directories);
    adapted = adapted_deck(loaded, all);
  });
  const deck::AdapterSection& section = adapted.deck.model.adapter;
  const double scale = section.alpha / static_cast<double>(section.rank);
  const DeckEvaluation evaluation(adapted, job);
  TrainedEngine trained(adapted, job, evaluation.shape(), "master");
  // As they begin adapters add nothing, but for what DoRA's lengths of rows are rounded.
  evaluation.say(trained, printable(*adapted.deck.model.init_from));
  for (const Directory& directory : all) {
    control.together([&] {
      const auto bad = trained.engine().state().set_trained(padded(directory, section.rank, scale));
      if (bad && !adapted.deck.model.accept_non_finite) {
        throw io::non_finite_error(
            fmt::format("--adapters {}: {}{}", directory.name, bad->parameter, bad->index),
            bad->value, bad->type, "--allow-non-finite");
      }
    });
    evaluation.say(trained, printable(directory.name));
  }
}

}  // namespace tessera::train
