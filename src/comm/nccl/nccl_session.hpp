// NCCL as one rank uses it: the library, and what concerns all communicators that its groups have
// made.
#pragma once

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
  /// A communicator of a group's rank, from here on one of the session's until it ends.
  void add(const std::shared_ptr<Communicator>& communicator);

  /// Throws CommError where a communicator has found that a rank is gone or a link is broken: what
  /// is queued will never end then.
  void look() const;

 private:
  std::shared_ptr<const Nccl> nccl_;
  std::vector<std::weak_ptr<Communicator>> all_;
};

}  // namespace tessera::comm
