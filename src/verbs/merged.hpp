// A model with its adapters added to the matrices that they are beside.
#pragma once

#include "verbs/model_source.hpp"

namespace tessera::verbs {

/// A model without adapters that computes the same, but for rounding: W + s B A, summed in double
/// and rounded once. Its deck has none either.
ModelSource merged(const ModelSource& source);

}  // namespace tessera::verbs
