// The MPI library's own collectives among all ranks of the job, for benchmarks to compare ours
// with. Elements are f32, in memory of the host. Each returns when it is done, and throws
// CommError.
#pragma once

#include "core/view.hpp"

namespace tessera::comm {

/// MPI_Allgather: every rank's `shard` (n) ends up in slot `rank` of every rank's `full` (size n).
void library_all_gather(const View& shard, const View& full);
/// MPI_Reduce_scatter: `shard` (n) = the sum over ranks of slot `rank` of `full` (size n).
void library_reduce_scatter(const View& full, const View& shard);
/// MPI_Alltoall: slot k of `send` (size n) goes to rank k, whose slot of this rank it becomes.
void library_all_to_all(const View& send, const View& receive);

}  // namespace tessera::comm
