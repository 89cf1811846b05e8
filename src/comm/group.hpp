// A group of ranks that share collectives, without MPI or NCCL in sight.
#pragma once

#include <memory>

#include "comm/collective.hpp"

namespace tessera::comm {

/// A collective (or any other piece of background work) under way. Whoever owns it calls advance()
/// until it returns true; each call does a bounded amount of work and never blocks.
class Task {
 public:
  virtual ~Task() = default;
  virtual bool advance() = 0;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual std::int64_t rank() const = 0;
  virtual const GroupShape& shape() const = 0;
  /// Starts `call`; every rank of the group starts the same calls in the same order. The memory
  /// belongs to the task until it is done. Throws CommError.
  virtual std::unique_ptr<Task> start(const CollectiveCall& call) = 0;
};

}  // namespace tessera::comm
