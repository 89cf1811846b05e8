// Limits that the system sets, and the cores that ranks have.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/bytes.hpp"
#include "setup/threads.hpp"
#include "verbs/doctor/doctor.hpp"

namespace tessera::verbs {
namespace {

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
}

rlimit limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0)
    throw IoError(fmt::format("cannot read the limits of this process: {}", errno_text(errno)));
  return limit;
}

std::vector<Finding> locked_memory(const Subject& subject) {
  const rlimit limit = limit_of(RLIMIT_MEMLOCK);
  std::error_code ignored;
  const bool adapters = std::filesystem::exists("/sys/class/infiniband", ignored) &&
                        !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  const bool needed = adapters || subject.gpus() > 0;
  Finding finding{.what = fmt::format("{} bytes{}", limit_text(limit.rlim_cur),
                                      needed ? "" : "; neither GPU nor InfiniBand needs more")};
  if (needed && limit.rlim_cur != RLIM_INFINITY) {
    finding.health = Health::poor;
    finding.fix =
        "ulimit -l unlimited before the launcher; under Slurm LimitMEMLOCK=infinity in slurmd's "
        "service and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf";
  }
  return {finding};
}

std::vector<Finding> open_files(const Subject& subject) {
  constexpr rlim_t kOwn = 256, kEachPeer = 4;  // sockets of MPI and of the watchdog
  const rlim_t needed = kOwn + kEachPeer * static_cast<rlim_t>(subject.job.mpi.size());
  const rlimit limit = limit_of(RLIMIT_NOFILE);
  Finding finding{.what = fmt::format("{} for each process, {} are enough for {}",
                                      limit_text(limit.rlim_cur), needed,
                                      count_text(subject.job.mpi.size(), "rank"))};
  if (limit.rlim_cur < needed) {
    finding.health = Health::poor;
    finding.fix = limit.rlim_max >= needed
                      ? fmt::format("ulimit -n {} before the launcher", needed)
                      : fmt::format(
                            "have the administrator raise the hard limit of {} (LimitNOFILE of "
                            "slurmd's service, /etc/security/limits.conf) to {}",
                            limit_text(limit.rlim_max), needed);
  }
  return {finding};
}

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<Finding> huge_pages(const Subject&) {
  constexpr const char* kFile = "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::string line = first_line(kFile);
  if (line.empty()) {
    return {{.health = Health::poor,
             .what = "the kernel has no transparent huge pages",
             .fix = "a kernel with CONFIG_TRANSPARENT_HUGEPAGE; without it large arenas are slower "
                    "to reach"}};
  }
  const std::size_t begin = line.find('[') + 1;
  Finding finding{.what =
                      fmt::format("{} ({})", line.substr(begin, line.find(']') - begin), kFile)};
  if (line.find("[never]") != line.npos) {
    finding.health = Health::poor;
    finding.fix = fmt::format("echo madvise > {}, as root, at each start of the node", kFile);
  }
  return {finding};
}

/// Requests that disks of offloaded state have under way at once, of all ranks of the node.
std::vector<Finding> asynchronous_io(const Subject& subject) {
  constexpr std::int64_t kUsualDepth = 16, kEachCore = 4;
  std::int64_t used = 0, most = 0;
  std::ifstream("/proc/sys/fs/aio-nr") >> used;
  std::ifstream("/proc/sys/fs/aio-max-nr") >> most;
  const bool offloads = subject.deck && !subject.deck->offload.nvme.empty();
  const std::int64_t depth = offloads ? subject.deck->offload.depth : kUsualDepth,
                     files = offloads ? std::ssize(subject.deck->offload.nvme) : 1,
                     cores = sysconf(_SC_NPROCESSORS_CONF);
  // The kernel makes room for four requests a core at least, and counts each twice.
  const std::int64_t needed =
      2 * std::max(depth, kEachCore * cores) * files * subject.ranks_of_node();
  Finding finding{.what = fmt::format("fs.aio-max-nr = {}, {} in use; {} are enough for {}", most,
                                      used, needed, count_text(subject.ranks_of_node(), "rank"))};
  if (most - used < needed) {
    finding.health = offloads ? Health::broken : Health::poor;
    finding.code = offloads ? ExitCode::io : ExitCode::ok;
    finding.fix = fmt::format("sysctl -w fs.aio-max-nr={}, as root: offloading to disks needs it",
                              std::max<std::int64_t>(1 << 20, used + needed));
  }
  return {finding};
}

std::vector<Finding> cores(const Subject& subject) {
  std::int64_t of_node = sysconf(_SC_NPROCESSORS_ONLN);
  const char* given = std::getenv("SLURM_CPUS_ON_NODE");
  if (given != nullptr && std::atol(given) > 0)
    of_node = std::min<std::int64_t>(of_node, std::atol(given));
  const deck::RunSection run = subject.deck ? subject.deck->run : deck::RunSection{};
  const std::int64_t may = subject.job.mpi.cores(), ranks = subject.ranks_of_node(),
                     each = setup::thread_count(run, subject.job.mpi.cores());
  Finding finding{.what = fmt::format("{} of this node for {}; each may use {}, and "
                                      "computes with {}",
                                      of_node, count_text(ranks, "rank"), may,
                                      count_text(each, "thread"))};
  if (each * ranks > of_node) {
    finding.fix = fmt::format(
        "start fewer ranks on a node, or with fewer threads (OMP_NUM_THREADS, run.threads): {} "
        "take turns on {}",
        each * ranks, count_text(of_node, "core"));
  } else if ((each + 1) * ranks <= of_node && each < may) {
    finding.fix = fmt::format("OMP_NUM_THREADS={} or run.threads: {} idle", of_node / ranks,
                              count_text(of_node - each * ranks, "core stands", "cores stand"));
  } else if ((each + 1) * ranks <= of_node) {
    finding.fix = fmt::format(
        "mpirun --bind-to none, or --map-by socket:PE={0}; srun --cpus-per-task={0}: {1} idle",
        of_node / ranks, count_text(of_node - each * ranks, "core stands", "cores stand"));
  }
  if (!finding.fix.empty()) finding.health = Health::poor;
  return {finding};
}

constexpr NodeCheck kSystemChecks[] = {{"cores", cores},
                                       {"locked memory", locked_memory},
                                       {"open files", open_files},
                                       {"huge pages", huge_pages},
                                       {"asynchronous I/O", asynchronous_io, Texts::vary}};

}  // namespace

std::span<const NodeCheck> system_checks() { return kSystemChecks; }

}  // namespace tessera::verbs
