// Whole steps of training on the CUDA back end: its kernels' source and its streams, emulated, with
// the same plan, executor and state as on a CPU, against the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/device.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/sdpa_rules.hpp"
#include "memory/cuda/cuda_tier.hpp"
#include "plan/passes/place_waits.hpp"
#include "plan/proof/check.hpp"
#include "streams/background.hpp"
#include "streams/cuda/cuda_streams.hpp"
#include "support/cuda_test_device.hpp"
#include "support/models.hpp"
#include "support/plan_run.hpp"
#include "support/sanitized.hpp"
#include "train/guards/non_finite.hpp"
#ifndef TESSERA_REAL_CUDA
#include "support/emulator/products.hpp"
#include "support/emulator/streams.hpp"
#endif

namespace tessera::test {
namespace {

#ifdef TESSERA_REAL_CUDA
using HostTasks = streams::BackgroundStreams;
#else
using emulator::HostTasks;
#endif

constexpr std::int64_t kSequence = 7, kMicro = 2;

struct Setting {
  const char* name;
  model::ModelConfig config;
  DType compute;
  Recompute recompute;
  float dropout;
};

std::vector<Setting> settings() {
  using enum Recompute;
  return {{"gpt2", gpt2_like(), DType::f32, none, 0},
          {"gpt2, dropout", gpt2_like(), DType::f32, full, 0.2F},
          {"llama", llama_like(), DType::f32, selective, 0},
          {"gpt2", gpt2_like(), DType::bf16, none, 0},
          {"llama", llama_like(), DType::bf16, full, 0}};
}

/// Everything that a rank with a GPU has.
struct Gpu {
  CudaQueue queue;
  kernels::CudaLibraries libraries{queue, kernels::cuda::kAtOnce, 0};
  std::unique_ptr<kernels::Device> device =
      make_cuda_device(queue, libraries, kernels::cuda::ProductRules{});

  std::unique_ptr<PlanRun> run(const plan::PlanInputs& inputs, const plan::PlanShape& shape,
                               std::vector<plan::Plan> others = {}) {
    return run(inputs, plan::make_plan(inputs, shape, {}), std::move(others));
  }
  std::unique_ptr<PlanRun> run(const plan::PlanInputs& inputs, plan::Plan plan,
                               std::vector<plan::Plan> others = {}) {
    return std::make_unique<PlanRun>(
        inputs, *device, std::move(plan), train::self_groups(),
        std::make_unique<memory::CudaTier>(queue), std::make_unique<memory::PinnedTier>(),
        std::make_unique<streams::CudaStreams>(queue, std::make_unique<HostTasks>()),
        std::move(others));
  }
};

plan::PlanInputs inputs_of(const Setting& s, kernels::Device& device) {
  plan::PlanInputs in = plan_inputs_of(s.config, device, s.compute);
  in.model.config.dropout = model::same_dropout(s.dropout);
  in.recompute = s.recompute;
  in.state_for = plan::PlanPurpose::train;
  return in;
}

const plan::PlanShape kShape{.sequence = kSequence, .micro = kMicro, .micro_batches = 2};

/// Losses and norms of five steps, then all parameters as forward reads them.
std::vector<double> train(PlanRun& run) {
  run.state().set_parameters(test_values(11));
  std::vector<double> seen;
  for (int step = 0; step < 5; ++step) {
    const StepShown shown = run.step(100 * step, {.lr = 1e-3, .update = 1 + step});
    EXPECT_TRUE(shown.applied);
    seen.push_back(shown.loss);
    seen.push_back(shown.norm);
  }
  for (const auto& unit : run.state().units()) {
    for (const float x : run.values(unit.parameters)) seen.push_back(x);
  }
  return seen;
}

void expect_trained_as_on_the_cpu(const Setting& s) {
  SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
  const auto cpu = kernels::make_cpu_device({});
  PlanRun there(inputs_of(s, *cpu), *cpu, kShape);
  Gpu gpu;
  const auto here = gpu.run(inputs_of(s, *gpu.device), kShape);
  const std::vector<double> want = train(there), got = train(*here);
  ASSERT_EQ(got.size(), want.size());
  // The longest sums have some 60 terms. Adam divides a gradient by its own size: where that is
  // little more than rounding, each of the five updates may differ by two learning rates and
  // somewhat more, as its averages are young.
  const double u = s.compute == DType::f32 ? 0x1p-24 : 0x1p-8;
  int off = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double bound =
        i < 10 ? 200 * u * std::abs(want[i]) : 12 * 1e-3 + 2 * u * std::abs(want[i]);
    EXPECT_NEAR(got[i], want[i], bound) << "number " << i;
    if (i >= 10) off += std::abs(got[i] - want[i]) > 200 * u * (std::abs(want[i]) + 1e-2) ? 1 : 0;
  }
  EXPECT_LE(off, static_cast<int>(want.size() / 20)) << "most parameters are the same";
}

constexpr std::int64_t kSlots = 3, kRoom = 8, kPrompt = 4;
plan::PlanShape generation(std::int64_t tokens) {
  return {.purpose = plan::PlanPurpose::generate,
          .sequence = tokens,
          .micro = kSlots,
          .micro_batches = 1,
          .slots = kSlots,
          .room = kRoom,
          .pages = kSlots};
}

/// Logits of prompts of 4, 2 and no tokens, then after two tokens more of each of the former.
std::vector<float> generate(PlanRun& run) {
  run.state().set_parameters(test_values(11));
  const auto pass = [&](std::size_t plan, std::array<std::int32_t, kSlots> before,
                        std::array<std::int32_t, kSlots> count) {
    return run.generate(plan, [&](std::int64_t, const plan::LoadBatch& views) {
      const std::int64_t tokens = views.tokens.elements() / kSlots;
      auto* sample = reinterpret_cast<kernels::CachedSample*>(views.cached.data);
      for (std::size_t b = 0; b < kSlots; ++b) {
        sample[b] = {.before = before[b], .count = count[b]};
        views.pages.as<std::int32_t>()[b] = static_cast<std::int32_t>(kSlots - 1 - b);
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::int64_t at = static_cast<std::int64_t>(b) * tokens + t;
          views.tokens.as<std::int32_t>()[at] =
              static_cast<std::int32_t>((5 * at + before[b]) % 13);
          if (!views.counted) continue;
          auto* range = views.counted.as<std::int32_t>() + 2 * at;
          const bool there = t < count[b] || count[b] == 0;
          range[0] = there ? 0 : count[b];
          range[1] = t < count[b] ? count[b] : static_cast<std::int32_t>(tokens);
        }
      }
    });
  };
  std::vector<float> all = pass(0, {0, 0, 0}, {4, 2, 0});
  for (const std::int32_t step : {0, 1}) {
    const std::vector<float> more = pass(1, {4 + step, 2 + step, 0}, {1, 1, 0});
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// Caches, positions and the last of a prompt's tokens.
TEST(CudaStep, GeneratesAsTheCpuDoes) {
  for (const Setting& s : settings()) {
    SCOPED_TRACE(fmt::format("{} in {}", s.name, to_string(s.compute)));
    const auto logits = [&](kernels::Device& device, plan::Location cache, auto&& make) {
      plan::PlanInputs in = inputs_of(s, device);
      in.state_for = plan::PlanPurpose::generate;
      in.cache = {.slots = kSlots, .room = kRoom, .pages = kSlots};
      in.offload.cache = cache, in.offload.device_is_host = false;
      std::vector<plan::Plan> others;
      others.push_back(plan::make_plan(in, generation(1), {}));
      const std::unique_ptr<PlanRun> run = make(in, std::move(others));
      return generate(*run);
    };
    const auto cpu = kernels::make_cpu_device({});
    const std::vector<float> want =
        logits(*cpu, plan::Location::device,
               [&](const plan::PlanInputs& in, std::vector<plan::Plan> others) {
                 return std::make_unique<PlanRun>(
                     in, *cpu, plan::make_plan(in, generation(kPrompt), {}), train::self_groups(),
                     std::make_unique<streams::BackgroundStreams>(), std::move(others));
               });
    Gpu gpu;
    const auto on_gpu = [&](plan::Location cache) {
      return logits(*gpu.device, cache,
                    [&](const plan::PlanInputs& in, std::vector<plan::Plan> others) {
                      return gpu.run(in, generation(kPrompt), std::move(others));
                    });
    };
    const std::vector<float> got = on_gpu(plan::Location::device);
    EXPECT_EQ(on_gpu(plan::Location::host), got) << "caches in the host's memory";
    ASSERT_EQ(got.size(), want.size());
    float largest = 0;
    for (const float x : want) largest = std::max(largest, std::abs(x));
    EXPECT_GT(largest, 0.1);
    // In f32 as of losses: sums of some 60 terms. In bf16 what is rounded counts: some six tensors
    // of each of three layers, each by up to 2^-8 of numbers of that size, and as much of what came
    // of keys that were rounded. The slot without tokens says nothing.
    const float bound = (s.compute == DType::f32 ? 200 * 0x1p-24F : 40 * 0x1p-8F) * largest;
    const std::size_t row = want.size() / (3 * kSlots);
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (i / row % kSlots == kSlots - 1) continue;
      EXPECT_NEAR(got[i], want[i], bound) << "logit " << i;
    }
  }
}

TEST(CudaStep, TrainsAsTheCpuDoes) {
  for (const Setting& s : settings()) expect_trained_as_on_the_cpu(s);
}

#ifndef TESSERA_REAL_CUDA
// What the library refuses within a product is an operation of its own.
TEST(CudaStep, TrainsAsTheCpuDoesWhereProductsAreRefused) {
  using kernels::cuda::Epilogue;
  using kernels::cuda::GemmKey;
  const Setting s = settings()[3];  // with gelu and biases within products
  int gelu = 0, biases = 0;
  emulator::refuse_products([&](const GemmKey& key) {
    const bool activated = key.epilogue != Epilogue::none;
    gelu += activated ? 1 : 0;
    return activated;
  });
  expect_trained_as_on_the_cpu(s);
  EXPECT_GT(gelu, 0);
  emulator::refuse_products([&](const GemmKey& key) {
    biases += key.bias ? 1 : 0;
    return !is_plain(key);
  });
  expect_trained_as_on_the_cpu(s);
  EXPECT_GT(biases, 0);
  emulator::refuse_products(nullptr);
}
#endif

// A number that the order of a sum moves over the middle between two codes moves by 2^-3 of itself
// in e5m2, 2^-4 in e4m3: in f32 few of the 16 to 64 terms of each sum, in either direction. In bf16
// the back ends' attention rounds elsewhere; where that is a tensor's largest magnitude, all its
// numbers are rounded anew, each by up to that much. So a unit's gradients part by less than two
// such roundings of all of them; lost, turned or of the other sign they part by their norm or more.
// A GPU's tensor cores add such products with some 14 bits (DeepSeek-V3, section 3.3), so that in
// f32 too numbers move to other codes in the first products, and with them most sums behind.
TEST(CudaStep, ComputesInFp8AsTheCpuDoes) {
  if (const auto why = why_no_fp8()) GTEST_SKIP() << *why;
  for (const DType compute : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(to_string(compute));
    const plan::PlanShape shape{.sequence = 8, .micro = 2, .micro_batches = 2};
    const auto fp8_inputs = [&](kernels::Device& device) {
      model::ModelConfig config = gpt2_like();
      config.ffn_hidden = 48;
      plan::PlanInputs in = plan_inputs_of(config, device, compute);
      in.numerics.operands = kernels::Operands::fp8;
      in.state_for = plan::PlanPurpose::train;
      return in;
    };
    const auto cpu = kernels::make_cpu_device({});
    PlanRun there(fp8_inputs(*cpu), *cpu, shape);
    Gpu gpu;
    const auto here = gpu.run(fp8_inputs(*gpu.device), shape);
    std::array<StepShown, 2> shown;
    for (std::size_t i = 0; i < 2; ++i) {
      PlanRun& run = i == 0 ? there : *here;
      run.state().set_parameters(test_values(11));
      shown[i] = run.step(40, {.lr = 1e-3});
      EXPECT_TRUE(shown[i].applied);
    }
    std::string units;  // for people
    for (std::size_t u = 0; u < there.state().units().size(); ++u) {
      // After one step Adam's first moment is the gradient but for a factor.
      const auto want = there.values(there.state().units()[u].kept[1].live),
                 got = here->values(here->state().units()[u].kept[1].live);
      ASSERT_EQ(got.size(), want.size());
      double squares = 0, apart = 0, got_squares = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        squares += static_cast<double>(want[i]) * want[i];
        got_squares += static_cast<double>(got[i]) * got[i];
        apart += std::pow(static_cast<double>(got[i]) - want[i], 2);
      }
      EXPECT_GT(squares, 0) << "unit " << u;
      EXPECT_LE(std::sqrt(apart), 0x1p-2 * std::sqrt(squares)) << "unit " << u;
      units += fmt::format("unit {}: norm {:.4g} for {:.4g}, {:.3g} of it apart\n", u,
                           std::sqrt(got_squares), std::sqrt(squares), std::sqrt(apart / squares));
    }
#ifdef TESSERA_REAL_CUDA
    const double share = 0x1p-4;
#else
    const double share = compute == DType::f32 ? 0x1p-6 : 0x1p-4;
#endif
    EXPECT_NEAR(shown[1].loss, shown[0].loss, share * shown[0].loss);
    EXPECT_NEAR(shown[1].norm, shown[0].norm, share * shown[0].norm) << units;
  }
}

// Trap 28. A product's gelu is of its f32 sum: what full recomputation repeats is the product, and
// selective recomputation and layout mode keep the two apart.
TEST(CudaStep, RecomputationChangesNoBit) {
  using enum Recompute;
  Setting s = settings()[3];
  s.dropout = 0.2F;
  const auto trained = [&](Recompute policy, bool layout_mode) {
    Gpu gpu;
    plan::PlanInputs in = inputs_of(s, *gpu.device);
    in.recompute = policy, in.numerics.layout_mode = layout_mode;
    return train(*gpu.run(in, kShape));
  };
  EXPECT_EQ(trained(full, false), trained(none, false));
  const auto layout = trained(none, true);
  EXPECT_EQ(trained(selective, true), layout);
  EXPECT_EQ(trained(full, true), layout);
}

TEST(CudaStep, WhatLivesElsewhereChangesNoBit) {
  using enum plan::Location;
  for (const std::size_t which : {std::size_t{1}, std::size_t{3}}) {
    const Setting s = settings()[which];
    const auto trained = [&](plan::OffloadInputs offload) {
      Gpu gpu;
      plan::PlanInputs in = inputs_of(s, *gpu.device);
      offload.device_is_host = false;
      offload.tile = 1000;
      in.offload = offload;
      return train(*gpu.run(in, kShape));
    };
    const auto want = trained({});
    EXPECT_EQ(trained({.activations = host, .ahead = 0}), want);
    // The host's updates have a GPU's bits where it fuses multiplications and additions, which
    // kernels that are built for sanitizers do not.
    const auto expect_same = [&](const plan::OffloadInputs& offload) {
      const auto got = trained(offload);
      if (!kSanitized || offload.optimizer == device) {
        EXPECT_EQ(got, want);
      }
    };
    for (const plan::Location tier : {host, disk}) {
      const plan::OffloadInputs all{.parameters = tier,
                                    .gradients = tier,
                                    .optimizer = tier,
                                    .activations = tier,
                                    .ahead = 1};
      expect_same(all);
      if (s.compute == DType::f32) continue;
      expect_same({.parameters = tier, .ahead = 1});
      expect_same({.gradients = tier});
      expect_same({.optimizer = tier, .optimizer_share = 0.5});
    }
  }
}

// Who looks at results waits for the device, which waits for the host's updates and for disks.
TEST(CudaStep, IsLookedAtWhereverStateLives) {
  for (const plan::Location tier : {plan::Location::host, plan::Location::disk}) {
    Gpu gpu;
    plan::PlanInputs in = inputs_of(settings()[1], *gpu.device);
    in.offload = {.parameters = tier,
                  .gradients = tier,
                  .optimizer = tier,
                  .ahead = 1,
                  .tile = 1000,
                  .device_is_host = false};
    const auto run = gpu.run(in, kShape);
    memory::CudaTier of_device(gpu.queue);
    run->state().set_parameters(test_values(3));
    for (int step = 0; step < 3; ++step) {
      train::NonFiniteFinder finder(run->plan(), run->inputs(), of_device);
      run->step(50 * step, {.update = 1 + step}, nullptr, finder.hooks());
      EXPECT_FALSE(finder.found()) << finder.found()->tensor;
    }
  }
}

/// So many steps have the same bits where they are queued each time as where they are graphs from
/// the second one on.
void expect_same_bits(PlanRun& queued, PlanRun& graph, int steps) {
  for (PlanRun* run : {&queued, &graph}) run->state().set_parameters(test_values(3));
  for (int step = 0; step < steps; ++step) {
    train::StepProfile profile;  // steps that are timed are never recorded
    const StepNumbers numbers{.lr = 1e-2, .update = 1 + step};
    const StepShown want = queued.step(100 * step, numbers, &profile),
                    got = graph.step(100 * step, numbers);
    EXPECT_EQ(want.loss, got.loss);
    EXPECT_EQ(want.norm, got.norm);
    EXPECT_EQ(std::ssize(profile.ops), runs_of(queued.plan()));
  }
  for (std::size_t u = 0; u < queued.state().units().size(); ++u) {
    EXPECT_EQ(queued.values(queued.state().units()[u].parameters),
              graph.values(graph.state().units()[u].parameters));
  }
}

TEST(CudaStep, HasTheSameBitsQueuedAndAsAGraph) {
  const Setting s = settings()[1];
  Gpu gpu;
  const auto once = gpu.run(inputs_of(s, *gpu.device), kShape);
  const auto again = gpu.run(inputs_of(s, *gpu.device), kShape);
  expect_same_bits(*once, *again, 4);
}

// Of a long step's micro-batches those that repeat are one graph, which is launched again: with the
// bits of a plan in which all of them are.
TEST(CudaStep, HasTheSameBitsWhereMicroBatchesRepeat) {
  Setting s = settings()[0];
  s.config.layers = 1;  // the emulated GPU is slow
  const plan::PlanShape shape{.sequence = 2, .micro = 1, .micro_batches = 83};
  Gpu gpu;
  plan::PlanInputs in = inputs_of(s, *gpu.device);
  in.offload = {.activations = plan::Location::host, .ahead = 1, .device_is_host = false};
  const auto again = gpu.run(in, shape);
  ASSERT_TRUE(again->plan().repeat);
  EXPECT_GT(again->plan().repeat->times, 2);
  plan::Plan whole = plan::whole_plan(in, shape, {});
  place_waits(whole);
  check(whole);
  expect_same_bits(*gpu.run(in, std::move(whole)), *again, 3);  // recorded, then launched again
}

}  // namespace
}  // namespace tessera::test
