#include "comm/mpi/control.hpp"

#include <limits>

#include "comm/mpi/calls.hpp"
#include "comm/mpi/session.hpp"
#include "core/clock.hpp"
#include "core/ending.hpp"

namespace tessera::comm {

struct Control::Communicator {
  MPI_Comm handle = MPI_COMM_NULL;
  double waited = 0;
};

/// Counts the time of one agreement.
class Control::Waiting {
 public:
  explicit Waiting(const Control& of) : of_(*of.communicator_) {}
  ~Waiting() { of_.waited += seconds_since(begin_); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Communicator& of_;
  SteadyClock::time_point begin_ = SteadyClock::now();
};

double Control::waited() const { return communicator_->waited; }

Control::Control() : communicator_(std::make_unique<Communicator>()) {
  MPI_Comm& comm = communicator_->handle;
  MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  MPI_TRY(MPI_Comm_rank(comm, &rank_));
  MPI_TRY(MPI_Comm_size(comm, &size_));
}

Control::~Control() { MPI_Comm_free(&communicator_->handle); }

void Control::barrier() const {
  const Waiting waiting(*this);
  MPI_TRY(MPI_Barrier(communicator_->handle));
}

namespace {

template <typename T>
T all_reduce(T value, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  T result{};
  MPI_TRY(MPI_Allreduce(&value, &result, 1, type, op, comm));
  return result;
}

}  // namespace

std::int64_t Control::max(std::int64_t value) const {
  const Waiting waiting(*this);
  return all_reduce(value, MPI_INT64_T, MPI_MAX, communicator_->handle);
}
std::int64_t Control::min(std::int64_t value) const {
  const Waiting waiting(*this);
  return all_reduce(value, MPI_INT64_T, MPI_MIN, communicator_->handle);
}
double Control::max(double value) const {
  const Waiting waiting(*this);
  return all_reduce(value, MPI_DOUBLE, MPI_MAX, communicator_->handle);
}
// MPICH 4.0 compares unsigned numbers as if they were signed (its issue 6083), and so did Open MPI
// 4.1 with vectors (10276): they travel as the signed numbers that are in the same order.
void Control::max(std::span<std::uint64_t> values) const {
  const auto turn = [&] {
    for (std::uint64_t& value : values) value ^= std::uint64_t{1} << 63;
  };
  const Waiting waiting(*this);
  turn();
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T,
                        MPI_MAX, communicator_->handle));
  turn();
}
double Control::sum(double value) const {
  const Waiting waiting(*this);
  return all_reduce(value, MPI_DOUBLE, MPI_SUM, communicator_->handle);
}

void Control::sum(std::span<double> values) const {
  const Waiting waiting(*this);
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE,
                        MPI_SUM, communicator_->handle));
}

void Control::unite(std::span<float> values) const {
  constexpr std::size_t kMost = std::size_t{1} << 28;  // MPI counts in int
  const Waiting waiting(*this);
  for (; !values.empty(); values = values.subspan(std::min(kMost, values.size()))) {
    MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, values.data(),
                          static_cast<int>(std::min(kMost, values.size())), MPI_UINT32_T, MPI_BOR,
                          communicator_->handle));
  }
}

void Control::must_agree(std::uint64_t value, const std::string& otherwise) const {
  const auto bits = static_cast<std::int64_t>(value);
  if (min(bits) == max(bits)) return;
  together([&] { throw CommError(otherwise); });  // every rank sees it
}

std::string Control::broadcast(const std::string& text, int root) const {
  const Waiting waiting(*this);
  auto length = static_cast<std::int64_t>(text.size());
  MPI_TRY(MPI_Bcast(&length, 1, MPI_INT64_T, root, communicator_->handle));
  TESSERA_CHECK(length < (std::int64_t{1} << 31), "broadcast of {} bytes", length);
  std::string result = text;
  result.resize(static_cast<std::size_t>(length));
  MPI_TRY(
      MPI_Bcast(result.data(), static_cast<int>(length), MPI_CHAR, root, communicator_->handle));
  return result;
}

std::vector<std::string> Control::gather(const std::string& text) const {
  const Waiting waiting(*this);
  // One message a rank, in rank order: MPI counts in int, so the total may not be one message.
  if (rank_ != 0) {
    const auto length = static_cast<std::int64_t>(text.size());
    TESSERA_CHECK(length < (std::int64_t{1} << 31), "gather of {} bytes", length);
    MPI_TRY(MPI_Send(text.data(), static_cast<int>(length), MPI_CHAR, 0, 1, communicator_->handle));
    return {};
  }
  std::vector<std::string> all{text};
  for (int source = 1; source < size_; ++source) {
    MPI_Status status;
    MPI_TRY(MPI_Probe(source, 1, communicator_->handle, &status));
    int length = 0;
    MPI_TRY(MPI_Get_count(&status, MPI_CHAR, &length));
    std::string part(static_cast<std::size_t>(length), '\0');
    MPI_TRY(MPI_Recv(part.data(), length, MPI_CHAR, source, 1, communicator_->handle,
                     MPI_STATUS_IGNORE));
    all.push_back(std::move(part));
  }
  return all;
}

std::vector<double> Control::gather(double value) const {
  const Waiting waiting(*this);
  std::vector<double> all(rank_ == 0 ? static_cast<std::size_t>(size_) : 0);
  MPI_TRY(MPI_Gather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, 0, communicator_->handle));
  return all;
}

ClockOffset Control::clock_offset(const std::function<double()>& now) const {
  const Waiting waiting(*this);
  constexpr int kRounds = 16, kTag = 2;
  const auto send = [&](double time, int to) {
    MPI_TRY(MPI_Send(&time, 1, MPI_DOUBLE, to, kTag, communicator_->handle));
  };
  const auto receive = [&](int from) {
    double time = 0;
    MPI_TRY(MPI_Recv(&time, 1, MPI_DOUBLE, from, kTag, communicator_->handle, MPI_STATUS_IGNORE));
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
