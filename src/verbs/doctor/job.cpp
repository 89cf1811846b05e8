// What concerns several ranks at once: a directory that all see, clocks, devices, links.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "backend/machine.hpp"
#include "comm/mpi/control.hpp"
#include "core/bytes.hpp"
#include "guard/median.hpp"
#include "io/file.hpp"
#include "setup/threads.hpp"
#include "verbs/doctor/doctor.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;

/// Hosts by node, on rank 0, in the order of their first ranks.
std::vector<std::string> hosts_of(const Subject& subject) {
  return subject.job.control.gather(comm::host_name());
}

/// Whether all nodes see what rank 0 makes where the run's files will be.
std::vector<Finding> shared_directory(const Subject& subject) {
  const comm::Control& control = subject.job.control;
  if (subject.job.mpi.job().nodes == 1) return {};
  std::optional<TrialFile> trial;  // of rank 0
  if (control.rank() == 0) {
    try {
      trial.emplace(existing_directory(subject.run_directory()));
    } catch (const IoError&) {  // another check says why
    }
  }
  const std::string path = control.broadcast(trial ? trial->path().string() : std::string());
  if (path.empty()) return {};
  const auto hosts = control.gather(io::path_exists(path) ? "" : comm::host_name());
  control.barrier();
  if (control.rank() != 0) return {};
  const fs::path directory = fs::path(path).parent_path();
  const auto blind = std::ranges::find_if(hosts, [](const auto& host) { return !host.empty(); });
  if (blind == hosts.end())
    return {{.what = fmt::format("{}: all nodes see what rank 0 writes", directory.string())}};
  return {{.health = Health::broken,
           .what = fmt::format("{}: {} does not see what rank 0 on {} writes", directory.string(),
                               *blind, comm::host_name()),
           .fix = "set run.dir to a directory of a file system that all nodes share",
           .code = ExitCode::io}};
}

std::vector<Finding> clocks(const Subject& subject) {
  constexpr double kApart = 1;  // s: more confuses whoever reads the logs of several nodes
  const comm::Control& control = subject.job.control;
  if (subject.job.mpi.job().nodes == 1) return {};
  const auto offset = control.clock_offset([] {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  });
  const auto ahead = control.gather(offset.ahead), error = control.gather(offset.error);
  const auto hosts = hosts_of(subject);
  if (control.rank() != 0) return {};
  std::size_t worst = 0;
  for (std::size_t r = 0; r < ahead.size(); ++r) {
    if (std::abs(ahead[r]) > std::abs(ahead[worst])) worst = r;
  }
  Finding finding{.what = fmt::format("{} is {:.6f} s {} rank 0's {}, give or take {:.6f} s; no "
                                      "other is further away",
                                      hosts[worst], std::abs(ahead[worst]),
                                      ahead[worst] < 0 ? "behind" : "ahead of", hosts[0],
                                      error[worst])};
  if (std::abs(ahead[worst]) - error[worst] > kApart) {
    finding.health = Health::poor;
    finding.fix = "have chronyd or another NTP client run on all nodes";
  }
  return {finding};
}

using Pair = std::array<int, 2>;

/// All pairs of few ranks; of many the first ranks of all nodes, or of neighbouring ones where
/// there are many nodes, and the first two of each node.
std::vector<Pair> pairs_of(const std::vector<int>& node_of) {
  constexpr std::size_t kFewRanks = 8, kFewNodes = 16;
  std::vector<std::vector<int>> nodes;
  for (int r = 0; r < static_cast<int>(node_of.size()); ++r) {
    if (node_of[static_cast<std::size_t>(r)] == r) nodes.emplace_back();
    for (auto& ranks : nodes) {
      const int first = ranks.empty() ? r : ranks.front();
      if (node_of[static_cast<std::size_t>(r)] == first) ranks.push_back(r);
    }
  }
  std::vector<Pair> pairs;
  if (node_of.size() <= kFewRanks) {
    for (int a = 0; a < static_cast<int>(node_of.size()); ++a) {
      for (int b = a + 1; b < static_cast<int>(node_of.size()); ++b) pairs.push_back({a, b});
    }
    return pairs;
  }
  for (std::size_t a = 0; a < nodes.size(); ++a) {
    if (nodes[a].size() > 1) pairs.push_back({nodes[a][0], nodes[a][1]});
    const std::size_t last =
        nodes.size() <= kFewNodes ? nodes.size() : std::min(nodes.size(), a + 2);
    for (std::size_t b = a + 1; b < last; ++b) pairs.push_back({nodes[a][0], nodes[b][0]});
  }
  return pairs;
}

/// The links of one class: the usual one, and the worst, which is poor where it is much worse.
Finding summary(const char* name, const std::vector<Pair>& pairs,
                const std::vector<deck::Link>& links, const std::vector<std::string>& hosts) {
  constexpr double kMuchWorse = 2;
  std::vector<double> rates, latencies;
  std::size_t slowest = 0;
  for (std::size_t i = 0; i < links.size(); ++i) {
    rates.push_back(links[i].rate);
    latencies.push_back(links[i].latency);
    if (links[i].rate < links[slowest].rate) slowest = i;
  }
  const double rate = guard::median(rates), latency = guard::median(latencies);
  const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  const auto& [a, b] = pairs[slowest];
  Finding finding{.what = fmt::format(
                      "{}: {:.2f} GB/s each way, {:.1f} us; the slowest is {:.2f} GB/s, ranks {} "
                      "and {} on {} and {}",
                      count_text(std::ssize(links), "pair of ranks", "pairs of ranks"), rate / 1e9,
                      latency * 1e6, links[slowest].rate / 1e9, a, b, host(a), host(b)),
                  .name = name};
  if (links[slowest].rate * kMuchWorse < rate) {
    finding.health = Health::poor;
    finding.fix = fmt::format(
        "look at the adapters, cables and cores of {} and {}, or leave them "
        "out (srun --exclude)",
        host(a), host(b));
  }
  return finding;
}

std::vector<Finding> links(const Subject& subject, const backend::Backend& backend, int threads) {
  const train::Job& job = subject.job;
  if (job.mpi.size() == 1) return {};
  const std::vector<int>& node_of = job.mpi.node_of();
  const std::vector<Pair> pairs = pairs_of(node_of);
  const auto found = backend::measure_links(
      backend, {job.mpi, job.control}, {.threads = threads, .repeats = 3, .brief = true}, pairs);
  const auto hosts = hosts_of(subject);
  if (job.control.rank() != 0) return {};
  std::vector<Finding> findings;
  for (const bool across : {false, true}) {
    std::vector<Pair> of_class;
    std::vector<deck::Link> its_links;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto node = [&](int k) {
        return node_of[static_cast<std::size_t>(pairs[i][static_cast<std::size_t>(k)])];
      };
      if ((node(0) != node(1)) != across) continue;
      of_class.push_back(pairs[i]);
      its_links.push_back(found[i]);
    }
    if (!of_class.empty())
      findings.push_back(summary(across ? "links between nodes" : "links within nodes", of_class,
                                 its_links, hosts));
  }
  return findings;
}

/// The device that a run would take, on all ranks, and the links that it talks over.
std::vector<Finding> device(const Subject& subject) {
  const train::Job& job = subject.job;
  try {
    int threads = 1;
    job.control.together([&] {
      threads = setup::thread_count(subject.deck ? subject.deck->run : deck::RunSection{},
                                    job.mpi.cores());
      setup::use_threads(threads);
    });
    const backend::Ranks ranks{job.mpi, job.control};
    backend::Backend backend;
    job.control.together([&] {
      backend = backend::make_backend(
          {.kind = subject.deck ? subject.deck->run.backend : deck::Backend::automatic,
           .threads = threads},
          &ranks);
    });
    std::vector<Finding> findings = links(subject, backend, threads);
    findings.insert(findings.begin(),
                    {.what = fmt::format("a rank computes on {}", backend.name), .name = "device"});
    return findings;
  } catch (const AgreedError& e) {  // all ranks have it
    return {{.health = Health::broken,
             .what = e.what(),
             .fix = "see what it says; without a GPU run.backend = \"cpu\" computes on cores",
             .code = e.exit_code()}};
  }
}

constexpr JobCheck kJobChecks[] = {
    {"run directory", shared_directory}, {"clocks", clocks}, {"device", device}};

}  // namespace

std::span<const JobCheck> job_checks() { return kJobChecks; }

}  // namespace tessera::verbs
