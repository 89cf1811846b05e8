// tessera bench machine: the rates of this machine, as a machine file.
#include <functional>
#include <limits>
#include <optional>

#include "core/version.hpp"
#include "deck/machine.hpp"
#include "setup/threads.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kSmallest = 128;                                        // square product
constexpr std::int64_t kSamples = 1, kTokens = 512;                            // of a micro-batch
constexpr std::int64_t kDiskBytes = std::int64_t{256} << 20;                   // a rank
constexpr std::int64_t kLongShard = std::int64_t{16} << 20, kShortShard = 64;  // bytes

/// A link as collectives see it, fitted to the time of a short and of a long all-gather, in which a
/// rank sends to every other. All groups of a class run at once, so that ranks that share a link
/// share its rate.
deck::Link measure_link(const BenchOptions& o, const comm::Control& control,
                        const backend::Backend& backend, comm::Group& group) {
  const auto streams = backend.make_streams();  // as in training
  const std::int64_t ranks = group.shape().size;
  backend::BenchMemory memory(*backend.device_tier);
  const View shard = memory.zeros(DType::u8, {kLongShard}),
             whole = memory.zeros(DType::u8, {kLongShard * ranks});
  const auto gather = [&](std::int64_t bytes) {
    double best = std::numeric_limits<double>::max();
    for (std::int64_t i = 0; i <= o.repeats; ++i) {  // the first opens connections
      const double seconds = seconds_together(control, [&] {
        const comm::AllGather call{.shard = shard.range(0, bytes),
                                   .full = whole.range(0, bytes * ranks)};
        finish_alone(*streams, [&] { return group.start(call); });
      });
      best = std::min(best, seconds);
    }
    return best;
  };
  const auto steps = static_cast<double>(ranks - 1);
  const double brief = gather(kShortShard), lengthy = gather(kLongShard);
  return {.latency = brief / steps,
          .rate = steps * static_cast<double>(kLongShard - kShortShard) /
                  std::max(lengthy - brief, 1e-9)};
}

/// Groups of `count` ranks with a distance of `stride`, one for every `first`: the group of this
/// rank.
std::unique_ptr<comm::Group> own_group(const train::Job& job, const backend::Backend& backend,
                                       std::int64_t groups, std::int64_t first_step,
                                       std::int64_t count, std::int64_t stride,
                                       std::int64_t local) {
  std::vector<int> own;
  for (std::int64_t g = 0; g < groups && own.empty(); ++g) {
    for (std::int64_t i = 0; i < count; ++i)
      own.push_back(static_cast<int>(g * first_step + i * stride));
    if (std::find(own.begin(), own.end(), job.mpi.rank()) == own.end()) own.clear();
  }
  const bool gpus = backend.kind == deck::Backend::cuda;
  return backend.make_group(own,
                            {.size = count,
                             .local = local,
                             .nodes = ceil_div(count, local),
                             .carrier = gpus ? comm::Carrier::nccl : comm::Carrier::exchange},
                            comm::Traffic::collectives);
}

/// Copies between a rank's device and its host's memory, there and back in turns, by short and by
/// long ones.
deck::Link measure_host_link(const BenchOptions& o, const comm::Control& control,
                             const backend::Backend& backend) {
  const auto streams = backend.make_streams();
  backend::BenchMemory device(*backend.device_tier), host(*backend.host_tier);
  const View here = device.zeros(DType::u8, {kLongShard}),
             there = host.zeros(DType::u8, {kLongShard});
  const auto copy = [&](std::int64_t bytes) {
    double best = std::numeric_limits<double>::max();
    for (std::int64_t i = 0; i <= o.repeats; ++i) {
      keep_fastest(best, control, [&] {
        for (const bool out : {true, false}) {
          finish_alone(*streams, [&] {
            return backend.device_tier->start_copy((out ? here : there).data,
                                                   (out ? there : here).data, bytes);
          });
        }
      });
    }
    return best / 2;
  };
  const double brief = copy(kShortShard), lengthy = copy(kLongShard);
  return {.latency = brief,
          .rate = static_cast<double>(kLongShard - kShortShard) / std::max(lengthy - brief, 1e-9)};
}

struct DiskRates {
  double write = 0, read = 0;
};

/// Rates of a node: all its ranks at once, a file each.
DiskRates measure_disk(const BenchOptions& o, const train::Job& job) {
  const BenchDirectory directory(o, job.control);
  const auto path = directory.path() / fmt::format("raw_{}", job.mpi.rank());
  double write = std::numeric_limits<double>::max(), read = write;
  for (std::int64_t i = 0; i < o.repeats; ++i) {
    keep_fastest(write, job.control, [&] { write_raw(path, kDiskBytes); });
    job.control.together([&] { forget(directory.path()); });
    keep_fastest(read, job.control, [&] { read_raw(path, kDiskBytes); });
  }
  job.control.barrier();  // nobody uses the directory any more
  const auto bytes = static_cast<double>(kDiskBytes * job.mpi.job().local);
  return {.write = bytes / write, .read = bytes / read};
}

using Say = std::function<void(std::string_view line)>;

/// The links between the ranks of a node, between nodes, and to the host's memory, as far as there
/// are any.
void say_links(const BenchOptions& o, const train::Job& job, const backend::Backend& backend,
               const Say& say) {
  const comm::Control& control = job.control;
  const comm::GroupShape& shape = job.mpi.job();
  const auto link = [&](std::string_view name, const deck::Link& measured) {
    say(fmt::format("\n[link.{}]\nlatency = {:.4g}\nrate = {:.4g}", name, measured.latency,
                    measured.rate));
  };
  const auto between = [&](std::string_view name, const std::unique_ptr<comm::Group>& group) {
    link(name, measure_link(o, control, backend, *group));
  };
  if (shape.local > 1)
    between("intra",
            own_group(job, backend, shape.nodes, shape.local, shape.local, 1, shape.local));
  if (shape.nodes > 1)
    between("inter", own_group(job, backend, shape.local, 1, shape.nodes, shape.local, 1));
  if (!backend.device_is_host) link("host", measure_host_link(o, control, backend));
}

}  // namespace

/// Prints a machine file (slurm/machines/README.md). All ranks measure at once, as they train.
void bench_machine(const BenchOptions& o, const train::Job& job) {
  const comm::Control& control = job.control;
  const comm::GroupShape& shape = job.mpi.job();
  const int threads = setup::thread_count({}, job.mpi.cores());
  const auto backend = bench_backend(o, job, threads);
  const auto options = backend::usual_bench(backend, threads, o.repeats);
  const bool speaks = control.rank() == 0;
  const auto slowest = [&](auto&& rate) {
    control.barrier();
    return -control.max(-rate());
  };
  const auto say = [&](std::string_view line) {
    if (speaks) fmt::print("{}\n", line);
  };

  say(fmt::format("# Measured by tessera {} ({}) bench machine on {}, {}.", kVersion, kCommit,
                  comm::host_name(), backend.name));
  say(fmt::format("ranks_per_node = {}\nthreads = {}", shape.local, threads));
  say(fmt::format("memory_rate = {:.4g}", slowest([&] { return memory_rate(backend, options); })));
  if (!backend.device_is_host) {
    const auto host =
        backend::make_backend({.kind = deck::Backend::cpu, .threads = threads}, nullptr);
    const double share =
        slowest([&] { return memory_rate(host, backend::usual_bench(host, threads, o.repeats)); });
    say(fmt::format("host_memory_rate = {:.4g}", share * static_cast<double>(shape.local)));
  }
  if (backend.kind == deck::Backend::cuda) say("activations = \"in_products\"");
  say("\n[gemm]");
  std::vector<std::int64_t> squares;
  for (std::int64_t n = kSmallest; n <= options.square; n *= 2) squares.push_back(n);
  say(fmt::format("n = [{}]", fmt::join(squares, ", ")));
  for (const DType type : {DType::f32, DType::bf16, DType::e4m3}) {
    if (type == DType::e4m3 && !backend.multiplies_fp8) continue;
    std::vector<std::string> rates;
    for (const std::int64_t n : squares) {
      rates.push_back(
          fmt::format("{:.4g}", slowest([&] { return gemm_rate(backend, type, n, options); })));
    }
    say(fmt::format("{} = [{}]", deck::gemm_word(type), fmt::join(rates, ", ")));
  }
  backend::BenchOptions usual = options;
  if (backend.kind != deck::Backend::cuda)
    usual.models.front().samples = kSamples, usual.models.front().tokens = kTokens;
  usual.models.resize(1);
  say("\n[attention]");
  for (const DType type : {DType::f32, DType::bf16}) {
    const double rate = slowest([&] { return attention_rate(backend, type, usual); });
    say(fmt::format("{} = {:.4g}", to_string(type), rate));
  }
  for (const DType type : {DType::f32, DType::bf16}) {
    say(fmt::format("\n[kernel.{}]", to_string(type)));
    control.barrier();
    for (const auto& [name, rate] : kernel_rates(backend, type, usual))
      say(fmt::format("{} = {:.4g}", name, -control.max(-rate)));
  }
  say_links(o, job, backend, say);
  const DiskRates disk = measure_disk(o, job);
  say(fmt::format("\n[disk]\nwrite = {:.4g}\nread = {:.4g}", disk.write, disk.read));
}

}  // namespace tessera::verbs
