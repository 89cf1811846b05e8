#include "support/nccl_over_mpi.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "comm/mpi/calls.hpp"
#include "core/error.hpp"

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int unsettled = 0;     // answers that a call goes on in the background still
  bool network = false;  // its ranks are on several nodes
};

namespace tessera::test {
namespace {

using Messages = std::vector<MPI_Request>;

std::vector<std::function<void(Messages&)>> grouped;  // calls, until their group's end
int groups_ended = 0;

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclFloat32: return 4;
    case ncclInt64: return 8;
    default: throw InternalError("a type that no collective has");
  }
}

int int_of(std::size_t n) { return static_cast<int>(n); }

ncclResult_t said(const char* call) {
  nccl_said().calls.emplace_back(call);
  return nccl_said().state;
}

/// What a unique id holds: who made it, and the maker's count of ids, by which the ranks of a
/// communicator find each other.
struct Id {
  int maker, number;
};

int world_rank() {
  int rank = 0;
  MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

ncclResult_t unique_id(ncclUniqueId* id) {
  static int made = 0;
  const Id own{.maker = world_rank(), .number = ++made};
  std::memcpy(id, &own, sizeof own);
  return ncclSuccess;
}

/// The communicator of `size` ranks, the maker of the id among them, as their rank `rank`; other
/// ranks of the job take no part.
MPI_Comm communicator_of(Id id, int size, int rank) {
  struct Member {
    int rank, world_rank;
  };
  constexpr int kWords = sizeof(Member) / sizeof(int);
  const Member own{rank, world_rank()};
  std::vector<int> all(static_cast<std::size_t>(size));
  if (own.world_rank == id.maker) {
    std::vector<Member> members = {own};
    for (int i = 1; i < size; ++i) {
      MPI_TRY(MPI_Recv(&members.emplace_back(), kWords, MPI_INT, MPI_ANY_SOURCE, id.number,
                       MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    for (const Member& m : members) all.at(static_cast<std::size_t>(m.rank)) = m.world_rank;
    for (const Member& m : members) {
      if (m.world_rank != id.maker)
        MPI_TRY(MPI_Send(all.data(), size, MPI_INT, m.world_rank, id.number, MPI_COMM_WORLD));
    }
  } else {
    MPI_TRY(MPI_Send(&own, kWords, MPI_INT, id.maker, id.number, MPI_COMM_WORLD));
    MPI_TRY(MPI_Recv(all.data(), size, MPI_INT, id.maker, id.number, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE));
  }
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_TRY(MPI_Comm_group(MPI_COMM_WORLD, &world));
  MPI_TRY(MPI_Group_incl(world, size, all.data(), &group));
  MPI_TRY(MPI_Comm_create_group(MPI_COMM_WORLD, group, id.number, &communicator));
  MPI_TRY(MPI_Group_free(&group));
  MPI_TRY(MPI_Group_free(&world));
  return communicator;
}

bool is_set(const char* name, std::string_view value) {
  const char* found = std::getenv(name);
  return found != nullptr && value == found;
}

ncclResult_t connect(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const bool knows_how_graphs_are_used = nccl_said().version >= NCCL_VERSION(2, 29, 0);
  if (!is_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1") || !is_set("NCCL_GRAPH_REGISTER", "0") ||
      (!knows_how_graphs_are_used && std::getenv("NCCL_GRAPH_MIXING_SUPPORT") == nullptr)) {
    throw InternalError("NCCL without the settings that plans rely on");
  }
  Id name{};
  std::memcpy(&name, &id, sizeof name);
  *comm = new ncclComm{.mpi = communicator_of(name, size, rank), .unsettled = 2};
  ++nccl_said().communicators, ++nccl_said().connecting;
  std::array<int, 2> ends = {nccl_said().node, -nccl_said().node};
  MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, ends.data(), 2, MPI_INT, MPI_MAX, (*comm)->mpi));
  (*comm)->network = ends[0] != -ends[1];
  nccl_said().configs.push_back(*config);
  return ncclInProgress;
}

ncclResult_t state_of(ncclComm_t comm, ncclResult_t* state) {
  if (comm->unsettled > 0) {
    if (--comm->unsettled == 0) --nccl_said().connecting;
    *state = ncclInProgress;
  } else {
    *state = nccl_said().state;
  }
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t comm) {
  said("destroy");
  --nccl_said().communicators;
  MPI_TRY(MPI_Comm_free(&comm->mpi));
  delete comm;
  return ncclSuccess;
}
ncclResult_t abort(ncclComm_t comm) {
  said("abort");
  --nccl_said().communicators;
  if (comm->unsettled > 0) --nccl_said().connecting;
  delete comm;  // its MPI communicator is lost: freeing it would wait for the others
  return ncclSuccess;
}

ncclResult_t allocate(void** memory, std::size_t bytes) {
  const ncclResult_t state = said("allocate");
  if (state == ncclSuccess) *memory = std::calloc(bytes, 1);
  return state;
}
ncclResult_t release(void* memory) {
  said("release");
  std::free(memory);
  return ncclSuccess;
}
ncclResult_t register_memory(ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  if (comm->network && nccl_said().version < NCCL_VERSION(2, 33, 0))
    throw InternalError("memory that a network may wait for for ever is registered");
  *handle = comm;
  std::memset(memory, 1, bytes);  // it is all there
  return said("register");
}
ncclResult_t deregister(ncclComm_t comm, void* handle) {
  if (handle != comm) throw InternalError("memory that another communicator knows");
  return said("deregister");
}

/// Keeps a call until its group ends, unless it is refused: then nothing of the group is done.
ncclResult_t queue(std::function<void(Messages&)> call) {
  if (nccl_said().state != ncclSuccess) {
    grouped.clear();
  } else {
    grouped.push_back(std::move(call));
  }
  return nccl_said().state;
}

/// Waits until all messages have met their other ends.
void wait_for(Messages& messages) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (int done = 0; done == 0;) {
    MPI_TRY(MPI_Testall(int_of(messages.size()), messages.data(), &done, MPI_STATUSES_IGNORE));
    if (Clock::now() - begin > std::chrono::seconds(20)) {
      throw InternalError(
          fmt::format("group of calls {} waits for ever: ranks have other orders", groups_ended));
    }
  }
  ++groups_ended;
}

ncclResult_t group_start() {
  ++nccl_said().open_groups;
  return ncclSuccess;
}
ncclResult_t group_end() {
  if (nccl_said().open_groups == 0) return ncclInvalidUsage;
  if (--nccl_said().open_groups > 0) return ncclSuccess;
  ++nccl_said().groups;
  Messages messages;
  for (const auto& call : std::exchange(grouped, {})) call(messages);
  wait_for(messages);
  return ncclInProgress;
}

ncclResult_t all_gather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t) {
  return queue([=](auto&) {
    const std::size_t bytes = count * size_of(type);
    std::vector<std::byte> own(bytes);
    std::memcpy(own.data(), from, bytes);  // it may be the own slot
    MPI_TRY(
        MPI_Allgather(own.data(), int_of(bytes), MPI_BYTE, to, int_of(bytes), MPI_BYTE, comm->mpi));
  });
}

ncclResult_t reduce_scatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  if (type != ncclFloat32 || op != ncclSum) throw InternalError("a sum that is not of f32");
  return queue([=](auto&) {
    std::vector<float> sums(count);
    MPI_TRY(
        MPI_Reduce_scatter_block(from, sums.data(), int_of(count), MPI_FLOAT, MPI_SUM, comm->mpi));
    std::memcpy(to, sums.data(), count * sizeof(float));
  });
}

ncclResult_t all_reduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  if (type != ncclInt64 || (op != ncclSum && op != ncclMax) || from != to)
    throw InternalError("neither sum nor largest of words");
  return queue([=](auto&) {
    MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, to, int_of(count), MPI_INT64_T,
                          op == ncclSum ? MPI_SUM : MPI_MAX, comm->mpi));
  });
}

ncclResult_t send(const void* from, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t) {
  return queue([=](auto& messages) {
    MPI_TRY(MPI_Issend(from, int_of(count * size_of(type)), MPI_BYTE, peer, 0, comm->mpi,
                       &messages.emplace_back()));
  });
}
ncclResult_t receive(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t) {
  return queue([=](auto& messages) {
    MPI_TRY(MPI_Irecv(to, int_of(count * size_of(type)), MPI_BYTE, peer, 0, comm->mpi,
                      &messages.emplace_back()));
  });
}

}  // namespace

NcclSaid& nccl_said() {
  static NcclSaid one;
  return one;
}

std::shared_ptr<const comm::Nccl> make_nccl_over_mpi() {
  nccl_said() = {};
  std::shared_ptr<comm::Nccl> nccl;
  try {
    nccl = std::make_shared<comm::Nccl>();
  } catch (const DeviceError&) {
    return nullptr;
  }
  nccl->ncclGetVersion = [](int* version) {
    *version = nccl_said().version;
    return ncclSuccess;
  };
  nccl->ncclGetUniqueId = unique_id;
  nccl->ncclGetLastError = [](ncclComm_t) { return nccl_said().why.c_str(); };
  nccl->ncclCommInitRankConfig = connect;
  nccl->ncclCommGetAsyncError = state_of;
  nccl->ncclCommDestroy = destroy;
  nccl->ncclCommAbort = abort;
  nccl->ncclMemAlloc = allocate;
  nccl->ncclMemFree = release;
  nccl->ncclCommRegister = register_memory;
  nccl->ncclCommDeregister = deregister;
  nccl->ncclGroupStart = group_start;
  nccl->ncclGroupEnd = group_end;
  nccl->ncclAllGather = all_gather;
  nccl->ncclReduceScatter = reduce_scatter;
  nccl->ncclAllReduce = all_reduce;
  nccl->ncclSend = send;
  nccl->ncclRecv = receive;
  return nccl;
}

}  // namespace tessera::test
