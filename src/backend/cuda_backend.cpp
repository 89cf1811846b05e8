#include "backend/cuda_backend.hpp"

#include <sched.h>

#include <cstdlib>

#include "backend/gpus.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "kernels/cuda/device.hpp"
#include "memory/cuda/cuda_streams.hpp"
#include "memory/cuda/cuda_tier.hpp"

namespace tessera::backend {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// GPUs that this process may use.
int visible_gpus() {
  int driver = 0, count = 0;
  CUDA_TRY(cudaDriverGetVersion(&driver));
  const std::string host = comm::host_name();
  if (driver == 0) {
    throw DeviceError(
        fmt::format("{} has {} and no NVIDIA driver that works: run on a node with GPUs (srun "
                    "--gpus-per-node=N), have its driver started, or set run.backend = \"cpu\"",
                    host, nvidia_gpus() > 0 ? "NVIDIA GPUs" : "no NVIDIA GPU"));
  }
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver) {
    throw DeviceError(fmt::format(
        "the NVIDIA driver of {} serves CUDA {}, this tessera needs {}: have the driver updated, "
        "or build tessera with the older CUDA toolkit",
        host, version_text(driver), version_text(CUDART_VERSION)));
  }
  if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0)) {
    const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    throw DeviceError(fmt::format(
        "this process may use no GPU of {}{}: ask Slurm for them (srun --gpus-per-node=N)", host,
        chosen == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", chosen)));
  }
  CUDA_TRY(code);
  return count;
}

/// This rank's number among those of its node.
int local_rank(const Ranks* ranks) {
  if (ranks == nullptr) return 0;
  const auto& node_of = ranks->mpi.node_of();
  const auto me = static_cast<std::size_t>(ranks->mpi.rank());
  int before = 0;
  for (std::size_t r = 0; r < me; ++r) before += node_of[r] == node_of[me] ? 1 : 0;
  return before;
}

/// Several ranks may use a GPU where each calls itself a node of its own, as tests do: NCCL refuses
/// them otherwise.
bool may_share() { return std::getenv("NCCL_HOSTID") != nullptr; }

/// Threads stay near their GPU, unless somebody has bound them already.
void bind_near(const std::string& bus_id) {
  cpu_set_t allowed, near;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&near);
  bool all_allowed = true;
  const auto cores = cores_near(bus_id);
  for (int core : cores) {
    if (core >= CPU_SETSIZE) return;
    CPU_SET(static_cast<unsigned>(core), &near);
    all_allowed = all_allowed && CPU_ISSET(static_cast<unsigned>(core), &allowed);
  }
  if (!cores.empty() && all_allowed && CPU_COUNT(&near) < CPU_COUNT(&allowed))
    sched_setaffinity(0, sizeof near, &near);  // failure only costs speed
}

/// Makes the rank's GPU the current one.
GpuOfRank take_gpu(const Ranks* ranks) {
  const int visible = visible_gpus(), local = local_rank(ranks);
  CUDA_TRY(cudaSetDevice(local % visible));
  cudaDeviceProp properties{};
  CUDA_TRY(cudaGetDeviceProperties(&properties, local % visible));
  if (properties.major < 8) {
    throw DeviceError(fmt::format(
        "{} has a {} of compute capability {}.{}: tessera's kernels need 8.0 (A100) or newer",
        comm::host_name(), properties.name, properties.major, properties.minor));
  }
  std::array<char, 32> bus_id{};
  CUDA_TRY(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), local % visible));
  std::string id = bus_id.data();
  for (char& c : id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  bind_near(id);
  std::string uuid;
  for (const char byte : properties.uuid.bytes)
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {.host = comm::host_name(), .uuid = uuid, .name = properties.name};
}

GpuOfRank take_gpus_together(const Ranks* ranks) {
  GpuOfRank own;
  if (ranks == nullptr) return take_gpu(nullptr);
  const comm::Control& control = ranks->control;
  control.together([&] { own = take_gpu(ranks); });
  const auto texts = control.gather(own.text());
  control.together([&] {
    std::vector<GpuOfRank> all;
    for (const std::string& text : texts) all.push_back(GpuOfRank::parse(text));
    if (all.empty()) return;
    if (const auto why = objection(all, may_share())) throw DeviceError(*why);
  });
  return own;
}

}  // namespace

Backend make_cuda_backend(const Ranks* ranks) {
  const GpuOfRank gpu = take_gpus_together(ranks);
  auto queue = std::make_shared<CudaQueue>();
  Backend b{.kind = deck::Backend::cuda,
            .name = "an " + gpu.name,
            .peak_rate = peak_rate(gpu.name),
            .device_tier = std::make_unique<memory::CudaTier>(*queue),
            .host_tier = std::make_unique<memory::PinnedTier>(),
            .device = kernels::make_cuda_device(*queue),
            .make_streams = [queue] { return std::make_unique<memory::CudaStreams>(*queue); },
            .make_group = {}};
  // Opened with the first group: a single rank needs no NCCL.
  b.make_group = [queue, device = b.device.get(), nccl = std::shared_ptr<const comm::Nccl>()](
                     std::span<const int> members, const comm::GroupShape& shape) mutable {
    if (!nccl) nccl = comm::open_nccl();
    return comm::make_nccl_group(nccl, members, shape, *queue, *device);
  };
  return b;
}

}  // namespace tessera::backend
