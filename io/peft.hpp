// Adapters as PEFT writes them: adapter_config.json and adapter_model.safetensors, beside a model
// that lies elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/hf_tensors.hpp"
#include "io/safetensors.hpp"

namespace tessera::io {

/// How the matrices of parameter "STEM.weight" are called: "STEM.lora_a" (rank, in) and
/// "STEM.lora_b" (out, rank), and of DoRA the lengths of rows: "STEM.lora_magnitude" (out).
struct PeftExport {
  std::filesystem::path directory;  // made; must not exist, or be empty
  HfArchitecture architecture;
  DType type = DType::f32;
  std::int64_t rank = 0;
  double alpha = 0;
  bool sqrt_rank = false;  // the sum is multiplied with alpha / sqrt(rank), else alpha / rank
  double dropout = 0;
  bool magnitudes = false;                 // DoRA
  std::string base;                        // directory of the model; empty: not known
  std::optional<std::uint64_t> base_hash;  // HfModel::value_hash of it, where it is there
};

/// Writes a directory that PEFT loads beside the model. Where one tensor of the model is several
/// parameters (GPT-2's c_attn), its A has the rows of all of theirs, and its B zeros but where a
/// part meets its own. It appears whole or not at all. `stems`: the parameters that have adapters,
/// without ".weight"; DataError where the directory has no place for one, and for magnitudes of a
/// part of a tensor.
void export_peft(const PeftExport& options, const std::set<std::string>& stems,
                 const std::function<void(std::string_view parameter, std::int64_t begin,
                                          std::span<float> out)>& source);

inline constexpr std::string_view kPeftConfigFile = "adapter_config.json",
                                  kPeftTensorsFile = "adapter_model.safetensors";
/// How names of parameters end: of what an adapter is beside, and of its matrices.
inline constexpr std::string_view kPeftWeight = ".weight", kPeftA = ".lora_a", kPeftB = ".lora_b",
                                  kPeftMagnitude = ".lora_magnitude";
/// What the file of tensors says of the base's values, in hexadecimal digits.
inline constexpr std::string_view kPeftBaseHash = "tessera.base_values";
/// What names of modules begin with in files.
inline constexpr std::string_view kPeftModule = "base_model.model.";

/// What an adapter_config.json says.
struct PeftConfig {
  std::filesystem::path base;  // the model's directory, found
  bool sqrt_rank = false, magnitudes = false;
  double alpha = 0, dropout = 0;
  std::map<std::string, double> alphas;  // by the end of a module's name
};

/// DataError for what is not supported, and for a base that is not here.
PeftConfig read_peft_config(const std::filesystem::path& directory);

/// The adapters of a directory, as parameters "STEM.lora_a", "STEM.lora_b" and, if it has some,
/// "STEM.lora_magnitude", of one rank, the largest in it: others have zeros behind theirs, and
/// where what they add is multiplied otherwise, that is in B. Of a tensor that is several
/// parameters each has its A.
class PeftAdapters {
 public:
  /// DataError for tensors that are not of adapters of the base's matrices, all of them listed.
  PeftAdapters(const std::filesystem::path& directory, const HfArchitecture& architecture);

  std::int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }  // with that rank
  /// DataError where the directory says that they are of a model of other values; `value_hash` is
  /// asked where it says anything.
  void check_base(const std::function<std::uint64_t()>& value_hash) const;
  const PeftConfig& config() const { return config_; }
  /// Patterns of the parameters that have adapters: of those that all layers have, one.
  std::vector<std::string> targets() const;

  bool has(std::string_view parameter) const;
  void read(std::string_view parameter, std::int64_t begin, std::span<float> out) const;
  std::string place(std::string_view parameter, std::int64_t element) const;

 private:
  struct Adapter {
    HfTensor tensor;  // of what it is beside
    const SafetensorsEntry *a = nullptr, *b = nullptr, *magnitude = nullptr;
    std::string module;
    double scale = 0;  // of what it adds
  };
  const Adapter* adapter_of(std::string_view parameter) const;
  double scale_of(double alpha, std::int64_t rank) const;
  double alpha_of(std::string_view module) const;
  /// What is wrong with an adapter's tensors; empty: nothing.
  std::string problem_with(const Adapter& adapter) const;

  PeftConfig config_;
  SafetensorsFile file_;
  std::int64_t rank_ = 0, layers_ = 0;
  double alpha_ = 0;
  std::map<std::string, Adapter, std::less<>> adapters_;  // by stem
};

}  // namespace tessera::io
