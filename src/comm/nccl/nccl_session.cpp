#include "comm/nccl/nccl_session.hpp"

#include <cstdlib>

#include "comm/nccl/communicator.hpp"
#include "core/cuda.hpp"

namespace tessera::comm {

void Nccl::check(ncclResult_t code, const char* call, ncclComm_t comm) const {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const std::string_view cause = ncclGetLastError(comm);
  // The cause is the last that NCCL has warned of, perhaps long ago; the code is this call's.
  if (code == ncclUnhandledCudaError && cause.find("out of memory") != cause.npos)
    gpu_is_full(fmt::format("{} ({})", call, cause));
  throw CommError(fmt::format("{}: {}; {} (NCCL_DEBUG=INFO tells more)", call,
                              ncclGetErrorString(code), cause));
}

std::shared_ptr<const Nccl> open_nccl() {
  // Collectives of different groups begin in the order in which we queue them, on every rank alike;
  // without that, stages that send to each other would wait for ever.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  // Memory is made known by us, where that is right; NCCL would do it for whatever a CUDA graph's
  // collectives use, wherever that is on other ranks.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
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

std::byte* NcclSession::allocate(std::int64_t bytes) {
  void* memory = nullptr;
  const auto what = fmt::format("ncclMemAlloc of {:.2f} GiB", static_cast<double>(bytes) / 0x1p30);
  nccl_->check(nccl_->ncclMemAlloc(&memory, static_cast<std::size_t>(bytes)), what.c_str());
  auto* base = static_cast<std::byte*>(memory);
  auto& known = memory_[base];
  try {
    for (const auto& communicator : all_) {
      const auto one = communicator.lock();
      if (one && one->takes_memory()) known.push_back({one, one->register_memory(base, bytes)});
    }
  } catch (...) {
    release(base);
    throw;
  }
  return base;
}

void NcclSession::release(std::byte* base) {
  for (const Known& known : memory_[base]) {
    if (const auto one = known.to.lock()) one->deregister(known.handle);
  }
  memory_.erase(base);
  nccl_->ncclMemFree(base);
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
