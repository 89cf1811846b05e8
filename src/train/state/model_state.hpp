// A rank's part of the model's state in memory: where it comes from (initial values, a Hugging Face
// directory, a checkpoint) and how it goes into a checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_writer.hpp"
#include "memory/arena.hpp"
#include "memory/tier.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::train {

/// The allocations of a run.
using Arenas = plan::PerArena<std::unique_ptr<memory::Arena>>;

/// Fills `out` with elements [range) of a parameter.
using ParameterSource =
    std::function<void(const model::ParamDesc& parameter, Range range, std::span<float> out)>;

/// Initial values: a pure function of (seed, parameter name, element), so that they are the same on
/// every layout.
ParameterSource initial_values(std::uint64_t seed);

/// Fills `out` with elements [range) of magnitudes: the lengths of rows of the matrix that they are
/// of, one of these units' parameters, as `source` has it.
void fill_row_lengths(const model::ParamDesc& magnitudes, std::span<const model::UnitDesc> units,
                      const ParameterSource& source, Range range, std::span<float> out);

/// An element of a parameter that is NaN or infinite in a type that a state keeps it in.
struct NonFiniteElement {
  std::string parameter;
  std::int64_t element = 0;  // of the whole parameter, row-major
  std::string index;         // the same as "[row, column]"
  float value = 0;
  DType type = DType::f32;
};

/// Whether a checkpoint has this state of all parameters that are trained.
bool has_state(const io::Checkpoint& checkpoint, std::span<const model::UnitDesc> units,
               std::string_view state);
/// The state of a checkpoint that has a parameter's weights where those of such a state are wanted:
/// what is frozen has no other than the master weights.
std::string weights_in(const io::Checkpoint& checkpoint, std::string_view parameter,
                       std::string_view state);

/// The error of a checkpoint of which averaged weights are wanted, and which has none.
DataError no_averaged_weights(const std::filesystem::path& checkpoint);

class ModelState {
 public:
  /// The arena bytes that a rank needs for its state alone, in plans made from `inputs`.
  static plan::ArenaBytes arena_bytes(const plan::PlanInputs& inputs, const MeshPlace& place);

  /// The state lies in these arenas, which must outlive it; those that it does not need may be
  /// absent.
  ModelState(const plan::PlanInputs& inputs, const MeshPlace& place, const Arenas& arenas);

  /// Checkpoints of this state have another model's beside it, which must outlive it: in these
  /// tensors' names `prefix` stands before those of that model. It is loaded, and saved, with this.
  void take_along(ModelState& other, std::string prefix);
  /// Which state of a checkpoint load() takes for the weights; averaged ones not every checkpoint
  /// has.
  void take_for_weights(std::string_view state) { weights_ = state; }
  bool lacks_averaged_weights(const io::Checkpoint& checkpoint) const;

  /// What the state keeps of values: those of codes, or of the type. (Blocks of codes are those of
  /// whole matrices: where a rank keeps parts of rows that have no whole blocks, it has others.)
  ParameterSource as_kept(const ParameterSource& source) const;

  /// Sets the weights from `source`, the optimizer's state to zero or as it begins. Returns a
  /// weight that is not finite, if there is one among those of this rank.
  std::optional<NonFiniteElement> set_parameters(const ParameterSource& source);
  /// The same of the parameters that are trained alone: others stay as they are.
  std::optional<NonFiniteElement> set_trained(const ParameterSource& source);
  /// What weights have lost as they became codes the last time: sums over those of this rank of
  /// squares, of the differences and of the weights. On every rank the same parameters, which are
  /// kept so.
  struct CodeError {
    std::string parameter;
    double lost = 0, all = 0;
  };
  const std::vector<CodeError>& code_errors() const { return code_errors_; }
  /// Reads from a checkpoint, made under any layout, what this state holds. Returns as
  /// set_parameters does.
  std::optional<NonFiniteElement> load(io::Checkpoint& checkpoint,
                                       const io::ReadProgress& progress = {});

  /// The pieces that this rank saves, and behind them those of what is taken along: each element is
  /// in one rank's list.
  std::vector<io::Piece> pieces() const;
  enum class From : std::uint8_t { live, snapshot };
  /// Writes the pieces' bytes from the live state or from the snapshot buffers; of the latter, but
  /// for what tiles bring.
  void save(io::CheckpointWriter& writer, From from) const;
  /// Writes what a checkpoint has of a tile that `op` saves; its bytes are in real memory.
  void save(io::CheckpointWriter& writer, const plan::Op& op, const plan::SaveTile& tile) const;

  /// Sets `out` to elements [range) of the parameter of this name, as far as this rank saves them,
  /// and to 0 elsewhere: each element of the model is in one rank's, of codes what they stand for.
  void own_weights(const model::ParamDesc& parameter, Range range, std::span<float> out) const;

  /// A hash of elements that other ranks hold too; `elements` is 0 where this rank holds none of
  /// them.
  struct Copy {
    std::uint64_t hash = 0;
    std::int64_t elements = 0;
  };
  /// The copy of data rank `owner`'s slice of a unit: the parameters, and the optimizer's state
  /// where that is replicated too. At ZeRO stages 1 and 2 the owner itself gives none, because its
  /// parameters are newer than the others' until they are published. At stage 3 there are
  /// copies of what ZeRO does not divide alone.
  Copy slice_copy(std::size_t unit, std::int64_t owner) const;
  /// The copy of what this rank updates of a unit (parameters and optimizer state): all of it, or
  /// only what every tensor rank holds whole. Of the latter only elements that all tensor ranks of
  /// the same data rank update, because with uneven shares their shards do not begin at the same
  /// element.
  enum class Part : std::uint8_t { whole_pieces, everything };
  Copy owned_copy(std::size_t unit, Part part) const;

  /// A view of the state in real memory, which `tier` reads and writes.
  struct RealView {
    View view;
    memory::Tier* tier = nullptr;
    RealView range(std::int64_t begin, std::int64_t count) const {
      return {view.range(begin, count), tier};
    }
  };
  /// What forward reads of those elements of a parameter that this rank updates; absent if none.
  RealView owned_part(std::size_t unit, std::size_t parameter) const;

  const std::vector<plan::UnitState>& units() const { return states_; }

 private:
  struct SavedPiece {
    io::Piece piece;  // of the row's values, which it may want in another type
    std::size_t unit = 0;
    std::size_t row = plan::kMasterRow;
    std::int64_t flat = 0;  // first element in the unit's flat buffer
  };
  std::vector<SavedPiece> saved_pieces() const;
  /// Writes `elements` as the elements from `first` on of a piece.
  void save(io::CheckpointWriter& writer, std::size_t index, const RealView& elements,
            std::int64_t first) const;
  std::string name_of(const model::ParamDesc& p) const { return prefix_ + p.name; }
  RealView real(const View& symbolic) const;
  /// Adds the elements of a view to the hash of a copy.
  void add_to(Copy& copy, const View& symbolic) const;
  /// Flat elements that every tensor rank of this data rank holds and updates.
  std::vector<Range> owned_by_all_tensor_ranks(std::size_t unit) const;
  static void put(std::span<const float> values, const std::vector<RealView>& targets,
                  std::int64_t first);
  static void put(std::span<const std::byte> bytes, const RealView& target, std::int64_t first);
  /// Of values of this type, in the target's.
  static void put_converted(std::span<const std::byte> bytes, DType type, const RealView& target,
                            std::int64_t first);
  std::optional<NonFiniteElement> find_non_finite(std::span<const float> values,
                                                  const model::ParamDesc& p,
                                                  const MatrixRange& part,
                                                  std::int64_t first) const;
  /// Fills `out` with a block of a parameter.
  using BlockSource =
      std::function<void(const model::ParamDesc&, const MatrixRange& part, std::span<float> out)>;
  /// Sets rows of weights, master first: these themselves, and what begins as they are.
  enum class Units : std::uint8_t { all, trained };
  std::optional<NonFiniteElement> set_weights(std::span<const std::size_t> rows,
                                              const BlockSource& source, Units units = Units::all);
  void set_zero(std::size_t row);
  /// What a checkpoint has for a row of a parameter; nothing where that may be missing and is.
  struct SavedTensor {
    std::string state;
    DType type;
  };
  std::optional<SavedTensor> find_saved(const io::Checkpoint& checkpoint, const model::ParamDesc& p,
                                        std::size_t row, bool may_miss) const;
  /// Adds what is read of a row that has one value for each tensor.
  void want_of_tensors(const io::Checkpoint& checkpoint, std::size_t row, bool may_miss,
                       std::vector<io::Wanted>& wanted);
  /// With error feedback: of errors that were summed each rank takes its shard's.
  void divide_errors();
  /// Of the step before, which was not of this state.
  void forget_update();
  /// Called with a part of a parameter of which this rank keeps rows of one extent, and with where
  /// it keeps it: in each row's own type and, for master weights, also rounded to the compute type
  /// if the rank keeps that.
  using HeldPart = std::function<void(const model::ParamDesc&, const MatrixRange& part,
                                      std::vector<RealView> targets)>;
  /// Of a unit that is kept as codes, `f` is told of f32 elements in their place, of some at a
  /// time, and `filled` is called before these become codes.
  void each_held(std::span<const std::size_t> rows, const HeldPart& f,
                 const std::function<void()>& filled, Units units = Units::all);
  void each_of_codes(std::size_t unit, const HeldPart& f, const std::function<void()>& filled);
  /// Makes codes of these elements of one slot of a unit, whole blocks from its element `first` on;
  /// adds what they lose.
  void encode(std::size_t unit, std::int64_t first, std::span<const float> values);
  void add_errors(std::size_t unit, std::int64_t first, std::span<const float> values,
                  std::span<const float> decoded);
  /// take(element, values) for elements `flat` of a unit, piece by piece; of its codes these are
  /// all from element `first` on.
  template <typename Take>
  static void decode(const plan::UnitState& unit, const RealView& codes, std::int64_t first,
                     Range flat, Take&& take);
  /// The values of a piece of the weights.
  std::vector<float> weights_of(const SavedPiece& saved) const;
  /// Writes some elements of a piece of a unit that is kept as codes, out of those of whole shards
  /// from element `first` on.
  void save_codes(io::CheckpointWriter& writer, std::size_t index, const RealView& codes,
                  std::int64_t first, Range elements) const;
  /// Adds what a rank updates of some elements of a unit to the hash of a copy: the parameters that
  /// forward reads, if they are not the master weights, and the rows that are kept beside them.
  void add_owned(Copy& copy, const plan::UnitState& unit, const Range& elements) const;

  const plan::PlanInputs& inputs_;
  const Arenas& arenas_;
  plan::Plan layout_;                     // the persistent buffers only
  std::vector<optim::StateTensor> rows_;  // of what is kept of every unit
  std::vector<plan::UnitState> states_;
  std::vector<SavedPiece> saved_;
  std::vector<CodeError> code_errors_;
  mutable memory::HostTier host_;  // of elements that become codes
  std::string weights_ = "master";
  std::string prefix_;           // of tensors' names in checkpoints
  std::size_t first_piece_ = 0;  // of a checkpoint's
  ModelState* beside_ = nullptr;
};

}  // namespace tessera::train
