// What a unit function runs in: a device for its kernels, memory for its intermediate tensors, and
// the tensor ranks that share the unit. With a real device and real memory the function computes at
// once; with a recording device and symbolic addresses its calls become ops of a plan.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/collective.hpp"
#include "kernels/api/device.hpp"
#include "model/parameters.hpp"

namespace tessera::model {

/// What a tensor of forward costs to compute again for backward. Each recomputation policy keeps
/// the tensors up to one of these.
enum class Keep : std::uint8_t {
  input,      // a block's input: kept always
  expensive,  // outputs of matrix products and attention: dropped by full recomputation
  cheap,      // elementwise results: dropped by selective recomputation too
  transient,  // not needed beyond the function
};

/// Whether a gelu is fused into the matrix product before it. Fused, on a GPU, it may see the
/// product's f32 sum; computed again from the saved preactivation, which is rounded, it may have
/// other bits.
enum class Activations : std::uint8_t { separate, in_products };

/// Hands out memory for one intermediate tensor; who provides it decides how long it lives.
using Allocate = std::function<std::byte*(Keep keep, std::int64_t bytes)>;

/// The tensor ranks that compute a unit together (Shoeybi et al. 2019, Megatron-LM).
struct TensorRegion {
  TensorCut cut;
  /// Norms and residuals are split over the ranks too, by position (Korthikanti et al. 2022).
  bool sequence = false;
  /// Into how many equal parts of the sequence the sums of norm weights' gradients are divided;
  /// the parts are added in a tree.
  std::int64_t position_groups = 1;
  DType wire = DType::f32;  // type in which sums over ranks travel
  comm::GroupShape group;
  std::function<void(const comm::CollectiveCall&)> run;  // over the tensor group

  bool whole() const { return cut.chunks == 1; }
  bool split_sequence() const { return sequence && cut.ranks > 1; }
};

/// The ranks that divide a layer's experts among them, each with its own tokens (Lepikhin et al.
/// 2020, GShard, section 3).
struct ExpertRegion {
  std::int64_t ranks = 1;
  /// Among which copies of tokens go to the rank that has their expert: all of these ranks or,
  /// where tokens go to nodes first, those of this node. The latter do so `across` those ranks that
  /// have this one's number on their nodes.
  comm::Hop within{.ranks = {.count = 1}}, across;
  /// Elements from the gradients that are made of one rank's tokens to those of the next rank's; 0:
  /// they are added up.
  std::int64_t gradient_step = 0;
  std::optional<kernels::Write> write;  // of their gradients; nothing: as others are written
  std::function<void(const comm::CollectiveCall&)> run;  // over these ranks
};

/// The ranks that divide each sequence among them, each with some chunks of it, all of which the
/// units see as sequences of their own; only attention knows better.
struct ContextRegion {
  std::int64_t ranks = 1, rank = 0;
  ContextKind kind = ContextKind::gather;
  std::int64_t groups = 1;  // of heads whose keys are gathered one after another, at most
  kernels::ZigzagChunks chunks;
  std::int64_t samples = 0, sequence = 0;  // of a micro-batch, as a whole
  bool by_document = false;                // positions count from the begins of documents
  comm::GroupShape group;
  bool next_is_remote = false;  // the rank after this one, behind the last the first, is elsewhere
  std::function<void(const comm::CollectiveCall&)> run;  // over these ranks

  bool cut() const { return chunks.shares > 1; }
  /// Shares that this rank has, and the first.
  std::int64_t own() const { return chunks.shares / ranks; }
  std::int64_t first() const { return rank * own(); }
};

/// Keys and values that one chunk's heads have of earlier tokens of sequences, for generation, in
/// pages: (pages, tokens of a page, KV D) and (pages, tokens of a page, KV E). Without v k has
/// latents and keys' positions, of which all heads make theirs: (pages, tokens of a page, latent +
/// R), in the first chunk's cache.
struct KvCache {
  View k, v;
  bool of_latents() const { return k && !v; }
};

/// One micro-batch as the units see it. Where sequences are cut, this rank's chunks are its
/// sequences, in the order of OrderChunks: of each share both halves, of each half all samples.
struct MicroBatch {
  std::int64_t batch = 0;     // B, sequences
  std::int64_t sequence = 0;  // T
  View tokens;                // (B, T) i32
  View targets;               // (B T) i32, or (B) of pooled outputs; absent in generation
  View samples;               // (B) i64, global sample index of each sequence, keys dropout masks
  /// (B, T, 2) i32 (kernels::check_documents): documents that attention keeps apart, and those from
  /// whose begins positions count. Absent: a sequence is one. The former are of whole sequences.
  View documents, positions;
  /// In generation (B, 3) and (B, P), what UnitContext::caches have of each sequence
  /// (kernels::CachedSample), in which of their pages (kernels::kPageTokens), and whether all of
  /// them are known to begin with this micro-batch. Absent: there is no cache.
  View cached, pages;
  bool begins = false;
  /// (B, T, 2) i32 as documents are, of which the first of each sequence has the tokens that there
  /// are, and what is behind it is padding. Absent: all T tokens are there.
  View counted;
  View reference;  // (B) f64, log p of each sample under a reference model; absent: not wanted
  // (B T) f32 of targets that were drawn (kernels::PolicyLoss), each absent where it is not wanted:
  // how good they were, what they weigh, and -log p when they were drawn and under a reference
  // model.
  View advantages, weights, drawn_losses, reference_losses;
  // Likewise of values: what came of each target, and its value when it was drawn.
  View returns, drawn_values;
  View confusion;  // (outputs, outputs) i64, counts that evaluation adds to; absent: not wanted
};

/// Where dropout is applied: to the embedding's sum; in a block to attention's probabilities, to
/// attention's output, and to what the layer before left pending; to what the head's matrix reads.
enum class DropoutSite : std::uint8_t { embedding, attention, attention_out, incoming, head };

/// Each site's rate, and its number among those of its layer, which keys its masks.
struct DropoutSiteRow {
  float DropoutRates::*rate;
  std::uint64_t number;
};
inline constexpr std::array<DropoutSiteRow, 5> kDropoutRows = {{{&DropoutRates::embedding, 0},
                                                                {&DropoutRates::attention, 0},
                                                                {&DropoutRates::residual, 1},
                                                                {&DropoutRates::residual, 2},
                                                                {&DropoutRates::residual, 0}}};

class Adapters;  // model/adapters.hpp

class UnitContext {
 public:
  UnitContext(kernels::Device& device, Allocate allocate, DType compute, MicroBatch micro_batch,
              TensorRegion tensor = {})
      : device_(device),
        allocate_(std::move(allocate)),
        compute_(compute),
        micro_batch_(micro_batch),
        tensor_(std::move(tensor)) {}

  DType compute() const { return compute_; }
  const MicroBatch& micro_batch() const { return micro_batch_; }
  const TensorRegion& tensor_region() const { return tensor_; }
  /// Tokens of a sequence, of which this rank may have chunks.
  std::int64_t whole_sequence() const {
    return context.cut() ? context.sequence : micro_batch_.sequence;
  }
  /// Positions of each sequence whose residuals this rank holds.
  Range positions() const {
    if (!tensor_.sequence) return {0, micro_batch_.sequence};
    return even_part(micro_batch_.sequence, tensor_.cut.rank, tensor_.cut.ranks);
  }

  View tensor(Keep keep, DType type, std::initializer_list<std::int64_t> extents) {
    View v(nullptr, type, extents);
    v.data = allocate_(keep, v.elements() * size_of(type));
    return v;
  }
  /// (B, T, columns) in the compute type.
  View activation(Keep keep, std::int64_t columns) {
    return tensor(keep, compute_, {micro_batch_.batch, micro_batch_.sequence, columns});
  }
  /// (B, T of positions(), columns) in the compute type.
  View residual(Keep keep, std::int64_t columns) {
    return tensor(keep, compute_, {micro_batch_.batch, positions().count(), columns});
  }

  /// Runs one operation with the scratch that the device needs for it. Of several shares of
  /// sequences, products and sums over rows are made share by share, so that they have the shapes,
  /// and sums the order, that they have where ranks have one share each.
  void run(const kernels::KernelCall& call);
  /// The same of an operation that has no rows of tokens, however many rows it has.
  void run_once(kernels::KernelCall call);

  /// Runs one of a block's matrix products with the blocks' operand format, and with what adapters
  /// add to it.
  void multiply(kernels::Linear product);
  void multiply(kernels::LinearBackwardInput product);
  void multiply(kernels::LinearBackwardWeight product);
  /// Gradients of adapters beside the products that have come back since.
  void adapter_gradients(kernels::Write write);
  /// Sums of those over chunks.
  void finish_adapters();

  /// Memory that no later function needs, of the compute type.
  View temporary(std::initializer_list<std::int64_t> extents) {
    return tensor(Keep::transient, compute_, extents);
  }

  /// Dropout of a residual() at one of the model's sites; off in evaluation. `visit` is relative to
  /// this layer: what a block leaves pending is dropped out where it is added, in layer + 1, hence
  /// 1.
  kernels::Dropout dropout(const ModelConfig& c, DropoutSite site, std::uint64_t visit = 0) const {
    return dropout_from(positions().begin * c.hidden, c, site, visit);
  }
  /// Dropout of a tensor that begins with element `first` of each sample.
  kernels::Dropout dropout_from(std::int64_t first, const ModelConfig& c, DropoutSite site,
                                std::uint64_t visit = 0) const {
    const DropoutSiteRow& row = kDropoutRows[static_cast<std::size_t>(site)];
    const float p = c.dropout.*row.rate;
    if (!training || p == 0) return {};
    return {.p = p,
            .seed = seed,
            .site = (layer + visit) * kDropoutSites + row.number,
            .first = first,
            .samples = micro_batch_.samples};
  }

  /// What a layer's router multiplies its input with, at all positions of C columns; none in
  /// evaluation.
  kernels::Dropout router_jitter(const ModelConfig& c) const {
    if (!training || c.experts.jitter == 0) return {};
    return {.jitter = c.experts.jitter,
            .seed = seed,
            .site = layer * kDropoutSites,
            .samples = micro_batch_.samples};
  }

  static constexpr std::uint64_t kDropoutSites = 3;
  Reach reach = Reach::global;  // of the layer
  Activations activations = Activations::separate;
  kernels::Operands operands = kernels::Operands::stored;  // of the blocks' products
  Adapters* adapters = nullptr;                            // of the block, if it has some
  std::vector<KvCache> caches;  // of the layer, by own chunk, in generation; else empty
  kernels::SumOrder order = kernels::SumOrder::fixed;
  /// Rows of a micro-batch whose logits are in memory at once; 0: all.
  std::int64_t logit_rows = 0;
  /// Likewise for which a dense feed-forward layer's inner columns are; fewer than all of a share
  /// are made again in backward.
  std::int64_t inner_rows = 0;
  kernels::LossTerms loss_terms;  // of what is minimised; evaluation has none
  /// Where samples are pairs of answers, what their losses are.
  kernels::PreferenceTerms preference;
  /// Where targets are tokens that the model drew, in training, what their losses are.
  std::optional<kernels::PolicyTerms> policy;
  /// Where the head puts what it says beside losses: of pairs (kPreferenceStats, B / 2) f32, of
  /// targets that were drawn (kPolicyStats, B T). Absent where nobody asks.
  View statistics;
  /// The same of values, which the head makes then.
  std::optional<kernels::ValueTerms> value;
  /// Whether the model's output is a score.
  bool scores() const { return preference && !preference.relative(); }
  /// The same of routers: z, and what the Switch loss of a sample weighs beside the mean loss of
  /// its targets.
  kernels::RouterTerms router_terms;
  ExpertRegion experts;
  ContextRegion context;
  /// Memory for parts of gradients of every share: that of the first, and elements from one to the
  /// next (PartialGradients).
  std::vector<std::pair<View, std::int64_t>> share_parts;
  View scale;  // (1) f32, which multiplies losses; absent in evaluation
  /// (E + 1) i64, to which the layer adds how often each expert was chosen, and how many of these
  /// choices it has dropped; absent: not wanted.
  View choices;
  bool training = false;
  std::uint64_t seed = 0;
  std::uint64_t layer = 0;  // of the visit: embedding 0, block i is i + 1, head L + 1

 private:
  kernels::Device& device_;
  Allocate allocate_;
  DType compute_;
  MicroBatch micro_batch_;
  TensorRegion tensor_;
};

/// What flows between layers: the residual stream, and the last sub-layer's output, which is not
/// yet added to it so that the addition is fused with the next norm. After the embedding nothing is
/// pending.
struct Carry {
  View resid;    // (B, T, C), T the rank's positions
  View pending;  // (B, T, C) or absent
};

}  // namespace tessera::model
