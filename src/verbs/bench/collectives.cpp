// tessera bench collectives: how much of what the machine can move each collective moves. On one
// node that is what a memcpy on all ranks copies, for data between its ranks is copied at least
// once; on several it is what a link between them carries.
#include <limits>
#include <numeric>
#include <optional>

#include "comm/mpi/library.hpp"
#include "core/bytes.hpp"
#include "plan/passes/blocks.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/threads.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

// Bytes over all shards, in f32. Links are slower than memory: less is enough to fill them.
constexpr std::int64_t kWithin[] = {1 << 20, 16 << 20, 256 << 20},
                       kAcross[] = {2 << 20, 16 << 20, 64 << 20};

using Blocks = std::optional<kernels::BlockFormat>;
enum class What : std::uint8_t { gather, reduce, exchange };
struct Kind {
  const char* name;
  What what;
  DType wire = DType::f32;
  Blocks blocks = {};    // in which elements travel
  bool library = false;  // the MPI library's own, beside which ours must stand
};
const Kind kMeasured[] = {
    {"all_gather", What::gather},
    {.name = "MPI_Allgather", .what = What::gather, .library = true},
    {"all_gather, int8", What::gather, DType::f32, Blocks{{.type = kernels::BlockType::int8}}},
    {"reduce_scatter", What::reduce},
    {.name = "MPI_Reduce_scatter", .what = What::reduce, .library = true},
    {"reduce_scatter, bf16 wire", What::reduce, DType::bf16},
    {"reduce_scatter, int8", What::reduce, DType::f32, Blocks{{.type = kernels::BlockType::int8}}},
    {"reduce_scatter, int4", What::reduce, DType::f32, Blocks{{.type = kernels::BlockType::int4}}},
    {"all_to_all", What::exchange},
    {.name = "MPI_Alltoall", .what = What::exchange, .library = true}};

/// Seconds of the fastest and the slowest repeat on all ranks together; the one before them, which
/// opens connections, does not count.
struct Seconds {
  double fastest = std::numeric_limits<double>::max(), slowest = 0;
};
template <typename Work>
Seconds repeated(const BenchOptions& o, const comm::Control& control, Work&& work) {
  Seconds seconds;
  work();
  for (std::int64_t i = 0; i < o.repeats; ++i) {
    const double one = seconds_together(control, work);
    seconds.fastest = std::min(seconds.fastest, one);
    seconds.slowest = std::max(seconds.slowest, one);
  }
  return seconds;
}

/// What all ranks do to gather `parts`, or to add them up or exchange them the other way, as `kind`
/// says: over `route`, as in training.
plan::Calls calls_of(const Kind& kind, const comm::AllGather& parts, const comm::Group& group,
                     const comm::Route& route, backend::BenchMemory& staging) {
  const std::int64_t n = parts.shard.elements(), ranks = group.shape().size;
  const auto bytes = [&](std::int64_t count) { return staging.zeros(DType::u8, {count}); };
  if (kind.what == What::exchange) {
    const std::int64_t slot = n * size_of(DType::f32);
    return {{plan::Leg::within, comm::CollectiveCall{comm::AllToAll{
                                    .send = View(parts.full.data, DType::u8, {ranks, slot}),
                                    .receive = bytes(ranks * slot).reshaped({ranks, slot}),
                                    .ranks = {.count = ranks},
                                    .remote = ranks - group.shape().local}}}};
  }
  const Range all{0, n};
  const auto between_hops = [&](const View& shard) {  // absent where there is one hop
    const std::int64_t shards = plan::shards_between(route);
    return shards > 0 ? staging.zeros(shard.type, {shards * shard.elements()}) : View{};
  };
  const auto gather = [&](const comm::AllGather& call) {
    const View middle = between_hops(call.shard);
    plan::Calls calls = plan::gather_across(route, call, middle);
    for (plan::LegCall& c : plan::gather_within(route, call, middle)) calls.push_back(std::move(c));
    return calls;
  };
  if (kind.what == What::gather && !kind.blocks) return gather(parts);
  if (kind.what == What::gather) {
    const auto blocks = plan::gather_in_blocks(parts, group.rank(), *kind.blocks, all,
                                               bytes(plan::block_staging(*kind.blocks, ranks, n)));
    plan::Calls calls = {{plan::Leg::pack, blocks.quantize}};
    for (plan::LegCall& c : gather(blocks.codes)) calls.push_back(std::move(c));
    calls.push_back({plan::Leg::unpack, blocks.dequantize});
    return calls;
  }
  comm::ReduceScatter reduce{.full = parts.full, .shard = parts.shard, .wire = kind.wire};
  if (kind.blocks) {
    std::vector<plan::HopStaging> of_hops;
    for (const std::int64_t count : plan::hop_staging(route, *kind.blocks, n))
      of_hops.push_back({.leaving = bytes(count), .arriving = bytes(count)});
    return plan::reduce_in_blocks(reduce, route, *kind.blocks, all, of_hops,
                                  {.rank = group.rank()});
  }
  std::vector<View> of_hops;
  for (const std::int64_t count : plan::sum_staging(route, group.shape(), kind.wire))
    of_hops.push_back(bytes(count));
  reduce.staging = of_hops.front();
  return plan::reduce_over(route, reduce, between_hops(parts.shard), of_hops.back());
}

/// The same by the MPI library.
void run_library(const Kind& kind, const comm::AllGather& parts, const View& received) {
  switch (kind.what) {
    case What::gather: return comm::library_all_gather(parts.shard, parts.full);
    case What::reduce: return comm::library_reduce_scatter(parts.full, parts.shard);
    case What::exchange: return comm::library_all_to_all(parts.full, received);
  }
}

void run(const plan::Calls& calls, const backend::Backend& backend, streams::Streams& streams,
         comm::Group& group) {
  for (const plan::LegCall& step : calls) {
    finish_alone(streams, [&]() -> std::unique_ptr<streams::Task> {
      if (const auto* collective = std::get_if<comm::CollectiveCall>(&step.call))
        return group.start(*collective);
      return backend.start_beside(std::get<kernels::KernelCall>(step.call));
    });
  }
}

std::unique_ptr<comm::Group> group_of_all(const backend::Backend& backend, const train::Job& job) {
  std::vector<int> members(static_cast<std::size_t>(job.mpi.size()));
  std::iota(members.begin(), members.end(), 0);
  comm::GroupShape shape = job.mpi.job();
  if (backend.kind == deck::Backend::cuda) shape.carrier = comm::Carrier::nccl;
  return backend.make_group(members, shape, comm::Traffic::collectives);
}

/// Measures collectives among all ranks. One object for each run of the benchmark.
class Collectives {
 public:
  Collectives(const BenchOptions& o, const train::Job& job)
      : o_(o),
        job_(job),
        backend_(bench_backend(o, job, setup::thread_count({}, job.mpi.cores()))),
        group_(group_of_all(backend_, job)),
        streams_(backend_.make_streams()),  // as in training
        route_(comm::route_of(job.mpi.node_of(), job.mpi.rank())),
        across_(job.mpi.job().nodes > 1),
        wholes_(across_ ? kAcross : kWithin),
        memory_(*backend_.device_tier),
        whole_(memory_.zeros(DType::f32, {wholes_.back() / 4})),
        other_(memory_.zeros(DType::f32, {wholes_.back() / 4})) {}

  void run() {
    say_header();
    limit_ = across_ ? measure_link() : measure_memcpy();
    for (const Kind& kind : kMeasured) {
      if (kind.library && !backend_.device_is_host) continue;  // MPI does not reach that memory
      for (const std::int64_t bytes : wholes_) measure(kind, bytes);
    }
  }

 private:
  void say_header() const {
    if (job_.mpi.rank() != 0) return;
    fmt::print("# {} on {}; GB/s of f32 that a rank receives, in whatever fewer bytes; ",
               count_text(job_.mpi.size(), "rank"), count_text(job_.mpi.job().nodes, "node"));
    if (across_) {
      fmt::print(
          "the slowest of {} repeats, and what a node sends in it to others, as a share of "
          "what its link carries one way\n",
          o_.repeats);
    } else {
      fmt::print("the fastest of {} repeats, as a share of memcpy's\n", o_.repeats);
    }
  }
  void say(const char* name, std::int64_t bytes, double seconds, double rate, double share) const {
    if (job_.mpi.rank() == 0)
      print_row(name, human_bytes(bytes), seconds, rate / 1e9, "GB/s", share);
  }

  double measure_memcpy() {
    const std::int64_t bytes = wholes_.back();
    const double seconds =
        repeated(o_, job_.control, [&] {
          finish_alone(*streams_, [&] {
            return backend_.device_tier->start_copy(whole_.data, other_.data, bytes);
          });
        }).fastest;
    const double rate = static_cast<double>(bytes) / seconds;
    say("memcpy", bytes, seconds, rate, 1);
    return rate;
  }

  /// Bytes a second that a node sends another which sends nothing: the better of the two ways
  /// between rank 0's node and another. Each rank sends to one that has its number on its node.
  double measure_link() {
    const std::vector<int>& node_of = job_.mpi.node_of();
    std::vector<std::int64_t> here, there;  // ranks
    std::optional<int> other;
    for (std::int64_t r = 0; r < std::ssize(node_of); ++r) {
      const int node = node_of[static_cast<std::size_t>(r)];
      if (node != node_of.front()) other = other.value_or(node);
      if (node == node_of.front()) here.push_back(r);
      if (node == other) there.push_back(r);
    }
    const std::size_t pairs = std::min(here.size(), there.size());
    const std::int64_t n = wholes_.back() / static_cast<std::int64_t>(pairs), own = job_.mpi.rank();
    double seconds = std::numeric_limits<double>::max();
    for (const bool back : {false, true}) {
      const std::vector<std::int64_t>&from = back ? there : here, &to = back ? here : there;
      std::optional<comm::CollectiveCall> call;
      for (std::size_t i = 0; i < pairs; ++i) {
        const View data(whole_.data, DType::u8, {n});
        if (own == from[i]) call = comm::Send{.data = data, .peer = to[i], .crosses = true};
        if (own == to[i]) call = comm::Receive{.data = data, .peer = from[i]};
      }
      const auto send = [&] {
        if (call) finish_alone(*streams_, [&] { return group_->start(*call); });
      };
      seconds = std::min(seconds, repeated(o_, job_.control, send).fastest);
    }
    const std::int64_t bytes = n * static_cast<std::int64_t>(pairs);
    const double rate = static_cast<double>(bytes) / seconds;
    say("link, one way", bytes, seconds, rate, 1);
    return rate;
  }

  void measure(const Kind& kind, std::int64_t bytes) {
    const std::int64_t ranks = job_.mpi.size(), n = bytes / 4 / ranks;
    const comm::AllGather parts{.shard = other_.range(0, n), .full = whole_.range(0, n * ranks)};
    backend::BenchMemory staging(*backend_.device_tier);
    plan::Calls calls = calls_of(kind, parts, *group_, route_, staging);
    for (plan::LegCall& step : calls) {
      if (auto* kernel = std::get_if<kernels::KernelCall>(&step.call))
        staging.add_scratch(*kernel, *backend_.device);
    }
    const Seconds seconds = repeated(o_, job_.control, [&] {
      if (kind.library)
        run_library(kind, parts, other_.range(0, n * ranks));
      else
        verbs::run(calls, backend_, *streams_, *group_);
    });
    const double took = across_ ? seconds.slowest : seconds.fastest,
                 rate = static_cast<double>((ranks - 1) * n * size_of(DType::f32)) / took;
    say(kind.name, bytes, took, rate, (across_ ? sent_by_node(calls) / took : rate) / limit_);
  }

  /// Bytes that these calls, and the library's at best, make a node send to others: the most of all
  /// nodes.
  double sent_by_node(const plan::Calls& calls) const {
    std::int64_t bytes = 0;
    for (const plan::LegCall& step : calls) {
      if (const auto* collective = std::get_if<comm::CollectiveCall>(&step.call))
        bytes += comm::wire_bytes(*collective, group_->shape()).inter;
    }
    return static_cast<double>(job_.control.max(bytes * job_.mpi.job().local));
  }

  const BenchOptions& o_;
  const train::Job& job_;
  backend::Backend backend_;
  std::unique_ptr<comm::Group> group_;
  std::unique_ptr<streams::Streams> streams_;
  comm::Route route_;
  bool across_;
  std::span<const std::int64_t> wholes_;
  backend::BenchMemory memory_;
  View whole_, other_;
  double limit_ = 0;  // bytes a second
};

}  // namespace

void bench_collectives(const BenchOptions& o, const train::Job& job) {
  job.control.together([&] {
    if (job.mpi.size() == 1) throw DeckError("bench collectives needs two or more ranks");
  });
  Collectives(o, job).run();
}

}  // namespace tessera::verbs
