#include "comm/mpi/session.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "comm/launcher.hpp"
#include "comm/mpi/calls.hpp"
#include "core/cores.hpp"
#include "core/error.hpp"

#ifdef __SANITIZE_ADDRESS__
/// Keeps MPI's plugins loaded after its end; otherwise leak checkers could not name what the
/// plugins have not freed.
extern "C" int dlclose(void* /*plugin*/) { return 0; }
#endif

namespace tessera::comm {
namespace {

/// Refuses a job in which an MPI library that does not understand its launcher has made every
/// process a world of its own.
void check_launcher(int world) {
  if (world > 1) return;
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_TRY(MPI_Get_library_version(library, &length));
  const std::string_view all(library, static_cast<std::size_t>(length));
  refuse_copies(launch_of_process(),
                fmt::format("for the MPI library of this program takes each for a run of its own "
                            "({})",
                            all.substr(0, all.find_first_of(",\n"))),
                "use srun --mpi=pmix with Open MPI, srun --mpi=pmi2 with MPICH, or the mpirun that "
                "belongs to the library");
}

/// Whether MPI_Finalize unloads code that the library's threads run.
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
constexpr bool kUnloadsCode = true;
#else
constexpr bool kUnloadsCode = false;
#endif

/// This process's threads, but for the one that asks: what /proc has of each.
std::vector<std::filesystem::path> other_threads() {
  std::vector<std::filesystem::path> threads;
  std::error_code unknown;  // then none is waited for
  const std::string own = std::to_string(gettid());
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator it("/proc/self/task", unknown); !unknown && it != end;
       it.increment(unknown)) {
    if (it->path().filename() != own) threads.push_back(it->path());
  }
  return threads;
}

/// Whether a thread sleeps, or has ended: it neither runs nor waits for a core.
bool sleeps(const std::filesystem::path& thread) {
  std::ifstream in(thread / "stat");
  std::string line;
  std::getline(in, line);  // "ID (NAME) STATE ...", where the name may hold anything
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos || line[name_end + 2] != 'R';
}

/// Waits until all threads sleep, for some seconds at most. Twice in a row, for one that was awake
/// may have given another its work meanwhile.
void wait_until_asleep(const std::vector<std::filesystem::path>& threads) {
  constexpr std::chrono::seconds kLongest{5};
  constexpr std::chrono::microseconds kNap{100};
  const auto end = std::chrono::steady_clock::now() + kLongest;
  for (int times = 0; times < 2 && std::chrono::steady_clock::now() < end;) {
    times = std::all_of(threads.begin(), threads.end(), sleeps) ? times + 1 : 0;
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a launcher that dies while ranks start takes them along too
  int provided = 0;
  MPI_TRY(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
  library_threads_ = other_threads();
  MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_MULTIPLE) {
    throw CommError(
        "this MPI library offers no MPI_THREAD_MULTIPLE, which the progress thread needs");
  }
  int size = 1, local = 1, local_rank = 0;
  MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &size));
  check_launcher(size);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node));
  MPI_TRY(MPI_Comm_size(node, &local));
  MPI_TRY(MPI_Comm_rank(node, &local_rank));
  std::vector<CoreMask> masks(static_cast<std::size_t>(local));
  const CoreMask own = own_cores();
  constexpr int kBytes = sizeof(CoreMask);
  MPI_TRY(MPI_Allgather(&own, kBytes, MPI_BYTE, masks.data(), kBytes, MPI_BYTE, node));
  cores_ = cores_each(masks);
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, &cores_, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
  int first = rank_;  // of this node
  MPI_TRY(MPI_Bcast(&first, 1, MPI_INT, 0, node));
  MPI_TRY(MPI_Comm_free(&node));
  node_of_.resize(static_cast<std::size_t>(size));
  MPI_TRY(MPI_Allgather(&first, 1, MPI_INT, node_of_.data(), 1, MPI_INT, MPI_COMM_WORLD));
  int nodes = local_rank == 0 ? 1 : 0;
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, &nodes, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  job_ = {.size = size, .local = local, .nodes = nodes};
}

MpiSession::~MpiSession() {
  // With an exception on its way that other ranks do not know of, they never come to MPI_Finalize.
  if (std::uncaught_exceptions() != 0) return;
  // MPI_Init leaves an event to a thread of Open MPI, and MPI_Finalize unloads the plugin whose
  // code handles it, without asking whether that thread has had a core in between: short jobs on
  // busy machines crashed (open-mpi/ompi issue 10117).
  if (kUnloadsCode) wait_until_asleep(library_threads_);
  MPI_Finalize();
}

void leave_at_once(int exit_code) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised != 0 && finalised == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

WorldPlace place_in_world() {
  WorldPlace place;
  MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &place.rank));
  MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &place.size));
  return place;
}

void gather_in_world(std::span<const std::byte> own, std::span<std::byte> all) {
  const auto bytes = static_cast<int>(own.size());
  MPI_TRY(MPI_Allgather(own.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD));
}

std::string host_name() {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_TRY(MPI_Get_processor_name(name, &length));
  return {name, static_cast<std::size_t>(length)};
}

}  // namespace tessera::comm
