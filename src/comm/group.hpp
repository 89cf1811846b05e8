// A group of ranks that share collectives, without MPI or NCCL in sight.
#pragma once

#include <memory>

#include "comm/collective.hpp"
#include "streams/tasks.hpp"

namespace tessera::comm {

/// What a group is made for; NCCL's communicators differ by it.
enum class Traffic : std::uint8_t {
  collectives,  // of bulk data
  replicas,     // of bulk data, between ranks whose buffers have the same offsets in their arenas
  messages,     // Send and Receive between neighbours
  words         // AllReduceWords
};

class Group {
 public:
  virtual ~Group() = default;
  virtual std::int64_t rank() const = 0;
  virtual const GroupShape& shape() const = 0;
  /// Starts `call`; every rank of the group starts the same calls in the same order. Returns a
  /// task, to which the call's memory belongs until it is done. nullptr: the call is done already,
  /// or is queued on a GPU's stream and its memory belongs to that. Throws CommError.
  virtual std::unique_ptr<streams::Task> start(const CollectiveCall& call) = 0;
};

}  // namespace tessera::comm
