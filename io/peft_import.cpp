// Reading a PEFT directory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>

#include "core/at.hpp"
#include "core/error.hpp"
#include "core/terminal.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "io/peft.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestPeftConfig = std::int64_t{1} << 20;
constexpr std::size_t kPeftProblemsShown = 20;

/// Settings that change what an adapter computes, and are not supported: they must be absent,
/// false, or empty.
constexpr std::array kPeftRefused = {
    "lora_bias",         "modules_to_save", "layer_replication",       "use_qalora",
    "target_parameters", "megatron_config", "alora_invocation_tokens", "trainable_token_indices",
    "use_bdlora",        "kasa_config",     "velora_config",           "monteclora_config",
    "arrow_config"};

bool says_nothing(const JsonCursor& value) {
  return (value.is_boolean() && !value.boolean()) ||
         ((value.is_array() || value.is_object()) && value.size() == 0);
}

/// Ways to begin A and B that leave the base's weights as they are. After the others a loader
/// changes those.
constexpr std::array kPeftInits = {"gaussian", "eva", "orthogonal"};

void check_init(const JsonCursor& root) {
  const auto init = root.find("init_lora_weights");
  if (!init || init->is_boolean()) return;
  if (init->is_text() && std::ranges::find(kPeftInits, init->text()) != kPeftInits.end()) return;
  init->unsupported(
      "only true, false, \"gaussian\", \"eva\" and \"orthogonal\" are read: the "
      "others change the base's weights");
}

/// Alphas of modules whose names end so. PEFT's keys are expressions; those that are plain names
/// are read, of which no two may be of one module.
std::map<std::string, double> alphas_of(const JsonCursor& pattern) {
  std::map<std::string, double> alphas;
  pattern.for_each_member([&](const std::string& key, const JsonCursor& value) {
    const bool plain = std::ranges::all_of(
        key, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
    if (key.empty() || !plain) value.unsupported("only names of modules are read, no expressions");
    for (const auto& [other, alpha] : alphas) {
      const auto ends = [](const std::string& a, const std::string& b) {
        return a.ends_with("." + b);
      };
      if (alpha != value.number() && (ends(key, other) || ends(other, key)))
        value.unsupported(fmt::format("{} is of some modules too, with another value", other));
    }
    alphas[key] = value.number();
  });
  return alphas;
}

/// The model's directory: as it is named, or beside the adapters'.
fs::path find_base(const fs::path& directory, const JsonCursor& config) {
  const auto said = config.find("base_model_name_or_path");
  const std::string name = said ? said->text() : "";
  for (const fs::path& path : {fs::path(name), directory / name}) {
    std::error_code none;
    if (name.empty() || !fs::exists(path / "config.json", none)) continue;
    if (fs::exists(path / kPeftConfigFile, none)) {
      config.fail(fmt::format("the base {} is itself adapters beside a model: merge it first",
                              printable(path.string())));
    }
    return path;
  }
  config.fail(fmt::format(
      "the model that the adapters are beside, base_model_name_or_path = \"{}\", is no directory "
      "with a config.json here or in {} (give its path there)",
      printable(name), printable(directory.string())));
}

}  // namespace

PeftConfig read_peft_config(const fs::path& directory) {
  const fs::path path = directory / kPeftConfigFile;
  const JsonDocument document(read_text(path, kLargestPeftConfig), path.string());
  const JsonCursor root = document.root();
  if (root["peft_type"].text() != "LORA") root["peft_type"].unsupported("only LORA is read");
  for (const char* key : kPeftRefused) {
    const auto value = root.find(key);
    if (value && !says_nothing(*value)) value->unsupported(fmt::format("{} is not read", key));
  }
  if (const auto bias = root.find("bias"); bias && bias->text() != "none")
    bias->unsupported("only bias = \"none\" is read");
  check_init(root);
  PeftConfig config{.base = find_base(directory, root),
                    .sqrt_rank = root.flag("use_rslora"),
                    .magnitudes = root.flag("use_dora"),
                    .alpha = root["lora_alpha"].number(),
                    .dropout = root.find("lora_dropout") ? root["lora_dropout"].number() : 0,
                    .alphas = {}};
  if (const auto alphas = root.find("alpha_pattern")) config.alphas = alphas_of(*alphas);
  return config;
}

static bool may_be_adapted(const HfTensor& tensor) {
  return tensor.parameter.ends_with(kPeftWeight) && tensor.parameter.starts_with("block.") &&
         tensor.shape.size() == 2 && tensor.parameter.find(".mlp.router.") == std::string::npos &&
         tensor.parameter.find(".mlp.expert.") == std::string::npos;
}

static DataError not_beside(const fs::path& file, std::vector<std::string> problems) {
  const std::size_t more = problems.size() - std::min(problems.size(), kPeftProblemsShown);
  problems.resize(problems.size() - more);
  if (more > 0) problems.push_back(fmt::format("and {} more", more));
  std::string message =
      printable(fmt::format("{} is not of adapters beside that base:", file.string()));
  for (const std::string& problem : problems) message += "\n  " + printable(problem);
  return DataError(Lines{message});
}

double PeftAdapters::scale_of(double alpha, std::int64_t rank) const {
  const auto r = static_cast<double>(rank);
  return alpha / (config_.sqrt_rank ? std::sqrt(r) : r);
}

std::string PeftAdapters::problem_with(const Adapter& adapter) const {
  const auto& [tensor, a, b, magnitude, module, scale] = adapter;
  const std::string base = config_.base.string();
  if (config_.magnitudes && (magnitude == nullptr || !magnitude->type ||
                             magnitude->shape != std::vector<std::int64_t>{tensor.stored_rows})) {
    return fmt::format(
        "{}: lora_magnitude_vector is not ({}) of numbers, as use_dora and {} of the base {} say",
        module, tensor.stored_rows, tensor.tensor, base);
  }
  const std::int64_t rank = a != nullptr && a->shape.size() == 2 ? a->shape[0] : 0;
  if (rank < 1 || b == nullptr || a->shape[1] != tensor.cols() || !a->type || !b->type ||
      b->shape != std::vector<std::int64_t>{tensor.stored_rows, rank}) {
    return fmt::format(
        "{}: lora_A and lora_B are not (rank, {}) and ({}, rank) of numbers, as beside {} of the "
        "base {}",
        module, tensor.cols(), tensor.stored_rows, tensor.tensor, base);
  }
  return "";
}

double PeftAdapters::alpha_of(std::string_view module) const {
  double alpha = config_.alpha;
  for (const auto& [end, own] : config_.alphas)
    if (module == end || module.ends_with("." + end)) alpha = own;
  return alpha;
}

PeftAdapters::PeftAdapters(const fs::path& directory, const HfArchitecture& architecture)
    : config_(read_peft_config(directory)),
      file_(directory / kPeftTensorsFile),
      layers_(architecture.layers) {
  const auto& tensors = file_.tensors();
  std::set<std::string, std::less<>> left;
  for (const auto& [name, entry] : tensors) left.insert(name);
  std::vector<std::string> problems;
  const auto find = [&](const std::string& name) -> const SafetensorsEntry* {
    const auto found = tensors.find(name);
    left.erase(name);
    return found == tensors.end() ? nullptr : &found->second;
  };
  for (const HfTensor& tensor : hf_tensors(architecture)) {
    if (!may_be_adapted(tensor)) continue;
    const std::string module = tensor.tensor.substr(0, tensor.tensor.size() - kPeftWeight.size());
    const std::string name = std::string(kPeftModule) + module;
    Adapter found{.tensor = tensor,
                  .a = find(name + ".lora_A.weight"),
                  .b = find(name + ".lora_B.weight"),
                  .magnitude = nullptr,
                  .module = name};
    if (found.a == nullptr && found.b == nullptr) continue;
    if (config_.magnitudes) found.magnitude = find(name + ".lora_magnitude_vector");
    if (std::string problem = problem_with(found); !problem.empty()) {
      problems.push_back(std::move(problem));
      continue;
    }
    const std::int64_t rank = found.a->shape[0];
    const double alpha = alpha_of(module);
    found.scale = scale_of(alpha, rank);
    adapters_[tensor.parameter.substr(0, tensor.parameter.size() - kPeftWeight.size())] =
        std::move(found);
    if (rank > rank_) rank_ = rank, alpha_ = alpha;
  }
  for (const std::string& name : left) {
    problems.push_back(fmt::format("{} is beside no matrix of a layer of the base {}", name,
                                   config_.base.string()));
  }
  if (problems.empty() && adapters_.empty()) problems.emplace_back("there are no adapters in it");
  if (!problems.empty()) throw not_beside(file_.path(), std::move(problems));
}

void PeftAdapters::check_base(const std::function<std::uint64_t()>& value_hash) const {
  const auto said = file_.metadata().find(kPeftBaseHash);
  if (said == file_.metadata().end() || said->second == fmt::format("{:016x}", value_hash()))
    return;
  throw DataError(fmt::format(
      "{}: these adapters were made beside a model of other values than {} has: give that model's "
      "directory as base_model_name_or_path of {}",
      printable(file_.path().string()), printable(config_.base.string()), kPeftConfigFile));
}

std::vector<std::string> PeftAdapters::targets() const {
  std::map<std::string, std::vector<std::string>> by_end;  // of stems, behind the layer's number
  for (const auto& [stem, adapter] : adapters_)
    by_end[stem.substr(stem.find('.', stem.find('.') + 1))].push_back(stem);
  std::vector<std::string> patterns;
  for (const auto& [end, stems] : by_end) {
    if (std::ssize(stems) == layers_) {
      patterns.push_back("*" + end + std::string(kPeftWeight));
    } else {
      for (const std::string& stem : stems) patterns.push_back(stem + std::string(kPeftWeight));
    }
  }
  return patterns;
}

const PeftAdapters::Adapter* PeftAdapters::adapter_of(std::string_view parameter) const {
  const std::size_t end = parameter.rfind(".lora_");
  if (end == parameter.npos) return nullptr;
  const std::string_view what = parameter.substr(end);
  const bool matrix = what == kPeftA || what == kPeftB;
  if (!matrix && (what != kPeftMagnitude || !config_.magnitudes)) return nullptr;
  const auto found = adapters_.find(parameter.substr(0, end));
  return found == adapters_.end() ? nullptr : &found->second;
}

bool PeftAdapters::has(std::string_view parameter) const {
  return adapter_of(parameter) != nullptr;
}

std::string PeftAdapters::place(std::string_view parameter, std::int64_t element) const {
  const char* tensor = parameter.ends_with(kPeftA)   ? "lora_A.weight"
                       : parameter.ends_with(kPeftB) ? "lora_B.weight"
                                                     : "lora_magnitude_vector";
  return fmt::format("{}: {}.{}, element {} of {}", file_.path().string(),
                     adapter_of(parameter)->module, tensor, element, parameter);
}

void PeftAdapters::read(std::string_view parameter, std::int64_t begin,
                        std::span<float> out) const {
  const Adapter& adapter = *adapter_of(parameter);
  const std::int64_t rank = adapter.a->shape[0], columns = adapter.tensor.cols();
  if (parameter.ends_with(kPeftMagnitude)) {
    std::vector<float> all(static_cast<std::size_t>(adapter.tensor.stored_rows));
    file_.read(*adapter.magnitude, 0, all);
    for (std::int64_t i = 0; i < std::ssize(out); ++i)
      at(out, i) = at(all, adapter.tensor.stored_row(begin + i));
    return;
  }
  std::ranges::fill(out, 0.0F);
  if (parameter.ends_with(kPeftA)) {
    const std::int64_t there = std::min(std::ssize(out), rank * columns - begin);
    if (there > 0) file_.read(*adapter.a, begin, out.first(static_cast<std::size_t>(there)));
    return;
  }
  const double factor = adapter.scale / scale_of(alpha_, rank_);
  std::vector<float> row(static_cast<std::size_t>(rank));
  std::int64_t read = -1;
  for (std::int64_t i = 0; i < std::ssize(out); ++i) {
    const std::int64_t r = (begin + i) / rank_, c = (begin + i) % rank_;
    if (c >= rank) continue;
    if (r != read) file_.read(*adapter.b, adapter.tensor.stored_row(r) * rank, row);
    read = r;
    out[static_cast<std::size_t>(i)] =
        static_cast<float>(factor * static_cast<double>(row[static_cast<std::size_t>(c)]));
  }
}

}  // namespace tessera::io
