// The collectives of a plan as plain data: argument structs of views, like kernels, so that a plan
// can hold, check and count them without MPI or NCCL.
#pragma once

#include <algorithm>
#include <span>
#include <variant>

#include "core/mesh.hpp"
#include "kernels/api/access.hpp"

namespace tessera::comm {

using kernels::Access;
using kernels::access_of;
using kernels::name_of;
using kernels::visit_views;
using kernels::Write;

/// Every rank's `shard` ends up in slot `rank` of everyone's `full` (shards in rank order). With
/// blocks > 1 both are so many equal blocks, each gathered like this: parts of a sequence, block by
/// sample. `shard` may be the rank's own slot of `full` (of one block).
struct AllGather {
  static constexpr const char* kName = "all_gather";
  View shard;  // (n)
  View full;   // (size n)
  std::int64_t blocks = 1;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.shard, Access::read), f(s.full, Access::write);
  }
};

/// shard (+)= the sum over ranks of slot `rank` of `full`, added in f32 in an aligned binary tree
/// over the rank index: ((0+1)+(2+3))+..., whatever the transport, rounded once if the shard is
/// bf16. Elements travel as `wire`.
/// `full` is used up: its contents are undefined afterwards. `shard` may be the rank's own slot of
/// `full` when it is overwritten. Blocks as in AllGather.
struct ReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  View full;                // (size n) f32 or bf16
  View shard;               // (n) f32 or bf16
  View staging;             // reduce_scatter_staging bytes
  DType wire = DType::f32;  // f32 or bf16
  Write write = Write::overwrite;
  std::int64_t blocks = 1;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.full, Access::update), f(s.staging, Access::write), f(s.shard, access_of(s.write));
  }
};

/// words[i] = sum over ranks, 64-bit integers: exact sums, counters and flags.
struct AllReduceWords {
  static constexpr const char* kName = "all_reduce_words";
  View words;  // (n) i64

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.words, Access::update);
  }
};

/// The k-th Send from one rank to another is what the other's k-th Receive from it takes.
struct Send {
  static constexpr const char* kName = "send";
  View data;
  std::int64_t peer = 0;  // rank in the group
  bool crosses = false;   // to another node

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.data, Access::read);
  }
};
struct Receive {
  static constexpr const char* kName = "receive";
  View data;
  std::int64_t peer = 0;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.data, Access::write);
  }
};

/// Slot k of `send` goes to rank ranks.rank(k) of the group, and what that rank has for this one
/// comes to slot k of `receive`. The ranks, this one among them, are some of the group; each of
/// them calls with the same ones.
struct AllToAll {
  static constexpr const char* kName = "all_to_all";
  View send;     // (ranks, bytes) u8
  View receive;  // (ranks, bytes) u8
  RankGroup ranks;
  std::int64_t remote = 0;  // how many of them are on other nodes

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.send, Access::read), f(s.receive, Access::write);
  }
};

using CollectiveCall =
    std::variant<AllGather, ReduceScatter, AllReduceWords, Send, Receive, AllToAll>;

/// What moves a group's bytes: our pairwise exchange in small pieces between hosts, or NCCL between
/// GPUs. NCCL's own sums have an order, and for 16-bit elements a precision, of their own; so
/// contributions are exchanged and added by our kernel (`nccl`), but where f32 crosses nodes and
/// need not have the same bits on every layout (`nccl_sums`): there a ring sends least.
enum class Carrier : std::uint8_t { exchange, nccl, nccl_sums };

/// Where the ranks of a group are, as one of them sees it: `size` ranks on `nodes` nodes, `local`
/// of them on its own, itself among them. Nodes may hold different numbers, in any order of ranks.
struct GroupShape {
  std::int64_t size = 1;
  std::int64_t local = 1;
  std::int64_t nodes = 1;
  Carrier carrier = Carrier::exchange;

  /// Whether NCCL itself adds elements of `full` that travel as `wire`.
  bool nccl_sums(DType wire, DType full) const {
    return carrier == Carrier::nccl_sums && wire == DType::f32 && full == DType::f32;
  }
};

/// The shape of the group of `members` (world ranks) for one of them; node_of[r] is world rank r's
/// node.
GroupShape group_shape(std::span<const int> members, std::span<const int> node_of, int member);

struct WireBytes {
  std::int64_t intra = 0;
  std::int64_t inter = 0;
};

/// Bytes that this rank of the group sends in the call.
WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group);

/// Bulk data travels in pieces of this many bytes, `kPiecesInFlight` per peer and direction (FACTS:
/// the only way to full-duplex rate over TCP is to stay below the eager limit; shared memory likes
/// larger pieces).
inline constexpr std::int64_t kPieceInter = 56 * 1024;
inline constexpr std::int64_t kPieceIntra = 256 * 1024;
inline constexpr std::int64_t kPiecesInFlight = 4;
inline std::int64_t piece_bytes(const GroupShape& group) {
  return group.local >= group.size ? kPieceIntra : kPieceInter;
}

/// NCCL likes long messages: elements of `full` that are exchanged at a time.
inline constexpr std::int64_t kNcclPiece = std::int64_t{8} << 20;
/// Elements of a shard among them; a multiple of what 128-bit accesses want.
inline std::int64_t nccl_piece(const GroupShape& group) {
  return std::max<std::int64_t>(kNcclPiece / group.size / 256, 1) * 256;
}

/// Bytes of ReduceScatter's staging: pieces in flight from each peer and, where the wire's type is
/// not that of `full`, to each peer; and a piece of the own slot where that is not f32. Over NCCL,
/// a piece of each rank as f32; as the wire's type, where that is another; and of what is sent,
/// where that is another than `full`'s. Never 0.
std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire, DType full = DType::f32);

}  // namespace tessera::comm
