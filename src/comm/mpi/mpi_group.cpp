#include "comm/mpi/mpi_group.hpp"

#include <algorithm>
#include <cstring>

#include "comm/mpi/calls.hpp"
#include "comm/mpi/session.hpp"
#include "comm/transport_group.hpp"

namespace tessera::comm {
namespace {

constexpr int kTag = 7;  // messages of one pair and tag arrive in order, and collectives of a group
                         // follow one another

class MpiTransport : public Transport {
 public:
  /// Takes over the communicator.
  explicit MpiTransport(MPI_Comm comm) : comm_(comm) {}
  ~MpiTransport() override { MPI_Comm_free(&comm_); }

  Request send(int peer, const std::byte* from, std::int64_t bytes) override {
    MPI_Request r = MPI_REQUEST_NULL;
    MPI_TRY(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, peer, kTag, comm_, &r));
    return packed(r);
  }
  Request receive(int peer, std::byte* to, std::int64_t bytes) override {
    MPI_Request r = MPI_REQUEST_NULL;
    MPI_TRY(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, peer, kTag, comm_, &r));
    return packed(r);
  }
  bool test(Request& request) override {
    MPI_Request r = unpacked(request);
    int done = 0;
    const int code = MPI_Test(&r, &done, MPI_STATUS_IGNORE);
    request = packed(r);  // null once it is complete, or failed
    mpi_check(code, "MPI_Test");
    return done != 0;
  }
  void cancel(Request& request) override {
    MPI_Request r = unpacked(request);
    if (r == MPI_REQUEST_NULL) return;
    MPI_Cancel(&r);
    MPI_Request_free(&r);
    request = packed(r);
  }

 private:
  // A handle is a pointer in one MPI, an integer in another.
  static_assert(sizeof(MPI_Request) <= sizeof(Request::handle));
  static Request packed(MPI_Request r) {
    Request request;
    std::memcpy(&request.handle, static_cast<const void*>(&r), sizeof(MPI_Request));
    return request;
  }
  static MPI_Request unpacked(const Request& request) {
    MPI_Request r = MPI_REQUEST_NULL;
    std::memcpy(static_cast<void*>(&r), &request.handle, sizeof(MPI_Request));
    return r;
  }

  MPI_Comm comm_;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(std::span<const int> members, const GroupShape& shape) {
  const auto mine = std::find(members.begin(), members.end(), place_in_world().rank);
  TESSERA_CHECK(members.empty() || mine != members.end(), "a group without this rank");
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_TRY(MPI_Comm_split(MPI_COMM_WORLD, members.empty() ? MPI_UNDEFINED : members.front(),
                         static_cast<int>(mine - members.begin()), &comm));
  if (members.empty()) return nullptr;
  MPI_TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return make_transport_group(std::make_unique<MpiTransport>(comm), shape, mine - members.begin());
}

}  // namespace tessera::comm
