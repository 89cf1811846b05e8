// The collectives of a plan as plain data: argument structs of views, like kernels, so that a plan
// can hold, check and count them without MPI or NCCL.
#pragma once

#include <variant>

#include "kernels/api/access.hpp"

namespace tessera::comm {

using kernels::Access;
using kernels::access_of;
using kernels::name_of;
using kernels::visit_views;
using kernels::Write;

/// Every rank's `shard` ends up in slot `rank` of everyone's `full` (shards in rank order). `shard`
/// may be the rank's own slot of `full`.
struct AllGather {
  static constexpr const char* kName = "all_gather";
  View shard;  // (n)
  View full;   // (size n)

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.shard, Access::read), f(s.full, Access::write);
  }
};

/// shard (+)= the sum over ranks of slot `rank` of `full`, added in f32 in an aligned binary tree
/// over the rank index: ((0+1)+(2+3))+..., whatever the transport. Elements travel as `wire`.
/// `full` is used up: its contents are undefined afterwards. `shard` may be the rank's own slot of
/// `full` when it is overwritten.
struct ReduceScatter {
  static constexpr const char* kName = "reduce_scatter";
  View full;                // (size n) f32
  View shard;               // (n) f32
  View staging;             // reduce_scatter_staging bytes
  DType wire = DType::f32;  // f32 or bf16
  Write write = Write::overwrite;

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

using CollectiveCall = std::variant<AllGather, ReduceScatter, AllReduceWords>;

/// Where the ranks of a group are, as one of them sees it: `size` ranks on `nodes` nodes, `local`
/// of them on its own, itself among them. Nodes may hold different numbers, in any order of ranks.
struct GroupShape {
  std::int64_t size = 1;
  std::int64_t local = 1;
  std::int64_t nodes = 1;
};

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

/// Bytes of ReduceScatter's staging: pieces in flight from each peer and, when the wire type
/// differs, to each peer.
std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire);

}  // namespace tessera::comm
