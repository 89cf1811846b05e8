// NCCL as one rank uses it: the library, and what concerns all communicators that its groups have
// made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tessera::comm {

struct Nccl;
class Communicator;

/// NCCL with the settings that a plan relies on; before any group is made. Throws DeviceError where
/// the library is missing or too old.
std::shared_ptr<const Nccl> open_nccl();

class NcclSession {
 public:
  explicit NcclSession(std::shared_ptr<const Nccl> nccl) : nccl_(std::move(nccl)) {}
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  const std::shared_ptr<const Nccl>& nccl() const { return nccl_; }
  /// Device memory, zeroed by nobody, that the communicators which may know memory are told of;
  /// give it back with release(). Throws MemoryError.
  std::byte* allocate(std::int64_t bytes);
  void release(std::byte* base);

  /// A communicator of a group's rank, from here on one of the session's until it ends.
  void add(const std::shared_ptr<Communicator>& communicator);

  /// Throws CommError where a communicator has found that a rank is gone or a link is broken: what
  /// is queued will never end then.
  void look() const;

 private:
  std::shared_ptr<const Nccl> nccl_;
  struct Known {
    std::weak_ptr<Communicator> to;
    void* handle = nullptr;
  };
  std::vector<std::weak_ptr<Communicator>> all_;
  std::map<std::byte*, std::vector<Known>> memory_;
};

}  // namespace tessera::comm
