#include "support/plan_run.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/exact_sum.hpp"
#include "data/batches.hpp"
#include "kernels/cpu/device.hpp"
#include "streams/background.hpp"

namespace tessera::test {

class PlanRun::Watching : public kernels::Device {
 public:
  Watching(kernels::Device& device, memory::Tier& tier) : device_(device), tier_(tier) {}
  std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
    return device_.scratch_bytes(call);
  }
  void run(const kernels::KernelCall& call) override {
    const auto* update = std::get_if<kernels::OptimizerUpdate>(&call);
    if (update != nullptr && tier_.in_place(update->gradient.data) != nullptr) {
      const auto g = widened(update->gradient);
      gradients.insert(gradients.end(), g.begin(), g.end());
    }
    device_.run(call);
    // The embedding's is the last gradient to be written.
    const auto* last = std::get_if<kernels::EmbedBackward>(&call);
    if (last != nullptr && spoil) *last->d_token_table.as<float>() = *std::exchange(spoil, {});
  }
  std::vector<float> gradients;
  std::optional<float> spoil;

 private:
  kernels::Device& device_;
  memory::Tier& tier_;
};

PlanRun::~PlanRun() = default;

namespace {

train::Groups groups_or_self(train::Groups groups) {
  train::Groups self = train::self_groups();
  for (const plan::ChannelRow& row : plan::kChannelRows) {
    if (!groups[row.channel]) groups[row.channel] = std::move(self[row.channel]);
  }
  return groups;
}

}  // namespace

PlanRun::PlanRun(const plan::PlanInputs& inputs, kernels::Device& device,
                 const plan::PlanShape& shape, train::Groups groups, const MeshPlace& place)
    : PlanRun(inputs, device, plan::make_plan(inputs, shape, place),
              groups_or_self(std::move(groups)), std::make_unique<streams::BackgroundStreams>()) {}

PlanRun::PlanRun(const plan::PlanInputs& inputs, kernels::Device& device, plan::Plan plan,
                 train::Groups groups, std::unique_ptr<streams::TaskStreams> tasks,
                 std::vector<plan::Plan> others)
    : PlanRun(inputs, device, std::move(plan), std::move(groups),
              std::make_unique<memory::HostTier>(), std::make_unique<memory::HostTier>(),
              std::make_unique<streams::HostStreams>(std::move(tasks)), std::move(others)) {}

PlanRun::PlanRun(const plan::PlanInputs& inputs, kernels::Device& device, plan::Plan plan,
                 train::Groups groups, std::unique_ptr<memory::Tier> tier,
                 std::unique_ptr<memory::Tier> host_tier, std::unique_ptr<streams::Streams> streams,
                 std::vector<plan::Plan> others)
    : inputs_(inputs),
      device_(std::make_unique<Watching>(device, *tier)),
      groups_(std::move(groups)),
      plan_(std::move(plan)),
      others_(std::move(others)),
      tier_(std::move(tier)),
      host_tier_(std::move(host_tier)),
      streams_(std::move(streams)) {
  plan::ArenaBytes bytes = plan_.arena_bytes;
  for (const plan::Plan& other : others_) bytes = plan::most_of(bytes, other.arena_bytes);
  if (plan::leaves_work(inputs_) && plan_.shape.purpose > plan::PlanPurpose::evaluate) {
    flush_ = plan::make_plan(inputs_, plan::flush_after(plan_.shape.compression), plan_.place);
    bytes = plan::most_of(bytes, flush_->arena_bytes);
  }
  if (bytes[plan::ArenaId::disk] > 0) {
    disk_.emplace();
    disk_tier_ = std::make_unique<memory::DiskTier>(memory::DiskTierOptions{
        .directories = {disk_->path(), disk_->path()}, .block = 4096, .depth = 2});
  }
  const train::Tiers tiers{{tier_.get(), host_tier_.get(), disk_tier_.get()}};
  train::PlanMemory memory{};
  for (const auto& [id, word] : EnumWords<plan::ArenaId>::table) {
    memory::Tier* of = tiers[plan::location_of(id)];
    arenas_[id] =
        std::make_unique<memory::Arena>(word, of == nullptr ? *host_tier_ : *of, bytes[id]);
    memory[id] = arenas_[id]->base();
  }
  state_.emplace(inputs_, plan_.place, arenas_);
  bound_.emplace(plan_, memory);
  for (const plan::Plan& other : others_) bound_others_.emplace_back(other, memory);
  if (flush_) bound_flush_.emplace(*flush_, memory);
  const auto beside = [&device](const kernels::KernelCall& call) {
    device.run(call);
    return std::unique_ptr<streams::Task>();
  };
  const auto on_host =
      [cpu = std::shared_ptr(kernels::make_cpu_device({}))](const kernels::KernelCall& call) {
        cpu->run(call);
        return std::unique_ptr<streams::Task>();
      };
  executor_.emplace(*device_, train::Executor::StartKernels{beside, on_host}, tiers, groups_,
                    *streams_, inputs_, whereabouts_);
}

void PlanRun::settle() {
  if (std::exchange(left_, false)) executor_->run(*bound_flush_, {}, {});
}

std::vector<float> PlanRun::held(const View& symbolic) {
  View v = bound_->real(symbolic);
  std::vector<std::byte> copy;
  const plan::Buffer& buffer = plan_.buffer(plan::buffer_of(symbolic));
  memory::Tier& tier = arenas_[plan::arena_of(buffer)]->tier();
  v.data = const_cast<std::byte*>(tier.host_bytes(v.data, v.span_bytes(), copy).data());
  return widened(v);
}

std::vector<float> PlanRun::generate(std::size_t plan, const train::Executor::Loader& load) {
  const train::BoundPlan& bound = plan == 0 ? *bound_ : bound_others_.at(plan - 1);
  executor_->run(bound, {}, load);
  return held(bound.plan().logits);
}

void PlanRun::spoil_next_gradient(float value) { device_->spoil = value; }

StepShown PlanRun::step(std::int64_t first_sample, const StepNumbers& numbers,
                        train::StepProfile* profile, const train::Executor::Hooks& hooks) {
  const train::BoundPlan& bound = numbers.plan == 0 ? *bound_ : bound_others_.at(numbers.plan - 1);
  const plan::PlanShape& shape = bound.plan().shape;
  const Mesh& mesh = inputs_.layout.mesh;
  const auto targets = static_cast<double>(plan::targets_of(bound.plan()));
  train::StepInput input;
  const auto set = [&](kernels::StepScalar which, double value) {
    input[which] = static_cast<float>(value);
  };
  set(kernels::StepScalar::loss_gradient, numbers.loss_scale / targets);
  set(kernels::StepScalar::unscale, 1 / numbers.loss_scale);
  set(kernels::StepScalar::lr, numbers.lr);
  inputs_.optimizer.set_scalars(input.scalars, numbers.update);
  const data::BatchShare share{.data_ranks = mesh.batch_ranks(),
                               .data_rank = plan_.place.data / mesh.context,
                               .context_ranks = mesh.context,
                               .context_rank = plan_.place.data % mesh.context,
                               .context_shares = inputs_.layout.context.shares,
                               .sequence = shape.sequence,
                               .micro = shape.micro,
                               .micro_batches = shape.micro_batches,
                               .reduce = inputs_.sharding.reduce};
  device_->gradients.clear();
  // All bits set is NaN in every type: what nobody wrote in this step shows.
  const memory::Arena& step = arena(plan::ArenaId::step);
  tier_->fill(step.base(), step.bytes(),
              [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xff}); });
  const auto batch = [&](std::int64_t k) {
    return batch_of(inputs_.model.config, first_sample + share.first_sample(k), shape.micro,
                    shape.sequence,
                    {.masked = numbers.masked, .documents = inputs_.documents.separate});
  };
  /// This rank's part of a micro-batch.
  const auto tokens_of = [&](std::int64_t k) {
    TokenBatch b = batch(k);
    if (k == numbers.unknown_token_in) b.tokens.back() = 1 << 20;
    data::StepTokens tokens{.share = share};
    tokens.share.micro_batches = 1;
    tokens.counted.assign(b.samples.size(), 0);
    tokens.counted.front() = b.counted();
    tokens.tallies.assign(b.samples.size(), 0);
    tokens.tokens = std::move(b.tokens), tokens.targets = std::move(b.targets);
    tokens.samples = std::move(b.samples), tokens.documents = std::move(b.documents);
    tokens.keep_chunks(inputs_.documents.positions);
    return tokens;
  };
  for (std::int64_t k = 0; k < shape.micro_batches; ++k) {
    if (plan_.place.tensor == 0 && plan_.place.pipeline == 0) input.targets += tokens_of(k).count();
  }
  const auto load = [&](std::int64_t k, const plan::LoadBatch& views) {
    tokens_of(k).load(0, views);
  };
  const train::StepOutput output = executor_->run(bound, input, load, hooks, profile);
  left_ = flush_.has_value();
  if (inputs_.offload.updates() && left_) {
    device_->gradients.clear();  // of the step before
    for (const plan::UnitState& s : state_->units()) {
      if (!s.gradient) continue;
      const auto g = held(s.gradient);
      device_->gradients.insert(device_->gradients.end(), g.begin(), g.end());
    }
  }
  return {.loss = output.sum(plan::WordLayout::loss),
          .norm = std::sqrt(output.sum(plan::WordLayout::norm)) / numbers.loss_scale *
                  (targets / static_cast<double>(output.targets())),
          .targets = output.words[plan::WordLayout::targets],
          .confusion = output.confusion,
          .applied = output.applied,
          .gradients = device_->gradients};
}

std::vector<float> slice_of_state(PlanRun& run, Kept which) {
  std::vector<float> all;
  const auto rows = plan::kept_tensors(run.inputs());
  for (const auto& s : run.state().units()) {
    if (!s.held || s.codes) continue;  // of which steps change nothing
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto& kept = s.kept[r];
      const View& row = which == Kept::live ? kept.live : kept.snapshot;
      if (!row) continue;                          // of a frozen unit, or not saved
      if (row.data == s.error_sum.data) continue;  // as old as the last checkpoint
      using optim::Extent;
      const Extent extent = rows[r].extent;
      const bool of_elements =
          extent != Extent::rank && extent != Extent::node && extent != Extent::tensor;
      const Range has = intersect(kept.elements, s.slice);
      const bool flat = which == Kept::live && of_elements;
      const auto values =
          run.values(flat ? row.range(has.begin - kept.elements.begin, has.count()) : row);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

plan::PlanInputs plan_inputs_of(const model::ModelConfig& config, kernels::Device& device,
                                DType compute) {
  plan::PlanInputs in;
  in.model.config = config;
  in.model.units = model::model_units(config);
  in.device = &device;
  in.numerics.compute = compute;
  in.seed = 5;
  return in;
}

std::vector<float> widened(const View& v) {
  std::vector<float> all(static_cast<std::size_t>(v.elements()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    switch (v.type) {
      case DType::bf16: all[i] = static_cast<float>(v.as<bf16>()[i]); break;
      case DType::f16: all[i] = static_cast<float>(v.as<f16>()[i]); break;
      default: all[i] = v.as<float>()[i];
    }
  }
  return all;
}

}  // namespace tessera::test
