// A model with its adapters added to the matrices that they are beside.
#pragma once

#include "verbs/model_source.hpp"

namespace tessera::verbs {

/// A model without adapters that computes the same, but for rounding: W + s B A, with magnitudes if
/// it has some, in double and rounded once, and checked() for `finite_as`. Its deck has none
/// either.
ModelSource merged(const ModelSource& source, std::optional<DType> finite_as);

}  // namespace tessera::verbs
