// A model that is only asked, beside the one that a run trains: on the same ranks, in memory of its
// own.
#pragma once

#include <optional>
#include <string>

#include "train/run.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

/// Counts so much of a model beside the trained one. Collective. MemoryError, on every rank, where
/// it, the trained one and those that were counted before do not fit together.
void take_memory_beside(Run& run, const plan::ArenaBytes& arenas);

/// Opens the model of `loaded`, which outlives it, for these scores of as many answers at once as a
/// step of the run has. Collective. MemoryError as of take_memory_beside(); `what` it is, for
/// people.
void open_beside(std::optional<TrainedEngine>& model, Run& run, const deck::LoadedDeck& loaded,
                 plan::Scores scores, const std::string& what);

}  // namespace tessera::train
