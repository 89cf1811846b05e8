// The step as data: buffers, and operations over them, each with the stream it runs on and the ops
// it waits for. Plans are made without MPI or devices; the same plan is proved, printed, counted
// and executed.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <variant>
#include <vector>

#include "comm/collective.hpp"
#include "core/at.hpp"
#include "core/enum_array.hpp"
#include "core/enums.hpp"
#include "core/exact_sum.hpp"
#include "core/math.hpp"
#include "core/mesh.hpp"
#include "core/streams.hpp"
#include "kernels/api/device.hpp"

namespace tessera::plan {

using BufferId = std::int32_t;
using OpId = std::int32_t;
template <typename T>
using PerStream = EnumArray<Stream, T, kStreams>;

/// What bytes are for: the rows of the memory ledger.
enum class BufferPurpose : std::uint8_t {
  parameters,
  master,
  optimizer,
  errors,    // what rounding has lost (error feedback)
  snapshot,  // live as long as the run
  control,
  cache,  // of sequences that are gone on with, in generation
  batch,
  gradients,
  activations,
  messages,
  gather_window,
  secondary,
  staging,
  scratch,  // live within a step
};

/// Where a buffer lies: on the device that the rank computes on, on the host, or on disks. Ops run
/// on the device or on the host. Where that device is the CPU, both are the host's memory.
enum class Location : std::uint8_t { device, host, disk };

struct Buffer {
  std::string name;
  BufferPurpose purpose = BufferPurpose::scratch;
  std::int64_t bytes = 0;
  bool persistent = false;  // keeps its contents from step to step
  Location location = Location::device;
  std::int64_t offset = -1;  // within its arena, set by the buffers pass
  /// Of a stand-in: which byte of its home it begins with, and how many its home has; else 0.
  std::int64_t home_byte = 0, home_bytes = 0;
};

enum class ArenaId : std::uint8_t { state, step, host, disk };
inline constexpr std::size_t kArenas = 4;
template <typename T>
using PerArena = EnumArray<ArenaId, T, kArenas>;
using ArenaBytes = PerArena<std::int64_t>;
/// The larger of the two, arena by arena.
inline ArenaBytes most_of(ArenaBytes a, const ArenaBytes& b) {
  for (std::size_t i = 0; i < kArenas; ++i) a[i] = std::max(a[i], b[i]);
  return a;
}

/// Of a location: the arena of its persistent buffers, and the arena of those that live within a
/// step.
struct LocationRow {
  Location location;
  ArenaId state, step;
};
inline constexpr std::array kLocationRows = {
    LocationRow{Location::device, ArenaId::state, ArenaId::step},
    LocationRow{Location::host, ArenaId::host, ArenaId::host},
    LocationRow{Location::disk, ArenaId::disk, ArenaId::disk}};
inline constexpr std::size_t kLocations = kLocationRows.size();
template <typename T>
using PerLocation = EnumArray<Location, T, kLocations>;
static_assert(indexed_by(&LocationRow::location, kLocationRows));
constexpr const LocationRow& row_of(Location location) { return at(kLocationRows, location); }
inline ArenaId arena_of(const Buffer& b) {
  return b.persistent ? row_of(b.location).state : row_of(b.location).step;
}
/// The location whose memory an arena is.
constexpr Location location_of(ArenaId arena) {
  for (const LocationRow& row : kLocationRows) {
    if (row.state == arena || row.step == arena) return row.location;
  }
  return Location::device;
}

/// Of buffers in their arenas, in bytes: a multiple of the cache line and of vector widths; and, in
/// all arenas of a plan that has any on disks, what disks transfer at once.
inline constexpr std::int64_t kBufferAlignment = 256, kDiskAlignment = 4096;

enum class OpKind : std::uint8_t {
  load_batch,        // host: tokens of one micro-batch
  kernel,            // one operation of a unit
  tensor,            // a collective of the tensor ranks within a unit
  experts,           // rows that go to the ranks that have their experts, or come back
  context,           // what ranks that divide a sequence exchange within a unit
  send,              // activations, or their gradient, to the next or the previous stage
  receive,           // from it
  gather,            // a unit's parameters from all shards (ZeRO-3)
  publish,           // updated parameters from all shards, just before first use (ZeRO-1, 2)
  reduce_gradients,  // a unit's gradient, summed over data ranks, to its owners
  sum_gradients,     // two sums of gradients become one
  tie_gradients,     // the sums of tied embeddings at both ends of the pipeline
  gather_gradients,  // the sums back to everybody (ZeRO-0)
  norm,              // exact sums and flags over all ranks, and the verdict
  balance,           // what balances experts follows the step's choices
  update,            // the optimizer on elements of one unit's owned range, or a pass of it
  tensor_sums,       // what an update's second pass needs of whole tensors, over all ranks
  matrices,          // what updates need of whole matrices: their way home, there, and back
  momentum,          // of compressed momentum: it joins gradients, and what is made of both comes
                     // back to all ranks
  fetch,             // what lives elsewhere, to where it is used
  evict,             // back to where it lives
  errors,            // what rounding has lost is kept for the next step, or summed for a checkpoint
  snapshot,          // state for a checkpoint that is written beside the step: a copy, or a tile of
                     // what lives on disks, as its update leaves it
};

/// Fills the views with micro-batch `micro_batch` of this rank's part of the step.
struct LoadBatch {
  static constexpr const char* kName = "load_batch";
  View row;        // u8: all that follows, and what is between
  View tokens;     // (B, T) i32
  View targets;    // (B T) i32, or (B) of pooled outputs; -1 where none counts
  View samples;    // (B) i64
  View documents;  // (B, T, 2) i32, as kernels::check_documents says; absent: not wanted
  View tallies;    // (B) i32: which tally each sample counts in; absent: there are none
  View reference;  // (B) f64: log p of each sample, of the reference model; absent: not wanted
  // (B T) f32 of targets that were drawn, as model::MicroBatch has them; absent: not wanted.
  View advantages, weights, drawn_losses, reference_losses, returns, drawn_values;
  /// Where ranks have chunks of sequences, which are then B rows of T tokens, `documents` are of
  /// the whole sequences, and these (B, T, 2) i32 where positions count from, relative to each
  /// row's first token. Absent elsewhere.
  View positions;
  /// In generation, as model::MicroBatch has them: (B, 3) and (B, P) i32 and, where T > 1, (B, T,
  /// 2) i32.
  View cached, pages, counted;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.row, kernels::Access::write), f(s.tokens, kernels::Access::write);
    f(s.targets, kernels::Access::write), f(s.samples, kernels::Access::write),
        f(s.documents, kernels::Access::write), f(s.tallies, kernels::Access::write),
        f(s.reference, kernels::Access::write);
    f(s.advantages, kernels::Access::write), f(s.weights, kernels::Access::write),
        f(s.drawn_losses, kernels::Access::write), f(s.reference_losses, kernels::Access::write),
        f(s.returns, kernels::Access::write), f(s.drawn_values, kernels::Access::write),
        f(s.positions, kernels::Access::write), f(s.cached, kernels::Access::write),
        f(s.pages, kernels::Access::write), f(s.counted, kernels::Access::write);
  }
  bool operator==(const LoadBatch&) const = default;
};

struct Copy {
  static constexpr const char* kName = "copy";
  View from, to;
  /// Absent: everything is copied. Else (P, E + 1) i32, of the rows of P ranks the first one of
  /// each expert, and behind the last; the bytes are E equal parts, of which those of experts
  /// without rows of any rank stay away. Whoever copies is on the host, which reads it.
  View begins;
  double share = 1;  // of the bytes that are expected to be copied

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.from, kernels::Access::read), f(s.to, kernels::Access::write);
    f(s.begins, kernels::Access::read);
  }
  bool operator==(const Copy&) const = default;
};

/// A range of a row of what is kept of the op's unit goes into the checkpoint that is being
/// written.
struct SaveTile {
  static constexpr const char* kName = "save_tile";
  View from;               // the elements, or the slot of codes that they are kept as
  std::size_t row = 0;     // of kept_tensors
  std::int64_t first = 0;  // element of the unit's flat buffer
  std::int64_t count = 0;  // of elements

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.from, kernels::Access::read);
  }
  bool operator==(const SaveTile&) const = default;
};

using Call = std::variant<kernels::KernelCall, comm::CollectiveCall, LoadBatch, Copy, SaveTile>;

struct Op {
  OpKind kind = OpKind::kernel;
  Stream stream = Stream::compute;
  Location location = Location::device;
  MeshGroup group = MeshGroup::data;  // of a collective
  std::int32_t unit =
      -1;  // index of the unit whose parameters, gradients or activations it is about
  std::int32_t micro_batch = -1;
  std::int32_t visit =
      -1;              // running number of the forward or backward of a layer that it belongs to
  bool again = false;  // recomputation: backward computes what forward has computed and not kept
  Call call;
  std::vector<OpId> waits;  // ops of other streams; set by the streams pass
};

/// What a plan is for, in the order of the state that it needs: generation and evaluation need
/// parameters only. A flush is the update that the last step has left to do, and nothing else.
enum class PlanPurpose : std::uint8_t { generate, evaluate, flush, train, train_snapshot };

/// Whether momentum travels compressed in a step (optim::CompressedMomentum). The first such step
/// gathers it before, so that every rank has all of it.
enum class Compression : std::uint8_t { none, begins, on };

/// What the host reads of an evaluation beside sums: of every target its loss, or the value of the
/// state that it was said in, without any losses; or of every sample its first output, with its
/// sign turned, in the place of losses.
enum class Scores : std::uint8_t { none, losses, values, outputs };

/// By what the plans of one run differ: steps of one shape run one plan.
struct PlanShape {
  PlanPurpose purpose = PlanPurpose::train;
  std::int64_t sequence = 0;                    // T
  std::int64_t micro = 0;                       // B of one micro-batch
  std::int64_t micro_batches = 0;               // K of this data rank
  std::int64_t tallies = 0;                     // that the samples count in
  Compression compression = Compression::none;  // of a flush, in the step before
  bool of_targets = false;  // losses are of targets, also where samples are pairs
  Scores scores = Scores::none;
  bool adapted = true;  // with adapters, where the model has some
  /// In generation, of a data rank: sequences that there are slots for, tokens of each at most, and
  /// pages of the caches, which they share.
  std::int64_t slots = 0, room = 0, pages = 0;
  /// Of generation: first brings up to date what ranks have of parameters that others update, and
  /// what nodes keep of them (UnitShare::of_node).
  bool renews = false;
  auto operator<=>(const PlanShape&) const = default;
};

/// What a rank has of one unit, in elements: its shard, and how many of these it counts, that is,
/// adds to the norm and writes to checkpoints. All 0 where the unit is on other pipeline stages.
struct UnitShare {
  bool trained = false;   // its gradient enters the norm and updates it
  bool errors = false;    // what rounding its gradient loses is kept (error feedback)
  bool momentum = false;  // it travels as momentum, compressed, in place of its gradient,
  bool by_nodes = false;  // and is rounded on the way, as sums of nodes
  bool factors = false;   // its tensors have factors (optim::TensorFactors)
  BufferId balance = -1;  // its parameters, which the step moves by choices of experts; -1: it does
                          // not
  /// Shards that this rank keeps for its node between passes of generation, in the order of their
  /// owners; -1: none.
  BufferId of_node = -1;
  std::vector<std::int64_t> of_node_owners;
  std::int64_t parts = 0;  // ranks that it is divided among
  std::int64_t shard = 0, counted = 0;
  std::optional<kernels::BlockFormat> codes;  // which its parameters are kept as, not as elements
  std::int64_t slot = 0;                      // of so many elements together
  std::vector<std::int64_t> kept;  // elements of the shard that it has of each row of kept_tensors
};

/// A part of the ops that stands there twice, one copy behind the other. The first copy runs once;
/// the second, which does the same at the same addresses for the micro-batches behind, runs `times`
/// times (proof/repeat).
struct Repeat {
  OpId first = 0;                              // with which the first copy begins
  OpId ops = 0;                                // of a copy
  std::int64_t times = 1;                      // that the second copy runs
  std::int32_t micro_batches = 0, visits = 0;  // of a copy

  OpId second() const { return first + ops; }
  OpId end() const { return first + 2 * ops; }
};

struct Plan {
  PlanShape shape;
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  /// Of a long step, whose other micro-batches repeat what is there for the scheduled ones.
  std::optional<Repeat> repeat;
  std::int64_t scheduled = 0;  // micro-batches that there are ops for: all, where nothing repeats
  Mesh mesh;
  MeshPlace place;                                   // in it
  std::array<comm::GroupShape, kMeshGroups> groups;  // by MeshGroup
  std::vector<UnitShare> shares;                     // by unit
  ArenaBytes arena_bytes{};
  std::int64_t alignment = kBufferAlignment;  // of buffers; the same in all plans of a run
  std::int64_t targets_of_micro_batch = 0;    // of this rank, or pairs, whether they count or not
  std::int64_t rows_of_micro_batch = 0;       // sequences, or chunks of them
  Buffer& buffer(BufferId id) { return at(buffers, id); }
  const Buffer& buffer(BufferId id) const { return at(buffers, id); }
  const Op& op(OpId id) const { return at(ops, id); }
  std::int64_t arena(ArenaId id) const { return arena_bytes[id]; }
  /// What the host reads and writes between steps: StepScalar, VerdictField, WordLayout.
  View scalars, verdict, words;
  /// Part of the words, (layers that have experts, E + 1): how many choices were each expert, and
  /// how many were dropped. Absent where there are none.
  View choices;
  /// Part of the words, (statistics, kExactSumWords): the sums of what is said beside losses: the
  /// kPreferenceStats of PreferenceLoss, or the kPolicyStats of PolicyLoss. Absent where there are
  /// none (PlanInputs::statistics).
  View statistics;
  /// In generation the logits after each sample's last token, f32: (micro-batches, chunks x B,
  /// outputs of a chunk), of all chunks, on every rank. Absent elsewhere.
  View logits;
  /// Of an evaluation that has scores, (micro-batches, targets of one) f32: those of this rank's
  /// targets, where it has the head; what is there means nothing elsewhere.
  View scores;
  /// (classes, classes) i64, counts of (target, prediction) over all ranks, of which each tensor
  /// rank counts the same: of an evaluation whose outputs are classes.
  View confusion;
  /// The scalars that updates read: those of their step, which may be the step before.
  View update_scalars;

  const comm::GroupShape& group(MeshGroup g) const { return at(groups, g); }
  /// This rank's place among those of its group.
  std::int64_t rank_in(MeshGroup g) const {
    const std::int64_t rank = mesh.rank_of(place);
    return mesh.group_of(rank, g).index(rank);
  }
};

/// How many targets a step has over all ranks, whether they count or not: what its gradients are
/// divided by until the verdict, which knows how many count. Where samples are pairs these are what
/// has a loss, and so what is called targets here and in the words.
std::int64_t targets_of(const Plan& plan);

/// What a rank tells all others in a step: the host sets its flags to 0 or 1 before the step, and
/// after it reads how many ranks have set each.
enum class StepFlag : std::uint8_t {
  saved,      // this rank's phase of the save under way is done
  stop,       // this rank was asked to stop
  no_tokens,  // this rank could not read its tokens
};

/// Where things are in Plan::words, 64-bit integers that are summed over all ranks at the end of a
/// step: the exact sums of loss and squared gradient norm (core/exact_sum), then what the host sets
/// before the step: the flags, by StepFlag, and how many of this rank's targets count. A tally has
/// the same of some samples' losses alone: how many targets count, which the host sets, and behind
/// those of all tallies the sum. Behind all are the choices of experts, and the sums of
/// statistics.
struct WordLayout {
  static constexpr std::int64_t loss = 0;
  static constexpr std::int64_t norm = kExactSumWords;
  static constexpr std::int64_t flags = 2 * kExactSumWords;
  static constexpr std::int64_t flag_count = 3;
  static_assert(static_cast<std::int64_t>(StepFlag::no_tokens) < flag_count);
  static constexpr std::int64_t targets = flags + flag_count;
  static constexpr std::int64_t tally_targets = targets + 1;
  // Of so many tallies:
  static constexpr std::int64_t tally_sums(std::int64_t tallies) { return tally_targets + tallies; }
  static constexpr std::int64_t count(std::int64_t tallies) {
    return tally_sums(tallies) + tallies * kExactSumWords;
  }
};

/// The sums of the plan's tallies, of which there are some: (tallies, kExactSumWords).
View tally_sums(const Plan& plan);
/// The words of one of the statistics of a plan that has some.
View statistic_words(const Plan& plan, std::int64_t statistic);

// --- Views into plan buffers: symbolic addresses
// ---------------------------------------------------------------

/// An address is 24 bits of buffer, 40 bits of offset: 16 million buffers of up to 1 TiB.
inline constexpr int kOffsetBits = 40;
inline constexpr std::int64_t kMostBuffers = (std::int64_t{1} << (64 - kOffsetBits)) - 2;

/// The address of `offset` within buffer `id`; never dereferenced, resolved when the plan meets
/// real memory.
inline std::byte* symbolic(BufferId id, std::int64_t offset = 0) {
  return reinterpret_cast<std::byte*>((static_cast<std::uintptr_t>(id) + 1) << kOffsetBits) +
         offset;
}
inline BufferId buffer_of(const View& v) {
  return static_cast<BufferId>((reinterpret_cast<std::uintptr_t>(v.data) >> kOffsetBits)) - 1;
}
inline std::int64_t offset_of(const View& v) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(v.data) &
                                   ((std::uintptr_t{1} << kOffsetBits) - 1));
}

/// f(args) for the argument struct of a call, whichever of the variants holds it.
template <typename CallType, typename F>
decltype(auto) visit_args(CallType& call, F&& f) {
  return std::visit(
      [&](auto& inner) -> decltype(auto) {
        if constexpr (requires { std::variant_size<std::decay_t<decltype(inner)>>::value; }) {
          return std::visit(f, inner);
        } else {
          return f(inner);
        }
      },
      call);
}

/// f(view, access) for every present view of the call.
template <typename CallType, typename F>
void each_view(CallType& call, F&& f) {
  visit_args(call, [&](auto& args) {
    args.visit(args, [&](auto& view, kernels::Access access) {
      if (view) f(view, access);
    });
  });
}

/// The op's kernel, if it is one of these; else nullptr.
template <typename Kernel>
const Kernel* kernel_of(const Op& op) {
  const auto* call = std::get_if<kernels::KernelCall>(&op.call);
  return call == nullptr ? nullptr : std::get_if<Kernel>(call);
}

/// The kernel that adds momentum to a rank's gradient before ranks sum it, where momentum travels
/// compressed; nullptr if the op does something else. `call`: the op's, or that one bound to
/// memory.
const kernels::Blend* joins_momentum(const Op& op, const Call& call);

std::string_view call_name(const Call& call);

struct BufferUse {
  BufferId buffer = -1;
  Range bytes;  // from the view's first to one past its last byte
  kernels::Access access = kernels::Access::read;
};
BufferUse use_of(const View& v, kernels::Access access = kernels::Access::read);
std::vector<BufferUse> uses_of(const Op& op);
/// Whether both are the same bytes, whatever is done with them.
inline bool same_bytes(const BufferUse& a, const BufferUse& b) {
  return a.buffer == b.buffer && a.bytes == b.bytes;
}

/// Bytes the op sends, and its floating-point operations.
comm::WireBytes wire_bytes_of(const Plan& plan, const Op& op);
double flop_of(const Op& op);

/// A hash of the plan's shape and of its collectives in order: kinds, streams, groups, sizes. All
/// ranks of a data group must have the same. Kernels do not enter, as they may differ with the
/// shard.
std::uint64_t plan_hash(const Plan& plan);

}  // namespace tessera::plan

template <>
struct tessera::EnumWords<tessera::plan::BufferPurpose> {
  using P = tessera::plan::BufferPurpose;
  static constexpr std::array table = {std::pair{P::parameters, "parameters"},
                                       std::pair{P::master, "master weights"},
                                       std::pair{P::optimizer, "optimizer"},
                                       std::pair{P::errors, "error feedback"},
                                       std::pair{P::snapshot, "snapshots"},
                                       std::pair{P::control, "control"},
                                       std::pair{P::cache, "keys and values"},
                                       std::pair{P::batch, "batch"},
                                       std::pair{P::gradients, "gradients"},
                                       std::pair{P::activations, "activations"},
                                       std::pair{P::messages, "messages between stages"},
                                       std::pair{P::gather_window, "gather window"},
                                       std::pair{P::secondary, "secondary shards"},
                                       std::pair{P::staging, "communication staging"},
                                       std::pair{P::scratch, "scratch"}};
};
template <>
struct tessera::EnumWords<tessera::plan::ArenaId> {
  using A = tessera::plan::ArenaId;
  static constexpr std::array table = {std::pair{A::state, "state"}, std::pair{A::step, "step"},
                                       std::pair{A::host, "host"}, std::pair{A::disk, "disk"}};
};
template <>
struct tessera::EnumWords<tessera::plan::Location> {
  using L = tessera::plan::Location;
  static constexpr std::array table = {std::pair{L::device, "device"}, std::pair{L::host, "host"},
                                       std::pair{L::disk, "disk"}};
};
template <>
struct tessera::EnumWords<tessera::plan::OpKind> {
  using K = tessera::plan::OpKind;
  static constexpr std::array table = {std::pair{K::load_batch, "load_batch"},
                                       std::pair{K::kernel, "kernel"},
                                       std::pair{K::tensor, "tensor"},
                                       std::pair{K::experts, "experts"},
                                       std::pair{K::context, "context"},
                                       std::pair{K::send, "send"},
                                       std::pair{K::receive, "receive"},
                                       std::pair{K::gather, "gather"},
                                       std::pair{K::publish, "publish"},
                                       std::pair{K::reduce_gradients, "reduce_gradients"},
                                       std::pair{K::sum_gradients, "sum_gradients"},
                                       std::pair{K::tie_gradients, "tie_gradients"},
                                       std::pair{K::gather_gradients, "gather_gradients"},
                                       std::pair{K::momentum, "momentum"},
                                       std::pair{K::norm, "norm"},
                                       std::pair{K::update, "update"},
                                       std::pair{K::balance, "balance"},
                                       std::pair{K::tensor_sums, "tensor_sums"},
                                       std::pair{K::matrices, "matrices"},
                                       std::pair{K::fetch, "fetch"},
                                       std::pair{K::evict, "evict"},
                                       std::pair{K::errors, "errors"},
                                       std::pair{K::snapshot, "snapshot"}};
};
