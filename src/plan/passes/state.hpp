// The buffers that persist from step to step: parameters, master weights and optimizer state,
// snapshots, and the words that the host reads and writes.
#pragma once

#include <vector>

#include "plan/ir/inputs.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::plan {

/// Symbolic views of one unit's state on one rank.
struct UnitState {
  /// One row of kept_tensors.
  struct Kept {
    View live;  // absent where nothing trains, but for the master weights in f32
    View
        snapshot;  // of the shard's; absent where it is not saved, never beside a step, or in tiles
    Range elements;  // flat ones of the unit, that `live` has
  };
  bool held = false;     // used by this rank's pipeline stage; otherwise nothing below is set
  bool trained = false;  // held, and not frozen
  Sharding sharding;     // what this rank keeps a shard of only
  zero::UnitLayout layout;
  Location home = Location::device;       // of the parameters
  Location optimizer = Location::device;  // of the optimizer's state
  Range slice;                            // flat elements of this rank's shard
  Range owned;      // flat elements that this rank updates: its shard, or everything at stage 0. Of
                    // a frozen unit those that it keeps
  View parameters;  // (padded) stored type; absent at stage 3 with several ranks
  View own_shard;   // (shard) stored type: this rank's slice of the parameters
  /// How parameters are kept that are not kept as elements: slots of codes of so many elements, u8,
  /// one for each shard. Where all ranks have all of them and none goes into checkpoints there is a
  /// single one, which has each matrix together.
  std::optional<kernels::BlockFormat> codes;
  std::int64_t slot = 0;
  View copy;      // (owned) compute type, written beside the master weights; absent in f32
  View gradient;  // (owned) of the step before, where the next one updates by it; else absent
  std::vector<Kept> kept;  // by row
  /// With error feedback: what earlier steps' roundings have lost of this rank's gradient, (padded)
  /// bf16, and the sum of that over data ranks, (shard) f32. Of compressed momentum: what roundings
  /// of its mean have lost, (shard) bf16, and of sums of nodes, (nodes x shard) bf16, in the order
  /// in which these leave for their owners; absent where none are made.
  View errors, error_sum, mean_error, node_error;
  /// In generation with secondary shards, what this rank keeps for its node from pass to pass, of
  /// bytes: the shards of ranks in its place on each node. Absent where there are none.
  View of_node;
  std::vector<model::KvCache> caches;  // in generation, of the first unit of a block, by own chunk

  /// The master weights, (owned) f32. Where compute is f32 they are the parameters themselves, and
  /// so they are, in the stored type, of a frozen unit.
  const View& master() const { return kept[kMasterRow].live; }
  /// One of the optimizer's, and some elements of it, of which it has all.
  const Kept& state(std::size_t row) const { return kept[kMasterRow + 1 + row]; }
  /// Of the ranks that the unit is divided among, which this one is.
  std::int64_t index() const { return slice.begin / layout.shard; }
  /// What a row keeps of these flat elements: of codes, which are of whole shards, their slots.
  Range kept_in(const Kept& row, const Range& part) const {
    const Range own{part.begin - row.elements.begin, part.end - row.elements.begin};
    if (!codes) return own;
    TESSERA_CHECK(own.begin % slot == 0 && own.end % slot == 0, "codes of a part of a slot");
    const std::int64_t bytes = codes->bytes(slot);
    return {own.begin / slot * bytes, own.end / slot * bytes};
  }
  /// Whether parameters are brought into a window before they are used.
  bool in_windows(DType compute) const {
    return held && (!parameters || parameters.type != compute || home != Location::device);
  }
};

/// Whether a checkpoint beside a step takes tiles of a row, as their updates leave them: there is
/// no room in memory for a copy of what lives on disks.
inline bool saved_in_tiles(const Plan& plan, const UnitState::Kept& kept) {
  return kept.live && plan.buffer(buffer_of(kept.live)).location == Location::disk;
}

/// The elements of a row that a rank's checkpoint has: its shard's, or all of what is of tensors.
Range saved_of(const optim::StateTensor& row, const UnitState& state, std::size_t index);

/// Sets the plan's place and groups, which add_state reads.
void set_place(Plan& plan, const PlanInputs& inputs, const MeshPlace& place);

/// Adds the persistent buffers that inputs.state_for needs. They are the first buffers of the plan,
/// in the same order in every plan of the run, so that all plans find the state at the same
/// addresses.
std::vector<UnitState> add_state(Plan& plan, const PlanInputs& inputs);

/// Where a unit's parameters are first wanted, at home: by which op.
struct FirstUse {
  std::size_t unit, op;
};
/// Of all trained units, in their order; those that no op wants come last, at the plan's end.
std::vector<FirstUse> first_uses(const Plan& plan, const std::vector<UnitState>& states);

/// The ranges of this rank's shard of a unit that it counts: each element of the model has one rank
/// that adds it to the norm and writes it to checkpoints.
std::vector<Range> counted_ranges(const PlanInputs& inputs, const Plan& plan, std::size_t unit,
                                  const zero::UnitLayout& layout);

}  // namespace tessera::plan
