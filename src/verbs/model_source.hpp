// Where a verb gets a trained model from: a checkpoint, the newest one of a run, or a Hugging Face
// directory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "core/progress.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/hugging_face.hpp"
#include "io/token_labels.hpp"
#include "train/state/model_state.hpp"

namespace tessera::verbs {

struct ModelSource {
  std::string deck;  // resolved TOML; of a Hugging Face directory: its [model] section and the
                     // least else that a deck needs
  deck::ModelSection model;
  deck::TaskSection task;
  std::string name;  // for people
  train::ParameterSource parameters;
  std::optional<std::filesystem::path> tokenizer;  // its tokenizer.json, where it has one
  std::optional<io::LabelNames> labels;            // and the names of its classes
  std::string left_out;                            // what of it was not read, for people
  bool is_hugging_face = false;                    // directory; else a checkpoint
  std::optional<kernels::BlockFormat> codes = {};  // that the directory has its matrices as
  DType stored_type = DType::f32;                  // of its other parameters
};

/// Says where an element of a parameter is stored.
using PlaceOf = std::function<std::string(const model::ParamDesc&, std::int64_t element)>;

/// The same parameters, but for a DataError where one that is read is NaN or infinite once it is
/// rounded to `finite_as`; without a type, as they are.
train::ParameterSource checked(const train::ParameterSource& source, std::optional<DType> finite_as,
                               const PlaceOf& place_of);

/// `path` is a checkpoint directory, a run directory (its newest checkpoint) or a Hugging Face
/// directory. Throws DataError. Its parameters are checked() for `finite_as`. `weights`: the state
/// of a checkpoint that they are.
ModelSource open_model(const std::filesystem::path& path, std::optional<DType> finite_as,
                       const std::string& weights = "master");

/// The source's parameters, read once by the caller; `progress`, which must outlive what is
/// returned, is told how far that has come.
train::ParameterSource tell_progress(const ModelSource& source, ProgressLine& progress);

/// DataError for the tokenizer of another model: with more tokens.
void check_tokenizer(const io::Tokenizer& tokenizer, const ModelSource& source);

/// The tokenizer that a verb reads text for the model with: `given`, "bytes" or a tokenizer.json,
/// or where that is empty the model's own. DeckError where none is known, DataError for one that
/// differs from the model's own, unless that is accepted, and for one of another model.
io::Tokenizer choose_tokenizer(const ModelSource& source, const std::string& given,
                               bool accept_other);

/// The checkpoint itself, or the newest of a run directory, held while it is read; nothing if
/// `path` is neither.
std::optional<io::HeldCheckpoint> find_checkpoint(const std::filesystem::path& path);

/// The architecture in the words of Hugging Face files.
io::HfArchitecture hf_architecture(const ModelSource& source);

}  // namespace tessera::verbs
