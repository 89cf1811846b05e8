// NCCL's functions over MPI and the host's memory, in place of the library's: what a group of GPUs
// asks of NCCL is done, by the end of its outermost group of calls, where there is no GPU. The
// library must be there all the same, for its functions are replaced one by one.
//
// It is as strict as NCCL can be: an operation begins when all of those before it are done,
// whatever their communicators, and a message leaves when its receiver is there, as in CUDA graphs
// with drivers below 12.9. Ranks whose messages do not fit wait for each other, which is an error
// that says where; collectives that do not fit wait for ever. It refuses to connect without the
// settings that plans rely on, and memory that a version may not be told of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl.hpp"

namespace tessera::test {

/// What the functions of this rank were told, and what they answer.
struct NcclSaid {
  std::vector<std::string> calls;     // that manage communicators and memory, in order
  std::vector<ncclConfig_t> configs;  // of the communicators
  ncclResult_t state = ncclSuccess;   // of a call, and of all communicators once they are connected
  std::string why = "none";           // the last error
  int open_groups = 0;                // of calls, one within another
  int groups = 0;                     // of calls, that have ended
  int communicators = 0;              // neither destroyed nor aborted
  int connecting = 0;                 // of these in the background still, as far as was asked
  int version = NCCL_VERSION_CODE;    // that it pretends to be
  int node = 0;                       // that this rank pretends to be on
};
NcclSaid& nccl_said();

/// Forgets what was said. nullptr where the library is missing. Every rank makes communicators at
/// the same time, each rank one of some group.
std::shared_ptr<const comm::Nccl> make_nccl_over_mpi();

}  // namespace tessera::test
