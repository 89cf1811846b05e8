// NCCL as one rank uses it: the library, and what concerns all communicators that its groups have
// made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::comm {

struct Nccl;
class Communicator;

/// Throws DeviceError where the library is missing.
std::shared_ptr<const Nccl> open_nccl();

/// Whether ranks of a communicator talk over a network, as NCCL sees it.
enum class Reach : std::uint8_t { node, network };

class NcclSession {
 public:
  /// Gives NCCL the settings that plans rely on; before anything else is asked of it. `driver`: the
  /// CUDA version that it serves (cudaDriverGetVersion), the least of all ranks. Throws DeviceError
  /// where NCCL is too old.
  NcclSession(std::shared_ptr<const Nccl> nccl, int driver);
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const std::shared_ptr<const Nccl>& nccl() const { return nccl_; }
  /// Device memory, not zeroed, which is registered with the communicators that take memory
  /// (Communicator::takes_memory); with those that reach over a network only from the NCCL version
  /// on that does not hang then. Give it back with release(). Throws MemoryError.
  std::byte* allocate(std::int64_t bytes);
  void release(std::byte* base);

  /// Waits until all communicators are connected. Throws CommError.
  void connect();

  /// Adds a communicator, which is one of the session's until it ends.
  void add(const std::shared_ptr<Communicator>& communicator, Reach reach);

  /// What costs time on this machine and could be avoided, a line each, for people.
  std::vector<std::string> notes() const;

  /// Throws CommError where a communicator has found that a rank is gone or a link is broken: what
  /// is queued will never end then.
  void throw_if_peer_is_gone() const;

 private:
  std::shared_ptr<const Nccl> nccl_;
  struct Known {
    std::weak_ptr<Communicator> to;
    void* handle = nullptr;
  };
  struct Member {
    std::weak_ptr<Communicator> communicator;
    Reach reach = Reach::node;
  };
  std::vector<Member> all_;
  int version_ = 0, driver_ = 0;
  bool unregistered_ = false;  // some memory is not known to communicators that might know it
  std::map<std::byte*, std::vector<Known>> memory_;
};

}  // namespace tessera::comm
