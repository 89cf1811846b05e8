// Groups over NCCL: collectives that are queued on a GPU's streams. MPI only introduces the ranks
// to each other.
#pragma once

#include <memory>
#include <span>

#include "comm/group.hpp"
#include "comm/nccl/nccl_session.hpp"
#include "core/cuda.hpp"
#include "kernels/api/device.hpp"

namespace tessera::comm {

/// Makes a group as make_mpi_group does, of ranks that each have a GPU, the one that is current. It
/// connects in the background, beside others that are made (NcclSession::connect); its first call
/// waits for that, and throws CommError where ranks cannot connect within `patience` seconds. Calls
/// are queued on `queue`'s stream; `device` converts and adds. Throws CommError.
std::unique_ptr<Group> make_nccl_group(NcclSession& session, std::span<const int> members,
                                       const GroupShape& shape, Traffic traffic,
                                       const CudaQueue& queue, kernels::Device& device,
                                       double patience = 120);

}  // namespace tessera::comm
