#include "setup/inputs.hpp"

#include <algorithm>

namespace tessera::setup {
namespace {

DType sum_type(deck::SumPrecision p) {
  return p == deck::SumPrecision::f32 ? DType::f32 : DType::bf16;
}

std::optional<kernels::BlockFormat> weight_blocks(const deck::QuantizeSection& q) {
  if (q.weights == deck::QuantizedWeights::none) return std::nullopt;
  return kernels::BlockFormat{.type = kernels::BlockType::int8, .block = q.block};
}
std::optional<kernels::BlockFormat> gradient_blocks(const deck::QuantizeSection& q) {
  if (q.gradients == deck::QuantizedGradients::none) return std::nullopt;
  const bool int4 = q.gradients == deck::QuantizedGradients::int4;
  return kernels::BlockFormat{.type = int4 ? kernels::BlockType::int4 : kernels::BlockType::int8,
                              .block = q.block};
}

plan::PipelineRule pipeline_rule(const deck::ParallelSection& p) {
  plan::PipelineRule rule{
      .schedule = p.schedule, .virtual_stages = p.virtual_stages, .first_layers = {}};
  if (const auto* first = std::get_if<std::vector<std::int64_t>>(&p.placement))
    rule.first_layers = *first;
  return rule;
}

}  // namespace

DType dtype_of(deck::Precision p) {
  return p == deck::Precision::f32    ? DType::f32
         : p == deck::Precision::bf16 ? DType::bf16
                                      : DType::f16;
}

model::ModelConfig model_config(const deck::ModelSection& m) {
  TESSERA_CHECK(m.position != PositionKind::sinusoidal, "sinusoidal positions are not built");
  return {.layers = m.layers,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .hidden = m.hidden,
          .ffn_hidden = m.ffn_hidden,
          .vocab = m.vocab,
          .context = m.context,
          .norm = m.norm,
          .norm_eps = static_cast<float>(m.norm_eps),
          .position = m.position,
          .rope_theta = m.rope_theta,
          .activation = m.activation,
          .bias = m.bias,
          .tied_embeddings = m.tied_embeddings,
          .dropout = static_cast<float>(m.dropout),
          .init_std = static_cast<float>(m.init_std)};
}

Mesh mesh_of(const deck::Deck& deck, std::int64_t ranks) {
  const auto& p = deck.parallel;
  return {.tensor = p.tensor, .data = ranks / (p.tensor * p.pipeline), .pipeline = p.pipeline};
}

io::CheckpointLayout layout_of(const plan::PlanInputs& inputs) {
  return {.world = inputs.mesh.size(), .mesh = inputs.mesh, .zero_stage = inputs.stage};
}

plan::PlanInputs plan_inputs(const deck::Deck& deck, std::span<const plan::PlanShape> shapes,
                             std::span<const int> node_of, const kernels::Device& device) {
  plan::PlanInputs in;
  in.config = model_config(deck.model);
  in.mesh = mesh_of(deck, static_cast<std::int64_t>(node_of.size()));
  in.any_layout = deck.run.reproducible == deck::Reproducible::layout;
  in.tensor_chunks = in.any_layout ? deck.run.reproducible_tensor : in.mesh.tensor;
  in.units = model::model_units(in.config, in.tensor_chunks);
  in.split_sequence = deck.parallel.sequence;
  in.pipeline = pipeline_rule(deck.parallel);
  in.node_of.assign(node_of.begin(), node_of.end());
  const auto per_node = static_cast<std::size_t>(deck.parallel.ranks_per_node);
  for (std::size_t r = 0; per_node > 0 && r < node_of.size(); ++r)
    in.node_of[r] = static_cast<int>(r / per_node);
  in.device = &device;
  in.compute = dtype_of(deck.precision.compute);
  in.accumulate = sum_type(deck.precision.accumulate);
  in.wire = sum_type(deck.precision.gradients);
  in.weight_blocks = weight_blocks(deck.zero.quantize);
  in.gradient_blocks = gradient_blocks(deck.zero.quantize);
  in.operands = deck.precision.matmul == deck::Matmul::fp8 ? kernels::Operands::fp8
                                                           : kernels::Operands::stored;
  in.order = deck.run.reproducible == deck::Reproducible::off ? kernels::SumOrder::any
                                                              : kernels::SumOrder::fixed;
  in.stage = static_cast<int>(deck.zero.stage);
  in.reduce = deck.zero.reduce;
  in.prefetch = deck.zero.prefetch;
  in.recompute = deck.recompute.policy;
  in.optimizer = optim::make_optimizer(deck.optimizer);
  in.seed = static_cast<std::uint64_t>(deck.run.seed);
  in.state_for = std::ranges::max(shapes, {}, &plan::PlanShape::purpose).purpose;
  return in;
}

}  // namespace tessera::setup
