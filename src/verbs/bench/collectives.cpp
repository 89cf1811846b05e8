// tessera bench collectives: bytes a second of each collective, as a share of what a memcpy on all
// ranks copies.
#include <limits>
#include <numeric>
#include <optional>

#include "core/bytes.hpp"
#include "plan/passes/blocks.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/threads.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kWholes[] = {1 << 20, 16 << 20, 256 << 20};  // bytes over all shards, in f32

using Blocks = std::optional<kernels::BlockFormat>;
struct Kind {
  const char* name;
  DType wire;
  bool reduce;
  Blocks blocks = {};  // in which elements travel
};
const Kind kMeasured[] = {
    {"all_gather", DType::f32, false},
    {"all_gather, int8", DType::f32, false, Blocks{{.type = kernels::BlockType::int8}}},
    {"reduce_scatter", DType::f32, true},
    {"reduce_scatter, bf16 wire", DType::bf16, true},
    {"reduce_scatter, int8", DType::f32, true, Blocks{{.type = kernels::BlockType::int8}}},
    {"reduce_scatter, int4", DType::f32, true, Blocks{{.type = kernels::BlockType::int4}}}};

/// Seconds of the fastest repeat on all ranks together; the one before them does not count.
template <typename Work>
double fastest(const BenchOptions& o, const comm::Control& control, Work&& work) {
  double seconds = std::numeric_limits<double>::max();
  work();
  for (std::int64_t i = 0; i < o.repeats; ++i)
    seconds = std::min(seconds, seconds_together(control, work));
  return seconds;
}

/// What moves the elements of `gather`, or adds them up the other way, as `kind` says.
plan::Calls calls_of(const Kind& kind, const comm::AllGather& gather, const comm::Group& group,
                     const comm::Route& route, backend::BenchMemory& staging) {
  comm::ReduceScatter reduce{.full = gather.full, .shard = gather.shard, .wire = kind.wire};
  if (!kind.blocks) {
    reduce.staging =
        staging.zeros(DType::u8, {comm::reduce_scatter_staging(group.shape(), kind.wire)});
    return {kind.reduce ? comm::CollectiveCall{reduce} : comm::CollectiveCall{gather}};
  }
  const auto block_staging = [&] {
    return staging.zeros(DType::u8, {plan::block_staging(*kind.blocks, group.shape().size,
                                                         gather.shard.elements())});
  };
  if (!kind.reduce) {
    const auto blocks = plan::gather_in_blocks(gather, group.rank(), *kind.blocks, block_staging());
    return {blocks.quantize, comm::CollectiveCall{blocks.codes}, blocks.dequantize};
  }
  return plan::reduce_in_blocks(reduce, route, *kind.blocks, block_staging(), block_staging(),
                                {.rank = group.rank()});
}

void run(const plan::Calls& calls, const backend::Backend& backend, streams::Streams& streams,
         comm::Group& group) {
  for (const plan::Call& call : calls) {
    finish_alone(streams, [&]() -> std::unique_ptr<streams::Task> {
      if (const auto* collective = std::get_if<comm::CollectiveCall>(&call))
        return group.start(*collective);
      return backend.start_beside(std::get<kernels::KernelCall>(call));
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

}  // namespace

/// Bytes of f32 that a rank receives a second, however they travel, as a share of what a memcpy of
/// device memory on all ranks at once copies: data between ranks of one node is copied at least
/// once.
void bench_collectives(const BenchOptions& o, const train::Job& job) {
  const comm::Control& control = job.control;
  control.together([&] {
    if (job.mpi.size() == 1) throw DeckError("bench collectives needs two or more ranks");
  });
  const auto backend = bench_backend(o, job, setup::thread_count({}, job.mpi.cores()));
  const auto group = group_of_all(backend, job);
  const auto streams = backend.make_streams();  // as in training
  memory::Tier& tier = *backend.device_tier;
  backend::BenchMemory memory(tier);
  const std::int64_t most = kWholes[std::size(kWholes) - 1];
  const View whole = memory.zeros(DType::f32, {most / 4}),
             other = memory.zeros(DType::f32, {most / 4});
  const double copy_seconds = fastest(o, control, [&] {
    finish_alone(*streams, [&] { return tier.start_copy(whole.data, other.data, most); });
  });
  const double copy = static_cast<double>(most) / copy_seconds / 1e9;
  if (control.rank() == 0) {
    fmt::print("# {} ranks on {} nodes; GB/s of f32 that a rank receives, as a share of memcpy's\n",
               job.mpi.size(), job.mpi.job().nodes);
    print_row("memcpy", human_bytes(most), copy_seconds, copy, "GB/s", 1);
  }
  const auto route = comm::route_of(job.mpi.node_of(), job.mpi.rank());
  for (const Kind& kind : kMeasured) {
    for (const std::int64_t bytes : kWholes) {
      const std::int64_t shard = bytes / 4 / job.mpi.size();
      const comm::AllGather gather{.shard = other.range(0, shard),
                                   .full = whole.range(0, shard * job.mpi.size())};
      backend::BenchMemory staging(tier);
      const plan::Calls calls = calls_of(kind, gather, *group, route, staging);
      const double seconds = fastest(o, control, [&] { run(calls, backend, *streams, *group); });
      // Of elements as they are, in whatever fewer bytes they travel.
      const std::int64_t received = (job.mpi.size() - 1) * shard * size_of(DType::f32);
      const double rate = static_cast<double>(received) / seconds / 1e9;
      if (control.rank() == 0)
        print_row(kind.name, human_bytes(bytes), seconds, rate, "GB/s", rate / copy);
    }
  }
}

}  // namespace tessera::verbs
