// The rates of a machine as a machine file has them, measured by the ranks of a job all at once, as
// they train.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "deck/machine.hpp"

namespace tessera::backend {

struct MachineOptions {
  int threads = 1;  // of a CPU
  std::int64_t repeats = 5;
  std::vector<DType> types = {DType::f32, DType::bf16};  // of matrix work and of other operations
  bool fp8 = false;          // products of fp8 operands also where they have no rate of their own
  std::vector<int> node_of;  // by rank; empty: as MPI finds them
  /// Links between so many nodes are measured, rank 0's and those after it; unset: of all.
  std::optional<std::size_t> nodes;
  bool brief = false;  // with less work and memory, as the start of a run affords
};

/// Matrix products, attention, other operations, memory and links; not the disk. Links are absent
/// where there are none: within nodes of one rank, between nodes of one. Each is fitted to the
/// times of a short and of a long all-gather, by every rank of a node (of several nodes: by those
/// with the same number on their nodes), so that ranks that share a link share its rate; of several
/// groups the slowest counts. Collective.
deck::Machine measure_machine(const Backend& backend, const Ranks& ranks,
                              const MachineOptions& options);

/// The link of each pair of ranks, in turn, as the others wait. Collective; the same on all ranks.
std::vector<deck::Link> measure_links(const Backend& backend, const Ranks& ranks,
                                      const MachineOptions& options,
                                      std::span<const std::array<int, 2>> pairs);

}  // namespace tessera::backend
