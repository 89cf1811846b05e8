// CUDA's streams, events and graphs, emulated: work waits in its stream until somebody
// synchronises, and then whichever stream may go on is drawn by a seed. So work that needs a wait
// that nobody asked for comes too early in some order, and work that can never begin is found.
#pragma once

#include <functional>

#include "cuda_runtime_api.h"

namespace tessera::emulator {

/// Work of a stream; the null stream's is done on return, after all that was queued before.
/// A stream that is being captured only takes it down.
cudaError_t queue_work(cudaStream_t stream, std::function<void()> work);

/// Holds the stream until `open`, as a collective that waits for its peer does.
void queue_gate(cudaStream_t stream, std::function<bool()> open);

/// The priority of the work that calls this: its stream's; in a graph its node's, if the graph was
/// made to use those, else that of the stream of the launch. No order of work depends on it.
int running_priority();

/// Graphs that are launched and have not come to their end.
int graphs_under_way();

}  // namespace tessera::emulator
