#include "backend/cuda/cuda_backend.hpp"

#include <sched.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "backend/cuda/tune_products.hpp"
#include "backend/gpus.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "kernels/cuda/device.hpp"
#include "memory/cuda/cuda_tier.hpp"
#include "streams/background.hpp"
#include "streams/cuda/cuda_streams.hpp"

namespace tessera::backend {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The CUDA version that the driver serves; 0 without one.
int driver_version() {
  int driver = 0;
  CUDA_TRY(cudaDriverGetVersion(&driver));
  return driver;
}

/// GPUs that this process may use; where there are none, `absence` says what it lacks.
int visible_gpus(std::string& absence) {
  int count = 0;
  const int driver = driver_version();
  const std::string host = comm::host_name();
  if (driver == 0 && nvidia_gpus() == 0) {
    absence = fmt::format("{} has no NVIDIA GPU", host);
    return 0;
  }
  if (driver == 0) {
    throw DeviceError(
        fmt::format("{} has NVIDIA GPUs and no NVIDIA driver that works: have its driver started, "
                    "or set run.backend = \"cpu\"",
                    host));
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
    absence = fmt::format(
        "this process may use no GPU of {}{}", host,
        chosen == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", chosen));
    return 0;
  }
  CUDA_TRY(code);
  return count;
}

/// The same, but at least one on every rank, or else all ranks throw.
int visible_gpus_of_all(const Ranks* ranks) {
  int count = 0;
  std::string absence;
  if (ranks == nullptr) {
    count = visible_gpus(absence);
    check_presence(std::span(&absence, 1));
    return count;
  }
  ranks->control.together([&] { count = visible_gpus(absence); });
  const auto absences = ranks->control.gather(absence);  // on rank 0
  ranks->control.together([&] { check_presence(absences); });
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

/// Whether several ranks may use one GPU: only where each calls itself a node of its own, as tests
/// do, because NCCL refuses it otherwise.
bool may_share() { return std::getenv("NCCL_HOSTID") != nullptr; }

/// Binds this rank's threads to the cores near its GPU, unless they are bound already.
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

/// Makes the rank's GPU, of those that it may use, the current one.
GpuOfRank take_gpu(const Ranks* ranks, int visible, deck::Matmul products) {
  const int local = local_rank(ranks);
  CUDA_TRY(cudaSetDevice(local % visible));
  cudaDeviceProp properties{};
  CUDA_TRY(cudaGetDeviceProperties(&properties, local % visible));
  if (properties.major < 8) {
    throw DeviceError(fmt::format(
        "{} has a {} of compute capability {}.{}: tessera's kernels need 8.0 (A100) or newer",
        comm::host_name(), properties.name, properties.major, properties.minor));
  }
  const auto refused =
      fp8_objection(comm::host_name(), properties.name, properties.major, properties.minor);
  if (products == deck::Matmul::fp8 && refused) throw DeviceError(*refused);
  std::array<char, 32> bus_id{};
  CUDA_TRY(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), local % visible));
  std::string id = bus_id.data();
  for (char& c : id) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  bind_near(id);
  return {.host = comm::host_name(), .bus_id = id, .name = properties.name};
}

GpuOfRank take_gpus_together(const Ranks* ranks, deck::Matmul products) {
  GpuOfRank own;
  const int visible = visible_gpus_of_all(ranks);
  if (ranks == nullptr) return take_gpu(nullptr, visible, products);
  const comm::Control& control = ranks->control;
  control.together([&] { own = take_gpu(ranks, visible, products); });
  const auto texts = control.gather(own.text());
  control.together([&] {
    std::vector<GpuOfRank> all;
    for (const std::string& text : texts) all.push_back(GpuOfRank::parse(text));
    if (all.empty()) return;
    if (const auto why = objection(all, may_share())) throw DeviceError(*why);
  });
  return own;
}

/// The CUDA version that the oldest driver of all ranks serves, which holds all others up.
int oldest_driver(const Ranks* ranks) {
  if (ranks == nullptr) return driver_version();
  std::int64_t driver = 0;
  ranks->control.together([&] { driver = driver_version(); });
  return static_cast<int>(-ranks->control.max(-driver));
}

using kernels::CudaLibraries;

/// Asks cuDNN which attention calls it takes. Its version and its answers must be the same on all
/// ranks.
void agree_on_attention(kernels::cuda::Sdpa& sdpa, std::span<const kernels::KernelCall> calls,
                        const comm::Control& control, const Tuning& tuning) {
  control.together([&] {
    for (const auto& call : calls) {
      std::visit(
          [&](const auto& args) {
            if constexpr (requires { sdpa.prepare(args); }) sdpa.prepare(args);
          },
          call);
    }
  });
  control.must_agree(sdpa.version(), "ranks have different versions of cuDNN");
  AttentionAnswers own;
  for (const auto& [shape, refusal] : sdpa.choices()) own[shape] = refusal;
  const auto texts = control.gather(nlohmann::json(own).dump());
  control.together([&] {
    std::vector<AttentionAnswers> ranks;
    for (const std::string& text : texts)
      ranks.push_back(nlohmann::json::parse(text).get<AttentionAnswers>());
    for (const std::string& line : attention_text(ranks)) tuning.say(line);
  });
}

/// Allocates arenas from NCCL where there are groups of it, else by cudaMalloc.
memory::CudaAllocator allocator(const std::shared_ptr<comm::NcclSession>& nccl) {
  if (!nccl) return memory::cuda_allocator();
  return {.allocate = [nccl](std::int64_t bytes) { return nccl->allocate(bytes); },
          .release = [nccl](std::byte* base) { nccl->release(base); }};
}

}  // namespace

Backend make_cuda_backend(const Settings& settings, const Ranks* ranks) {
  // Read when the GPU is first used. Streams that share one of the default 8 queues to it would
  // wait for each other's work.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const GpuOfRank gpu = take_gpus_together(ranks, settings.matmul);
  auto queue = std::make_shared<CudaQueue>();
  const int driver = oldest_driver(ranks);
  auto libraries = std::make_shared<CudaLibraries>(*queue, most_scores(settings), driver);
  const auto machine = libraries->matmul.machine();
  // Before Hopper the library computes gelu within a product by a second, slow kernel, as llm.c's
  // authors found.
  const kernels::cuda::ProductRules rules{.math = settings.matmul == deck::Matmul::tf32
                                                      ? kernels::cuda::MatmulMath::tf32
                                                      : kernels::cuda::MatmulMath::same,
                                          .gelu = machine.major >= 9};
  // A single rank needs no NCCL.
  std::shared_ptr<comm::NcclSession> nccl;
  if (ranks != nullptr && ranks->mpi.size() > 1) {
    ranks->control.together(
        [&] { nccl = std::make_shared<comm::NcclSession>(comm::open_nccl(), driver); });
  }
  Backend b{.kind = deck::Backend::cuda,
            .name = "an " + gpu.name,
            .peak_rate = peak_rate(gpu.name),
            .multiplies_fp8 = multiplies_fp8(machine.major, machine.minor),
            .device_tier = std::make_unique<memory::CudaTier>(*queue, allocator(nccl)),
            .host_tier = std::make_unique<memory::PinnedTier>(),
            .libraries = libraries,
            .device = kernels::make_cuda_device(*queue, *libraries, rules),
            .tune = {},
            .make_streams = {},
            .make_group = {},
            .notes = {}};
  b.start_beside = [device = b.device.get()](const kernels::KernelCall& call) {
    device->run(call);
    return std::unique_ptr<streams::Task>();
  };
  b.start_on_host = on_host_threads(settings.threads);
  if (ranks != nullptr) {
    // Not of NCCL's memory, which all ranks would have to have.
    b.tune = [libraries, rules, own = kernels::own_kernels(*queue, *libraries, rules),
              tier = std::make_shared<memory::CudaTier>(*queue), &control = ranks->control](
                 std::span<const kernels::KernelCall> calls, const Tuning& tuning) {
      tune_products({.matmul = libraries->matmul, .rules = rules, .own = own}, calls, *tier,
                    control, tuning);
      agree_on_attention(libraries->sdpa, calls, control, tuning);
    };
  }
  b.make_streams = [queue, nccl] {
    return std::make_unique<streams::CudaStreams>(
        *queue, std::make_unique<streams::BackgroundStreams>(),
        nccl ? [nccl] { nccl->throw_if_peer_is_gone(); } : std::function<void()>());
  };
  b.make_group = [queue, nccl, device = b.device.get()](std::span<const int> members,
                                                        const comm::GroupShape& shape,
                                                        comm::Traffic traffic) {
    return comm::make_nccl_group(*nccl, members, shape, traffic, *queue, *device);
  };
  if (nccl) {
    b.connect = [nccl] { nccl->connect(); };
    b.notes = [nccl] { return nccl->notes(); };
  }
  return b;
}

}  // namespace tessera::backend
