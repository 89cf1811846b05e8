#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <exception>
#include <limits>
#include <string_view>

#include "comm/launcher.hpp"
#include "comm/mpi/mpi_group.hpp"
#include "core/cores.hpp"
#include "core/ending.hpp"
#include "core/limits.hpp"

#ifdef __SANITIZE_ADDRESS__
/// MPI's plugins stay, or else what they have not freed would have no name by which it is known.
extern "C" int dlclose(void* /*plugin*/) { return 0; }
#endif

namespace tessera::comm {
namespace {

/// An MPI library that does not understand its launcher makes every process a world of its own.
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

}  // namespace

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  const auto message =
      fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
  int kind = MPI_ERR_OTHER;
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_NO_MEM) throw MemoryError(fmt::format("{}; {}", message, why_no_memory()));
  throw CommError(message);
}

MpiSession::MpiSession(int* argc, char*** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a launcher that dies while ranks start takes them along too
  int provided = 0;
  MPI_TRY(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
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
  // While an exception that others do not know of is on its way, they are not in MPI_Finalize and
  // never will be.
  if (std::uncaught_exceptions() == 0) MPI_Finalize();
}

void leave_at_once(int exit_code) {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised != 0 && finalised == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

Control::Control() {
  MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
  MPI_TRY(MPI_Comm_rank(comm_, &rank_));
  MPI_TRY(MPI_Comm_size(comm_, &size_));
}

Control::~Control() { MPI_Comm_free(&comm_); }

void Control::barrier() const { MPI_TRY(MPI_Barrier(comm_)); }

namespace {

template <typename T>
T all_reduce(T value, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  T result{};
  MPI_TRY(MPI_Allreduce(&value, &result, 1, type, op, comm));
  return result;
}

}  // namespace

std::int64_t Control::max(std::int64_t value) const {
  return all_reduce(value, MPI_INT64_T, MPI_MAX, comm_);
}
std::int64_t Control::min(std::int64_t value) const {
  return all_reduce(value, MPI_INT64_T, MPI_MIN, comm_);
}
double Control::max(double value) const { return all_reduce(value, MPI_DOUBLE, MPI_MAX, comm_); }
// MPICH 4.0 compares unsigned numbers as if they were signed (its issue 6083), and so did Open MPI
// 4.1 with vectors (10276): they travel as the signed numbers that are in the same order.
void Control::max(std::span<std::uint64_t> values) const {
  const auto turn = [&] {
    for (std::uint64_t& value : values) value ^= std::uint64_t{1} << 63;
  };
  turn();
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T,
                        MPI_MAX, comm_));
  turn();
}
double Control::sum(double value) const { return all_reduce(value, MPI_DOUBLE, MPI_SUM, comm_); }

void Control::must_agree(std::uint64_t value, const std::string& otherwise) const {
  const auto bits = static_cast<std::int64_t>(value);
  if (min(bits) == max(bits)) return;
  together([&] { throw CommError(otherwise); });  // every rank sees it
}

std::string Control::broadcast(const std::string& text, int root) const {
  auto length = static_cast<std::int64_t>(text.size());
  MPI_TRY(MPI_Bcast(&length, 1, MPI_INT64_T, root, comm_));
  TESSERA_CHECK(length < (std::int64_t{1} << 31), "broadcast of {} bytes", length);
  std::string result = text;
  result.resize(static_cast<std::size_t>(length));
  MPI_TRY(MPI_Bcast(result.data(), static_cast<int>(length), MPI_CHAR, root, comm_));
  return result;
}

std::vector<std::string> Control::gather(const std::string& text) const {
  // One message a rank, in rank order: no 2^31 limit on the total (trap 55).
  if (rank_ != 0) {
    const auto length = static_cast<std::int64_t>(text.size());
    TESSERA_CHECK(length < (std::int64_t{1} << 31), "gather of {} bytes", length);
    MPI_TRY(MPI_Send(text.data(), static_cast<int>(length), MPI_CHAR, 0, 1, comm_));
    return {};
  }
  std::vector<std::string> all{text};
  for (int source = 1; source < size_; ++source) {
    MPI_Status status;
    MPI_TRY(MPI_Probe(source, 1, comm_, &status));
    int length = 0;
    MPI_TRY(MPI_Get_count(&status, MPI_CHAR, &length));
    std::string part(static_cast<std::size_t>(length), '\0');
    MPI_TRY(MPI_Recv(part.data(), length, MPI_CHAR, source, 1, comm_, MPI_STATUS_IGNORE));
    all.push_back(std::move(part));
  }
  return all;
}

std::vector<double> Control::gather(double value) const {
  std::vector<double> all(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
  MPI_TRY(MPI_Gather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, comm_));
  return all;
}

ClockOffset Control::clock_offset(const std::function<double()>& now) const {
  constexpr int kRounds = 16, kTag = 2;
  const auto send = [&](double time, int to) {
    MPI_TRY(MPI_Send(&time, 1, MPI_DOUBLE, to, kTag, comm_));
  };
  const auto receive = [&](int from) {
    double time = 0;
    MPI_TRY(MPI_Recv(&time, 1, MPI_DOUBLE, from, kTag, comm_, MPI_STATUS_IGNORE));
    return time;
  };
  if (rank_ == 0) {  // answers one rank after the other
    for (int rank = 1; rank < size_; ++rank) {
      for (int i = 0; i < kRounds; ++i) {
        receive(rank);
        send(now(), rank);
      }
    }
    return {};
  }
  ClockOffset best{.ahead = 0, .error = std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kRounds; ++i) {
    const double asked = now();
    send(asked, 0);
    const double there = receive(0), answered = now();
    if ((answered - asked) / 2 < best.error)
      best = {.ahead = (asked + answered) / 2 - there, .error = (answered - asked) / 2};
  }
  return best;
}

std::string host_name() {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_TRY(MPI_Get_processor_name(name, &length));
  return {name, static_cast<std::size_t>(length)};
}

void Control::together(const std::function<void()>& work) const {
  Ending ending;
  try {
    work();
  } catch (...) {
    ending = current_ending();
  }
  auto& [code, message, where] = ending;
  if (code == ExitCode::internal) {
    message += fmt::format(" (at {}:{})", where.file_name(), where.line());
  }
  if (code != ExitCode::ok && rank_ != 0) {
    message = fmt::format("rank {} on {}: {}", rank_, host_name(), message);
  }
  const std::int64_t first = min(std::int64_t{code == ExitCode::ok ? size_ : rank_});
  if (first == size_) return;
  const auto agreed =
      static_cast<ExitCode>(max(std::int64_t{first == rank_ ? static_cast<int>(code) : 0}));
  const std::string text = broadcast(message, static_cast<int>(first));
  throw AgreedError(agreed, Lines{text}, where);
}

}  // namespace tessera::comm
