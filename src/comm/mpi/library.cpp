#include "comm/mpi/library.hpp"

#include <limits>
#include <vector>

#include "comm/mpi/calls.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"

namespace tessera::comm {
namespace {

/// Elements of the part of a rank, of which the larger of the two views has one for each.
int part_of(const View& v, const View& all) {
  const std::int64_t ranks = place_in_world().size, n = all.elements() / ranks;
  TESSERA_CHECK(v.type == DType::f32 && all.type == DType::f32 && n * ranks == all.elements() &&
                    n <= std::numeric_limits<int>::max() &&
                    (v.elements() == n || v.elements() == all.elements()),
                "{} elements of {}, and {} of {}", v.elements(), to_string(v.type), all.elements(),
                to_string(all.type));
  return static_cast<int>(n);
}

}  // namespace

void library_all_gather(const View& shard, const View& full) {
  const int n = part_of(shard, full);
  MPI_TRY(MPI_Allgather(shard.data, n, MPI_FLOAT, full.data, n, MPI_FLOAT, MPI_COMM_WORLD));
}

void library_reduce_scatter(const View& full, const View& shard) {
  const std::vector<int> counts(static_cast<std::size_t>(place_in_world().size),
                                part_of(shard, full));
  MPI_TRY(
      MPI_Reduce_scatter(full.data, shard.data, counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

void library_all_to_all(const View& send, const View& receive) {
  const int n = part_of(send, receive);
  MPI_TRY(MPI_Alltoall(send.data, n, MPI_FLOAT, receive.data, n, MPI_FLOAT, MPI_COMM_WORLD));
}

}  // namespace tessera::comm
