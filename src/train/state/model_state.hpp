// A rank's part of the model's state in memory: where it comes from (initial values, a Hugging Face
// directory, a checkpoint) and how it goes into a checkpoint.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_writer.hpp"
#include "memory/arena.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::train {

/// Fills `out` with elements [range) of a parameter.
using ParameterSource =
    std::function<void(const model::ParamDesc& parameter, Range range, std::span<float> out)>;

/// Initial values: a pure function of (seed, parameter name, element), the same on every layout
/// (trap 25).
ParameterSource initial_values(std::uint64_t seed);

/// An element of a parameter that is NaN or infinite in a type that a state keeps it in.
struct NonFiniteElement {
  std::string parameter;
  std::int64_t element = 0;  // of the whole parameter, row-major
  std::string index;         // the same as "[row, column]"
  float value = 0;
  DType type = DType::f32;
};

class ModelState {
 public:
  /// What a rank's arenas of plans made from `inputs` need for it.
  static plan::ArenaBytes arena_bytes(const plan::PlanInputs& inputs, const MeshPlace& place);

  /// It lies in these arenas, which outlive it.
  ModelState(const plan::PlanInputs& inputs, const MeshPlace& place, const memory::Arena& state,
             const memory::Arena& host);

  /// Sets the weights from `source`, the optimizer's state to zero. Returns a weight that is not
  /// finite, if there is one among those of this rank.
  std::optional<NonFiniteElement> set_parameters(const ParameterSource& source);
  /// What this state holds of a checkpoint made under any layout. Returns as set_parameters does.
  std::optional<NonFiniteElement> load(io::Checkpoint& checkpoint);

  /// What this rank saves: each element of the model is in one rank's list.
  std::vector<io::Piece> pieces() const;
  enum class From : std::uint8_t { live, snapshot };
  /// Writes the pieces' bytes from the live state or from the snapshot buffers.
  void save(io::CheckpointWriter& writer, From from) const;

  /// What this rank holds of something that other ranks hold alike; `elements` is 0 where it holds
  /// nothing of it.
  struct Copy {
    std::uint64_t hash = 0;
    std::int64_t elements = 0;
  };
  /// Of data rank `owner`'s slice of a unit: the parameters, and the optimizer's state where it is
  /// replicated too. At stages 1 and 2 the owner of a slice has no copy in this sense: its own is
  /// newer than the others until it is published. At stage 3 nobody has.
  Copy slice_copy(std::size_t unit, std::int64_t owner) const;
  /// Of what this rank updates of a unit: parameters and the optimizer's state, all of it or what
  /// is in pieces that every tensor rank holds. Of those only elements that tensor ranks of the
  /// same data rank all update: with uneven shares, shards do not begin at the same element.
  enum class Part : std::uint8_t { whole_pieces, everything };
  Copy owned_copy(std::size_t unit, Part part) const;

  /// What forward reads of those elements of a parameter that this rank updates; absent if none.
  View owned_part(std::size_t unit, std::size_t parameter) const;

  const std::vector<plan::UnitState>& units() const { return states_; }

 private:
  struct SavedPiece;
  std::vector<SavedPiece> saved_pieces() const;
  /// A view of the state as one into memory, which `tier` reads and writes.
  struct Held {
    View view;
    memory::Tier* tier = nullptr;
    Held range(std::int64_t begin, std::int64_t count) const {
      return {view.range(begin, count), tier};
    }
  };
  Held held(const View& symbolic) const;
  /// Adds the part of a view of the state to a copy.
  void add_to(Copy& copy, const View& symbolic) const;
  /// Flat elements that every tensor rank of this data rank holds and updates.
  std::vector<Range> owned_by_all_tensor_ranks(std::size_t unit) const;
  static void put(std::span<const float> values, const std::vector<Held>& targets,
                  std::int64_t first);
  static void put(std::span<const std::byte> bytes, const Held& target, std::int64_t first);
  static std::optional<NonFiniteElement> find_non_finite(std::span<const float> values,
                                                         const std::vector<Held>& targets,
                                                         const model::ParamDesc& p,
                                                         const MatrixRange& part,
                                                         std::int64_t first);
  /// Fills `out` with a block of a parameter.
  using BlockSource =
      std::function<void(const model::ParamDesc&, const MatrixRange& part, std::span<float> out)>;
  std::optional<NonFiniteElement> set_master(const BlockSource& source);
  void set_zero(std::size_t row);
  /// Told of a part of a parameter of which this rank keeps a row, and where: in the row's own
  /// type, and, of the master weights, rounded if it keeps that.
  using HeldPart = std::function<void(const model::ParamDesc&, const MatrixRange& part,
                                      std::vector<Held> targets)>;
  void each_held(std::size_t row, const HeldPart& f);
  /// The flat elements of a unit of which this rank keeps a row.
  Range elements_of(const plan::UnitState& unit, std::size_t row) const;
  /// What a rank updates of a unit: parameters as forward reads them, if they are not the master
  /// weights, and what is kept beside them.
  std::vector<View> owned_views(const plan::UnitState& unit) const;

  const plan::PlanInputs& inputs_;
  const memory::Arena& state_arena_;
  const memory::Arena& host_arena_;
  plan::Plan layout_;                     // the persistent buffers only
  std::vector<optim::StateTensor> rows_;  // of what is kept of every unit
  std::vector<plan::UnitState> states_;
};

}  // namespace tessera::train
