#include "core/limits.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "core/error.hpp"

namespace tessera {
namespace {

double mebibytes(rlim_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

/// The limit on addresses, in bytes. Does not use a stream: there may be no memory for its buffer.
rlim_t addresses_in_use() {
  long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return static_cast<rlim_t>(pages) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::string why_no_memory() {
  rlimit addresses{};
  if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY) {
    return fmt::format(
        "this process may use {:.0f} MiB of addresses and uses {:.0f} (raise ulimit -v, or run "
        "with "
        "fewer threads or a smaller batch.micro)",
        mebibytes(addresses.rlim_cur), mebibytes(addresses_in_use()));
  }
  return "the node, or the job's share of it, has no more (use fewer ranks a node, a higher "
         "zero.stage, or a smaller batch.micro)";
}

void memory_refused(const std::string& what, int error_number) {
  throw MemoryError(
      fmt::format("cannot {}: {}; {}", what, errno_text(error_number), why_no_memory()));
}

void thread_refused(const std::string& what, int error_number) {
  rlimit processes{}, addresses{};
  ::getrlimit(RLIMIT_NPROC, &processes);
  ::getrlimit(RLIMIT_AS, &addresses);
  const auto text = [](rlim_t limit) {
    return limit == RLIM_INFINITY ? std::string("none") : fmt::to_string(limit);
  };
  throw MemoryError(fmt::format(
      "cannot start {}: {}; limits: {} on the user's processes and threads (ulimit -u), {} on "
      "bytes "
      "of addresses, of which a thread's stack takes some (ulimit -v), and pids.max of the job's "
      "cgroup: raise the one that is met, or use fewer threads (run.threads, OMP_NUM_THREADS)",
      what, errno_text(error_number), text(processes.rlim_cur), text(addresses.rlim_cur)));
}

}  // namespace tessera
