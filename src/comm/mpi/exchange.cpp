#include "comm/mpi/exchange.hpp"

#include <algorithm>

#include "comm/mpi/mpi_group.hpp"
#include "core/math.hpp"

namespace tessera::comm {
namespace {
constexpr int kTag = 7;  // messages of one pair and tag arrive in order, and collectives of a group
                         // follow one another
}

Exchange::Exchange(MPI_Comm comm, std::vector<PeerFlow> flows, std::int64_t bytes,
                   std::int64_t piece)
    : comm_(comm),
      flows_(std::move(flows)),
      bytes_(bytes),
      piece_(piece),
      pieces_(ceil_div(bytes, piece)),
      sends_(flows_.size()),
      receives_(flows_.size()),
      requests_(2 * flows_.size() * static_cast<std::size_t>(kPiecesInFlight), MPI_REQUEST_NULL) {}

Exchange::~Exchange() {
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&request);
    MPI_Request_free(&request);
  }
}

std::int64_t Exchange::bytes_of(std::int64_t piece) const {
  return std::min(piece_, bytes_ - piece * piece_);
}

MPI_Request& Exchange::request(std::size_t flow, bool send, std::int64_t piece) {
  return requests_[(2 * flow + (send ? 1 : 0)) * static_cast<std::size_t>(kPiecesInFlight) +
                   static_cast<std::size_t>(piece % kPiecesInFlight)];
}

bool Exchange::poll(std::size_t flow, bool send, Lane& lane) {
  const std::int64_t before = lane.complete;
  while (lane.complete < lane.posted) {
    int flag = 0;
    MPI_TRY(MPI_Test(&request(flow, send, lane.complete), &flag, MPI_STATUS_IGNORE));
    if (flag == 0) break;
    ++lane.complete;
  }
  return lane.complete > before;
}

bool Exchange::advance(std::int64_t consumed) {
  bool moved = false;
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Lane& in = receives_[i];
    moved |= poll(i, false, in);
    while (in.posted < pieces_ && in.posted < consumed + kPiecesInFlight &&
           in.posted < in.complete + kPiecesInFlight) {
      MPI_TRY(MPI_Irecv(flows_[i].incoming(in.posted), static_cast<int>(bytes_of(in.posted)),
                        MPI_BYTE, flows_[i].peer, kTag, comm_, &request(i, false, in.posted)));
      ++in.posted, moved = true;
    }
    Lane& out = sends_[i];
    moved |= poll(i, true, out);
    while (out.posted < pieces_ && out.posted < out.complete + kPiecesInFlight) {
      MPI_TRY(MPI_Isend(flows_[i].outgoing(out.posted), static_cast<int>(bytes_of(out.posted)),
                        MPI_BYTE, flows_[i].peer, kTag, comm_, &request(i, true, out.posted)));
      ++out.posted, moved = true;
    }
  }
  return moved;
}

std::int64_t Exchange::arrived() const {
  std::int64_t n = pieces_;
  for (const Lane& lane : receives_) n = std::min(n, lane.complete);
  return n;
}

bool Exchange::done() const {
  const auto finished = [this](const Lane& lane) { return lane.complete == pieces_; };
  return std::all_of(sends_.begin(), sends_.end(), finished) &&
         std::all_of(receives_.begin(), receives_.end(), finished);
}

}  // namespace tessera::comm
