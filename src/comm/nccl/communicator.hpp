// One NCCL communicator.
#pragma once

#include <chrono>
#include <memory>

#include "comm/group.hpp"
#include "comm/nccl/nccl.hpp"

namespace tessera::comm {

/// A communicator, which connects in the background: those that are made one after another do so at
/// the same time.
class Communicator {
 public:
  /// Collective over the communicator's ranks. Throws CommError.
  Communicator(std::shared_ptr<const Nccl> nccl, const ncclUniqueId& id, int rank, int size,
               Traffic traffic, double patience);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Waits until it is connected; before anything else is asked of it. Throws CommError, also where
  /// ranks have not connected within `patience` seconds since it was made.
  void connect();
  ncclComm_t get() const { return comm_; }

  /// Waits until a call that goes on in the background has come to its end.
  void settle(ncclResult_t code, const char* call) const;
  /// Throws CommError if a peer is gone or a link is broken: what is queued would never end.
  void throw_if_peer_is_gone() const;

  /// Registers memory with NCCL, which then reads and writes it without buffers of its own. To be
  /// called on all ranks of the communicator. The returned handle is for deregister(), if the
  /// memory ends before the communicator.
  void* register_memory(std::byte* base, std::int64_t bytes);
  void deregister(void* handle);
  /// Whether memory may be registered: only where it has the same layout on every rank, because
  /// NVLink's switches add up what lies at the same place on each.
  bool takes_memory() const { return traffic_ == Traffic::replicas; }

 private:
  std::shared_ptr<const Nccl> nccl_;
  Traffic traffic_;
  double patience_;
  std::chrono::steady_clock::time_point made_;
  ncclComm_t comm_ = nullptr;
  bool connected_ = false;
};

}  // namespace tessera::comm
