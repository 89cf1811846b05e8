#include "comm/nccl/nccl_session.hpp"

#include <cstdlib>

#include "comm/nccl/communicator.hpp"
#include "core/cuda.hpp"

namespace tessera::comm {
namespace {

// Versions of NCCL, as ncclGetVersion has them.
constexpr int kKeepsOrder = 22700;
/// The first version without NCCL's issue 2389: before it, a receiver's proxy may take back what
/// the GPU has just told it, and both wait for ever.
constexpr int kRegistersForNetworks = 23300;
/// From here on the setting says how communicators are used, and its default allows what it must.
constexpr int kKnowsHowGraphsAreUsed = 22900;
/// Of CUDA, as cudaDriverGetVersion has it: the first driver with which NCCL lets an operation in a
/// graph begin before the one before it has ended.
constexpr int kOverlapsInGraphs = 12090;

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

void Nccl::check(ncclResult_t code, const char* call, ncclComm_t comm) const {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const std::string_view cause = ncclGetLastError(comm);
  // The cause is the last that NCCL has warned of, perhaps long ago; the code is this call's.
  if (code == ncclUnhandledCudaError && cause.find("out of memory") != cause.npos)
    gpu_is_full(fmt::format("{} ({})", call, cause));
  throw CommError(fmt::format("{}: {}; {} (NCCL_DEBUG=INFO tells more)", call,
                              ncclGetErrorString(code), cause));
}

std::shared_ptr<const Nccl> open_nccl() { return std::make_shared<const Nccl>(); }

NcclSession::NcclSession(std::shared_ptr<const Nccl> nccl, int driver)
    : nccl_(std::move(nccl)), driver_(driver) {
  // Collectives of different groups begin in the order in which we queue them, which fits that of
  // every other rank (plan/proof/meetings); without that, stages that send to each other would wait
  // for ever.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  // Memory is made known by us, where that is right; NCCL would do it for whatever a CUDA graph's
  // collectives use, wherever that is on other ranks.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  nccl_->check(nccl_->ncclGetVersion(&version_), "ncclGetVersion");
  // The graphs of a step follow one another on one stream, and it ends before the next is queued or
  // launched, so no graph is under way beside another one or beside collectives that are in none:
  // NCCL need not order them, which takes time and has stopped launches for ever.
  if (version_ < kKnowsHowGraphsAreUsed) setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
  if (version_ < kKeepsOrder) {
    throw DeviceError(fmt::format(
        "libnccl.so.2 is version {}, too old to keep the order of collectives: 2.27 or newer is "
        "needed, built for CUDA 12.3 or newer",
        version_text(version_)));
  }
}

std::vector<std::string> NcclSession::notes() const {
  std::vector<std::string> all;
  if (driver_ < kOverlapsInGraphs) {
    all.push_back(fmt::format(
        "the driver serves CUDA {}.{}: NCCL runs messages and collectives of a step one after "
        "another; with 12.9 or newer they overlap",
        driver_ / 1000, driver_ % 1000 / 10));
  }
  if (unregistered_) {
    all.push_back(
        fmt::format("NCCL {} copies what data ranks exchange between nodes: before {}, sending it "
                    "from where it lies may wait for ever",
                    version_text(version_), version_text(kRegistersForNetworks)));
  }
  return all;
}

void NcclSession::connect() {
  for (const Member& member : all_) {
    if (const auto one = member.communicator.lock()) one->connect();
  }
}

std::byte* NcclSession::allocate(std::int64_t bytes) {
  connect();
  void* memory = nullptr;
  const auto what = fmt::format("ncclMemAlloc of {:.2f} GiB", static_cast<double>(bytes) / 0x1p30);
  nccl_->check(nccl_->ncclMemAlloc(&memory, static_cast<std::size_t>(bytes)), what.c_str());
  auto* base = static_cast<std::byte*>(memory);
  auto& known = memory_[base];
  try {
    for (const Member& member : all_) {
      const auto one = member.communicator.lock();
      if (!one || !one->takes_memory()) continue;
      if (member.reach == Reach::network && version_ < kRegistersForNetworks) {
        unregistered_ = true;
      } else {
        known.push_back({one, one->register_memory(base, bytes)});
      }
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

void NcclSession::add(const std::shared_ptr<Communicator>& communicator, Reach reach) {
  std::erase_if(all_, [](const Member& m) { return m.communicator.expired(); });
  all_.push_back({communicator, reach});
}

void NcclSession::throw_if_peer_is_gone() const {
  for (const Member& member : all_) {
    if (const auto one = member.communicator.lock()) one->throw_if_peer_is_gone();
  }
}

}  // namespace tessera::comm
