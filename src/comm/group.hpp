// A group of ranks that share collectives, without MPI or NCCL in sight.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "streams/tasks.hpp"

namespace tessera::comm {

/// What a group is made for.
enum class Traffic : std::uint8_t {
  collectives,  // of bulk data
  replicas,     // likewise, of ranks whose buffers lie at the same places of their memory
  messages,     // Send and Receive between neighbours
  words         // AllReduceWords
};

class Group {
 public:
  virtual ~Group() = default;
  virtual std::int64_t rank() const = 0;
  virtual const GroupShape& shape() const = 0;
  /// Starts `call`; every rank of the group starts the same calls in the same order. The memory
  /// belongs to the task until it is done; nullptr: the call is done, or queued on a GPU's stream,
  /// which it belongs to then. Throws CommError.
  virtual std::unique_ptr<streams::Task> start(const CollectiveCall& call) = 0;
};

}  // namespace tessera::comm
