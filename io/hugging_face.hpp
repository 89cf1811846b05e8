// Hugging Face model directories: config.json and safetensors, in one file or in shards that
// model.safetensors.index.json lists. Weights are read and written as Tessera's parameters: names
// and shapes as in src/model, any flat range, so that no rank ever holds the whole model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "io/hf_config.hpp"
#include "io/hf_tensors.hpp"
#include "io/peft.hpp"
#include "io/safetensors.hpp"
#include "io/tokenizer.hpp"

namespace tessera::io {

/// A head whose weights a directory shall not give.
struct HfFreshHead {
  std::string task;         // classify | tokens | reward
  std::int64_t hidden = 0;  // columns of its dense layer; 0: there is none
};

class HfModel {
 public:
  /// DataError for a directory that cannot be used; missing, unknown and mis-shaped tensors are
  /// listed all at once. A directory of adapters (PEFT) is its base's with them. Beside a fresh
  /// head parameters are those before the head; and its dense layer, where that is as wide as the
  /// directory's pooler (BERT), which becomes it.
  static HfModel open(const std::filesystem::path& directory,
                      const std::optional<HfFreshHead>& fresh = std::nullopt);

  const HfArchitecture& architecture() const { return config_.architecture; }
  /// The architecture as the keys of a deck's [model] section.
  std::span<const HfKey> keys() const { return config_.keys; }
  /// What its matrices are kept as, where they are codes.
  const std::optional<kernels::BlockFormat>& codes() const { return config_.codes; }
  /// Whether this parameter is.
  bool is_codes(std::string_view parameter) const {
    const auto found = sources_.find(parameter);
    return found != sources_.end() && found->second.scales != nullptr;
  }
  /// The names of its classes, where it has some and says them.
  std::span<const std::string> classes() const { return config_.classes; }
  /// Every parameter with its shape, in the order of the model.
  std::span<const HfTensor> parameters() const { return parameters_; }
  bool has(std::string_view parameter) const {
    return sources_.contains(parameter) || (adapters_ && adapters_->has(parameter));
  }
  /// Whether it is a directory of adapters.
  bool has_adapters() const { return adapters_ != nullptr; }
  /// The names of tensors that are of other heads than the model's, and are not read.
  std::span<const std::string> other_heads() const { return other_heads_; }
  /// The element type of the embedding matrix, for a warning where a narrower one is asked for.
  DType stored_dtype() const;

  /// A hash of some values of each matrix and vector of layers but those of experts, as bf16: of a
  /// copy in another type, or in other files, it is the same.
  std::uint64_t value_hash() const;

  /// Says which tensors of `directory` are of other heads than the model's, and are not read;
  /// empty: none.
  std::string left_out(std::string_view directory) const;

  /// Elements [begin, begin + out.size()) of a parameter, row-major, as f32. DataError where it is
  /// stored twice and differs there, as an output matrix that config.json ties to the embedding.
  /// Safe from many threads.
  void read(std::string_view parameter, std::int64_t begin, std::span<float> out) const;
  /// For messages: the file, the tensor and the index in it of an element of a parameter.
  std::string place(std::string_view parameter, std::int64_t element) const;

 private:
  struct Source {
    HfTensor tensor;
    std::size_t shard = 0;
    const SafetensorsEntry* entry = nullptr;  // of that shard
    /// Of the scales, where the tensor is codes.
    std::size_t scales_shard = 0;
    const SafetensorsEntry* scales = nullptr;
    /// Of the tensor whose first row is added, where there is one.
    std::size_t added_shard = 0;
    const SafetensorsEntry* added_entry = nullptr;
  };
  class Matching;
  bool of_adapters(std::string_view parameter) const {
    return adapters_ && adapters_->has(parameter);
  }

  HfModel() = default;
  void match(const std::filesystem::path& directory, const std::optional<HfFreshHead>& fresh);
  const Source& source_of(std::string_view parameter) const;
  std::string place(const Source& source, std::int64_t element) const;
  std::string place_of_scale(const Source& source, std::int64_t row, std::int64_t block) const;
  void check_copy(const Source& copy, std::int64_t begin, std::span<const float> parameter) const;
  void add_row(const Source& source, std::int64_t begin, std::span<float> out) const;
  void read_straight(const Source& source, std::int64_t begin, std::span<float> out) const;
  void read_codes(const Source& source, std::int64_t begin, std::span<float> out) const;
  void read_transposed(const Source& source, std::int64_t begin, std::span<float> out) const;

  HfConfig config_;
  std::vector<HfTensor> parameters_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, Source, std::less<>> sources_;  // by parameter
  std::map<std::string, Source, std::less<>> copies_;   // likewise: stored a second time
  std::vector<std::string> other_heads_;
  std::shared_ptr<const PeftAdapters> adapters_;  // absent where there are none
};

/// Whether there is a model's directory, or one of adapters (PEFT).
bool is_model_directory(const std::filesystem::path& directory);
/// The model's directory: of adapters their base's.
std::filesystem::path base_directory(const std::filesystem::path& directory);

/// Gives elements [begin, begin + out.size()) of a parameter.
using ParameterSource =
    std::function<void(std::string_view parameter, std::int64_t begin, std::span<float> out)>;

/// Matrices that are written as codes (io/hf_codes).
struct HfCodes {
  kernels::BlockFormat format;
  std::function<bool(std::string_view parameter)> has;  // which
  /// Hears of each parameter, once it is written, the sum of its squares and of those of what it
  /// lost.
  std::function<void(std::string_view parameter, double all, double lost)> tell =
      [](std::string_view, double, double) {};
};

struct HfExport {
  std::filesystem::path directory;  // made; must not exist, or be empty
  HfArchitecture architecture;
  DType type = DType::f32;
  const Tokenizer* tokenizer = nullptr;      // written beside the weights
  std::vector<std::string> classes = {};     // the names of its classes
  std::optional<HfCodes> codes = {};         // absent: no matrix is
  std::int64_t shard_bytes = 5'000'000'000;  // one file holds at most this, or one tensor
};

/// Writes a directory that transformers loads. It appears whole or not at all.
void export_hugging_face(const HfExport& options, const ParameterSource& source);

}  // namespace tessera::io
