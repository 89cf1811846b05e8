#include "comm/exchange.hpp"

#include <algorithm>

#include "comm/collective.hpp"
#include "core/math.hpp"

namespace tessera::comm {

Exchange::Exchange(Transport& transport, std::vector<PeerFlow> flows, std::int64_t bytes,
                   std::int64_t piece, std::int64_t blocks)
    : transport_(transport),
      flows_(std::move(flows)),
      bytes_(bytes),
      piece_(piece),
      block_pieces_(ceil_div(bytes, piece)),
      pieces_(blocks * block_pieces_),
      sends_(flows_.size()),
      receives_(flows_.size()),
      requests_(2 * flows_.size() * static_cast<std::size_t>(kPiecesInFlight)) {
  const Lane nothing{pieces_, pieces_};
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    if (!flows_[i].outgoing) sends_[i] = nothing;
    if (!flows_[i].incoming) receives_[i] = nothing;
  }
}

Exchange::~Exchange() {
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    for (const bool send : {false, true}) {
      const Lane& lane = send ? sends_[i] : receives_[i];
      for (std::int64_t piece = lane.complete; piece < lane.posted; ++piece)
        transport_.cancel(request(i, send, piece));
    }
  }
}

std::int64_t Exchange::bytes_of(std::int64_t piece) const {
  return std::min(piece_, bytes_ - offset_of(piece));
}

Request& Exchange::request(std::size_t flow, bool send, std::int64_t piece) {
  return requests_[(2 * flow + (send ? 1 : 0)) * static_cast<std::size_t>(kPiecesInFlight) +
                   static_cast<std::size_t>(piece % kPiecesInFlight)];
}

bool Exchange::poll(std::size_t flow, bool send, Lane& lane) {
  const std::int64_t before = lane.complete;
  while (lane.complete < lane.posted) {
    if (!transport_.test(request(flow, send, lane.complete))) break;
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
      request(i, false, in.posted) =
          transport_.receive(flows_[i].peer, flows_[i].incoming(in.posted), bytes_of(in.posted));
      ++in.posted, moved = true;
    }
    Lane& out = sends_[i];
    moved |= poll(i, true, out);
    while (out.posted < pieces_ && out.posted < out.complete + kPiecesInFlight) {
      request(i, true, out.posted) =
          transport_.send(flows_[i].peer, flows_[i].outgoing(out.posted), bytes_of(out.posted));
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
