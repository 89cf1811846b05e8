#include "comm/nccl/communicator.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "comm/nccl_resources.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"

namespace tessera::comm {

Communicator::Communicator(std::shared_ptr<const Nccl> nccl, const ncclUniqueId& id, int rank,
                           int size, Traffic traffic, double patience)
    : nccl_(std::move(nccl)), traffic_(traffic), patience_(patience), made_(SteadyClock::now()) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that others can connect meanwhile, and we can stop waiting
  if (const auto most = most_blocks(traffic)) config.maxCTAs = *most;
#ifdef NCCL_CTA_POLICY_EFFICIENCY
  if (is_sparing(traffic)) config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
#endif
  try {
    nccl_->check(nccl_->ncclCommInitRankConfig(&comm_, size, id, rank, &config),
                 "ncclCommInitRankConfig");
  } catch (...) {
    if (comm_ != nullptr) nccl_->ncclCommAbort(comm_);
    throw;
  }
}

Communicator::~Communicator() {
  if (comm_ == nullptr) return;
  // What others have not joined would keep destruction waiting.
  const bool waits = std::uncaught_exceptions() > 0 || !connected_;
  waits ? nccl_->ncclCommAbort(comm_) : nccl_->ncclCommDestroy(comm_);
}

void Communicator::connect() {
  if (connected_) return;
  settle(ncclInProgress, "ncclCommInitRankConfig");
  connected_ = true;
}

void Communicator::settle(ncclResult_t code, const char* call) const {
  const auto begin = connected_ ? SteadyClock::now() : made_;
  const auto ask = [&] {
    nccl_->check(nccl_->ncclCommGetAsyncError(comm_, &code), "ncclCommGetAsyncError", comm_);
  };
  if (code == ncclInProgress) ask();  // what began long ago may be over
  while (code == ncclInProgress) {
    if (seconds_since(begin) > patience_) {
      throw CommError(fmt::format(
          "{}: GPUs have not connected within {:.0f} s: see that the nodes reach each other "
          "(NCCL_SOCKET_IFNAME names the network), NCCL_DEBUG=INFO tells more",
          call, patience_));
    }
    // Queuing takes microseconds, connecting seconds.
    if (connected_ && SteadyClock::now() - begin < std::chrono::milliseconds(5)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ask();
  }
  nccl_->check(code, call, comm_);
}

void Communicator::throw_if_peer_is_gone() const {
  ncclResult_t state = ncclSuccess;
  nccl_->check(nccl_->ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  nccl_->check(state, "a collective under way", comm_);
}

void* Communicator::register_memory(std::byte* base, std::int64_t bytes) {
  void* handle = nullptr;
  nccl_->check(nccl_->ncclCommRegister(comm_, base, static_cast<std::size_t>(bytes), &handle),
               "ncclCommRegister", comm_);
  return handle;
}

void Communicator::deregister(void* handle) { nccl_->ncclCommDeregister(comm_, handle); }

}  // namespace tessera::comm
