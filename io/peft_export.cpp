// Writing a PEFT directory.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/at.hpp"
#include "core/error.hpp"
#include "io/file.hpp"
#include "io/hugging_face.hpp"
#include "io/partial_directory.hpp"
#include "io/peft.hpp"

namespace tessera::io {
namespace {

/// A module of the model and its parameters that have adapters.
struct Module {
  std::string name;
  std::vector<HfTensor> parts;
  std::int64_t rank = 0;  // of all parts together
  std::int64_t rows = 0;  // likewise
};

std::string stem_of(std::string_view name) {
  return std::string(name.substr(0, name.size() - kPeftWeight.size()));
}

/// DataError where the family's directories have no place for one.
std::vector<Module> modules_of(const PeftExport& options, std::set<std::string> stems) {
  std::vector<Module> all;
  for (const HfTensor& tensor : hf_tensors(options.architecture)) {
    if (!tensor.parameter.ends_with(kPeftWeight) || stems.erase(stem_of(tensor.parameter)) == 0)
      continue;
    const std::string name = stem_of(tensor.tensor);
    if (all.empty() || all.back().name != name) all.push_back({.name = name, .parts = {}});
    all.back().parts.push_back(tensor);
    all.back().rank += options.rank;
    all.back().rows += tensor.rows();
  }
  for (const Module& module : all) {
    if (!options.magnitudes || module.rows == module.parts[0].stored_rows) continue;
    throw DataError(fmt::format(
        "only {} of the {} rows of {} have adapters with magnitudes, and a PEFT directory has them "
        "for all: write all of the model, with these added to its matrices (--merged)",
        module.rows, module.parts[0].stored_rows, module.name));
  }
  if (stems.empty()) return all;
  throw DataError(
      fmt::format("{} of the adapters have no place in a directory of this family, {} first",
                  stems.size(), *stems.begin()));
}

std::string config_text(const PeftExport& options, const std::vector<Module>& modules) {
  nlohmann::json ranks = nlohmann::json::object(), alphas = ranks,
                 targets = nlohmann::json::array();
  for (const Module& module : modules) {
    targets.push_back(module.name);
    if (module.rank == options.rank) continue;
    const double more = static_cast<double>(module.rank) / static_cast<double>(options.rank);
    ranks[module.name] = module.rank;
    alphas[module.name] = options.alpha * (options.sqrt_rank ? std::sqrt(more) : more);
  }
  const nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path",
       options.base.empty() ? nlohmann::json(nullptr) : nlohmann::json(options.base)},
      {"r", options.rank},
      {"lora_alpha", options.alpha},
      {"use_rslora", options.sqrt_rank},
      {"use_dora", options.magnitudes},
      {"lora_dropout", options.dropout},
      {"target_modules", targets},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas},
      {"bias", "none"},
      {"fan_in_fan_out", !modules.empty() && modules[0].parts[0].transposed},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// A of all parts, one below the other.
void append_a(SafetensorsWriter& file, const Module& module, std::int64_t rank,
              const ParameterSource& source) {
  for (const HfTensor& part : module.parts) {
    std::vector<float> a(static_cast<std::size_t>(rank * part.cols()));
    source(stem_of(part.parameter) + std::string(kPeftA), 0, a);
    file.append(a);
  }
}

/// B of each part, in the rows of the tensor that the part has and the columns of its A.
void append_b(SafetensorsWriter& file, const Module& module, std::int64_t rank,
              const ParameterSource& source) {
  const std::int64_t rows = module.parts[0].stored_rows;
  std::vector<float> all(static_cast<std::size_t>(rows * module.rank));
  std::int64_t column = 0;
  for (const HfTensor& part : module.parts) {
    std::vector<float> b(static_cast<std::size_t>(part.rows() * rank));
    source(stem_of(part.parameter) + std::string(kPeftB), 0, b);
    for (std::int64_t i = 0; i < std::ssize(b); ++i) {
      const std::int64_t row = part.stored_row(i / rank);
      all[static_cast<std::size_t>(row * module.rank + column + i % rank)] =
          b[static_cast<std::size_t>(i)];
    }
    column += rank;
  }
  file.append(all);
}

/// Magnitudes of all parts, in their rows of the tensor.
void append_magnitudes(SafetensorsWriter& file, const Module& module,
                       const ParameterSource& source) {
  std::vector<float> all(static_cast<std::size_t>(module.rows));
  for (const HfTensor& part : module.parts) {
    std::vector<float> lengths(static_cast<std::size_t>(part.rows()));
    source(stem_of(part.parameter) + std::string(kPeftMagnitude), 0, lengths);
    for (std::int64_t i = 0; i < std::ssize(lengths); ++i)
      at(all, part.stored_row(i)) = at(lengths, i);
  }
  file.append(all);
}

}  // namespace

void export_peft(const PeftExport& options, const std::set<std::string>& stems,
                 const ParameterSource& source) {
  const auto modules = modules_of(options, stems);
  const std::filesystem::path directory = empty_directory(options.directory);
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const Module& module : modules) {
    const std::string name = std::string(kPeftModule) + module.name;
    tensors.push_back({name + ".lora_A.weight", {module.rank, module.parts[0].cols()}});
    tensors.push_back({name + ".lora_B.weight", {module.parts[0].stored_rows, module.rank}});
    if (options.magnitudes) tensors.push_back({name + ".lora_magnitude_vector", {module.rows}});
  }
  PartialDirectory partial(directory.string() + ".partial");
  write_text(partial / kPeftConfigFile, config_text(options, modules));
  std::map<std::string, std::string> said;
  if (options.base_hash)
    said[std::string(kPeftBaseHash)] = fmt::format("{:016x}", *options.base_hash);
  SafetensorsWriter file(partial / kPeftTensorsFile, options.type, tensors, said);
  for (const Module& module : modules) {
    append_a(file, module, options.rank, source);
    append_b(file, module, options.rank, source);
    if (options.magnitudes) append_magnitudes(file, module, source);
  }
  file.publish();
  partial.publish(directory);
}

}  // namespace tessera::io
