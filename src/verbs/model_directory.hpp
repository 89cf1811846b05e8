// A Hugging Face directory of a model, as export and quantize write it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "io/hugging_face.hpp"
#include "model/parameters.hpp"
#include "verbs/model_source.hpp"

namespace tessera::verbs {

using ParametersByName = std::map<std::string, const model::ParamDesc*, std::less<>>;
/// The parameters of these units, which must outlive what is returned.
ParametersByName by_name_of(std::span<const model::UnitDesc> units);

/// Weights in elements of that type, but for codes, with config.json and the tokenizer; shows how
/// far `verb` has come. It appears whole or not at all. DataError for a directory that is not
/// empty, and where the tokenizer is of another model.
void write_model_directory(const std::filesystem::path& to, const ModelSource& source, DType type,
                           const std::string& verb,
                           const std::optional<io::HfCodes>& codes = std::nullopt);

}  // namespace tessera::verbs
