// Messages of bytes between the ranks of one group: all that collectives need of MPI, or of memory
// shared by the ranks of one process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm {

/// A message under way. Only the transport that made it knows what the handle means.
struct Request {
  std::uintptr_t handle = 0;
};

/// One rank's end. Ranks are those of the group. The k-th message from one rank to another is
/// received by the other's k-th receive from it. Nothing blocks. Memory must stay until test() has
/// returned true or the request was cancelled. Throws CommError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Request send(int peer, const std::byte* from, std::int64_t bytes) = 0;
  virtual Request receive(int peer, std::byte* to, std::int64_t bytes) = 0;
  /// Whether the request is complete; if it is, it must not be tested again.
  virtual bool test(Request& request) = 0;
  /// Gives up a request after a failure, so that its memory may go. Throws nothing.
  virtual void cancel(Request& request) = 0;
};

}  // namespace tessera::comm
