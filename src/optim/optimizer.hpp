// An optimizer as data: the tensors that it keeps beside the weights, and the operation that is its
// update. Plans, the ledger, checkpoints and predictions know no more of an optimizer than this.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/enums.hpp"
#include "deck/deck.hpp"
#include "kernels/api/device.hpp"

namespace tessera::optim {

/// How many elements of a state tensor a rank keeps for a unit.
enum class Extent : std::uint8_t {
  owned,   // one for each element that the rank updates
  shard,   // one for each element of its slice of the unit, also where it updates everything
  tensor,  // one for each parameter tensor of the unit
  rank,    // one for each element of the unit, each rank its own
  whole,   // likewise, where momentum travels compressed, alike on all ranks once it does; else as
           // `owned`
  node,    // one for each element of which the rank makes the sum of its node, on the way of blocks
};

/// Whether an update gets the elements of such state that it updates; of other state it gets all
/// that its tensor or its unit has.
constexpr bool is_flat(Extent extent) { return extent == Extent::owned || extent == Extent::whole; }

/// A tensor that persists from step to step: a row of what a run keeps for every unit.
struct StateTensor {
  std::string name;  // in plans and in checkpoints, which have one such tensor for each parameter
  DType type = DType::f32;
  Extent extent = Extent::owned;
  /// Whether it is in checkpoints, element by element, and in the snapshots that these are written
  /// from. What is not saved is zero after a restart.
  bool saved = true;
  /// Whether a checkpoint that lacks it is refused; else it begins anew after a restart from there.
  bool required = true;
  bool begins_as_weights = false;  // else as zero
  bool of_matrices = true;         // whether matrices that are made orthogonal have it too
};

/// What an update of some elements of one unit works on. All views have the same number of
/// elements, but for state whose extent is `tensor`, of which it has the tensor's, and that of
/// others than `owned` and `whole`, which is passed whole.
struct UpdateViews {
  View gradient;                // accumulation type
  View master;                  // f32
  View parameter;               // compute type; absent where master is what forward reads
  View scalars, verdict;        // kernels::StepScalar, kernels::VerdictField
  View sums;                    // (words_per_tensor) i64, of the tensor that the elements are of
  View direction;               // where there is one: in a type of whole matrices
  std::span<const View> state;  // by row of Optimizer::state
};

/// How the elements of a parameter are updated, beside what is the same for all.
struct UpdateTerms {
  double lr_factor = 1;  // of the step's learning rate
  double weight_decay = 0;
  bool orthogonal = false;  // as matrices that are made orthogonal are
  double scale = 1;         // of what they become; decay is not multiplied with it
  bool operator==(const UpdateTerms&) const = default;
};

/// How parameters differ to an optimizer: vectors, matrices at the ends of the model, and those of
/// its blocks.
enum class ParameterKind : std::uint8_t { vector, matrix, hidden_matrix };

/// Whether a group of the deck has a parameter of this name: in `match`, * stands for
/// anything and ? for one character.
bool matches(const deck::ParameterGroup& group, const std::string& name);

using StepScalars = std::array<float, static_cast<std::size_t>(kernels::StepScalar::count)>;

/// The state of averaged weights.
inline constexpr std::string_view kEma = "ema";

/// A pass over some elements of one unit that have these terms.
using Pass = std::function<kernels::KernelCall(const UpdateViews& views, const UpdateTerms& terms)>;

/// An update of matrices by what becomes of them as wholes (Muon: Jordan et al. 2024). `direct`
/// makes the direction of each element; a matrix of these is made orthogonal, or nearly, by a
/// Newton-Schulz iteration; `move` moves weights along it.
struct OrthogonalUpdate {
  std::int64_t iterations = 5;
  bool by_heads = false;  // the rows of each attention head are a matrix of their own
  Pass direct, move;
};
/// The iteration X <- (a I + b A + c A^2) X with A = X X^T, from X over its Frobenius norm: a, b, c
/// (Jordan et al. 2024), for which the singular values come near 1 fastest.
inline constexpr std::array<float, 3> kNewtonSchulz = {3.4445F, -4.7750F, 2.0315F};
/// What an orthogonal update of a matrix is multiplied with, so that it is as large as one of AdamW
/// (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2).
double orthogonal_scale(std::int64_t rows, std::int64_t columns);

/// Of 1-bit LAMB (Li et al. 2021, algorithm 1) each tensor has two factors, c_avg of its ratios in
/// warm-up and r of what has become of its second moments since: rows of Optimizer::state.
struct TensorFactors {
  float beta3 = 0.9F, r_min = 0.5F, r_max = 4, r_threshold = 0.1F;  // kernels::FollowRatio
  std::array<double, 2> trust = {0.01, 10};
  std::size_t frozen = 0, running = 0;  // second moments: of updates, and those that go on (shard)
  std::size_t average = 0, ratio = 0;   // c_avg and r, of extent `tensor`
};

/// Momentum that travels in place of gradients, as blocks of signs (1-bit Adam: Tang et al. 2021,
/// algorithm 1). Each rank makes it of the momentum that all of them have and of its own gradient;
/// what both roundings lose, of the ranks' contributions and of their mean, is added in the next
/// step.
struct CompressedMomentum {
  std::int64_t after = 0;  // applied updates before it travels so
  std::int64_t block = 256;
  std::size_t row = 0;   // of Optimizer::state: the momentum, of extent `whole`
  float beta = 0.9F;     // m = beta m + (1 - beta) g
  Pass update;           // by the momentum that all ranks have, and other state as it is
  double beta2 = 0.999;  // of second moments
  std::optional<TensorFactors> factors;
};

struct Optimizer {
  std::vector<StateTensor> state;
  double clip_norm = 0;     // 0: none
  double weight_decay = 0;  // of matrices that no group says otherwise of
  std::vector<deck::ParameterGroup> groups;
  /// Of an update in two passes: how many 64-bit integers the first one adds up for each parameter
  /// tensor; the second needs them summed over all of the tensor's elements. 0: there is one pass.
  std::int64_t words_per_tensor = 0;
  /// The first pass of two, over some elements of one tensor. Without `sums` it counts none of
  /// them.
  Pass first_pass;
  /// The update, or of two passes the second, over elements of one tensor.
  Pass update;
  std::optional<OrthogonalUpdate> matrices;  // of hidden matrices, instead
  std::optional<CompressedMomentum> momentum;
  /// Sets the scalars that its update reads beside the learning rate, for applied update `t` (from
  /// 1).
  std::function<void(StepScalars& scalars, std::int64_t t)> set_scalars;

  /// The group that has the parameter of this name, or null.
  const deck::ParameterGroup* group_of(const std::string& name) const;
  /// The terms of a parameter: those of the group that has it; else matrices decay, and vectors
  /// (biases, gains of norms) do not.
  UpdateTerms terms_of(const std::string& name, ParameterKind kind) const;
};

/// Adam (Kingma and Ba 2015): moments adam_m and adam_v. AdamW (Loshchilov and Hutter 2019) where
/// decay is decoupled.
struct AdamRule {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  kernels::Decay decay = kernels::Decay::decoupled;
  DType moments = DType::f32;  // or bf16, rounded at random
};
Optimizer adam(const AdamRule& rule = {});

/// LAMB (You et al. 2020) without bias correction: moments lamb_m and lamb_v, and for each tensor
/// of the table of parameters a factor |x| / |u|, clipped to `trust` (kernels::UpdateRule has the
/// formula).
struct LambRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-12;
  std::array<double, 2> trust = {0.01, 10};
  DType moments = DType::f32;  // or bf16, rounded at random
};
Optimizer lamb(const LambRule& rule = {});

/// Lion (Chen et al. 2023): one moment, lion_m, and updates of one size whatever the gradient's.
struct LionRule {
  double beta1 = 0.9, beta2 = 0.99;
  DType moments = DType::f32;  // or bf16, rounded at random
};
Optimizer lion(const LionRule& rule = {});

/// Gradient descent with momentum (Polyak 1964; Nesterov 1983 in the form of Sutskever et al. 2013)
/// as PyTorch's SGD without dampening: its buffer is sgd_m; decay goes through the gradient.
struct SgdRule {
  double momentum = 0.9;
  bool nesterov = false;
  DType moments = DType::f32;  // or bf16, rounded at random
};
Optimizer sgd(const SgdRule& rule = {});

/// Muon (Jordan et al. 2024) of hidden matrices, with decay and as large as AdamW's updates (Liu et
/// al. 2025); AdamW of all else. Its moments are muon_m, and muon_v of what AdamW updates.
struct MuonRule {
  double momentum = 0.95;
  bool nesterov = true;
  std::int64_t iterations = 5;
  bool by_heads = false;
  AdamRule others;
};
Optimizer muon(const MuonRule& rule = {});

/// 1-bit Adam (Tang et al. 2021): Adam without bias correction and with decoupled decay for `after`
/// updates; from then on the second moment stays as it is, and momentum travels compressed. Its
/// moments are onebit_m and onebit_v.
struct OneBitAdamRule {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  std::int64_t after = 0;
  std::int64_t block = 256;  // elements that share a scale
};
Optimizer onebit_adam(const OneBitAdamRule& rule = {});

/// 1-bit LAMB (Li et al. 2021, algorithm 1): LAMB for `after` updates; from then on momentum
/// travels compressed, the second moment that updates are by stays as it is, and tensors keep the
/// mean of their factors, times how far second moments that go on have moved. Its moments are
/// onebit_m and onebit_v, beside onebit_v_running, onebit_c and onebit_r.
struct OneBitLambRule {
  double beta1 = 0.9, beta2 = 0.999, beta3 = 0.9, eps = 1e-12;
  std::array<double, 2> trust = {0.01, 10};
  double r_min = 0.5, r_max = 4, r_threshold = 0.1;
  std::int64_t after = 0;
  std::int64_t block = 256;  // elements that share a scale
};
Optimizer onebit_lamb(const OneBitLambRule& rule = {});

/// The same with an exponential moving average of the weights as its last state, ema: a <- decay a
/// + (1 - decay) x after each update, from the weights that a run begins with (Polyak and Juditsky
/// 1992, in the form of Tarvainen and Valpola 2017).
Optimizer with_ema(Optimizer optimizer, double decay);

/// The optimizer that a deck asks for.
Optimizer make_optimizer(const deck::OptimizerSection& section);

/// Bytes of state that an optimizer keeps for each element of the model, those of them that every
/// data rank has for all elements, and those that a checkpoint has. What matrices that are made
/// orthogonal do not have is left out.
std::int64_t bytes_per_element(const Optimizer& optimizer);
std::int64_t whole_bytes_per_element(const Optimizer& optimizer);
std::int64_t saved_bytes_per_element(const Optimizer& optimizer);

}  // namespace tessera::optim
