#include "comm/nccl/nccl_group.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "comm/mpi/session.hpp"
#include "comm/nccl/communicator.hpp"

namespace tessera::comm {
namespace {

using kernels::Convert;
using kernels::TreeSum;

#define NCCL_TRY(call) nccl_->check(nccl_->call, #call, comm())

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    default: throw InternalError(fmt::format("{} in a collective", to_string(type)));
  }
}

std::size_t count_of(std::int64_t n) { return static_cast<std::size_t>(n); }

/// The NCCL ids of all groups, by the world rank of each group's first member, which alone makes
/// one.
std::vector<ncclUniqueId> exchange_ids(const ncclUniqueId& own) {
  std::vector<ncclUniqueId> all(static_cast<std::size_t>(place_in_world().size));
  gather_in_world(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Whether the group reaches over a network, as NCCL sees it: also ranks that call themselves nodes
/// of their own do.
Reach reach_of(const GroupShape& shape) {
  return shape.nodes > 1 || std::getenv("NCCL_HOSTID") != nullptr ? Reach::network : Reach::node;
}

class NcclGroup : public Group {
 public:
  /// `communicators`: one for collectives; messages use that of their edge.
  NcclGroup(std::shared_ptr<const Nccl> nccl,
            std::vector<std::shared_ptr<Communicator>> communicators, const GroupShape& shape,
            std::int64_t rank, const CudaQueue& queue, kernels::Device& device)
      : nccl_(std::move(nccl)),
        communicators_(std::move(communicators)),
        shape_(shape),
        rank_(rank),
        queue_(queue),
        device_(device) {}

  std::int64_t rank() const override { return rank_; }
  const GroupShape& shape() const override { return shape_; }
  std::unique_ptr<streams::Task> start(const CollectiveCall& call) override {
    std::visit([this](const auto& c) { queue(c); }, call);
    return nullptr;
  }

  /// The communicator of a message, by its sender. What a rank sends and what it receives are on
  /// different communicators, also where the ring of stages closes, so that they may be under way
  /// at once. Correctness does not depend on it, because plans have all messages in one order.
  static constexpr std::size_t kEdges = 3;
  static std::size_t edge(std::int64_t sender, std::int64_t size) {
    return sender + 1 == size ? 2 : static_cast<std::size_t>(sender % 2);
  }
  /// Of two stages one sends on edge 0, the other on the last.
  static bool has_edge(std::size_t e, std::int64_t size) { return e != 1 || size > 2; }

 private:
  ncclComm_t comm(std::size_t edge = 0) const { return communicators_[edge]->get(); }

  /// Queues the calls of `f` as one NCCL group call.
  template <typename F>
  void together(F&& f, std::size_t edge = 0) {
    communicators_[edge]->connect();
    NCCL_TRY(ncclGroupStart());
    try {
      f();
    } catch (...) {
      nccl_->ncclGroupEnd();  // of what was queued until then; the error on its way says more
      throw;
    }
    communicators_[edge]->settle(nccl_->ncclGroupEnd(), "ncclGroupEnd");
    for (const auto& c : communicators_)
      if (c) c->throw_if_peer_is_gone();
  }

  void queue(const AllGather& c) {
    const std::int64_t bytes = c.shard.elements() / c.blocks * size_of(c.shard.type);
    if (c.among) return exchange(c, bytes);
    together([&] {
      for (std::int64_t b = 0; b < c.blocks; ++b) {
        NCCL_TRY(ncclAllGather(c.shard.data + b * bytes, c.full.data + b * shape_.size * bytes,
                               count_of(bytes), ncclUint8, comm(), queue_.stream));
      }
    });
  }

  /// A gather among some ranks, of blocks of so many bytes.
  void exchange(const AllGather& c, std::int64_t bytes) {
    const RankGroup& ranks = c.among.ranks;
    const std::int64_t own = ranks.index(rank_);
    together([&] {
      for (std::int64_t b = 0; b < c.blocks; ++b) {
        std::byte* full = c.full.data + b * ranks.count * bytes;
        for (std::int64_t i = 0; i < ranks.count; ++i) {
          const std::int64_t k = (own + i) % ranks.count;  // each starts with itself
          const auto peer = static_cast<int>(ranks.rank(k));
          NCCL_TRY(ncclSend(c.shard.data + b * bytes, count_of(bytes), ncclUint8, peer, comm(),
                            queue_.stream));
          NCCL_TRY(
              ncclRecv(full + k * bytes, count_of(bytes), ncclUint8, peer, comm(), queue_.stream));
        }
      }
    });
  }

  void queue(const AllReduceWords& c) {
    together([&] {
      const ncclRedOp_t of = c.of == AllReduceWords::Of::sum ? ncclSum : ncclMax;
      NCCL_TRY(ncclAllReduce(c.words.data, c.words.data, count_of(c.words.elements()), ncclInt64,
                             of, comm(), queue_.stream));
    });
  }

  void queue(const Send& c) {
    const std::size_t e = edge(rank_, shape_.size);
    together(
        [&] {
          NCCL_TRY(ncclSend(c.data.data, count_of(c.data.elements()), nccl_type(c.data.type),
                            static_cast<int>(c.peer), comm(e), queue_.stream));
        },
        e);
  }
  void queue(const Receive& c) {
    const std::size_t e = edge(c.peer, shape_.size);
    together(
        [&] {
          NCCL_TRY(ncclRecv(c.data.data, count_of(c.data.elements()), nccl_type(c.data.type),
                            static_cast<int>(c.peer), comm(e), queue_.stream));
        },
        e);
  }

  void queue(const AllToAll& c) { exchange_slots(c.send, c.receive, c.ranks); }

  void queue(const AllToAllV& c) {
    const std::int64_t size = size_of(c.send ? c.send.type : c.receive.type);
    together([&] {
      std::byte *from = c.send.data, *to = c.receive.data;
      for (std::size_t k = 0; k < c.send_counts.size(); ++k) {
        const std::int64_t sent = c.send_counts[k] * size, received = c.receive_counts[k] * size;
        if (sent > 0)
          NCCL_TRY(ncclSend(from, count_of(sent), ncclUint8, static_cast<int>(k), comm(),
                            queue_.stream));
        if (received > 0)
          NCCL_TRY(ncclRecv(to, count_of(received), ncclUint8, static_cast<int>(k), comm(),
                            queue_.stream));
        from += sent, to += received;
      }
    });
  }

  /// Whole slots: how many rows are used is known on the device alone.
  void queue(const ExchangeRows& c) {
    exchange_slots(c.send, c.receive, ranks_of(c.among, shape_));
  }

  /// Equal parts of `send` go to the ranks in their order, and parts of `receive` come from them.
  void exchange_slots(const View& send, const View& receive, const RankGroup& ranks) {
    const std::int64_t bytes = send.span_bytes() / ranks.count;
    together([&] {
      for (std::int64_t i = 0; i < ranks.count; ++i) {
        const std::int64_t k = (ranks.index(rank_) + i) % ranks.count;  // each starts with another
        const auto peer = static_cast<int>(ranks.rank(k));
        NCCL_TRY(ncclSend(send.data + k * bytes, count_of(bytes), ncclUint8, peer, comm(),
                          queue_.stream));
        NCCL_TRY(ncclRecv(receive.data + k * bytes, count_of(bytes), ncclUint8, peer, comm(),
                          queue_.stream));
      }
    });
  }

  void queue(const ReduceScatter& c) {
    const GroupShape shape = shape_of(c.among, shape_);
    TESSERA_CHECK(c.staging.span_bytes() >= reduce_scatter_staging(shape, c.wire, c.full.type),
                  "staging of {} bytes", c.staging.span_bytes());
    if (shape.nccl_sums(c.wire, c.full.type)) return sum_by_nccl(c);
    const std::int64_t length = c.shard.elements() / c.blocks, most = nccl_piece(shape);
    // As many whole blocks at a time as staging holds, or one block in pieces.
    const std::int64_t blocks = std::max<std::int64_t>(1, most / std::max<std::int64_t>(1, length));
    for (std::int64_t b = 0; b < c.blocks; b += blocks) {
      for (std::int64_t at = 0; at < length; at += most) {
        sum_in_order(c, Piece(shape, c,
                              {.block = b,
                               .blocks = std::min(blocks, c.blocks - b),
                               .at = at,
                               .length = std::min(most, length - at)}));
      }
    }
  }

  /// Which elements of every slot a piece of a reduction has: `length` of each of some blocks, from
  /// element `at` on. Of several blocks it has all elements.
  struct PieceRange {
    std::int64_t block, blocks, at, length;
  };

  /// A piece of a reduction, of `count` elements for each rank.
  struct Piece {
    std::int64_t blocks, length, count;
    std::vector<View> full;  // by block, then by rank
    View shard;
    // Parts of the staging: what arrives by rank, the own contribution among it; what is sent by
    // block and rank.
    View received, sent;

    Piece(const GroupShape& shape, const ReduceScatter& c, const PieceRange& of)
        : blocks(of.blocks), length(of.length), count(of.blocks * of.length) {
      const std::int64_t size = shape.size, whole_block = c.shard.elements() / c.blocks;
      shard = c.shard.range(of.block * whole_block + of.at, count);
      for (std::int64_t b = of.block; b < of.block + blocks; ++b) {
        for (std::int64_t r = 0; r < size; ++r)
          full.push_back(c.full.range((b * size + r) * whole_block + of.at, length));
      }
      std::byte* next = c.staging.data;
      const auto take = [&](DType type, std::int64_t elements) {
        const View v(next, type, {elements});
        next += elements * size_of(type);
        return v;
      };
      const std::int64_t most = size * nccl_piece(shape);
      received = take(c.wire, most);
      if (c.wire != c.full.type) sent = take(c.wire, most);
    }
    /// What `of`, which is by rank, has of a rank's block.
    View slot(const View& of, std::int64_t rank, std::int64_t block) const {
      return of.range(rank * count + block * length, length);
    }
  };

  void convert(const View& from, const View& to, Write write = Write::overwrite) {
    device_.run(Convert{.x = from, .out = to, .write = write});
  }

  /// Converts what goes to each rank to the wire's type: whole blocks lie one after another.
  std::vector<View> outgoing(const ReduceScatter& c, const Piece& p) {
    if (c.wire == c.full.type) return p.full;
    std::vector<View> all;
    for (std::int64_t i = 0; i < std::ssize(p.full); ++i)
      all.push_back(p.sent.range(i * p.length, p.length));
    const bool dense =
        p.full.size() > 1 && p.full[1].data == p.full[0].data + p.full[0].span_bytes();
    if (dense) {
      const std::int64_t elements = std::ssize(p.full) * p.length;
      convert(View(p.full.front().data, c.full.type, {elements}), p.sent.range(0, elements));
    } else {
      for (std::size_t i = 0; i < all.size(); ++i) convert(p.full[i], all[i]);
    }
    return all;
  }

  void sum_in_order(const ReduceScatter& c, const Piece& p) {
    const std::vector<View> out = outgoing(c, p);
    const RankGroup ranks = ranks_of(c.among, shape_);
    const std::int64_t size = ranks.count, own = ranks.index(rank_);
    const auto out_of = [&](std::int64_t rank, std::int64_t block) {
      return out[static_cast<std::size_t>(block * size + rank)];
    };
    together([&] {
      for (std::int64_t k = 1; k < size; ++k) {  // each rank starts with another peer
        const std::int64_t to = (own + k) % size, from = (own - k + size) % size;
        for (std::int64_t b = 0; b < p.blocks; ++b) {
          NCCL_TRY(ncclSend(out_of(to, b).data, count_of(p.length), nccl_type(c.wire),
                            static_cast<int>(ranks.rank(to)), comm(), queue_.stream));
          NCCL_TRY(ncclRecv(p.slot(p.received, from, b).data, count_of(p.length), nccl_type(c.wire),
                            static_cast<int>(ranks.rank(from)), comm(), queue_.stream));
        }
      }
    });
    // The own contribution is rounded to the wire's type, as those of others are.
    View mine(out_of(own, 0).data, c.wire, {p.blocks, p.length});
    mine.ld = size * p.length;
    convert(mine, p.received.range(own * p.count, p.count).reshaped({p.blocks, p.length}));
    device_.run(TreeSum{.parts = p.received.range(0, size * p.count).reshaped({size, p.count}),
                        .out = p.shard,
                        .write = c.write});
  }

  /// NCCL's own sum: into the shard, or first into the own slots if it is to be added to the shard.
  void sum_by_nccl(const ReduceScatter& c) {
    const std::int64_t length = c.shard.elements() / c.blocks;
    const bool direct = c.shard.type == DType::f32 && c.write == Write::overwrite;
    const View blocks =
        c.full.range(0, c.full.elements()).reshaped({c.blocks, shape_.size * length});
    const View slots = blocks.col_range(rank_ * length, length),
               shards = c.shard.range(0, c.blocks * length).reshaped({c.blocks, length});
    together([&] {
      for (std::int64_t b = 0; b < c.blocks; ++b) {
        const View to = (direct ? shards : slots).row_range(b, 1);
        NCCL_TRY(ncclReduceScatter(blocks.row_range(b, 1).data, to.data, count_of(length),
                                   ncclFloat32, ncclSum, comm(), queue_.stream));
      }
    });
    if (!direct) convert(slots, shards, c.write);
  }

  std::shared_ptr<const Nccl> nccl_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
  GroupShape shape_;
  std::int64_t rank_;
  const CudaQueue& queue_;
  kernels::Device& device_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(NcclSession& session, std::span<const int> members,
                                       const GroupShape& shape, Traffic traffic,
                                       const CudaQueue& queue, kernels::Device& device,
                                       double patience) {
  TESSERA_CHECK(shape.carrier != Carrier::exchange, "staging of another carrier");
  const auto mine =
      std::find(members.begin(), members.end(), place_in_world().rank) - members.begin();
  const auto& nccl = session.nccl();
  std::vector<std::shared_ptr<Communicator>> communicators;
  const std::size_t count = traffic == Traffic::messages ? NcclGroup::kEdges : 1;
  for (std::size_t e = 0; e < count; ++e) {
    ncclUniqueId id{};
    const bool needed = !members.empty() && NcclGroup::has_edge(e, shape.size);
    if (needed && mine == 0) nccl->check(nccl->ncclGetUniqueId(&id), "ncclGetUniqueId");
    const auto ids = exchange_ids(id);
    auto& made = communicators.emplace_back();
    if (!needed) continue;
    made = std::make_shared<Communicator>(nccl, ids[static_cast<std::size_t>(members.front())],
                                          static_cast<int>(mine), static_cast<int>(members.size()),
                                          traffic, patience);
    session.add(made, reach_of(shape));
  }
  if (members.empty()) return nullptr;
  return std::make_unique<NcclGroup>(nccl, std::move(communicators), shape, mine, queue, device);
}

}  // namespace tessera::comm
