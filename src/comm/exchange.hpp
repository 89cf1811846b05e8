// The pairwise exchange that carries all data over a transport: bytes are cut into pieces, and for
// every peer a few pieces are in flight each way at once. Nothing ever blocks.
#pragma once

#include <functional>
#include <vector>

#include "comm/transport.hpp"

namespace tessera::comm {

/// What flows between this rank and one peer, both ways or one (the other function is absent).
/// Pieces are numbered from 0; all peers have the same number.
struct PeerFlow {
  int peer = 0;
  std::function<std::byte*(std::int64_t piece)>
      outgoing;  // memory that stays valid until the piece was sent
  std::function<std::byte*(std::int64_t piece)> incoming;  // where the piece is received
};

class Exchange {
 public:
  /// `blocks` times `bytes` flow each way with each peer, in pieces of `piece` bytes (the last of a
  /// block may be short).
  Exchange(Transport& transport, std::vector<PeerFlow> flows, std::int64_t bytes,
           std::int64_t piece, std::int64_t blocks = 1);

  /// Cancels what is still under way, after a failure: its memory may go next.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Starts and completes what sends and receives it can; returns whether anything moved. A piece
  /// is received only while it is less than kPiecesInFlight beyond `consumed` (the number of pieces
  /// that the caller is done with), so staging of that many pieces is enough.
  bool advance(std::int64_t consumed);
  /// Number of leading pieces that have arrived from every peer.
  std::int64_t arrived() const;
  bool done() const;
  std::int64_t pieces() const { return pieces_; }
  std::int64_t bytes_of(std::int64_t piece) const;
  std::int64_t block_of(std::int64_t piece) const { return piece / block_pieces_; }
  /// Bytes of its block that come before the piece.
  std::int64_t offset_of(std::int64_t piece) const { return piece % block_pieces_ * piece_; }

 private:
  struct Lane {  // one direction of one peer, in pieces
    std::int64_t posted = 0, complete = 0;
  };
  Request& request(std::size_t flow, bool send, std::int64_t piece);
  bool poll(std::size_t flow, bool send, Lane& lane);

  Transport& transport_;
  std::vector<PeerFlow> flows_;
  std::int64_t bytes_, piece_, block_pieces_, pieces_;
  std::vector<Lane> sends_, receives_;
  std::vector<Request> requests_;  // under way: those between complete and posted
};

}  // namespace tessera::comm
