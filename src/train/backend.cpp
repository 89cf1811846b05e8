#include "train/backend.hpp"

#include "comm/mpi/mpi_group.hpp"
#include "kernels/cpu/device.hpp"
#include "memory/background.hpp"
#include "memory/hidden_tier.hpp"
#include "memory/host_streams.hpp"

namespace tessera::train {
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
  std::unique_ptr<memory::Task> start(const comm::CollectiveCall& call) override {
    return group_->start(reachable(call, tier_));
  }

 private:
  std::unique_ptr<comm::Group> group_;
  const memory::HiddenTier& tier_;
};

Backend cpu_backend(int threads) {
  return {.device_tier = std::make_unique<memory::HostTier>(),
          .host_tier = std::make_unique<memory::HostTier>(),
          .device = kernels::make_cpu_device({.threads = threads}),
          .make_streams =
              [] {
                return std::make_unique<memory::HostStreams>(
                    std::make_unique<memory::BackgroundStreams>());
              },
          .make_group = comm::make_mpi_group};
}

Backend debug_backend(int threads) {
  Backend b = cpu_backend(threads);
  auto tier = std::make_unique<memory::HiddenTier>();
  const memory::HiddenTier& hidden = *tier;
  b.device = std::make_unique<HiddenDevice>(std::move(b.device), hidden);
  b.make_group = [&hidden](std::span<const int> members,
                           const comm::GroupShape& shape) -> std::unique_ptr<comm::Group> {
    auto group = comm::make_mpi_group(members, shape);
    if (!group) return nullptr;
    return std::make_unique<HiddenGroup>(std::move(group), hidden);
  };
  b.device_tier = std::move(tier);
  return b;
}

}  // namespace

Backend make_backend(deck::Backend kind, int threads) {
  return kind == deck::Backend::debug ? debug_backend(threads) : cpu_backend(threads);
}

}  // namespace tessera::train
