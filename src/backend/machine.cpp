#include "backend/machine.hpp"

#include <algorithm>
#include <limits>

#include "backend/bench.hpp"

namespace tessera::backend {
namespace {

constexpr std::int64_t kSmallest = 128;                                        // square product
constexpr std::int64_t kSamples = 1, kTokens = 512;                            // of a micro-batch
constexpr std::int64_t kLongShard = std::int64_t{16} << 20, kShortShard = 64;  // bytes
constexpr std::int64_t kLongWhole = std::int64_t{256} << 20;
constexpr double kLongEnough = 0.1;  // s

class Meter {
 public:
  Meter(const Backend& backend, const Ranks& ranks, const MachineOptions& options)
      : backend_(backend),
        mpi_(ranks.mpi),
        control_(ranks.control),
        options_(options),
        node_of_(options.node_of.empty() ? ranks.mpi.node_of() : options.node_of) {
    control_.together([&] { streams_ = backend.make_streams(); });  // as in training
  }

  std::int64_t ranks_of_first_node() const { return std::ssize(of_node(node_of_.front())); }

  /// The rate of the slowest rank, all at once.
  template <typename Rate>
  double slowest(Rate&& rate) const {
    double own = 0;
    control_.barrier();
    control_.together([&] { own = rate(); });
    return -control_.max(-own);
  }

  /// The link between the ranks of a node.
  std::optional<deck::Link> within_nodes() const { return link_among(of_node(own_node())); }

  /// The link between nodes: of each rank with those that have its number on their nodes.
  std::optional<deck::Link> across_nodes() const {
    std::vector<int> nodes;
    for (const int node : node_of_) {
      if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
    }
    const int own = own_node();
    nodes.resize(std::min(nodes.size(), options_.nodes.value_or(nodes.size())));
    const std::vector<int> mates = of_node(own);
    const auto number =
        static_cast<std::size_t>(std::ranges::find(mates, mpi_.rank()) - mates.begin());
    std::vector<int> members;
    for (const int node : nodes) {
      const std::vector<int> there = of_node(node);
      if (number < there.size()) members.push_back(there[number]);
    }
    if (std::ranges::find(nodes, own) == nodes.end()) members.clear();
    return link_among(members);
  }

  deck::Link of_pair(const std::array<int, 2>& pair) const {
    const bool among = pair[0] == mpi_.rank() || pair[1] == mpi_.rank();
    return link_among(among ? std::vector<int>(pair.begin(), pair.end()) : std::vector<int>())
        .value();
  }

  /// Copies between a rank's device and its host's memory, there and back in turns.
  deck::Link to_host() const {
    BenchMemory device(*backend_.device_tier), host(*backend_.host_tier);
    View here, there;
    control_.together([&] {
      here = device.zeros(DType::u8, {kLongShard});
      there = host.zeros(DType::u8, {kLongShard});
    });
    const auto there_and_back = [&](std::int64_t bytes) {
      return best([&] {
        for (const bool out : {true, false}) {
          finish_alone(*streams_, [&] {
            return backend_.device_tier->start_copy((out ? here : there).data,
                                                    (out ? there : here).data, bytes);
          });
        }
      });
    };
    return slowest_link(2, kLongShard, there_and_back);
  }

 private:
  int own_node() const { return node_of_[static_cast<std::size_t>(mpi_.rank())]; }

  /// World ranks.
  std::vector<int> of_node(int node) const {
    std::vector<int> ranks;
    for (int r = 0; r < mpi_.size(); ++r) {
      if (node_of_[static_cast<std::size_t>(r)] == node) ranks.push_back(r);
    }
    return ranks;
  }

  /// The best of the repeats, after one that opens connections: this rank's, and all ranks'.
  struct Seconds {
    double own = std::numeric_limits<double>::max(), all = own;
  };
  template <typename Work>
  Seconds best(Work&& work) const {
    Seconds best;
    for (std::int64_t i = 0; i <= options_.repeats; ++i) {
      double own = 0;
      control_.barrier();
      control_.together([&] {
        const auto begin = SteadyClock::now();
        work();
        own = seconds_since(begin);
      });
      best.own = std::min(best.own, own);
      best.all = std::min(best.all, control_.max(own));
    }
    return best;
  }

  /// What all ranks at once see of a link at worst, from what a short shard takes and what a long
  /// one takes, of which each rank moves `times`, one after another; 0: none, and waits.
  template <typename Move>
  deck::Link slowest_link(double times, std::int64_t most, Move&& seconds) const {
    const double brief = seconds(kShortShard).own;
    std::int64_t bytes = options_.brief ? most / 64 : most;
    Seconds lengthy = seconds(bytes);
    while (4 * bytes <= most && 4 * lengthy.all < kLongEnough) {
      bytes *= 4;
      lengthy = seconds(bytes);
    }
    const double latency = times > 0 ? brief / times : 0,
                 rate = times > 0 ? times * static_cast<double>(bytes - kShortShard) /
                                        std::max(lengthy.own - brief, 1e-9)
                                  : std::numeric_limits<double>::max();
    return {.latency = control_.max(latency), .rate = -control_.max(-rate)};
  }

  /// The slowest link of all such groups, in which each rank sends to every other; nothing where
  /// all ranks are alone. Groups measure together, those without others wait for them.
  std::optional<deck::Link> link_among(std::vector<int> members) const {
    if (members.size() < 2) members.clear();
    const auto size = std::ssize(members);
    const std::int64_t largest = control_.max(size);
    if (largest == 0) return std::nullopt;
    comm::GroupShape shape;
    if (size > 0) shape = comm::group_shape(members, node_of_, mpi_.rank());
    shape.carrier =
        backend_.kind == deck::Backend::cuda ? comm::Carrier::nccl : comm::Carrier::exchange;
    const auto group = backend_.make_group(members, shape, comm::Traffic::collectives);
    const std::int64_t most = std::min(kLongShard, kLongWhole / largest);
    BenchMemory memory(*backend_.device_tier);
    View shard, whole;
    control_.together([&] {
      if (!group) return;
      shard = memory.zeros(DType::u8, {most});
      whole = memory.zeros(DType::u8, {most * size});
    });
    const auto gather = [&](std::int64_t bytes) {
      return best([&] {
        if (!group) return;
        const comm::AllGather call{.shard = shard.range(0, bytes),
                                   .full = whole.range(0, bytes * size)};
        finish_alone(*streams_, [&] { return group->start(call); });
      });
    };
    return slowest_link(static_cast<double>(std::max<std::int64_t>(0, size - 1)), most, gather);
  }

  const Backend& backend_;
  const comm::MpiSession& mpi_;
  const comm::Control& control_;
  const MachineOptions& options_;
  std::vector<int> node_of_;
  std::unique_ptr<streams::Streams> streams_;
};

}  // namespace

deck::Machine measure_machine(const Backend& backend, const Ranks& ranks,
                              const MachineOptions& options) {
  const Meter meter(backend, ranks, options);
  const bool gpu = backend.kind == deck::Backend::cuda;
  BenchOptions bench = usual_bench(backend, options.threads, options.repeats);
  if (options.brief) bench.square /= 2, bench.elements /= 8;
  deck::Machine m{.name = "this machine", .file = "this machine", .memory = {}};
  m.ranks_per_node = meter.ranks_of_first_node();
  m.threads = options.threads;
  m.memory.count = backend.device_tier->device_memory().total;
  m.memory_rate = meter.slowest([&] { return memory_rate(backend, bench); });
  if (!backend.device_is_host) {
    Backend host;
    ranks.control.together([&] {
      host = make_backend({.kind = deck::Backend::cpu, .threads = options.threads}, nullptr);
    });
    BenchOptions of_host = usual_bench(host, options.threads, options.repeats);
    if (options.brief) of_host.elements /= 8;
    m.host_memory_rate = meter.slowest([&] { return memory_rate(host, of_host); }) *
                         static_cast<double>(m.ranks_per_node);
  }
  if (gpu) {
    m.activations = deck::MachineActivations::in_products;
    m.collectives = deck::Collectives::ring;
    m.kernel_start = -meter.slowest([&] { return -kernel_start(backend); });
  }
  for (std::int64_t n = kSmallest; n <= bench.square; n *= 2) m.gemm_sizes.push_back(n);
  std::vector<DType> of_products = options.types;
  if (backend.multiplies_fp8 || options.fp8) of_products.push_back(DType::e4m3);
  for (const DType type : of_products) {
    for (const std::int64_t n : m.gemm_sizes) {
      m.gemm[type].push_back(meter.slowest([&] { return gemm_rate(backend, type, n, bench); }));
    }
  }
  if (!gpu) bench.models.front().samples = kSamples, bench.models.front().tokens = kTokens;
  const std::vector<BenchModel> models = bench.models;
  bench.models.resize(1);
  for (const BenchModel& model : models) m.attention_heads.push_back(model.head_dim);
  for (const DType type : options.types) {
    for (const BenchModel& model : models) {
      AttentionRates rates;
      m.attention[type].push_back(meter.slowest([&] {
        rates = attention_rates(backend, type, model, bench);
        return rates.forward;
      }));
      m.attention_backward[type].push_back(meter.slowest([&] { return rates.backward; }));
    }
    ranks.control.barrier();
    std::vector<KernelRate> rates;
    ranks.control.together([&] { rates = kernel_rates(backend, type, bench); });
    for (const auto& [name, rate] : rates) m.kernel[type][name] = -ranks.control.max(-rate);
  }
  m.intra = meter.within_nodes();
  m.inter = meter.across_nodes();
  if (!backend.device_is_host) m.host = meter.to_host();
  return m;
}

std::vector<deck::Link> measure_links(const Backend& backend, const Ranks& ranks,
                                      const MachineOptions& options,
                                      std::span<const std::array<int, 2>> pairs) {
  const Meter meter(backend, ranks, options);
  std::vector<deck::Link> links;
  for (const auto& pair : pairs) links.push_back(meter.of_pair(pair));
  return links;
}

}  // namespace tessera::backend
