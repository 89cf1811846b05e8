// Whether a rank fits the memory that the deck or its GPU gives it, and what to change if not.
#pragma once

#include "deck/load.hpp"
#include "memory/tier.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::setup {

/// Throws MemoryError when a rank of the run that needs so much in its arenas does not fit
/// memory.device or memory.host: which arena, by how much, and what to change, in practice's
/// order.
void check_budget(const deck::LoadedDeck& loaded, const Mesh& mesh, const plan::ArenaBytes& bytes);
/// Throws MemoryError where the rank does not fit what is free on its GPU, if it has one (total >
/// 0).
void check_gpu(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
               const memory::Tier::DeviceMemory& gpu);

}  // namespace tessera::setup
