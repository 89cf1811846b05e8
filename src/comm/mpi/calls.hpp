// Calls of MPI's library, whose header no other folder of the program includes.
#pragma once

#include <mpi.h>

namespace tessera::comm {

/// Throws CommError with the call's text and MPI's own message when `code` is not MPI_SUCCESS;
/// MemoryError when MPI has no memory left.
void mpi_check(int code, const char* call);
#define MPI_TRY(call) ::tessera::comm::mpi_check((call), #call)

}  // namespace tessera::comm
