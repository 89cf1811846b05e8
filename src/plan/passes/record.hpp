// Recording: a unit function is run once against a device that computes nothing, which yields its
// operations over local symbolic buffers. All blocks share one recording; for each visit of a layer
// the plan binds it to buffers of its own.
#pragma once

#include <string>
#include <vector>

#include "model/block.hpp"
#include "model/ends.hpp"
#include "plan/ir/inputs.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::plan {

/// Local buffers that the plan binds, with their fixed meanings. Those that a recording makes
/// itself follow behind them.
enum class Local : BufferId {
  resid,
  pending,
  d,  // carry in, and the gradient on the way back
  tokens,
  targets,
  samples,
  documents,
  positions,
  reference,
  advantages,
  target_weights,
  drawn_losses,
  reference_losses,
  returns,
  drawn_values,
  cached,
  pages,
  counted,
  logits,
  losses,
  scalars,
  confusion,
  choices,
  statistics,
  first_unit
};
/// The flat buffers of the layer's units.
constexpr BufferId local_weights(std::size_t unit) {
  return static_cast<BufferId>(Local::first_unit) + 2 * static_cast<BufferId>(unit);
}
constexpr BufferId local_gradients(std::size_t unit) { return local_weights(unit) + 1; }
/// Behind those of so many units, what a block's own chunks have in a cache: k, and behind it v.
constexpr BufferId local_cache(std::size_t units, std::size_t chunk) {
  return local_weights(units + chunk);
}

struct LocalBuffer {
  model::Keep keep = model::Keep::transient;
  std::int64_t bytes = 0;
};

/// A call of a layer. Of a collective: among whom.
struct Recorded {
  Call call;
  MeshGroup group = MeshGroup::tensor;
};

/// One visit of a layer: forward, and backward where there is one.
struct Recording {
  BufferId first_made = 0;        // local id of what it makes first
  std::vector<LocalBuffer> made;  // local id first_made + index
  std::vector<Recorded> forward, backward;
  std::size_t replayed = 0;        // ops that backward begins with: forward's, computed again
  std::vector<bool> only_weights;  // by op of backward: only gradients of weights need it
  model::Carry out;                // local views
  View d_out;                      // local view: gradient of the carry on the way in

  /// The local id of a new buffer.
  BufferId make(LocalBuffer buffer) {
    made.push_back(buffer);
    return first_made + static_cast<BufferId>(made.size()) - 1;
  }
};

/// What a recording is of. A handover adds up the carry that leaves for the next pipeline stage.
enum class LayerKind : std::uint8_t { embed, block, head, handover };

/// What a recording depends on; equal keys give equal recordings.
struct RecordKey {
  LayerKind layer = LayerKind::block;
  bool pending_in = false;  // whether the carry in has a pending part
  bool training = false;
  kernels::Write write = kernels::Write::overwrite;  // of gradients
  kernels::Write token_write =
      kernels::Write::overwrite;  // of the embedding's gradient of the token matrix
  kernels::Write expert_write = kernels::Write::overwrite;  // of experts that are a unit apart
  std::vector<bool> frozen;                                 // by unit of the layer
  bool carry_gradient = true;                 // whether the gradient of the carry in is wanted
  model::Reach reach = model::Reach::global;  // of a block,
  bool experts = false;                       // and whether it has experts
  std::vector<std::string> adapters;          // what of it has some, without the layer's name
  auto operator<=>(const RecordKey&) const = default;
};

struct RecordInputs {
  const model::ModelConfig& config;
  const kernels::Device& device;  // says how much scratch each operation wants
  DType compute = DType::f32;
  DType accumulate = DType::f32;
  Recompute recompute = Recompute::none;
  model::Activations activations = model::Activations::separate;
  kernels::Operands operands = kernels::Operands::stored;  // of the blocks' products
  kernels::SumOrder order = kernels::SumOrder::fixed;
  std::uint64_t seed = 0;
  std::int64_t micro = 0, sequence = 0;
  DocumentInputs documents;
  std::int64_t logit_rows = 0;  // UnitContext::logit_rows
  std::int64_t inner_rows = 0;  // UnitContext::inner_rows
  kernels::LossTerms loss_terms;
  kernels::PreferenceTerms preference;
  std::optional<PolicyInputs> policy;  // in training
  PlanInputs::Statistics statistics;
  kernels::RouterTerms router_terms;
  bool confusion = false;            // whether MicroBatch::confusion is wanted
  model::TensorRegion tensor;        // without run
  model::ExpertRegion experts;       // likewise
  model::ContextRegion context;      // likewise
  std::optional<CacheInputs> cache;  // in generation
  Scores scores = Scores::none;      // of evaluation
  bool adapted = true;
  std::vector<const model::UnitDesc*> units;  // whose parameters the layer uses
  std::vector<const zero::UnitLayout*> layouts;
};

Recording record(const RecordKey& key, const RecordInputs& inputs);

/// Takes out what nobody wants: the operations that only lead to gradients of frozen units or, if
/// that is not wanted, of the carry in. An operation that makes such a gradient of a unit beside
/// something else still makes it, in a buffer of its own that nobody reads.
void drop_unwanted(Recording& recording, const RecordKey& key);

/// Drops saved tensors that the policy does not keep, and puts before backward the operations that
/// make them again: the part of forward that leads from kept tensors to dropped ones that backward
/// reads.
void recompute(Recording& recording, Recompute policy);

}  // namespace tessera::plan
