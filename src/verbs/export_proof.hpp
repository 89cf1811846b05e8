// An export proves itself: what it wrote is read back, and must give the logits that the model
// gives.
#pragma once

#include <filesystem>
#include <string>

#include "verbs/model_source.hpp"

namespace tessera::verbs {

/// Computes logits of a few tokens twice, as generation does: with the weights that `exported`
/// holds, through the reader of model directories, and with those of `source` as a file of that
/// type has them. Returns a line that says so, and how far the logits are from those of the
/// source's weights as they are. DataError where the two differ in a bit.
std::string prove_export(const ModelSource& source, const std::filesystem::path& exported,
                         DType type);

}  // namespace tessera::verbs
