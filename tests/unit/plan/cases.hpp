// Inputs of plans of a small model, on layouts chosen by a test or drawn at random.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "plan/ir/print.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/proof/check.hpp"
#include "plan/proof/meetings.hpp"
#include "support/blocks.hpp"

namespace tessera::plan {

/// Plans ask a device for scratch sizes only; these differ by operation so that mix-ups show.
class ScratchSizes : public kernels::Device {
 public:
  std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
    // Updates may run on the host, where there is none.
    if (std::holds_alternative<kernels::OptimizerUpdate>(call)) return 0;
    return static_cast<std::int64_t>(call.index() % 4) * 96;
  }
  void run(const kernels::KernelCall&) override { FAIL() << "a plan ran a kernel"; }
  bool multiplies_codes(std::int64_t rows) const override { return rows <= 4; }
};

inline const ScratchSizes device;

struct Case {
  PlanInputs inputs;
  PlanShape shape;
};

inline Case make_case(int stage, std::int64_t ranks, std::int64_t micro_batches,
                      ReduceWhen reduce) {
  Case c;
  model::ModelConfig& m = c.inputs.model.config;
  m.layers = 3, m.heads = m.kv_heads = 2, m.head_dim = 8, m.hidden = 16, m.ffn_hidden = 40,
  m.vocab = 70, m.context = 12;
  c.inputs.model.units = model::model_units(m);
  c.inputs.device = &device;
  c.inputs.sharding.stage = stage;
  c.inputs.sharding.reduce = reduce;
  c.inputs.layout.mesh.data = ranks;
  c.shape = {
      .purpose = PlanPurpose::train, .sequence = 10, .micro = 2, .micro_batches = micro_batches};
  return c;
}

/// Lets data ranks divide sequences among them, in one of the ways that there are, if any.
inline void divide_sequences(Case& c, std::mt19937 random) {
  PlanInputs& in = c.inputs;
  const model::ModelConfig& config = in.model.config;
  if (config.head.pooling != Pooling::none) return;
  if (config.experts.count > 0 && (in.numerics.layout_mode || config.experts.capacity > 0)) return;
  std::vector<std::int64_t> ways;
  for (std::int64_t n = 2; n <= in.layout.mesh.data; n *= 2)
    if (in.layout.mesh.data % n == 0) ways.push_back(n);
  if (ways.empty()) return;
  in.layout.mesh.context = at(ways, random() % ways.size());
  in.layout.context.shares = in.layout.mesh.context;
  if (in.numerics.layout_mode) {
    in.sharding.reduce = ReduceWhen::micro;
    in.layout.context.shares *= 1 + static_cast<std::int64_t>(random() % 2);
  }
  const std::int64_t parts = in.layout.mesh.context * in.layout.tensor_chunks;
  if (!in.numerics.layout_mode) {
    const bool heads = config.kv_heads % parts == 0;
    in.layout.context.kind = random() % 2 == 0   ? ContextKind::gather
                             : random() % 2 == 0 ? ContextKind::ring
                             : heads             ? ContextKind::heads
                                                 : ContextKind::gather;
  }
  c.shape.sequence = 2 * in.layout.context.shares * 2 * in.layout.tensor_chunks;
}

/// Layers of experts, which so many neighbours of the data ranks divide among them, on these nodes.
inline void give_experts(PlanInputs& in, const model::ExpertsConfig& experts, std::int64_t ranks,
                         std::vector<int> node_of) {
  in.model.config.bias = false;
  in.model.config.experts = experts;
  in.layout.mesh.experts = ranks;
  in.layout.node_of = std::move(node_of);
  in.model.units = model::model_units(in.model.config, 1, {.expert_ranks = true});
}

/// Lets data ranks divide experts among them, in one of the ways that there are, if any.
inline void divide_experts(Case& c, std::mt19937 random) {
  PlanInputs& in = c.inputs;
  const model::ExpertsConfig& experts = in.model.config.experts;
  const std::int64_t chunks = in.layout.tensor_chunks;
  const bool tiles = !in.numerics.layout_mode && chunks > in.layout.mesh.tensor;
  if (experts.count == 0 || tiles || in.optimizer.matrices || in.optimizer.momentum) return;
  const bool whole = std::ranges::any_of(in.model.units, [](const model::UnitDesc& unit) {
    return std::ranges::any_of(unit.params, &model::ParamDesc::undivided);
  });
  std::vector<std::int64_t> ways;
  for (std::int64_t n = 2; n <= in.layout.mesh.data; ++n) {
    const bool power = (n & (n - 1)) == 0;
    if (in.layout.mesh.data % n == 0 && experts.count % (n * (whole ? chunks : 1)) == 0 &&
        (power || !in.numerics.layout_mode))
      ways.push_back(n);
  }
  if (ways.empty()) return;
  in.layout.mesh.experts = at(ways, random() % ways.size());
  if (!in.numerics.layout_mode && random() % 2 == 0)
    in.layout.expert_exchange = ExpertExchange::by_node;
  in.layout.overlap_experts = in.layout.mesh.pipeline == 1 && random() % 2 == 0;
  const auto& blocks =
      in.numerics.gradient_blocks ? in.numerics.gradient_blocks : in.numerics.weight_blocks;
  in.model.units = model::model_units(in.model.config, chunks,
                                      {.block = blocks ? blocks->block : 0,
                                       .experts = whole ? ExpertSplit::experts : ExpertSplit::width,
                                       .expert_ranks = true});
}

inline Case random_case(std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Case c = make_case(pick(4), 1 + pick(5), 1 + pick(4),
                     pick(2) == 0 ? ReduceWhen::step : ReduceWhen::micro);
  model::ModelConfig& m = c.inputs.model.config;
  m.layers = 1 + pick(4);
  if (pick(2) == 0) {
    m.norm = NormKind::rmsnorm, m.position = PositionKind::rope, m.bias = false;
    m.activation = ActivationKind::swiglu, m.tied_embeddings = false, m.kv_heads = 1;
  }
  if (pick(3) == 0) m.tied_embeddings = !m.tied_embeddings;
  if (pick(3) == 0) m.dropout = model::same_dropout(0.1F);
  if (pick(3) == 0) {
    m.norm_placed = static_cast<NormPlacement>(pick(4));
    m.qk_norm = static_cast<QkNorm>(pick(2));  // the whole's needs one chunk
    m.block = static_cast<BlockForm>(m.norms_sums() ? 0 : pick(2));
    m.window = 4 * pick(2), m.global_every = pick(3);
    m.scaled_embeddings = m.position != PositionKind::learned && pick(2) == 0;
  }
  if (pick(3) == 0) {
    m.embedding_norm = pick(2) == 0;
    if (m.position == PositionKind::learned && pick(2) == 0) m.position = PositionKind::sinusoidal;
    m.head.bias = pick(2) == 0;
    m.head.hidden = pick(2) == 0 ? 0 : m.hidden;
    m.head.norm = m.head.hidden > 0 && pick(2) == 0;
    if (pick(2) == 0) {
      m.tied_embeddings = false;
      m.head.labels = 1 + pick(20), m.head.pooling = static_cast<Pooling>(pick(4));
    }
  }
  const bool latents = !m.bias && pick(4) == 0;
  if (latents) {
    m.kv_heads = m.heads, m.qk_norm = QkNorm::none, m.position = PositionKind::rope;
    m.head_dim = 6 + pick(3), m.value_dim = pick(2) * (2 + pick(4));
    m.latent = {.kv = 4 * (1 + pick(3)), .q = 4 * pick(3), .rope = 4};
  }
  if (!m.bias && pick(2) == 0) {
    m.experts = {.count = 2 + pick(3),
                 .hidden = 8 + pick(9),
                 .shared_hidden = 6 * pick(2),
                 .every = 1 + pick(2),
                 .first = pick(2),
                 .capacity = 1.5 * pick(2),
                 .balance = pick(2) == 0 ? std::optional(kernels::BalanceBy::bias) : std::nullopt,
                 .routing = {.choices = 1 + pick(2)}};
    m.experts.jitter = 0.25F * static_cast<float>(m.experts.hidden % 2);
    if (!m.experts.balance && m.experts.hidden % 3 == 0)
      m.experts.balance = kernels::BalanceBy::shares;
    if (m.experts.count == 4 && m.experts.hidden % 3 > 0) {
      m.experts.gates = RouterGates::two_levels;
      m.experts.routing = {.choices = 4, .groups = 2, .open_groups = 2};
    }
    c.inputs.router_terms.balance = 0.25F * static_cast<float>(pick(2));
    c.inputs.balance_rate = 0.25F * static_cast<float>(pick(2));
  }
  c.inputs.numerics.compute = pick(2) == 0 ? DType::f32 : DType::bf16;
  c.inputs.numerics.wire = pick(2) == 0 ? DType::f32 : DType::bf16;
  c.inputs.sharding.prefetch = pick(4);
  c.inputs.offload = {.activations = static_cast<plan::Location>(pick(2)), .ahead = pick(4)};
  c.inputs.recompute = static_cast<Recompute>(pick(3));
  c.inputs.layout.mesh.tensor = 1 + pick(m.heads == 1 ? 1 : 2);
  c.inputs.layout.mesh.pipeline = 1 + pick(static_cast<int>(std::min<std::int64_t>(3, m.layers)));
  auto& pipeline = c.inputs.layout.pipeline;
  pipeline.schedule = static_cast<PipelineSchedule>(pick(4));
  if (pipeline.schedule == PipelineSchedule::interleaved &&
      m.layers >= 2 * c.inputs.layout.mesh.pipeline)
    pipeline.virtual_stages = 2;
  c.inputs.numerics.layout_mode = pick(3) == 0;
  const std::int64_t tiles = c.inputs.layout.mesh.tensor == 1 ? 1 + pick(2) : 1;
  c.inputs.layout.tensor_chunks =
      c.inputs.numerics.layout_mode ? 2 : c.inputs.layout.mesh.tensor * tiles;
  c.inputs.layout.split_sequence = pick(3) != 0;
  const bool whole = m.experts.count >= c.inputs.layout.tensor_chunks && pick(2) == 0;
  c.inputs.model.units = model::model_units(
      m, c.inputs.layout.tensor_chunks,
      {.tiles = tiles, .experts = whole ? ExpertSplit::experts : ExpertSplit::width});
  const int per_node = 1 + pick(static_cast<int>(c.inputs.layout.mesh.data));
  for (int r = 0; r < c.inputs.layout.mesh.size(); ++r)
    c.inputs.layout.node_of.push_back(r / per_node);
  if (!c.inputs.numerics.layout_mode && pick(3) == 0) {
    const std::int64_t block = 16 << pick(5);
    const auto type = pick(2) == 0 ? kernels::BlockType::int8 : kernels::BlockType::int4;
    std::optional<kernels::BlockFormat> weights;
    if (c.inputs.sharding.stage == 3) weights = {.block = block};
    test::travel_in_blocks(c.inputs, weights, {{.type = type, .block = block}}, tiles);
    c.inputs.numerics.error_feedback = pick(2) == 0;
    c.inputs.numerics.stochastic = pick(2) == 0;
    c.inputs.numerics.chunk_bytes = 64 << pick(8);
  }
  if (c.inputs.sharding.stage == 3 && pick(2) == 0) {
    c.inputs.sharding.secondary = ShardingInputs::Secondary{};
    const std::int64_t data = c.inputs.layout.mesh.data;
    if (const std::int64_t ranks = 1 + pick(3); data % ranks == 0 && ranks < data)
      c.inputs.sharding.secondary->ranks = ranks;
  }
  constexpr std::array purposes = {PlanPurpose::evaluate, PlanPurpose::train,
                                   PlanPurpose::train_snapshot};
  const int purpose = pick(3);
  c.shape.purpose = at(purposes, purpose);
  c.shape.sequence = 2 * (1 + pick(6));
  if (c.inputs.numerics.layout_mode) c.shape.micro_batches = std::int64_t{1} << pick(3);
  c.shape.micro = 1 + pick(3);
  c.inputs.state_for = at(purposes, purpose + pick(3 - purpose));
  const std::array optimizers = {optim::adam(), optim::lamb(), optim::muon(),
                                 optim::muon({.by_heads = true})};
  c.inputs.optimizer = at(optimizers, pick(4));
  if (pick(3) == 0) c.inputs.optimizer = optim::with_ema(c.inputs.optimizer, 0.9);
  c.shape.tallies = pick(4);
  c.inputs.most_tallies = c.shape.tallies + pick(2);
  if (c.shape.tallies % 2 == 1) c.inputs.inner_rows = 1 + c.shape.sequence / 2;
  return c;
}

/// What a rank exchanges with tensor ranks, in its order: which call, of how many elements.
inline std::vector<std::pair<std::size_t, std::int64_t>> tensor_exchanges(const Plan& plan) {
  std::vector<std::pair<std::size_t, std::int64_t>> all;
  for (const Op& op : plan.ops) {
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    if (call == nullptr || op.group != MeshGroup::tensor) continue;
    std::int64_t elements = 0;
    each_view(op.call, [&](const View& v, kernels::Access) { elements += v ? v.elements() : 0; });
    all.emplace_back(call->index(), elements);
  }
  return all;
}

/// The plans of all ranks, each alone and together.
inline void expect_proved(const Case& c) {
  const Mesh& mesh = c.inputs.layout.mesh;
  // By stage and data rank, of the first tensor rank: the others must do the same.
  std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> exchanges;
  for (std::int64_t t = 0; t < mesh.tensor; ++t) {
    std::vector<Meetings> stages;
    for (std::int64_t p = 0; p < mesh.pipeline; ++p) {
      std::vector<std::uint64_t> hashes;
      for (std::int64_t d = 0; d < mesh.data; ++d) {
        const Plan plan = make_plan(c.inputs, c.shape, {.tensor = t, .data = d, .pipeline = p});
        hashes.push_back(plan_hash(plan));
        if (t == 0) exchanges.push_back(tensor_exchanges(plan));
        EXPECT_EQ(tensor_exchanges(plan), at(exchanges, p * mesh.data + d));
        if (d == 0) stages.push_back(meetings_of(plan));
      }
      EXPECT_NO_THROW(check_together(hashes));
    }
    EXPECT_NO_THROW(check_pipeline(stages));
  }
}

/// So many bytes of a shard that the units of make_case() have several chunks.
inline constexpr std::int64_t kSmallChunk = 4 * 64;

/// Takes out the ops of one kind, one at a time, and keeps all waits valid.
inline std::vector<Plan> without_each(const Plan& plan, OpKind kind) {
  std::vector<Plan> all;
  for (std::size_t o = 0; o < plan.ops.size(); ++o) {
    if (plan.ops[o].kind != kind) continue;
    Plan broken = plan;
    broken.ops.erase(broken.ops.begin() + static_cast<std::ptrdiff_t>(o));
    for (Op& op : broken.ops) {
      std::erase(op.waits, static_cast<OpId>(o));
      for (OpId& id : op.waits) id -= id > static_cast<OpId>(o) ? 1 : 0;
    }
    all.push_back(std::move(broken));
  }
  return all;
}

/// What a survey asks for scratch sizes.
inline std::vector<std::unique_ptr<kernels::Device>> one_device() {
  std::vector<std::unique_ptr<kernels::Device>> devices;
  devices.push_back(std::make_unique<ScratchSizes>());
  return devices;
}

}  // namespace tessera::plan
