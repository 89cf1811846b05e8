// The table of parameters, the single source from which initial values, flat layout, shards, norm,
// weight decay, checkpoint pieces, counts and Hugging Face names are derived.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mesh.hpp"
#include "core/view.hpp"
#include "kernels/api/quantize.hpp"
#include "model/config.hpp"

namespace tessera::model {

/// sinusoids: column 2 i of row t is sin(t / 10000^(2 i / C)), the next one the cosine (Vaswani et
/// al. 2017, section 3.5).
enum class Init : std::uint8_t { zeros, ones, normal, sinusoids };

/// How units are cut over tensor ranks: into `chunks` parts, of which each of `ranks` (a divisor of
/// chunks) holds the same number, consecutive ones. Normally a rank has one chunk. With a fixed
/// larger number of chunks, what is computed, and in which order it is summed, does not depend on
/// the number of ranks. Experts are divided over expert ranks besides: each holds an equal part of
/// those that a chunk has.
struct TensorCut {
  std::int64_t chunks = 1, ranks = 1, rank = 0;
  std::int64_t expert_ranks = 1, expert_rank = 0;
  std::int64_t own() const { return chunks / ranks; }
  std::int64_t first() const { return rank * own(); }
};

struct ParamDesc {
  std::string name;  // of checkpoints: "block.3.attention.q.weight"
  std::vector<std::int64_t> shape;
  std::int64_t stored_rows =
      0;  // shape[0], or more where rows are padded (token matrices); padding stays 0
  Init init = Init::zeros;
  double init_std = 0;   // of Init::normal
  bool joined = false;   // follows the one before without a gap, so that one product serves both
  int tensor_axis = -1;  // the axis that is cut in chunks; -1: every tensor rank has the whole
  std::int64_t granule = 1;              // indices of that axis that stay together
  std::int64_t expert = 0, experts = 0;  // of which of a layer's experts it is; 0: of none
  bool undivided = false;                // chunks have whole experts: that axis is not cut
  std::int64_t head_rows = 0;            // rows that one attention head makes; 0: they are of none
  bool latent = false;  // what it makes goes to every chunk: it is not in a tile, which has some

  /// Whether it has two or more dimensions of its own: optimizers treat matrices and vectors
  /// differently.
  bool is_matrix() const { return shape.size() >= 2; }
  std::int64_t elements() const;         // without padding
  std::int64_t stored_elements() const;  // with padding
  /// What a rank with this cut has of chunk i of n: of U granules the range [floor(i U / n),
  /// floor((i
  /// + 1) U / n)), nothing of experts that other ranks have. Rows are stored rows.
  MatrixRange part(std::int64_t chunk, const TensorCut& cut) const;
};

enum class UnitKind : std::uint8_t {
  vocabulary,
  positions,
  embedding_norm,
  block,
  block_part,
  final_norm,
  head_dense,
  head,
  head_bias,
  value_head
};

/// Which part of each rank's chunks a unit has: part `index` of `count` equal ones.
struct Tile {
  std::int64_t index = 0, count = 1;
};

/// How a unit's parameters are kept, and sent.
struct Storage {
  DType type = DType::f32;                    // of codes, u8
  std::optional<kernels::BlockFormat> codes;  // a slot for each shard
  auto operator<=>(const Storage&) const = default;

  /// Of a shard of so many elements.
  std::int64_t bytes(std::int64_t elements) const {
    return codes ? codes->bytes(elements) : elements * size_of(type);
  }
};

/// In what a unit may differ from others.
struct UnitTraits {
  bool trained = true;  // else frozen: no gradient, no optimizer's state, no update by it
  /// How a frozen unit's parameters are kept; nothing: in the run's compute type. Else they are
  /// turned into that before each use.
  std::optional<Storage> stored;
  /// In which type the unit is used, and so kept; nothing: in the run's compute type.
  std::optional<DType> type;
  /// Whether ZeRO may divide the unit among the ranks that share it, and it may live elsewhere than
  /// on the device; else each rank has all of it there.
  bool divided = true;
  /// What it keeps of how often each expert of its layer is chosen (kernels::BalanceExperts), where
  /// it does: it has no gradient.
  std::optional<kernels::BalanceBy> balances;
  /// Ranks of such a group use the same parameters for different samples: gradients are summed over
  /// them, and ZeRO divides the unit among them.
  MeshGroup shared_by = MeshGroup::data;
  /// The unit may travel quantised in blocks of so many elements, on whose multiples its parameters
  /// and shards begin; 0: it always travels as it is.
  std::int64_t block = 0;
};

/// The parameters that ZeRO gathers and pipelining places as one.
struct UnitDesc {
  std::string name;  // "vocabulary", "block.3", ...
  UnitKind kind = UnitKind::block;
  std::vector<ParamDesc> params;
  UnitTraits traits;
  std::string layer = name;  // what the names of its parameters begin with
  Tile tile;                 // of those parameters that are cut in chunks

  /// Index of the parameter "<layer>.<local>"; throws InternalError when there is none.
  std::size_t index_of(std::string_view local) const;
  bool has(std::string_view local) const;
  /// Whether it is one of those of a block's adapters.
  bool has_adapters() const;

 private:
  /// Whether the parameter is "<layer>.<local>". A layer of experts has hundreds.
  bool is(const ParamDesc& parameter, std::string_view local) const;
};

/// The matrices of a block that may have adapters, without the block's name and ".weight". A row's
/// number keys masks of dropout.
inline constexpr std::array<std::string_view, 13> kAdapterTargets = {
    "attention.q",     "attention.k",     "attention.v",        "attention.out",
    "mlp.gate",        "mlp.up",          "mlp.down",           "mlp.shared.gate",
    "mlp.shared.up",   "mlp.shared.down", "attention.q_latent", "attention.kv_latent",
    "attention.k_rope"};
/// Behind a block's name, what is kept of choices by BalanceBy::shares. It says something of steps,
/// not of the model, and so is in no file of models.
inline constexpr std::string_view kRouterShares = ".mlp.router.shares";

/// What the names of the head of values begin with.
inline constexpr std::string_view kValueHead = "value_head.";

/// How the names of an adapter's matrices end, in place of ".weight", and of its magnitudes (out),
/// which begin as the lengths of that matrix's rows.
inline constexpr std::string_view kAdapterA = ".lora_a", kAdapterB = ".lora_b",
                                  kAdapterMagnitude = ".lora_magnitude";

/// Whether a parameter of a unit may be kept as codes, where no tensor ranks divide it: those of
/// frozen layers (ModelConfig::frozen_codes), and those of a directory.
bool may_be_codes(const UnitDesc& unit, const ParamDesc& p);

/// The row of kAdapterTargets of a block's parameter; nothing where it can have no adapter.
std::optional<std::size_t> adapter_target(std::string_view layer, std::string_view parameter);
/// What an adapter's first matrix is beside, without ".weight"; nothing of another parameter.
std::optional<std::string> adapted_by(std::string_view parameter);
/// What magnitudes are of, without ".weight"; nothing of another parameter.
std::optional<std::string> measured_by(std::string_view parameter);

/// What parts of a layer are units of their own.
struct UnitDivision {
  /// A divisor of the chunks of each tensor rank: token matrices are so many units, and so are the
  /// cut parameters of each block's attention, but those of latents, and of its feed-forward. They
  /// are gathered one after another, and what is in memory at once is that much smaller
  /// (memory-centric tiling: Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.3).
  std::int64_t tiles = 1;
  /// Elements of a block of quantisation; 0: there is none. Matrices that each tensor rank has a
  /// part of are apart from what travels as it is: vectors, and what all tensor ranks have whole
  /// and must go on having alike.
  std::int64_t block = 0;
  /// How the matrices of layers are kept that are frozen and could travel quantised, but those of
  /// routers; nothing: in the run's compute type.
  std::optional<kernels::BlockFormat> codes;
  /// What of experts a chunk has.
  ExpertSplit experts = ExpertSplit::width;
  /// Whether data ranks divide experts among them, which are units of their own then: gradients are
  /// summed over those that have the same ones.
  bool expert_ranks = false;
};

/// All units in the order of forward: vocabulary, positions, embedding_norm, blocks, final_norm,
/// head_dense, head if it is untied, head_bias, and value_head, of which a model has what its
/// configuration says; to be cut into `chunks`. With fewer kv heads than chunks, keys and values
/// are whole on every tensor rank, which computes those that its query heads read.
///
/// A block's parameters are one unit, or several where `division` says so. What is kept of choices
/// of its experts is one in f32 that all ranks have, whatever else is rounded or divided:
/// common offsets are many times as large as what tells biases apart. Its adapters are
/// another one, or two; where the model has adapters, all other units but value_head are frozen,
/// and so are those of layers that the configuration freezes.
std::vector<UnitDesc> model_units(const ModelConfig& config, std::int64_t chunks = 1,
                                  const UnitDivision& division = {});

/// The chunks that a rank holds of a unit's parameters.
Range own_chunks(const UnitDesc& unit, const TensorCut& cut);

/// A unit's parameters as a rank holds them: [parameter][own chunk], with one entry for a parameter
/// that is whole.
using ParameterViews = std::vector<std::vector<View>>;

/// A unit and the views of its parameters.
struct UnitViews {
  const UnitDesc* unit = nullptr;
  ParameterViews params;
};

/// Number of parameters without padding, tied ones once. Of one of several tiles, its share.
std::int64_t parameter_count(std::span<const UnitDesc> units);

/// Number of those that are trained.
std::int64_t trained_count(std::span<const UnitDesc> units);

/// Floating-point operations a token of one training step: 6 N + 6 L C T (causal attention, C the
/// mean of its columns of queries and of values; twice
/// that where it sees all, and less where layers have a window; N counts the head's matrix, unless
/// outputs are pooled, but no embedding look-ups and no experts that a token does not meet), as
/// published MFU figures count. What is frozen has no gradients: 4 N of it, and below the lowest
/// layer that is trained forward alone: 2 N, and a third of attention.
double flop_per_token(const ModelConfig& config, std::int64_t sequence);

}  // namespace tessera::model
