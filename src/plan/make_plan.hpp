// From a model, a layout and a shape to the plan of one rank: a chain of passes, each one idea and
// one file.
#pragma once

#include <limits>
#include <optional>

#include "comm/route.hpp"
#include "plan/pipeline.hpp"
#include "plan/plan.hpp"
#include "plan/record.hpp"

namespace tessera::plan {

enum class ReduceWhen : std::uint8_t { step, micro };

struct OptimizerRule {
  float beta1 = 0.9F, beta2 = 0.95F, eps = 1e-8F, weight_decay = 0;
  kernels::AdamUpdate::Decay decay_kind = kernels::AdamUpdate::Decay::decoupled;
  double clip_norm = 0;
};

/// What all plans of a run share.
struct PlanInputs {
  model::ModelConfig config;
  std::vector<model::UnitDesc> units;
  const kernels::Device* device = nullptr;  // asked for scratch sizes only
  DType compute = DType::f32;
  DType accumulate = DType::f32;  // of gradients, over micro-batches
  DType wire = DType::f32;        // of gradients
  /// Parameters that stage 3 gathers to train, and gradients, travel as blocks. Evaluation sees the
  /// parameters as they are, whatever the layout.
  std::optional<kernels::BlockFormat> weight_blocks, gradient_blocks;
  kernels::Operands operands = kernels::Operands::stored;  // of the blocks' products
  kernels::SumOrder order = kernels::SumOrder::fixed;
  int stage = 0;  // ZeRO
  ReduceWhen reduce = ReduceWhen::step;
  std::int64_t prefetch = 1;
  Recompute recompute = Recompute::none;
  OptimizerRule optimizer;
  std::uint64_t seed = 0;
  Mesh mesh;
  std::vector<int> node_of;        // by world rank; empty: all are on one node
  bool nccl = false;               // what carries between ranks; else our own exchange
  std::int64_t tensor_chunks = 1;  // chunks of units, or what the tensor ranks need if that is more
  bool split_sequence = true;      // over tensor ranks
  /// The same bits on every mesh: gradients are added in a tree over micro-batches, sums over ranks
  /// travel in f32.
  bool any_layout = false;
  PipelineRule pipeline;
  PlanPurpose state_for = PlanPurpose::train;  // the last of the purposes of the run's plans
};

model::TensorCut tensor_cut(const PlanInputs& inputs, const MeshPlace& place);
comm::GroupShape group_shape(const PlanInputs& inputs, const MeshPlace& place, MeshGroup group);
/// How quantised gradients reach the ranks of the data group of `place`.
comm::Route gradient_route(const PlanInputs& inputs, const MeshPlace& place);

/// Symbolic views of one unit's state on one rank. Where compute is f32, master is the parameters
/// themselves.
struct UnitState {
  bool held = false;  // by this rank's pipeline stage; nothing else is set where it is not
  zero::UnitLayout layout;
  Range owned;        // flat elements that this rank updates: its shard, or everything at stage 0
  View parameters;    // (padded) compute type: what forward reads; absent at stage 3 with several
                      // ranks
  View own_shard;     // (shard) compute type: this rank's slice of the parameters
  View master, m, v;  // (owned) f32; absent where nothing trains, but for master in f32
  View copy;          // (owned) compute type, written beside master; absent in f32
  View snapshot_master, snapshot_m,
      snapshot_v;  // (shard) f32; absent without asynchronous checkpoints
};

/// The host's words: exact sums over all ranks, then flags that the host sets before a step and
/// reads summed after it.
struct WordLayout {
  static constexpr std::int64_t loss = 0;
  static constexpr std::int64_t norm = 24;
  static constexpr std::int64_t flags = 48;
  static constexpr std::int64_t flag_count = 4;
  static constexpr std::int64_t count = flags + flag_count;
};

/// Adds the persistent buffers that inputs.state_for needs, the same first ones in every plan of
/// the run.
std::vector<UnitState> add_state(Plan& plan, const PlanInputs& inputs);

/// The parts of this rank's shard of a unit that it answers for: each element of the model has one
/// rank that adds it to the norm and writes it to checkpoints.
std::vector<Range> counted_ranges(const PlanInputs& inputs, const Plan& plan, std::size_t unit,
                                  const zero::UnitLayout& layout);

// The passes, in order. They add buffers and ops; `states` are the views of add_state.
/// Forward and backward of every micro-batch, layer by layer, from recordings, in the order of the
/// pipeline; messages between stages and loss sums. At stage 3 the parameters of unit u are
/// read from the placeholder buffer `windows[u]`.
struct GradientBuffer {  // what one use of a unit fills in one micro-batch, or in the whole step
  BufferId buffer = -1;
  std::size_t unit = 0;
  bool head_use = false;  // of a tied matrix, where it is summed apart from the embedding's
};
struct Scheduled {
  std::vector<BufferId> windows;          // per unit, or -1
  std::vector<GradientBuffer> gradients;  // in the order of micro-batches
  std::vector<LoadBatch> batches;         // by micro-batch; nothing fills them yet
};
Scheduled schedule(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states);
/// ZeRO-3: gathers `prefetch` visits ahead of first use, into windows that die with the last use of
/// a run of uses. ZeRO-1, 2: publishes of the shards that the last step updated, in the order of
/// first use.
void residency(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
               const Scheduled& scheduled);
/// Sums each unit's gradient over data ranks as soon as it is complete, and over both ends where a
/// tied matrix has two; zero-fills what no operation writes. Returns, per unit, the views of the
/// summed gradient, in the type that gradients are accumulated in: this rank's slice, and what it
/// updates with.
struct SummedGradient {
  View slice;  // (shard)
  View owned;  // (owned)
};
std::vector<SummedGradient> grad_reduce(Plan& plan, const PlanInputs& inputs,
                                        const std::vector<UnitState>& states,
                                        const Scheduled& scheduled);
/// Norm, verdict, updates; snapshots of the state of the step before.
void optimizer_step(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients);
/// The ops between which a buffer holds bytes that matter.
struct Life {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = -1;
};
std::vector<Life> buffer_lives(const Plan& plan);
/// Lifetimes to slots: fills offsets and arena sizes.
void place_buffers(Plan& plan);
/// The fewest waits that keep every pair of conflicting ops on different streams in order.
void place_waits(Plan& plan);

/// All of it; the result has passed check().
Plan make_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);
/// Throws DeckError where a step of so many micro-batches is too long for one plan.
void check_length(const PlanInputs& inputs, const PlanShape& shape);
/// The same before check(), which takes half the time: for those who compare many and run none.
Plan unproved_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);
/// Sets what add_state wants: the plan's place and groups.
void set_place(Plan& plan, const PlanInputs& inputs, const MeshPlace& place);

/// Inserts ops before given positions; keeps the rest in order.
class Insertions {
 public:
  void before(std::size_t position, Op op) { inserted_.push_back({position, std::move(op)}); }
  void apply(std::vector<Op>& ops);

 private:
  struct At {
    std::size_t position;
    Op op;
  };
  std::vector<At> inserted_;
};

BufferId add_buffer(Plan& plan, std::string name, Purpose purpose, std::int64_t bytes,
                    bool persistent = false);
/// The buffer has at least so many bytes.
void enlarge_buffer(Plan& plan, BufferId id, std::int64_t bytes);
View buffer_view(BufferId id, DType type, std::int64_t elements);

/// A buffer of bytes on their way that serves ops of one stream one after another, as large as the
/// largest view of it.
class Staging {
 public:
  explicit Staging(const char* name) : name_(name) {}
  View view(Plan& plan, std::int64_t bytes);

 private:
  const char* name_;
  BufferId id_ = -1;
};

}  // namespace tessera::plan

template <>
struct tessera::EnumWords<tessera::plan::ReduceWhen> {
  using R = tessera::plan::ReduceWhen;
  static constexpr std::array table = {std::pair{R::step, "step"}, std::pair{R::micro, "micro"}};
};
