#include "comm/nccl/nccl_session.hpp"

#include <cstdlib>

#include "comm/nccl/communicator.hpp"
#include "core/error.hpp"

namespace tessera::comm {

void Nccl::check(ncclResult_t code, const char* call, ncclComm_t comm) const {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw CommError(fmt::format("{}: {}; {} (NCCL_DEBUG=INFO tells more)", call,
                              ncclGetErrorString(code), ncclGetLastError(comm)));
}

std::shared_ptr<const Nccl> open_nccl() {
  // Collectives of different groups begin in the order in which we queue them, on every rank alike;
  // without that, stages that send to each other would wait for ever.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  auto nccl = std::make_shared<const Nccl>();
  int version = 0;
  nccl->check(nccl->ncclGetVersion(&version), "ncclGetVersion");
  if (version < 22700) {
    throw DeviceError(fmt::format(
        "libnccl.so.2 is version {}.{}.{}, too old to keep the order of collectives: 2.27 or newer "
        "is needed, built for CUDA 12.3 or newer",
        version / 10000, version / 100 % 100, version % 100));
  }
  return nccl;
}

void NcclSession::add(const std::shared_ptr<Communicator>& communicator) {
  std::erase_if(all_, [](const auto& c) { return c.expired(); });
  all_.push_back(communicator);
}

void NcclSession::look() const {
  for (const auto& communicator : all_) {
    if (const auto one = communicator.lock()) one->look();
  }
}

}  // namespace tessera::comm
