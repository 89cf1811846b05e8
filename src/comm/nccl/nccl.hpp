// NCCL's functions, found when they are needed, and its errors as ours.
#pragma once

#include <nccl.h>

#include "core/library.hpp"

namespace tessera::comm {

struct Nccl {
  Library library{"libnccl.so.2"};
  TESSERA_SYMBOL(ncclGetVersion)
  TESSERA_SYMBOL(ncclGetErrorString)
  TESSERA_SYMBOL(ncclGetLastError)
  TESSERA_SYMBOL(ncclGetUniqueId)
  TESSERA_SYMBOL(ncclCommInitRankConfig)
  TESSERA_SYMBOL(ncclCommGetAsyncError)
  TESSERA_SYMBOL(ncclCommDestroy)
  TESSERA_SYMBOL(ncclCommAbort)
  TESSERA_SYMBOL(ncclMemAlloc)
  TESSERA_SYMBOL(ncclMemFree)
  TESSERA_SYMBOL(ncclCommRegister)
  TESSERA_SYMBOL(ncclCommDeregister)
  TESSERA_SYMBOL(ncclGroupStart)
  TESSERA_SYMBOL(ncclGroupEnd)
  TESSERA_SYMBOL(ncclAllGather)
  TESSERA_SYMBOL(ncclReduceScatter)
  TESSERA_SYMBOL(ncclAllReduce)
  TESSERA_SYMBOL(ncclSend)
  TESSERA_SYMBOL(ncclRecv)

  /// Throws CommError with the call's text, NCCL's message and what it says of the cause.
  void check(ncclResult_t code, const char* call, ncclComm_t comm = nullptr) const;
};

}  // namespace tessera::comm
