// Messages of bytes between the ranks of one group: all that collectives need of MPI, or of
// mailboxes within one process.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::comm {

/// A message under way; what the handle means is its transport's business.
struct Request {
  std::uintptr_t handle = 0;
};

/// One rank's end. Ranks are those of the group. The k-th message from one rank to another is what
/// the other's k-th receive from it takes. Nothing blocks; memory must stay until test() was true
/// or the request was cancelled. Throws CommError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Request send(int peer, const std::byte* from, std::int64_t bytes) = 0;
  virtual Request receive(int peer, std::byte* to, std::int64_t bytes) = 0;
  /// Whether the request is complete; it is over then.
  virtual bool test(Request& request) = 0;
  /// Takes back a request that something failed meanwhile has made useless. Throws nothing.
  virtual void cancel(Request& request) = 0;
};

}  // namespace tessera::comm
