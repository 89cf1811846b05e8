#include "comm/mpi/mpi_group.hpp"

#include <algorithm>
#include <cstring>

#include "comm/mpi/exchange.hpp"
#include "comm/tree_sum.hpp"

namespace tessera::comm {

using memory::Progress;
using memory::Task;

namespace {

class GatherTask : public Task {
 public:
  GatherTask(MPI_Comm comm, const GroupShape& group, std::int64_t rank, const AllGather& call)
      : exchange_(comm, flows(group, rank, call), bytes(call.shard), piece_bytes(group)) {
    std::byte* own = call.full.data + rank * bytes(call.shard);
    const bool in_place = own == call.shard.data;
    own_ = memory::make_copy_task(call.shard.data, own, in_place ? 0 : bytes(call.shard));
  }
  Progress advance() override {
    const bool moved = exchange_.advance(exchange_.pieces());
    if (own_) {  // a little at a time: other streams' tasks are served between
      if (own_->advance() == Progress::done) own_.reset();
      return Progress::some;
    }
    if (exchange_.done()) return Progress::done;
    return moved ? Progress::some : Progress::idle;
  }

 private:
  static std::int64_t bytes(const View& v) { return v.elements() * size_of(v.type); }
  static std::vector<PeerFlow> flows(const GroupShape& group, std::int64_t rank,
                                     const AllGather& call) {
    const std::int64_t piece = piece_bytes(group);
    std::vector<PeerFlow> all;
    for (std::int64_t k = 1; k < group.size; ++k) {  // each rank starts with another peer
      const std::int64_t peer = (rank + k) % group.size;
      std::byte* slot = call.full.data + peer * bytes(call.shard);
      all.push_back(
          {.peer = static_cast<int>(peer),
           .outgoing = [base = call.shard.data, piece](std::int64_t i) { return base + i * piece; },
           .incoming = [slot, piece](std::int64_t i) { return slot + i * piece; }});
    }
    return all;
  }
  Exchange exchange_;
  std::unique_ptr<Task> own_;  // the own shard's copy, until it is done
};

class ReduceTask : public Task {
 public:
  ReduceTask(MPI_Comm comm, const GroupShape& group, std::int64_t rank, const ReduceScatter& call)
      : group_(group),
        rank_(rank),
        call_(call),
        piece_(piece_bytes(group) / 4),
        exchange_(comm, flows(), call.shard.elements() * size_of(call.wire),
                  piece_ * size_of(call.wire)),
        parts_(static_cast<std::size_t>(group.size)) {
    TESSERA_CHECK(call.staging.span_bytes() >= reduce_scatter_staging(group, call.wire),
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
  // Staging: per peer kPiecesInFlight received pieces as f32, then, for a narrower wire, as many
  // outgoing ones.
  float* staged(std::int64_t peer, std::int64_t piece) const {
    const std::int64_t index =
        (peer > rank_ ? peer - 1 : peer) * kPiecesInFlight + piece % kPiecesInFlight;
    return reinterpret_cast<float*>(call_.staging.data) + index * piece_;
  }
  std::byte* outgoing(std::int64_t peer, std::int64_t piece) const {
    float* source = call_.full.as<float>() + peer * call_.shard.elements() + piece * piece_;
    if (call_.wire == DType::f32) return reinterpret_cast<std::byte*>(source);
    float* packed = staged(peer, piece) + (group_.size - 1) * kPiecesInFlight * piece_;
    to_bf16(source, count(piece), reinterpret_cast<bf16*>(packed));
    return reinterpret_cast<std::byte*>(packed);
  }
  std::int64_t count(std::int64_t piece) const {
    return std::min(piece_, call_.shard.elements() - piece * piece_);
  }

  std::vector<PeerFlow> flows() {
    std::vector<PeerFlow> all;
    for (std::int64_t k = 1; k < group_.size; ++k) {
      const std::int64_t peer = (rank_ + k) % group_.size;
      all.push_back({.peer = static_cast<int>(peer),
                     .outgoing = [this, peer](std::int64_t i) { return outgoing(peer, i); },
                     .incoming =
                         [this, peer](std::int64_t i) {
                           return reinterpret_cast<std::byte*>(staged(peer, i));
                         }});
    }
    return all;
  }

  void sum(std::int64_t piece) {
    const std::int64_t n = count(piece);
    float* own = call_.full.as<float>() + rank_ * call_.shard.elements() + piece * piece_;
    for (std::int64_t r = 0; r < group_.size; ++r) {
      parts_[static_cast<std::size_t>(r)] = r == rank_ ? own : staged(r, piece);
      if (call_.wire == DType::bf16) narrow(parts_[static_cast<std::size_t>(r)], n, r == rank_);
    }
    tree_sum(parts_, n, call_.shard.as<float>() + piece * piece_, call_.write == Write::add);
  }
  /// Every contribution is what the wire type holds, the own one too, so that the sum does not
  /// depend on who adds.
  static void narrow(float* part, std::int64_t n, bool own) {
    if (own) {
      for (std::int64_t e = 0; e < n; ++e) part[e] = static_cast<float>(bf16(part[e]));
    } else {  // widen in place, from the end
      for (std::int64_t e = n - 1; e >= 0; --e) {
        bf16 h;
        std::memcpy(&h.bits, reinterpret_cast<const std::byte*>(part) + 2 * e, sizeof h.bits);
        part[e] = static_cast<float>(h);
      }
    }
  }

  GroupShape group_;
  std::int64_t rank_;
  ReduceScatter call_;
  std::int64_t piece_;  // elements
  Exchange exchange_;
  std::vector<float*> parts_;
  std::int64_t summed_ = 0;
};

class WordsTask : public Task {
 public:
  WordsTask(MPI_Comm comm, const AllReduceWords& call) {
    MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, call.words.data, static_cast<int>(call.words.elements()),
                           MPI_INT64_T, MPI_SUM, comm, &request_));
  }
  Progress advance() override {
    int flag = 0;
    MPI_TRY(MPI_Test(&request_, &flag, MPI_STATUS_IGNORE));
    return flag != 0 ? Progress::done : Progress::idle;
  }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class MpiGroup : public Group {
 public:
  MpiGroup(MPI_Comm comm, GroupShape shape, std::int64_t rank)
      : comm_(comm), shape_(shape), rank_(rank) {}
  ~MpiGroup() override { MPI_Comm_free(&comm_); }
  std::int64_t rank() const override { return rank_; }
  const GroupShape& shape() const override { return shape_; }
  std::unique_ptr<Task> start(const CollectiveCall& call) override {
    struct Start {
      MpiGroup& g;
      std::unique_ptr<Task> operator()(const AllGather& c) {
        return std::make_unique<GatherTask>(g.comm_, g.shape_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const ReduceScatter& c) {
        return std::make_unique<ReduceTask>(g.comm_, g.shape_, g.rank_, c);
      }
      std::unique_ptr<Task> operator()(const AllReduceWords& c) {
        return std::make_unique<WordsTask>(g.comm_, c);
      }
    };
    return std::visit(Start{*this}, call);
  }

 private:
  MPI_Comm comm_;
  GroupShape shape_;
  std::int64_t rank_;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(std::span<const int> members, std::int64_t local) {
  int world_rank = 0;
  MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank));
  const auto mine = std::find(members.begin(), members.end(), world_rank);
  const bool member = mine != members.end();
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_TRY(MPI_Comm_split(MPI_COMM_WORLD, member ? 0 : MPI_UNDEFINED,
                         static_cast<int>(mine - members.begin()), &comm));
  if (!member) return nullptr;
  MPI_TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return std::make_unique<MpiGroup>(
      comm, GroupShape{static_cast<std::int64_t>(members.size()), local}, mine - members.begin());
}

}  // namespace tessera::comm
