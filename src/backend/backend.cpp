#include "backend/backend.hpp"

#include "backend/gpus.hpp"
#include "core/bytes.hpp"
#ifdef TESSERA_HAVE_CUDA
#include "backend/cuda/cuda_backend.hpp"
#endif
#include "comm/mpi/mpi_group.hpp"
#include "core/thread.hpp"
#include "kernels/cpu/device.hpp"
#include "kernels/cuda/scratch.hpp"
#include "memory/hidden_tier.hpp"
#include "streams/background.hpp"
#include "streams/host_streams.hpp"
#include "streams/workers.hpp"

namespace tessera::backend {
namespace {

/// The call with addresses that the CPU can use.
template <typename Call>
Call reachable(Call call, const memory::HiddenTier& tier) {
  kernels::visit_views(call, [&](View& v, kernels::Access) { v.data = tier.reach(v.data); });
  return call;
}

class HiddenDevice : public kernels::Device {
 public:
  HiddenDevice(std::unique_ptr<kernels::Device> device, const memory::HiddenTier& tier)
      : device_(std::move(device)), tier_(tier) {}
  std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
    return device_->scratch_bytes(call);
  }
  void run(const kernels::KernelCall& call) override { device_->run(reachable(call, tier_)); }

 private:
  std::unique_ptr<kernels::Device> device_;
  const memory::HiddenTier& tier_;
};

class HiddenGroup : public comm::Group {
 public:
  HiddenGroup(std::unique_ptr<comm::Group> group, const memory::HiddenTier& tier)
      : group_(std::move(group)), tier_(tier) {}
  std::int64_t rank() const override { return group_->rank(); }
  const comm::GroupShape& shape() const override { return group_->shape(); }
  std::unique_ptr<streams::Task> start(const comm::CollectiveCall& call) override {
    return group_->start(reachable(call, tier_));
  }

 private:
  std::unique_ptr<comm::Group> group_;
  const memory::HiddenTier& tier_;
};

Backend cpu_backend(int threads, bool few_rows) {
  return {.kind = deck::Backend::cpu,
          .name = count_text(threads, "CPU thread"),
          .device_tier = std::make_unique<memory::HostTier>(),
          .host_tier = std::make_unique<memory::HostTier>(),
          .device_is_host = true,
          .device = kernels::make_cpu_device({.threads = threads, .few_rows = few_rows}),
          .start_beside = on_host_threads(threads),
          .start_on_host = on_host_threads(threads),
          .make_streams =
              [] {
                return std::make_unique<streams::HostStreams>(
                    std::make_unique<streams::BackgroundStreams>());
              },
          .make_group = [](std::span<const int> members, const comm::GroupShape& shape,
                           comm::Traffic) { return comm::make_mpi_group(members, shape); }};
}

Backend debug_backend(int threads, bool few_rows) {
  Backend b = cpu_backend(threads, few_rows);
  b.kind = deck::Backend::debug;
  auto tier = std::make_unique<memory::HiddenTier>();
  const memory::HiddenTier& hidden = *tier;
  b.device = std::make_unique<HiddenDevice>(std::move(b.device), hidden);
  b.start_beside = [&hidden, start = std::move(b.start_beside)](const kernels::KernelCall& call) {
    return start(reachable(call, hidden));
  };
  b.make_group = [&hidden](std::span<const int> members, const comm::GroupShape& shape,
                           comm::Traffic) -> std::unique_ptr<comm::Group> {
    auto group = comm::make_mpi_group(members, shape);
    if (!group) return nullptr;
    return std::make_unique<HiddenGroup>(std::move(group), hidden);
  };
  b.device_tier = std::move(tier);
  b.device_is_host = false;
  return b;
}

/// A team beside the one that computes: a kernel has all of it, and the next waits.
struct Team {
  explicit Team(int threads)
      : size(threads), device(kernels::make_cpu_device({.threads = threads})) {}
  int size;
  std::unique_ptr<kernels::Device> device;
  std::once_flag begun;
  streams::Workers workers{1};  // last: work uses the others
};

}  // namespace

std::function<std::unique_ptr<streams::Task>(const kernels::KernelCall&)> on_host_threads(
    int threads) {
  return [team = std::make_shared<Team>(threads)](const kernels::KernelCall& call) {
    std::call_once(team->begun, [&] { check_threads(team->size - 1); });
    return team->workers.start([device = team->device.get(), call] { device->run(call); });
  };
}

#ifndef TESSERA_HAVE_CUDA
[[noreturn]] static void refuse_cuda() {
  throw DeckError(fmt::format(
      "this tessera is built without CUDA{}: build it where nvcc is on PATH, or set run.backend = "
      "\"cpu\"",
      nvidia_gpus() > 0 ? fmt::format(", and {} has NVIDIA GPUs", comm::host_name()) : ""));
}

static Backend make_cuda_backend(const Settings&, const Ranks* ranks) {
  if (ranks != nullptr) ranks->control.together(refuse_cuda);
  refuse_cuda();
}
#endif

/// What `auto` means on this machine.
static deck::Backend chosen(deck::Backend kind) {
  if (kind != deck::Backend::automatic) return kind;
  return nvidia_gpus() > 0 ? deck::Backend::cuda : deck::Backend::cpu;
}

Backend make_backend(const Settings& settings, const Ranks* ranks) {
  const deck::Backend kind = chosen(settings.kind);
  if (ranks != nullptr) {
    ranks->control.must_agree(static_cast<std::uint64_t>(kind),
                              "some nodes of the job have NVIDIA GPUs and some have none: ask "
                              "Slurm for nodes of one kind, or set run.backend = \"cpu\"");
  }
  if (kind == deck::Backend::cuda) return make_cuda_backend(settings, ranks);
  if (settings.matmul == deck::Matmul::tf32)
    throw DeckError("precision.matmul = \"tf32\" is for GPUs (run.backend = \"cuda\")");
  return kind == deck::Backend::debug ? debug_backend(settings.threads, settings.few_rows)
                                      : cpu_backend(settings.threads, settings.few_rows);
}

std::int64_t most_head_dim(deck::Backend kind) {
  return chosen(kind) == deck::Backend::cuda ? kernels::kMostGpuHeadDim
                                             : std::numeric_limits<std::int64_t>::max();
}

std::int64_t most_scores(const Settings& settings) {
  constexpr std::int64_t kUsual = 80'000'000'000, kShare = 32;
  const auto* budget = std::get_if<deck::Bytes>(&settings.memory);
  return (budget == nullptr ? kUsual : budget->count) / kShare;
}

PlanningDevice make_planning_device(const Settings& settings) {
  const bool by_machine = settings.kind == deck::Backend::automatic;
  if (chosen(settings.kind) == deck::Backend::cuda) {
    return {.name = "an NVIDIA GPU",
            .device = kernels::make_cuda_planner(most_scores(settings)),
            .nccl = true};
  }
  return {.name = by_machine ? "a CPU (no NVIDIA GPU is here; --set run.backend=cuda plans for one)"
                             : "a CPU",
          .device = kernels::make_cpu_device(
              {.threads = settings.threads, .few_rows = settings.few_rows}),
          .nccl = false,
          .device_is_host = settings.kind != deck::Backend::debug};
}

}  // namespace tessera::backend
