// What all plans of a run are made from: model, layout, numbers, sharding, the optimizer. A plan
// made from the same inputs is the same on every machine.
#pragma once

#include <optional>
#include <vector>

#include "comm/route.hpp"
#include "core/choices.hpp"
#include "core/sharding.hpp"
#include "model/tensor_parallel.hpp"
#include "optim/optimizer.hpp"
#include "plan/ir/channels.hpp"
#include "plan/ir/plan.hpp"
#include "zero/model_states.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::plan {

struct PipelineRule {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::int64_t virtual_stages = 1;         // runs of layers of each stage, V
  std::vector<std::int64_t> first_layers;  // block that each run begins with; empty: balanced
};

struct ModelInputs {
  model::ModelConfig config;
  std::vector<model::UnitDesc> units;
};

/// How the ranks that divide each sequence do that.
struct ContextInputs {
  ContextKind kind = ContextKind::gather;
  /// Into how many shares of two chunks each (kernels::ZigzagChunks) a sequence is cut: a multiple
  /// of the ranks; 1: it is whole.
  std::int64_t shares = 1;
  std::int64_t groups = 8;  // of heads whose keys travel one after another, at most
};

/// Which rank does what.
struct LayoutInputs {
  Mesh mesh;
  std::vector<int> node_of;        // by world rank; empty: all are on one node
  bool nccl = false;               // NCCL carries messages and collectives; else our exchange
  std::int64_t tensor_chunks = 1;  // chunks of units, or what the tensor ranks need if that is more
  bool split_sequence = true;      // over tensor ranks
  ExpertExchange expert_exchange = ExpertExchange::direct;
  /// Two micro-batches are under way at a time, so that one computes while tokens of the other are
  /// exchanged. Needs a single stage.
  bool overlap_experts = false;
  ContextInputs context;
  PipelineRule pipeline;
};

/// Element types, formats of what travels, and the order of sums.
struct NumericsInputs {
  DType compute = DType::f32;
  DType accumulate = DType::f32;  // of gradients, over micro-batches
  DType wire = DType::f32;        // of gradients
  /// In which blocks parameters that ZeRO-3 gathers for training, and gradients, travel; nothing:
  /// as they are. Evaluation always gathers parameters as they are, so that its loss does not
  /// depend on the layout.
  std::optional<kernels::BlockFormat> weight_blocks, gradient_blocks;
  /// Bytes of each shard of a unit's parameters or gradients that become blocks at once. The bits
  /// do not depend on it.
  std::int64_t chunk_bytes = 1 << 20;
  /// What the first rounding of a gradient to its blocks loses is added to the gradient of the next
  /// step (error feedback).
  bool error_feedback = false;
  bool stochastic = false;  // gradients become blocks by rounding at random
  kernels::Operands operands = kernels::Operands::stored;  // of the blocks' products
  kernels::SumOrder order = kernels::SumOrder::fixed;
  /// Layout mode: the same bits on every mesh. Gradients are added in a tree over micro-batches,
  /// and sums over ranks travel in f32.
  bool layout_mode = false;
};

/// ZeRO.
struct ShardingInputs {
  int stage = 0;  // a row of kShardings
  ReduceWhen reduce = ReduceWhen::step;
  std::int64_t prefetch = 1;
  /// Neighbouring data ranks among which what stage 3 gathers a second time within a step is
  /// divided: those of a node, or so many (hpZ of ZeRO++, Wang et al. 2023, section 3.2).
  struct Secondary {
    std::int64_t ranks = 0;  // 0: those of a node
  };
  std::optional<Secondary> secondary;
};

/// Where things live while nothing uses them.
struct OffloadInputs {
  Location parameters = Location::device;   // in the type that they are kept in
  Location gradients = Location::device;    // summed
  Location optimizer = Location::device;    // its state, and master weights if they are separate
  Location activations = Location::device;  // those that backward needs
  Location cache = Location::device;        // of generation; where it is the host's a GPU reads it
  double optimizer_share = 1;               // of a rank's state that lives there, in whole units
  std::int64_t ahead = 2;                   // visits between the begin of a fetch and its use
  std::int64_t tile = 1 << 22;  // elements that one update has of a unit whose state is elsewhere
  /// Whether the device's memory is the host's, which disks reach. Else what goes between disks and
  /// the device goes through the host's memory, and the host updates what lives there or on disks.
  bool device_is_host = true;

  bool uses(Location location) const {
    return parameters == location || gradients == location || optimizer == location ||
           activations == location;
  }
  /// Whether anything lives elsewhere than on the device.
  bool anything() const { return uses(Location::host) || uses(Location::disk); }
  /// Where updates of a unit are computed whose state is at `state`.
  Location updates_at(Location state) const {
    return device_is_host || state == Location::device ? Location::device : Location::host;
  }
  Location caches_at() const { return device_is_host ? Location::device : cache; }
  /// Where checkpoints find what they take of updates.
  Location saves_at() const { return device_is_host ? Location::device : Location::host; }
  /// Whether updates use what lives elsewhere. Then the update of a step is at the head of the next
  /// step's plan, where it goes on beside forward.
  bool updates() const {
    return parameters != Location::device || gradients != Location::device ||
           optimizer != Location::device;
  }
};

/// Documents that share a sequence.
struct DocumentInputs {
  bool separate = false;   // attention stays within them
  bool positions = false;  // positions count from their begins
};

/// What is learned of tokens that the model drew.
struct PolicyInputs {
  std::optional<kernels::PolicyTerms> terms;  // absent where the model says values alone
  std::optional<kernels::ValueTerms> value;   // of values of states, where the model has some
  bool weighted = false;                      // whether targets weigh differently
  bool drawn_before = false;                  // by a model that has been updated since
};

/// What generation keeps of sequences that it goes on with.
struct CacheInputs {
  std::int64_t slots = 0;  // sequences of a data rank
  std::int64_t room = 0;   // tokens of each
  std::int64_t pages = 0;  // of all of them, of kernels::kPageTokens each
  bool latents = false;    // of which keys and values are made, in their place
};

/// A micro-batch as a rank has it: sequences, or chunks of sequences, of so many tokens.
struct MicroBatchRows {
  std::int64_t batch = 0, sequence = 0;
};

/// What all plans of a run share.
struct PlanInputs {
  ModelInputs model;
  LayoutInputs layout;
  NumericsInputs numerics;
  ShardingInputs sharding;
  OffloadInputs offload;
  DocumentInputs documents;
  std::int64_t logit_rows = 0;  // of a micro-batch, whose logits are in memory at once; 0: all
  std::int64_t inner_rows = 0;  // likewise inner columns of dense feed-forward layers
  kernels::LossTerms loss_terms;
  kernels::PreferenceTerms preference;  // where samples are pairs
  std::optional<PolicyInputs> policy;   // where training's targets are tokens that the model drew
  kernels::RouterTerms router_terms;
  float balance_rate = 0;  // by which a step moves biases by which experts are chosen
  Recompute recompute = Recompute::none;
  optim::Optimizer optimizer = optim::adam();
  const kernels::Device* device = nullptr;  // asked for scratch sizes only
  std::uint64_t seed = 0;
  PlanPurpose state_for = PlanPurpose::train;  // the last of the purposes of the run's plans
  std::int64_t most_tallies = 0;               // of any of them
  std::int64_t most_scores = 0;                // of a rank, of any of them
  std::optional<CacheInputs> cache;            // where some of them are of generation

  /// What a rank has of a micro-batch of this shape. In generation ranks that divide sequences
  /// otherwise have sequences of their own.
  MicroBatchRows rows(const PlanShape& shape) const {
    const std::int64_t shares = layout.context.shares;
    if (shares == 1 || shape.purpose == PlanPurpose::generate)
      return {.batch = shape.micro, .sequence = shape.sequence};
    const std::int64_t chunks = kernels::ZigzagChunks{shares}.count();
    return {.batch = shape.micro * chunks / layout.mesh.context,
            .sequence = shape.sequence / chunks};
  }
  /// What losses of pairs are in a plan of this shape.
  kernels::PreferenceTerms compared(const PlanShape& shape) const {
    return shape.of_targets ? kernels::PreferenceTerms{} : preference;
  }
  /// What is said beside losses, of each pair or, where a model has been updated since it drew
  /// them, of each target; and of how many, in a micro-batch.
  struct Statistics {
    std::int64_t count = 0, of = 0;
  };
  Statistics statistics(const PlanShape& shape) const {
    if (compared(shape)) return {.count = kernels::kPreferenceStats, .of = rows(shape).batch / 2};
    if (shape.purpose < PlanPurpose::train || most_statistics() == 0) return {};
    return {.count = kernels::kPolicyStats, .of = losses(shape)};
  }
  /// The most of any plan.
  std::int64_t most_statistics() const {
    if (preference) return kernels::kPreferenceStats;
    return policy && policy->terms && policy->drawn_before ? kernels::kPolicyStats : 0;
  }
  /// How many losses a micro-batch has: of its targets, or of its samples where pairs have them.
  std::int64_t losses(const PlanShape& shape) const {
    const MicroBatchRows has = rows(shape);
    return has.batch * (compared(shape) ? 1 : model.config.targets_of(has.sequence));
  }
  /// How many of these there are if all count: a pair has one.
  std::int64_t counted_losses(const PlanShape& shape) const {
    return losses(shape) / (compared(shape) ? 2 : 1);
  }
  /// What data ranks keep in shards.
  Sharding sharded() const { return sharding_of(sharding.stage, layout.mesh.data); }
  /// The type in which a unit's parameters are used.
  DType type_of(const model::UnitDesc& unit) const {
    return unit.traits.type.value_or(numerics.compute);
  }
  /// How they are kept, and sent.
  model::Storage stored(const model::UnitDesc& unit) const {
    return unit.traits.stored.value_or(
        model::Storage{.type = type_of(unit), .codes = std::nullopt});
  }
  zero::StateTypes state_types() const {
    return {.compute = numerics.compute,
            .accumulate = numerics.accumulate,
            .optimizer = optim::bytes_per_element(optimizer),
            .whole = optim::whole_bytes_per_element(optimizer)};
  }
};

/// Whether a step leaves something to do that its state has to wait for.
inline bool leaves_work(const PlanInputs& in) {
  return in.offload.updates() || in.numerics.error_feedback;
}
/// The plan of what a step leaves to the next one, if it does: run where none follows.
constexpr PlanShape flush_after(Compression step) {
  return {.purpose = PlanPurpose::flush,
          .compression = step == Compression::none ? Compression::none : Compression::on};
}

/// Of a step before which so many updates were applied.
inline Compression compression_at(const optim::Optimizer& optimizer, std::int64_t applied) {
  if (!optimizer.momentum || applied < optimizer.momentum->after) return Compression::none;
  return applied == optimizer.momentum->after ? Compression::begins : Compression::on;
}

/// The tensors that a run keeps of every unit beside the parameters in the compute type: row 0 is
/// the master weights, then comes the optimizer's state. With error feedback the last ones are the
/// errors' sum over data ranks, which is up to date where checkpoints take it, and each rank's own;
/// and where momentum travels compressed those of the rounding of its mean, and of sums of nodes.
std::vector<optim::StateTensor> kept_tensors(const PlanInputs& inputs);
inline constexpr std::size_t kMasterRow = 0;

/// How an optimizer tells a unit's parameters apart.
optim::ParameterKind kind_of(const model::UnitDesc& unit, const model::ParamDesc& parameter);

/// Whether the unit is a tied matrix that both ends of the pipeline hold.
bool on_both_ends(const PlanInputs& inputs, const model::UnitDesc& unit);

/// Whether gradients of the unit travel as blocks, or momentum in their place does once it is
/// compressed; and whether their errors are kept.
bool gradient_in_blocks(const PlanInputs& inputs, const model::UnitDesc& unit);
bool keeps_errors(const PlanInputs& inputs, const model::UnitDesc& unit);
/// The same in a step of this shape.
bool gradient_in_blocks(const PlanInputs& inputs, const model::UnitDesc& unit,
                        const PlanShape& shape);

/// A unit in the flat buffer of a rank at `place`.
zero::UnitLayout unit_layout(const PlanInputs& inputs, const model::UnitDesc& unit,
                             const MeshPlace& place);
/// That rank's shard of it.
Range slice_of(const PlanInputs& inputs, const model::UnitDesc& unit,
               const zero::UnitLayout& layout, const MeshPlace& place);

model::TensorCut tensor_cut(const PlanInputs& inputs, const MeshPlace& place);
comm::GroupShape group_shape(const PlanInputs& inputs, const MeshPlace& place, MeshGroup group);
/// How quantised gradients reach the ranks of the group of `place` that shares a unit.
comm::Route gradient_route(const PlanInputs& inputs, const MeshPlace& place,
                           MeshGroup group = MeshGroup::data);
/// How parameters and gradients that are gathered reach them, and how those are summed that are not
/// quantised.
comm::Route gather_route(const PlanInputs& inputs, const MeshPlace& place,
                         MeshGroup group = MeshGroup::data);
comm::Route sum_route(const PlanInputs& inputs, const MeshPlace& place,
                      MeshGroup group = MeshGroup::data);
/// How tokens reach experts: one hop among all ranks that divide them or, where it goes by nodes
/// and each node has as many neighbours of every such group, within a node, behind the one across.
comm::Route expert_route(const PlanInputs& inputs, const MeshPlace& place);
/// Whether a channel needs a group: it has several ranks and, if it is for hops across nodes, there
/// are such hops. The same on all ranks.
bool is_used(const PlanInputs& inputs, const ChannelRow& channel);

}  // namespace tessera::plan
