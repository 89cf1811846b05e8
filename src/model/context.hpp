// What a unit function runs in: a device for its kernels, a workspace for its intermediate tensors,
// and the tensor ranks that it works with. Against a real device and memory the function computes
// at once; against a recording device and symbolic addresses it becomes ops.
#pragma once

#include <functional>

#include "comm/collective.hpp"
#include "kernels/api/device.hpp"
#include "model/parameters.hpp"

namespace tessera::model {

/// How dear a tensor is to keep from forward to backward; each recomputation policy keeps the first
/// so many.
enum class Keep : std::uint8_t {
  input,      // a block's input: kept always
  expensive,  // outputs of matrix products and attention: dropped by full recomputation
  cheap,      // elementwise results: dropped by selective recomputation too
  transient,  // not needed beyond the function
};

/// Whether a gelu belongs to the product before it. On a GPU it then may see the product's f32
/// sum, so what computes it again from the saved preactivation would change bits.
enum class Activations : std::uint8_t { apart, in_products };

/// Hands out memory for one intermediate tensor; who provides it decides how long it lives.
using Allocate = std::function<std::byte*(Keep keep, std::int64_t bytes)>;

/// The tensor ranks that compute a unit together (Shoeybi et al. 2019, Megatron-LM).
struct TensorRegion {
  TensorCut cut;
  /// Norms and residuals are split over the ranks too, by position (Korthikanti et al. 2022).
  bool sequence = false;
  /// The equal parts of a sequence over which gradients of norm weights are summed apart.
  std::int64_t position_groups = 1;
  DType wire = DType::f32;  // of sums over ranks
  comm::GroupShape group;
  std::function<void(const comm::CollectiveCall&)> run;  // over the tensor group

  bool whole() const { return cut.chunks == 1; }
  bool split_sequence() const { return sequence && cut.ranks > 1; }
};

/// One micro-batch as the units see it.
struct MicroBatch {
  std::int64_t batch = 0;     // B, sequences
  std::int64_t sequence = 0;  // T
  View tokens;                // (B, T) i32
  View targets;               // (B T) i32; absent in generation
  View samples;               // (B) i64, global sample index of each sequence, keys dropout masks
};

/// Where a visit drops out: a block's probabilities (or the embedding's sum), its attention's
/// output, and what the visit before left pending.
enum class DropoutSite : std::uint64_t { inner = 0, attention_out = 1, incoming = 2 };

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

  /// Runs one operation, with the scratch that the device wants for it.
  void run(kernels::KernelCall call) {
    const std::int64_t bytes = device_.scratch_bytes(call);
    if (bytes > 0) {
      std::visit([&](auto& args) { args.scratch = tensor(Keep::transient, DType::u8, {bytes}); },
                 call);
    }
    device_.run(call);
  }

  /// Dropout of a residual() at one of the model's sites, off in evaluation. `visit` counts from
  /// this one: what a block leaves pending is dropped out where it is added, in visit 1.
  kernels::Dropout dropout(const ModelConfig& c, DropoutSite site, std::uint64_t visit = 0) const {
    return dropout_from(positions().begin * c.hidden, c, site, visit);
  }
  /// Dropout of a tensor that begins with element `first` of each sample.
  kernels::Dropout dropout_from(std::int64_t first, const ModelConfig& c, DropoutSite site,
                                std::uint64_t visit = 0) const {
    if (!training || c.dropout == 0) return {};
    return {.p = c.dropout,
            .seed = seed,
            .site = (layer + visit) * kDropoutSites + static_cast<std::uint64_t>(site),
            .first = first,
            .samples = micro_batch_.samples};
  }

  static constexpr std::uint64_t kDropoutSites = 3;
  Activations activations = Activations::apart;
  kernels::Operands operands = kernels::Operands::stored;  // of the blocks' products
  kernels::SumOrder order = kernels::SumOrder::fixed;
  bool training = false;
  std::uint64_t seed = 0;
  std::uint64_t layer = 0;  // the visit: embedding 0, block i is i + 1, head L + 1

 private:
  kernels::Device& device_;
  Allocate allocate_;
  DType compute_;
  MicroBatch micro_batch_;
  TensorRegion tensor_;
};

/// What flows between units: the residual stream and the last sub-layer's output, not yet added to
/// it (absent after the embedding), so that the addition fuses with the next norm.
struct Carry {
  View resid;    // (B, T, C), T the rank's positions
  View pending;  // (B, T, C) or absent
};

}  // namespace tessera::model
