#include "train/setup.hpp"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <string_view>

#include "core/thread.hpp"
#include "io/hf_config.hpp"
#include "plan/prediction/ledger.hpp"

namespace tessera::train {
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

CheckpointLayout layout_of(const plan::PlanInputs& inputs) {
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

plan::PlanShape plan_shape(const deck::BatchSection& batch, plan::PlanPurpose purpose,
                           std::int64_t global, std::int64_t data_ranks) {
  return {.purpose = purpose,
          .sequence = batch.sequence,
          .micro = batch.micro,
          .micro_batches = global / (batch.micro * data_ranks)};
}

plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks) {
  return plan_shape(batch, plan::PlanPurpose::evaluate, optim::Timeline(batch, 0).global(1),
                    data_ranks);
}

std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks) {
  std::set<std::int64_t> ramp;
  for (const auto& entry : deck.batch.ramp) ramp.insert(entry.global);
  ramp.erase(deck.batch.global);
  std::vector<std::int64_t> globals{deck.batch.global};
  globals.insert(globals.end(), ramp.begin(), ramp.end());
  std::vector<plan::PlanShape> shapes;
  const auto add = [&](plan::PlanPurpose purpose, std::int64_t global) {
    shapes.push_back(plan_shape(deck.batch, purpose, global, data_ranks));
  };
  for (std::int64_t global : globals) {
    add(plan::PlanPurpose::train, global);
    if (deck.checkpoint.every > 0 && deck.checkpoint.async)
      add(plan::PlanPurpose::train_snapshot, global);
  }
  if (!deck.data.validation.empty()) shapes.push_back(evaluation_shape(deck.batch, data_ranks));
  return shapes;
}

namespace {

/// What makes a rank need less, in the order in which it costs least: arithmetic, then messages,
/// then disks.
std::string remedies(const deck::Deck& deck, const Mesh& mesh, bool state_alone) {
  std::vector<std::string> all;
  if (!state_alone) {  // what lives within a step may be made smaller
    if (deck.recompute.policy != Recompute::full) all.push_back("recompute.policy = \"full\"");
    if (deck.batch.micro > 1) all.push_back(fmt::format("batch.micro below {}", deck.batch.micro));
  }
  const std::int64_t last = kZeroStages - 1;
  if (deck.zero.stage < last && mesh.data > 1)
    all.push_back(fmt::format("zero.stage = {} to {}", deck.zero.stage + 1, last));
  if (mesh.data == 1 || deck.zero.stage > 0)
    all.push_back(fmt::format("more data ranks with zero.stage 1 to {}", last));
  all.push_back("a larger parallel.tensor or parallel.pipeline");
  return fmt::format("{} (check --options shows what each stage needs)", fmt::join(all, ", or "));
}

/// Throws MemoryError where a rank needs more than `most`, which is said by `limit`.
void check_device(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
                  std::int64_t most, const std::string& limit) {
  if (plan::device_bytes(bytes) <= most) return;
  const std::int64_t state = bytes[static_cast<std::size_t>(plan::ArenaId::state)],
                     step = bytes[static_cast<std::size_t>(plan::ArenaId::step)];
  const bool state_alone = state > most;
  throw MemoryError(fmt::format(
      "a rank needs {}, {} more than {}: {} in arena state (parameters and optimizer){} and {} in "
      "arena step (activations, gradients, messages); try {}",
      plan::human_bytes(state + step), plan::human_bytes(state + step - most), limit,
      plan::human_bytes(state), state_alone ? ", too much by itself," : "", plan::human_bytes(step),
      remedies(deck, mesh, state_alone)));
}

}  // namespace

void check_budget(const deck::LoadedDeck& loaded, const Mesh& mesh, const plan::ArenaBytes& bytes) {
  const auto* budget = std::get_if<deck::Bytes>(&loaded.deck.memory.device);
  if (budget == nullptr) return;
  check_device(loaded.deck, mesh, bytes, budget->count,
               fmt::format("memory.device = {} ({})", plan::human_bytes(budget->count),
                           loaded.where("memory.device")));
}

void check_gpu(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
               const memory::Tier::Apart& gpu) {
  if (gpu.total == 0) return;
  const std::int64_t free = gpu.total - gpu.in_use;
  check_device(
      deck, mesh, bytes, free,
      fmt::format("the {} that are free of its GPU's {} (nvidia-smi lists what runs there)",
                  plan::human_bytes(free), plan::human_bytes(gpu.total)));
}

std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory) {
  std::vector<deck::ArchitectureKey> keys;
  const auto path = std::filesystem::path(directory) / "config.json";
  for (const HfKey& k : read_hf_config(path).keys) keys.push_back({k.key, k.value, k.place});
  return keys;
}

int thread_count(const deck::RunSection& run, int cores) {
  if (run.threads) return static_cast<int>(*run.threads);
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr || *text == '\0') return cores;
  constexpr std::string_view kBlank = " \t";
  constexpr int kMost = 4096;
  const std::string_view all(text);
  std::string_view first = all.substr(0, all.find(','));  // of a list for nested levels
  first.remove_prefix(std::min(first.find_first_not_of(kBlank), first.size()));
  first = first.substr(0, first.find_last_not_of(kBlank) + 1);
  int threads = 0;
  const char* end = first.data() + first.size();
  const auto [stop, error] = std::from_chars(first.data(), end, threads);
  if (error == std::errc() && stop == end && threads >= 1 && threads <= kMost) return threads;
  throw DeckError(fmt::format(
      "OMP_NUM_THREADS = \"{}\" in the environment is no number of threads: give 1 to {}, or "
      "unset it, or set run.threads",
      all, kMost));
}

void use_threads(int threads) {
  omp_set_num_threads(threads);
  check_threads(threads - 1);
  int started = 0;
#pragma omp parallel reduction(+ : started)
  ++started;
  TESSERA_CHECK(started > 0, "OpenMP has no threads");
}

}  // namespace tessera::train
