// What plans are made from, as a deck and the ranks at hand have it.
#pragma once

#include <span>

#include "deck/load.hpp"
#include "io/checkpoint_manifest.hpp"
#include "plan/ir/inputs.hpp"

namespace tessera::setup {

model::ModelConfig model_config(const deck::ModelSection& model, const deck::TaskSection& task);

/// What frozen matrices are kept as, where that is codes.
std::optional<kernels::BlockFormat> frozen_codes(const deck::FrozenSection& frozen);

/// The mesh of so many ranks, which the deck's tensor x pipeline must divide.
Mesh mesh_of(const deck::Deck& deck, std::int64_t ranks);

/// The layout as checkpoints describe it.
io::CheckpointLayout layout_of(const plan::PlanInputs& inputs);

/// Each rank's node: parallel.ranks_per_node overrides what is found.
std::vector<int> nodes_of(const deck::Deck& deck, std::span<const int> found);

/// What lives where.
plan::OffloadInputs offload_inputs(const deck::OffloadSection& section);

/// What ranks compute on, as far as plans must know it.
struct ComputesOn {
  const kernels::Device& device;
  bool nccl = false;            // carries between ranks
  bool device_is_host = false;  // as of a back end
};

/// What plans of these shapes are made from. node_of[r] is rank r's node; parallel.ranks_per_node
/// overrides it by nodes filled one after the other. What the deck leaves open about
/// traffic (setup/traffic.hpp) is as if it were "none".
plan::PlanInputs plan_inputs(const deck::Deck& deck, std::span<const plan::PlanShape> shapes,
                             std::span<const int> node_of, const ComputesOn& on);

/// Units that are gathered ahead of use: zero.prefetch. Where the deck leaves it open 2 where stage
/// 3 gathers parameters over NCCL and some group of data ranks is on several nodes, else 1: a
/// gather across nodes takes long, and not always equally long, so that one that begins a unit's
/// time ahead is often late. The second costs one more unit's parameters in memory. The same on
/// every rank.
std::int64_t prefetch_of(const deck::Deck& deck, std::span<const int> node_of, bool nccl);

DType dtype_of(deck::Precision precision);

}  // namespace tessera::setup
