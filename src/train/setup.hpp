// From a deck to the plain inputs of the components: the only place that knows both sides.
#pragma once

#include <span>

#include "deck/load.hpp"
#include "io/checkpoint_manifest.hpp"
#include "memory/tier.hpp"
#include "optim/timeline.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::train {

model::ModelConfig model_config(const deck::ModelSection& section);

/// The mesh of so many ranks, which the deck's tensor x pipeline must divide.
Mesh mesh_of(const deck::Deck& deck, std::int64_t ranks);

/// As checkpoints say it.
CheckpointLayout layout_of(const plan::PlanInputs& inputs);

/// What plans of these shapes are made from. node_of[r] is rank r's node; parallel.ranks_per_node
/// overrides it by nodes filled one after the other.
plan::PlanInputs plan_inputs(const deck::Deck& deck, std::span<const plan::PlanShape> shapes,
                             std::span<const int> node_of, const kernels::Device& device);

DType dtype_of(deck::Precision precision);

/// The plan of a step of `global` sequences.
plan::PlanShape plan_shape(const deck::BatchSection& batch, plan::PlanPurpose purpose,
                           std::int64_t global, std::int64_t data_ranks);
/// Evaluation cuts the first step's batch.
plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks);
/// The shapes of all plans that a training run will use, those of training first.
std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks);

/// Throws MemoryError when a rank of the run that needs so much in its arenas does not fit
/// memory.device: which arena, by how much, and what to change, in practice's order.
void check_budget(const deck::LoadedDeck& loaded, const Mesh& mesh, const plan::ArenaBytes& bytes);
/// Likewise where it does not fit what is free of its GPU, if it has one (total > 0).
void check_gpu(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
               const memory::Tier::Apart& gpu);

/// Reads config.json where model.init_from points; the reader that load_deck() wants.
std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory);

/// OpenMP threads of a rank: run.threads, else OMP_NUM_THREADS, else its `cores` (trap 62). Throws
/// DeckError where OMP_NUM_THREADS counts and is no number.
int thread_count(const deck::RunSection& run, int cores);
/// Has OpenMP work with so many threads from now on, and starts them. Throws MemoryError when the
/// system does not give them: OpenMP itself would end the process.
void use_threads(int threads);

}  // namespace tessera::train
