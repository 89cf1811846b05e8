#include "setup/inputs.hpp"

#include "deck/ranks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/cached.hpp"
#include "setup/judges.hpp"

namespace tessera::setup {
namespace {

DType sum_type(deck::SumPrecision p) {
  return p == deck::SumPrecision::f32 ? DType::f32 : DType::bf16;
}

std::optional<kernels::BlockFormat> weight_blocks(const deck::QuantizeSection& q) {
  if (q.weights != deck::QuantizedWeights::int8) return std::nullopt;
  return kernels::BlockFormat{.type = kernels::BlockType::int8, .block = q.block};
}
std::optional<kernels::BlockFormat> gradient_blocks(const deck::QuantizeSection& q) {
  const auto of = [&](kernels::BlockType type) {
    return kernels::BlockFormat{.type = type, .block = q.block};
  };
  switch (q.gradients) {
    case deck::QuantizedGradients::none:
    case deck::QuantizedGradients::automatic: return std::nullopt;
    case deck::QuantizedGradients::int4: return of(kernels::BlockType::int4);
    case deck::QuantizedGradients::int8: return of(kernels::BlockType::int8);
  }
  throw InternalError("blocks without a type");
}

plan::Location location_of(deck::OffloadTier tier) {
  switch (tier) {
    case deck::OffloadTier::none: return plan::Location::device;
    case deck::OffloadTier::host: return plan::Location::host;
    case deck::OffloadTier::nvme: return plan::Location::disk;
  }
  throw InternalError("a tier without a location");
}

plan::PipelineRule pipeline_rule(const deck::ParallelSection& p) {
  plan::PipelineRule rule{
      .schedule = p.schedule, .virtual_stages = p.virtual_stages, .first_layers = {}};
  if (const auto* first = std::get_if<std::vector<std::int64_t>>(&p.placement))
    rule.first_layers = *first;
  return rule;
}

/// 0: all columns of a head.
std::int64_t rotary_dim(const deck::ModelSection& m) {
  if (m.rotary_share == 1) return 0;
  return static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rotary_share);
}

kernels::RopeScaling rope_scaling(const deck::ModelSection& m) {
  if (m.rope_scaling == RopeScalingKind::none) return {};
  return {.kind = m.rope_scaling,
          .factor = m.rope_factor,
          .original_positions = m.rope_original_context,
          .low_frequency = m.rope_low_frequency,
          .high_frequency = m.rope_high_frequency,
          .fast_turns = m.rope_high_frequency,
          .slow_turns = m.rope_low_frequency,
          .magnitude = m.rope_magnitude};
}

/// By which scores are multiplied beside their width's root, as in transformers' DeepSeek models.
float score_scale(const deck::ModelSection& m) {
  const double magnitude = 0.1 * m.rope_mscale_all_dim * std::log(m.rope_factor) + 1;
  return static_cast<float>(magnitude * magnitude);
}

std::optional<kernels::BalanceBy> balance_of(const deck::MoeSection& m) {
  if (m.bias) return kernels::BalanceBy::bias;
  if (m.aux_over == deck::AuxOver::global_batch) return kernels::BalanceBy::shares;
  return std::nullopt;
}

model::ExpertsConfig experts_config(const deck::MoeSection& m) {
  return {.count = m.experts,
          .hidden = m.ffn_hidden,
          .shared_hidden = m.shared_ffn_hidden,
          .every = m.every,
          .first = m.first_dense,
          .capacity = m.capacity,
          .jitter = static_cast<float>(m.jitter),
          .dispatch = m.dispatch,
          .balance = balance_of(m),
          .gates = m.gates,
          .routing = {.choices = m.top_k,
                      .scores = m.scores,
                      .normalized = m.normalize,
                      .scale = static_cast<float>(m.scale),
                      .groups = m.groups,
                      .open_groups = m.group_top,
                      .group_score = m.group_score}};
}

model::AdapterConfig adapter_config(const deck::AdapterSection& a) {
  if (a.kind == deck::AdapterKind::none) return {};
  const auto rank = static_cast<double>(a.rank);
  const double scale = a.alpha / (a.kind == deck::AdapterKind::rslora ? std::sqrt(rank) : rank);
  return {.rank = a.rank,
          .scale = static_cast<float>(scale),
          .dropout = static_cast<float>(a.dropout),
          .magnitudes = a.kind == deck::AdapterKind::dora,
          .targets = a.targets};
}

}  // namespace

std::optional<kernels::BlockFormat> frozen_codes(const deck::FrozenSection& frozen) {
  switch (frozen.type) {
    case deck::FrozenType::none: return std::nullopt;
    case deck::FrozenType::int8:
      return kernels::BlockFormat{.type = kernels::BlockType::int8, .block = frozen.block};
    case deck::FrozenType::int4:
      return kernels::BlockFormat{.type = kernels::BlockType::int4, .block = frozen.block};
    case deck::FrozenType::nf4:
      return kernels::BlockFormat{.type = kernels::BlockType::nf4, .block = frozen.block};
  }
  throw InternalError("codes without a type");
}

DType dtype_of(deck::Precision p) {
  return p == deck::Precision::f32    ? DType::f32
         : p == deck::Precision::bf16 ? DType::bf16
                                      : DType::f16;
}

model::ModelConfig model_config(const deck::ModelSection& m, const deck::TaskSection& task) {
  return {.layers = m.layers,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .value_dim = m.value_dim,
          .hidden = m.hidden,
          .ffn_hidden = m.ffn_hidden,
          .vocab = m.vocab,
          .context = m.context,
          .norm = m.norm,
          .norm_placed = m.norm_placed,
          .norm_eps = static_cast<float>(m.norm_eps),
          .attention = m.attention,
          .position = m.position,
          .rope_theta = m.rope_theta,
          .rope_local_theta = m.rope_local_theta,
          .rotary_dim = rotary_dim(m),
          .rope_pairs = m.rope_pairs,
          .rope_scaling = rope_scaling(m),
          .window = m.window,
          .global_every = m.global_every,
          .attention_soft_cap = static_cast<float>(m.attention_soft_cap),
          .activation = m.activation,
          .bias = m.bias,
          .attention_bias = m.attention_bias,
          .qkv_bias = m.qkv_bias,
          .qk_norm = m.qk_norm,
          .block = m.block,
          .query_scalar = m.query_scalar,
          .score_scale = score_scale(m),
          .scaled_embeddings = m.scaled_embeddings,
          .embedding_norm = m.embedding_norm,
          .logit_soft_cap = static_cast<float>(m.logit_soft_cap),
          .tied_embeddings = m.tied_embeddings,
          .latent = {.kv = m.kv_latent, .q = m.q_latent, .rope = m.rope_dim},
          .experts = experts_config(m.moe),
          .dropout = {.embedding = static_cast<float>(m.dropout_embedding),
                      .attention = static_cast<float>(m.dropout_attention),
                      .residual = static_cast<float>(m.dropout_residual)},
          .init_std = static_cast<float>(m.init_std),
          .head = {.pooling = task.pooling.value_or(Pooling::none),
                   .labels = deck::has_one_output(task.kind) ? 1 : task.labels.value_or(0),
                   .hidden = m.head_hidden,
                   .activation = m.head_activation,
                   .norm = m.head_norm,
                   .bias = m.head_bias,
                   .values = has_value_head(task)},
          .adapter = adapter_config(m.adapter),
          .frozen = m.frozen.layers,
          .init = m.init};
}

Mesh mesh_of(const deck::Deck& deck, std::int64_t ranks) {
  const auto& p = deck.parallel;
  return {.tensor = p.tensor,
          .data = ranks / (p.tensor * p.pipeline),
          .pipeline = p.pipeline,
          .experts = p.experts,
          .context = p.context};
}

io::CheckpointLayout layout_of(const plan::PlanInputs& inputs) {
  return {.world = inputs.layout.mesh.size(),
          .mesh = inputs.layout.mesh,
          .zero_stage = inputs.sharding.stage};
}

plan::OffloadInputs offload_inputs(const deck::OffloadSection& section) {
  return {.parameters = location_of(section.parameters),
          .gradients = location_of(section.gradients),
          .optimizer = location_of(section.optimizer),
          .activations = location_of(section.activations),
          .cache = section.cache == deck::CacheTier::host ? plan::Location::host
                                                          : plan::Location::device,
          .optimizer_share = section.optimizer_share,
          .ahead = section.ahead.value_or(0)};
}

std::vector<int> nodes_of(const deck::Deck& deck, std::span<const int> found) {
  std::vector<int> node_of(found.begin(), found.end());
  const auto per_node = static_cast<std::size_t>(deck.parallel.ranks_per_node);
  for (std::size_t r = 0; per_node > 0 && r < node_of.size(); ++r)
    node_of[r] = static_cast<int>(r / per_node);
  return node_of;
}

std::int64_t prefetch_of(const deck::Deck& deck, std::span<const int> node_of, bool nccl) {
  constexpr std::int64_t kUsual = 1, kAcrossNodes = 2;
  if (deck.zero.prefetch) return *deck.zero.prefetch;
  if (!nccl || deck.zero.stage < first_stage(&Sharding::parameters)) return kUsual;
  const Mesh mesh = mesh_of(deck, std::ssize(node_of));
  const std::vector<int> nodes = nodes_of(deck, node_of);
  for (std::int64_t r = 0; r < mesh.size(); ++r) {
    const RankGroup group = mesh.group_of(r, MeshGroup::data);
    if (group.first != r) continue;  // it was looked at
    for (std::int64_t k = 1; k < group.count; ++k)
      if (at(nodes, group.rank(k)) != at(nodes, r)) return kAcrossNodes;
  }
  return kUsual;
}

/// Nothing where it would have no effect.
static std::optional<plan::ShardingInputs::Secondary> secondary_of(const deck::ZeroSection& zero,
                                                                   std::int64_t data) {
  if (zero.stage < first_stage(&Sharding::parameters)) return std::nullopt;
  if (const auto* ranks = std::get_if<std::int64_t>(&zero.secondary)) {
    if (*ranks >= data || data % *ranks != 0) return std::nullopt;
    return plan::ShardingInputs::Secondary{*ranks};
  }
  if (std::get<deck::Secondary>(zero.secondary) != deck::Secondary::node) return std::nullopt;
  return plan::ShardingInputs::Secondary{};
}

namespace {

plan::PolicyInputs policy_inputs(const deck::Deck& deck) {
  const deck::TaskSection& task = deck.task;
  const bool expects = deck::has_values(task.kind),  // rewards have the divergence in them then
      critic = task.kind == deck::TaskKind::values;
  std::optional<kernels::PolicyTerms> terms;
  if (!critic)
    terms = {.low = static_cast<float>(task.clip[0]),
             .high = static_cast<float>(task.clip[1]),
             .kl = expects ? 0 : static_cast<float>(task.kl)};
  std::optional<kernels::ValueTerms> value;
  if (critic || has_value_head(task))
    value = {.weight = critic ? 1 : static_cast<float>(task.value_loss),
             .clip = static_cast<float>(task.value_clip)};
  return {.terms = terms,
          .value = value,
          .weighted = deck.task.mean == deck::AnswerMean::answers,
          .drawn_before = deck.rollout.steps > 1};
}

kernels::PreferenceKind preference_kind(deck::TaskKind kind) {
  using kernels::PreferenceKind;
  switch (kind) {
    case deck::TaskKind::dpo: return PreferenceKind::dpo;
    case deck::TaskKind::ipo: return PreferenceKind::ipo;
    case deck::TaskKind::reward: return PreferenceKind::reward;
    default: return PreferenceKind::none;
  }
}

plan::NumericsInputs numerics_inputs(const deck::Deck& deck, const optim::Optimizer& optimizer) {
  plan::NumericsInputs in;
  in.layout_mode = deck.run.reproducible == deck::Reproducible::layout;
  in.compute = dtype_of(deck.precision.compute);
  in.accumulate = sum_type(deck.precision.accumulate);
  in.wire = sum_type(deck.precision.gradients);
  in.weight_blocks = weight_blocks(deck.zero.quantize);
  in.gradient_blocks = gradient_blocks(deck.zero.quantize);
  in.chunk_bytes = deck.zero.quantize.chunk.count;
  in.error_feedback = deck.zero.quantize.error_feedback;
  in.stochastic = deck.zero.quantize.stochastic;
  if (optimizer.momentum) {
    in.gradient_blocks = {.type = kernels::BlockType::sign, .block = optimizer.momentum->block};
    in.error_feedback = true;
  }
  in.operands = deck.precision.matmul == deck::Matmul::fp8 ? kernels::Operands::fp8
                                                           : kernels::Operands::stored;
  in.order = deck.run.reproducible == deck::Reproducible::off ? kernels::SumOrder::any
                                                              : kernels::SumOrder::fixed;
  return in;
}

/// A GPU has enough to do with the heads of any group. A CPU's threads take heads of samples, and
/// how many threads there are is known where the deck says so.
std::int64_t groups_of_heads(const deck::Deck& deck, bool gpu) {
  constexpr std::int64_t kMost = 8;
  if (gpu) return kMost;
  if (!deck.run.threads) return 1;
  const std::int64_t heads = deck.model.kv_heads / deck::tensor_chunks(deck) * deck.batch.micro;
  return std::clamp<std::int64_t>(heads / *deck.run.threads, 1, kMost);
}

/// Where some of the shapes are of generation, what they keep of sequences.
std::optional<plan::CacheInputs> cache_inputs(const plan::ModelInputs& model,
                                              std::span<const plan::PlanShape> shapes,
                                              const ComputesOn& on) {
  const auto& most = std::ranges::max(shapes, {}, &plan::PlanShape::slots);
  if (most.slots == 0) return std::nullopt;
  const std::int64_t widest =
      on.device_is_host ? std::numeric_limits<std::int64_t>::max() : kernels::kMostGpuHeadDim;
  return plan::CacheInputs{.slots = most.slots,
                           .room = most.room,
                           .pages = most.pages,
                           .latents = model::keeps_latents(model.config, model.units, widest)};
}

std::int64_t most_scores(const plan::PlanInputs& in, std::span<const plan::PlanShape> shapes) {
  std::int64_t most = 0;
  for (const plan::PlanShape& shape : shapes) {
    if (shape.scores == plan::Scores::none) continue;
    most = std::max(most, shape.micro_batches * in.losses(shape));
  }
  return most;
}

plan::LayoutInputs layout_inputs(const deck::Deck& deck, std::span<const int> node_of, bool nccl) {
  return {.mesh = mesh_of(deck, static_cast<std::int64_t>(node_of.size())),
          .node_of = nodes_of(deck, node_of),
          .nccl = nccl,
          .tensor_chunks = deck::tensor_chunks(deck),
          .split_sequence = deck.parallel.sequence,
          .expert_exchange = deck.parallel.expert_exchange,
          .overlap_experts = deck.parallel.expert_overlap,
          .context = {.kind = deck::context_kind(deck),
                      .shares = deck::context_shares(deck),
                      .groups = groups_of_heads(deck, nccl)},
          .pipeline = pipeline_rule(deck.parallel)};
}

}  // namespace

plan::PlanInputs plan_inputs(const deck::Deck& deck, std::span<const plan::PlanShape> shapes,
                             std::span<const int> node_of, const ComputesOn& on) {
  plan::PlanInputs in;
  in.model.config = model_config(deck.model, deck.task);
  if (deck.batch.documents) {
    in.model.config.head.documents = *deck.batch.documents;
    in.model.config.head.tokens = deck.batch.sequence;
  }
  in.layout = layout_inputs(deck, node_of, on.nccl);
  in.device = &on.device;
  in.optimizer = optim::make_optimizer(deck.optimizer);
  in.numerics = numerics_inputs(deck, in.optimizer);
  const auto& blocks =
      in.numerics.gradient_blocks ? in.numerics.gradient_blocks : in.numerics.weight_blocks;
  in.model.units = model::model_units(in.model.config, in.layout.tensor_chunks,
                                      {.tiles = deck.zero.tiles,
                                       .block = blocks ? blocks->block : 0,
                                       .codes = frozen_codes(deck.model.frozen),
                                       .experts = deck.model.moe.split,
                                       .expert_ranks = deck.parallel.experts > 1});
  in.sharding.stage = static_cast<int>(deck.zero.stage);
  in.sharding.reduce = deck.zero.reduce;
  in.sharding.prefetch = prefetch_of(deck, node_of, on.nccl);
  in.sharding.secondary = secondary_of(deck.zero, in.layout.mesh.data);
  in.offload = offload_inputs(deck.offload);
  in.offload.device_is_host = on.device_is_host;
  in.documents = {.separate = deck.data.documents == deck::Documents::separate,
                  .positions = deck.data.positions == deck::Positions::document};
  in.logit_rows = deck.memory.logits.value_or(0);
  in.inner_rows = deck.memory.ffn;
  const auto smoothing = static_cast<float>(deck.task.label_smoothing);
  if (deck::has_pairs(deck.task.kind)) {
    in.preference = {.kind = preference_kind(deck.task.kind),
                     .beta = static_cast<float>(deck.task.beta.value_or(1)),
                     .label_smoothing = smoothing};
  } else {
    in.loss_terms = {.label_smoothing = smoothing, .z_loss = static_cast<float>(deck.task.z_loss)};
  }
  if (deck::draws_answers(deck.task.kind) || deck.task.kind == deck::TaskKind::values)
    in.policy = policy_inputs(deck);
  // Gradients are divided by the targets that count, of which masked tokens are a known share.
  const double counted =
      deck.task.kind == deck::TaskKind::mlm ? deck.task.masked.value_or(1.0) : 1.0;
  in.router_terms = {.balance = static_cast<float>(counted * deck.model.moe.aux_loss),
                     .z = static_cast<float>(counted * deck.model.moe.z_loss)};
  in.balance_rate = static_cast<float>(deck.model.moe.bias_update);
  in.recompute = deck.recompute.policy;
  in.seed = static_cast<std::uint64_t>(deck.run.seed);
  in.state_for = std::ranges::max(shapes, {}, &plan::PlanShape::purpose).purpose;
  in.most_tallies = std::ranges::max(shapes, {}, &plan::PlanShape::tallies).tallies;
  in.cache = cache_inputs(in.model, shapes, on);
  in.most_scores = most_scores(in, shapes);
  return in;
}

}  // namespace tessera::setup
