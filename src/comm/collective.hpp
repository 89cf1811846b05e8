// The collectives of a plan as plain data: argument structs of views, as kernels have, so that a
// plan can hold, check and count them without MPI or NCCL.
#pragma once

#include <algorithm>
#include <span>
#include <variant>
#include <vector>

#include "core/mesh.hpp"
#include "kernels/api/access.hpp"

namespace tessera::comm {

using kernels::Access;
using kernels::access_of;
using kernels::name_of;
using kernels::visit_views;
using kernels::Write;

/// Some ranks of a group, this one among them; `remote` of them are on other nodes. Each of them
/// makes the same call, in which its rank is its place among them. Without ranks: all of the group.
struct Hop {
  RankGroup ranks;
  std::int64_t remote = 0;
  explicit operator bool() const { return ranks.count > 0; }
  bool operator==(const Hop&) const = default;
};

/// Every rank's `shard` ends up in slot `rank` of every rank's `full`: shards in rank order. With
/// blocks > 1, `shard` and `full` are cut into so many equal blocks and each is gathered like this;
/// a sequence that is split over ranks is gathered so, sample by sample. `shard` may be the rank's
/// own slot of `full` (with one block).
struct AllGather {
  static constexpr const char* kName = "all_gather";
  View shard;  // (n)
  View full;   // (size n)
  std::int64_t blocks = 1;
  Hop among;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.shard, Access::read), f(s.full, Access::write);
  }
  bool operator==(const AllGather&) const = default;
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
  Hop among;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.full, Access::update), f(s.staging, Access::write), f(s.shard, access_of(s.write));
  }
  bool operator==(const ReduceScatter&) const = default;
};

/// words[i] = sum over ranks, or the largest, of 64-bit integers: exact sums, counters and flags.
struct AllReduceWords {
  static constexpr const char* kName = "all_reduce_words";
  enum class Of : std::uint8_t { sum, largest };
  View words;  // (n) i64
  Of of = Of::sum;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.words, Access::update);
  }
  bool operator==(const AllReduceWords&) const = default;
};

/// Messages. The k-th Send from one rank to another is received by the other's k-th Receive from
/// it.
struct Send {
  static constexpr const char* kName = "send";
  View data;
  std::int64_t peer = 0;  // rank in the group
  bool crosses = false;   // to another node

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.data, Access::read);
  }
  bool operator==(const Send&) const = default;
};
struct Receive {
  static constexpr const char* kName = "receive";
  View data;
  std::int64_t peer = 0;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.data, Access::write);
  }
  bool operator==(const Receive&) const = default;
};

/// Slot k of `send` goes to rank ranks.rank(k) of the group, and slot k of `receive` gets what that
/// rank sends to this one. The ranks are some of the group, this one among them, and each of them
/// makes the same call.
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
  bool operator==(const AllToAll&) const = default;
};

/// As MPI's Alltoallv: the elements of `send` go to the ranks of the group in their order,
/// send_counts[k] of them to rank k, and `receive` gets what they send to this one. Either is
/// absent where it has no elements.
struct AllToAllV {
  static constexpr const char* kName = "all_to_all_v";
  View send, receive;                                     // (n), (m), of one type
  std::vector<std::int64_t> send_counts, receive_counts;  // by rank of the group
  std::int64_t within = 0, across = 0;  // elements to other ranks of the node, and to other nodes
  std::int64_t elements = 0;  // of what is exchanged, whichever ranks have it: the same on all

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.send, Access::read), f(s.receive, Access::write);
  }
  bool operator==(const AllToAllV&) const = default;
};

/// Rows go to ranks of the group in their order, how many is known once they are made: each rank
/// has an equal slot of rows for each of them, of which the first are used, as many as the last
/// number of the slot's begins says (kernels::Dispatch). The exchange between hosts sends those
/// alone, NCCL whole slots. What lies behind them in `receive` is undefined.
struct ExchangeRows {
  static constexpr const char* kName = "exchange_rows";
  View send, receive;                   // (ranks R, C)
  View send_begins, receive_begins;     // (ranks, G + 1) i32
  std::int64_t within = 0, across = 0;  // rows that are expected to go to other ranks of the node,
                                        // and to other nodes
  Hop among;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.send, Access::read), f(s.send_begins, Access::read);
    f(s.receive_begins, Access::read), f(s.receive, Access::write);
  }
  bool operator==(const ExchangeRows&) const = default;
};

using CollectiveCall = std::variant<AllGather, ReduceScatter, AllReduceWords, Send, Receive,
                                    AllToAll, AllToAllV, ExchangeRows>;

/// The ranks of a call among some of a group; without any where all take part, and of messages.
Hop among_of(const CollectiveCall& call);

/// Who moves a group's bytes and adds contributions: our pairwise exchange between hosts
/// (`exchange`); NCCL between GPUs, with our kernel adding what it has exchanged, because NCCL's
/// own sums have an order, and in 16 bits a precision, of their own (`nccl`); or NCCL alone, for
/// f32 sums that cross nodes and need not have the same bits on every layout, where its ring sends
/// least (`nccl_sums`).
enum class Carrier : std::uint8_t { exchange, nccl, nccl_sums };

/// Where the ranks of a group are, as one of them sees it: `size` ranks on `nodes` nodes, `local`
/// of them on this rank's node, itself included. Nodes may hold different numbers of ranks, in any
/// order.
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

/// The ranks of a call among some of a group, and where those are, as one of them sees it.
RankGroup ranks_of(const Hop& among, const GroupShape& group);
GroupShape shape_of(const Hop& among, const GroupShape& group);

struct WireBytes {
  std::int64_t intra = 0;
  std::int64_t inter = 0;
};

/// Bytes that this rank of the group sends in the call.
WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group);

/// Bulk data travels in pieces of this many bytes, `kPiecesInFlight` per peer and direction.
/// Between nodes a piece is below MPI's eager limit: measured over TCP, only such messages reach
/// the full rate in both directions at once. Shared memory is faster with larger pieces.
inline constexpr std::int64_t kPieceInter = 56 * 1024;
inline constexpr std::int64_t kPieceIntra = 256 * 1024;
inline constexpr std::int64_t kPiecesInFlight = 4;
inline std::int64_t piece_bytes(const GroupShape& group) {
  return group.local >= group.size ? kPieceIntra : kPieceInter;
}

/// Elements of `full` that are exchanged at a time over NCCL, which is fast with long messages
/// only.
inline constexpr std::int64_t kNcclPiece = std::int64_t{8} << 20;
/// Elements of one shard in such a piece: a multiple of what 128-bit accesses need.
inline std::int64_t nccl_piece(const GroupShape& group) {
  return std::max<std::int64_t>(kNcclPiece / group.size / 256, 1) * 256;
}

/// Bytes of ReduceScatter's staging, never 0 among several ranks: what arrives, in the wire's type,
/// and as much that is sent, where `full` has another type. Over the exchange these are the pieces
/// in flight of each peer, over NCCL a piece of each rank.
std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire, DType full = DType::f32);

}  // namespace tessera::comm
