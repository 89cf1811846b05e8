#include "comm/transport_group.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <optional>

#include "comm/exchange.hpp"
#include "kernels/cpu/hot/hot.hpp"

namespace tessera::comm {

using streams::Progress;
using streams::Task;

namespace {

std::int64_t bytes_of(const View& v) { return v.elements() * size_of(v.type); }

class GatherTask : public Task {
 public:
  GatherTask(Transport& transport, const GroupShape& group, std::int64_t rank,
             const AllGather& call)
      : ranks_(ranks_of(call.among, group)),
        rank_(ranks_.index(rank)),
        call_(call),
        block_(bytes_of(call.shard) / call.blocks),
        exchange_(transport, flows(), block_, piece_bytes(shape_of(call.among, group)),
                  call.blocks) {}
  Progress advance() override {
    const bool moved = exchange_.advance(exchange_.pieces());
    if (!own_ &&
        copied_ < call_.blocks) {  // a little at a time: other streams' tasks are served between
      const std::byte* from = shard(copied_);
      std::byte* to = slot(copied_, rank_);
      own_ = streams::make_copy_task(from, to, from == to ? 0 : block_);
    }
    if (own_) {
      if (own_->advance() == Progress::done) own_.reset(), ++copied_;
      return Progress::some;
    }
    if (exchange_.done()) return Progress::done;
    return moved ? Progress::some : Progress::idle;
  }

 private:
  std::byte* shard(std::int64_t block) const { return call_.shard.data + block * block_; }
  std::byte* slot(std::int64_t block, std::int64_t rank) const {
    return call_.full.data + (block * ranks_.count + rank) * block_;
  }
  std::vector<PeerFlow> flows() {
    std::vector<PeerFlow> all;
    for (std::int64_t k = 1; k < ranks_.count; ++k) {  // each rank starts with another peer
      const std::int64_t peer = (rank_ + k) % ranks_.count;
      all.push_back({.peer = static_cast<int>(ranks_.rank(peer)),
                     .outgoing =
                         [this](std::int64_t i) {
                           return shard(exchange_.block_of(i)) + exchange_.offset_of(i);
                         },
                     .incoming =
                         [this, peer](std::int64_t i) {
                           return slot(exchange_.block_of(i), peer) + exchange_.offset_of(i);
                         }});
    }
    return all;
  }

  RankGroup ranks_;
  std::int64_t rank_;  // among them
  AllGather call_;
  std::int64_t block_;  // bytes
  Exchange exchange_;
  std::unique_ptr<Task> own_;  // the copy of a block of the own shard that is under way
  std::int64_t copied_ = 0;
};

/// AllToAll: bytes go from slot to slot, without staging.
class AllToAllTask : public Task {
 public:
  AllToAllTask(Transport& transport, std::int64_t rank, const AllToAll& call)
      : call_(call),
        exchange_(transport, flows(call.ranks.index(rank)), call.send.cols(),
                  call.remote == 0 ? kPieceIntra : kPieceInter) {
    const std::int64_t own = call.ranks.index(rank);
    own_ = streams::make_copy_task(slot(call.send, own), slot(call.receive, own), call.send.cols());
  }
  Progress advance() override {
    const bool moved = exchange_.advance(exchange_.pieces());
    if (own_) {
      if (own_->advance() == Progress::done) own_.reset();
      return Progress::some;
    }
    if (exchange_.done()) return Progress::done;
    return moved ? Progress::some : Progress::idle;
  }

 private:
  static std::byte* slot(const View& of, std::int64_t k) { return of.data + k * of.cols(); }
  std::vector<PeerFlow> flows(std::int64_t own) {
    std::vector<PeerFlow> all;
    const auto at = [this](std::byte* base) {
      return [this, base](std::int64_t i) { return base + exchange_.offset_of(i); };
    };
    for (std::int64_t i = 1; i < call_.ranks.count; ++i) {
      const std::int64_t k = (own + i) % call_.ranks.count;  // each starts with another peer
      all.push_back({.peer = static_cast<int>(call_.ranks.rank(k)),
                     .outgoing = at(slot(call_.send, k)),
                     .incoming = at(slot(call_.receive, k))});
    }
    return all;
  }

  AllToAll call_;
  Exchange exchange_;
  std::unique_ptr<Task> own_;  // the copy of what stays
};

/// What this rank sends to one of the ranks that take part, and receives from it.
struct PeerBytes {
  std::byte* from = nullptr;
  std::int64_t sent = 0;
  std::byte* to = nullptr;
  std::int64_t received = 0;
};

std::vector<PeerBytes> peers_of(const AllToAllV& call) {
  const std::int64_t size = size_of(call.send ? call.send.type : call.receive.type);
  std::vector<PeerBytes> all;
  std::byte* from = call.send.data;
  std::byte* to = call.receive.data;
  for (std::size_t k = 0; k < call.send_counts.size(); ++k) {
    const PeerBytes peer{from, call.send_counts[k] * size, to, call.receive_counts[k] * size};
    all.push_back(peer);
    from += peer.sent, to += peer.received;
  }
  return all;
}

/// Reads how many rows are used.
std::vector<PeerBytes> peers_of(const ExchangeRows& call) {
  const std::int64_t ranks = call.send_begins.rows(), slot = call.send.rows() / ranks,
                     row = call.send.cols() * size_of(call.send.type);
  const auto used = [&](const View& begins, std::int64_t k) {
    const std::int64_t rows = begins.as<std::int32_t>()[(k + 1) * begins.cols() - 1];
    TESSERA_CHECK(rows >= 0 && rows <= slot, "{} rows in a slot of {}", rows, slot);
    return rows * row;
  };
  std::vector<PeerBytes> all;
  for (std::int64_t k = 0; k < ranks; ++k) {
    const std::int64_t at = k * slot * row;
    all.push_back({call.send.data + at, used(call.send_begins, k), call.receive.data + at,
                   used(call.receive_begins, k)});
  }
  return all;
}

/// With each peer an exchange of its own each way.
class PairwiseTask : public Task {
 public:
  /// `peers`: by place among the ranks that take part, this one's among them.
  PairwiseTask(Transport& transport, const GroupShape& group, const Hop& among, std::int64_t rank,
               const std::vector<PeerBytes>& peers) {
    const std::int64_t piece = piece_bytes(shape_of(among, group));
    const RankGroup ranks = ranks_of(among, group);
    const std::int64_t own = ranks.index(rank);
    const auto flow = [&](std::int64_t peer, std::byte* base, std::int64_t bytes, bool out) {
      if (bytes == 0) return;
      PeerFlow one{.peer = static_cast<int>(peer)};
      (out ? one.outgoing : one.incoming) = [base, piece](std::int64_t i) {
        return base + i * piece;
      };
      exchanges_.emplace_back(transport, std::vector{std::move(one)}, bytes, piece);
    };
    for (std::int64_t i = 1; i < ranks.count; ++i) {
      const std::int64_t k = (own + i) % ranks.count;  // each starts with another peer
      const PeerBytes& peer = peers[static_cast<std::size_t>(k)];
      flow(ranks.rank(k), peer.from, peer.sent, true);
      flow(ranks.rank(k), peer.to, peer.received, false);
    }
    const PeerBytes& stays = peers[static_cast<std::size_t>(own)];
    if (stays.sent > 0) own_ = streams::make_copy_task(stays.from, stays.to, stays.sent);
  }
  Progress advance() override {
    bool moved = false, done = true;
    for (Exchange& exchange : exchanges_) {
      if (exchange.done()) continue;
      moved |= exchange.advance(exchange.pieces());
      done = done && exchange.done();
    }
    if (own_) {
      if (own_->advance() == Progress::done) own_.reset();
      return Progress::some;
    }
    if (done) return Progress::done;
    return moved ? Progress::some : Progress::idle;
  }

 private:
  std::deque<Exchange> exchanges_;
  std::unique_ptr<Task> own_;  // the copy of what stays
};

/// One message, in pieces.
class MessageTask : public Task {
 public:
  MessageTask(Transport& transport, const GroupShape& group, const Send& call)
      : exchange_(transport,
                  {{.peer = static_cast<int>(call.peer), .outgoing = pieces(call.data, group)}},
                  bytes_of(call.data), piece_bytes(group)) {}
  MessageTask(Transport& transport, const GroupShape& group, const Receive& call)
      : exchange_(transport,
                  {{.peer = static_cast<int>(call.peer), .incoming = pieces(call.data, group)}},
                  bytes_of(call.data), piece_bytes(group)) {}
  Progress advance() override {
    const bool moved = exchange_.advance(exchange_.pieces());
    if (exchange_.done()) return Progress::done;
    return moved ? Progress::some : Progress::idle;
  }

 private:
  static std::function<std::byte*(std::int64_t)> pieces(const View& data, const GroupShape& group) {
    return
        [base = data.data, piece = piece_bytes(group)](std::int64_t i) { return base + i * piece; };
  }
  Exchange exchange_;
};

/// The loops that add and convert, on the thread that serves messages.
const kernels::HotKernels& loops() {
  static const kernels::HotKernels& best = kernels::hot_kernels(kernels::best_isa());
  return best;
}

class ReduceTask : public Task {
 public:
  ReduceTask(Transport& transport, const GroupShape& group, std::int64_t rank,
             const ReduceScatter& call)
      : group_(shape_of(call.among, group)),
        ranks_(ranks_of(call.among, group)),
        rank_(ranks_.index(rank)),
        call_(call),
        block_(call.shard.elements() / call.blocks),
        exchange_(transport, flows(), block_ * size_of(call.wire), piece_bytes(group_),
                  call.blocks),
        parts_(static_cast<std::size_t>(group_.size)) {
    TESSERA_CHECK(
        call.staging.span_bytes() >= reduce_scatter_staging(group_, call.wire, call.full.type),
        "staging of {} bytes", call.staging.span_bytes());
  }
  Progress advance() override {
    const bool moved = exchange_.advance(summed_);
    const std::int64_t before = summed_;
    while (summed_ < exchange_.arrived()) sum(summed_++);
    if (exchange_.done() && summed_ == exchange_.pieces()) return Progress::done;
    return moved || summed_ > before ? Progress::some : Progress::idle;
  }

 private:
  // Staging: per peer kPiecesInFlight received pieces; then, where elements travel in another type
  // than they have, as many outgoing ones.
  std::byte* received(std::int64_t peer, std::int64_t piece) const {
    const std::int64_t index =
        (peer > rank_ ? peer - 1 : peer) * kPiecesInFlight + piece % kPiecesInFlight;
    return call_.staging.data + index * piece_bytes(group_);
  }
  std::byte* outgoing(std::int64_t peer, std::int64_t piece) const {
    std::byte* source = slot(peer, piece);
    if (call_.wire == call_.full.type) return source;
    std::byte* packed =
        received(peer, piece) + (group_.size - 1) * kPiecesInFlight * piece_bytes(group_);
    const std::int64_t n = count(piece);
    loops().convert(View(source, call_.full.type, {1, n}), View(packed, call_.wire, {1, n}),
                    Write::overwrite, {0, 1});
    return packed;
  }
  std::int64_t count(std::int64_t piece) const {
    return exchange_.bytes_of(piece) / size_of(call_.wire);
  }
  /// Elements of its block that come before the piece.
  std::int64_t offset(std::int64_t piece) const {
    return exchange_.offset_of(piece) / size_of(call_.wire);
  }
  std::byte* slot(std::int64_t rank, std::int64_t piece) const {
    const std::int64_t first = (exchange_.block_of(piece) * group_.size + rank) * block_;
    return call_.full.data + (first + offset(piece)) * size_of(call_.full.type);
  }

  std::vector<PeerFlow> flows() {
    std::vector<PeerFlow> all;
    for (std::int64_t k = 1; k < group_.size; ++k) {
      const std::int64_t peer = (rank_ + k) % group_.size;
      all.push_back({.peer = static_cast<int>(ranks_.rank(peer)),
                     .outgoing = [this, peer](std::int64_t i) { return outgoing(peer, i); },
                     .incoming = [this, peer](std::int64_t i) { return received(peer, i); }});
    }
    return all;
  }

  /// The rank's own contribution is rounded to the wire's type as those of others are, so that the
  /// sum does not depend on which rank adds it.
  void sum(std::int64_t piece) {
    for (std::int64_t r = 0; r < group_.size; ++r) {
      parts_[static_cast<std::size_t>(r)] = r == rank_
                                                ? kernels::SumPart{slot(r, piece), call_.full.type}
                                                : kernels::SumPart{received(r, piece), call_.wire};
    }
    const std::int64_t first = exchange_.block_of(piece) * block_ + offset(piece);
    loops().sum_parts({.parts = parts_,
                       .wire = call_.wire,
                       .out = call_.shard.data + first * size_of(call_.shard.type),
                       .out_type = call_.shard.type,
                       .write = call_.write},
                      {0, count(piece)});
  }

  GroupShape group_;  // of those that take part
  RankGroup ranks_;
  std::int64_t rank_;  // among them
  ReduceScatter call_;
  std::int64_t block_;  // elements
  Exchange exchange_;
  std::vector<kernels::SumPart> parts_;
  std::int64_t summed_ = 0;
};

/// Recursive doubling (Thakur, Rabenseifner and Gropp 2005). Ranks beyond the last power of two
/// hand their words to a partner first and get the results from it last. Sums of 64-bit integers
/// are exact, so their order does not matter.
class WordsTask : public Task {
 public:
  WordsTask(Transport& transport, const GroupShape& group, std::int64_t rank,
            const AllReduceWords& call)
      : transport_(transport),
        words_(call.words),
        of_(call.of),
        rounds_(rounds(group.size, rank)),
        theirs_(static_cast<std::size_t>(call.words.elements())) {}
  Progress advance() override {
    Progress progress = Progress::idle;
    for (; round_ < rounds_.size(); ++round_, progress = Progress::some) {
      if (!exchange_) begin(rounds_[round_]);
      if (exchange_->advance(exchange_->pieces())) progress = Progress::some;
      if (!exchange_->done()) return progress;
      exchange_.reset();
      take(rounds_[round_].peers_words);
    }
    return Progress::done;
  }

 private:
  enum class Use : std::uint8_t { ignore, combine, replace };
  struct Round {  // an exchange of all words with one peer
    std::int64_t peer;
    Use peers_words;
  };
  static std::vector<Round> rounds(std::int64_t size, std::int64_t rank) {
    const auto doubled =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
    if (rank >= doubled) return {{rank - doubled, Use::ignore}, {rank - doubled, Use::replace}};
    std::vector<Round> all;
    const bool helps = rank + doubled < size;
    if (helps) all.push_back({rank + doubled, Use::combine});
    for (std::int64_t bit = 1; bit < doubled; bit *= 2) all.push_back({rank ^ bit, Use::combine});
    if (helps) all.push_back({rank + doubled, Use::ignore});
    return all;
  }
  void begin(const Round& round) {
    const auto at = [](std::byte* base) {
      return [base](std::int64_t piece) { return base + piece * kPieceInter; };
    };
    exchange_.emplace(
        transport_,
        std::vector<PeerFlow>{{.peer = static_cast<int>(round.peer),
                               .outgoing = at(words_.data),
                               .incoming = at(reinterpret_cast<std::byte*>(theirs_.data()))}},
        words_.elements() * size_of(words_.type), kPieceInter);
  }
  void take(Use use) {
    auto* words = words_.as<std::int64_t>();
    for (std::size_t i = 0; i < theirs_.size() && use != Use::ignore; ++i)
      words[i] = use == Use::combine ? combined(words[i], theirs_[i]) : theirs_[i];
  }
  std::int64_t combined(std::int64_t a, std::int64_t b) const {  // carries wrap
    if (of_ == AllReduceWords::Of::largest) return std::max(a, b);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }

  Transport& transport_;
  View words_;
  AllReduceWords::Of of_;
  std::vector<Round> rounds_;
  std::size_t round_ = 0;
  std::vector<std::int64_t> theirs_;
  std::optional<Exchange> exchange_;  // of the round under way
};

class TransportGroup : public Group {
 public:
  TransportGroup(std::unique_ptr<Transport> transport, const GroupShape& shape, std::int64_t rank)
      : transport_(std::move(transport)), shape_(shape), rank_(rank) {}
  std::int64_t rank() const override { return rank_; }
  const GroupShape& shape() const override { return shape_; }
  std::unique_ptr<Task> start(const CollectiveCall& call) override {
    struct Start {
      TransportGroup& g;
      std::unique_ptr<Task> operator()(const AllGather& c) {
        return std::make_unique<GatherTask>(*g.transport_, g.shape_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const ReduceScatter& c) {
        return std::make_unique<ReduceTask>(*g.transport_, g.shape_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const AllReduceWords& c) {
        return std::make_unique<WordsTask>(*g.transport_, g.shape_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const Send& c) {
        return std::make_unique<MessageTask>(*g.transport_, g.shape_, c);
      }
      std::unique_ptr<Task> operator()(const Receive& c) {
        return std::make_unique<MessageTask>(*g.transport_, g.shape_, c);
      }
      std::unique_ptr<Task> operator()(const AllToAll& c) {
        return std::make_unique<AllToAllTask>(*g.transport_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const AllToAllV& c) {
        return std::make_unique<PairwiseTask>(*g.transport_, g.shape_, Hop{}, g.rank_, peers_of(c));
      }
      std::unique_ptr<Task> operator()(const ExchangeRows& c) {
        return std::make_unique<PairwiseTask>(*g.transport_, g.shape_, c.among, g.rank_,
                                              peers_of(c));
      }
    };
    return std::visit(Start{*this}, call);
  }

 private:
  std::unique_ptr<Transport> transport_;
  GroupShape shape_;
  std::int64_t rank_;
};

}  // namespace

std::unique_ptr<Group> make_transport_group(std::unique_ptr<Transport> transport,
                                            const GroupShape& shape, std::int64_t rank) {
  return std::make_unique<TransportGroup>(std::move(transport), shape, rank);
}

}  // namespace tessera::comm
