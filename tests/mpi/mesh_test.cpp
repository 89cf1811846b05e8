// Raw gradients on every mesh, before clipping and without an optimizer to hide a wrong scale,
// against one rank that computes all micro-batches itself.
#include <gtest/gtest.h>

#include "kernels/cpu/device.hpp"
#include "support/plan_run.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

using plan::PipelineSchedule;
using plan::ReduceWhen;

struct Case {
  model::ModelConfig config;
  Mesh mesh;
  DType compute = DType::f32;
  int stage = 0;
  bool any_layout = true, split_sequence = true;
  ReduceWhen reduce = ReduceWhen::step;
  plan::Recompute recompute = plan::Recompute::none;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
};

constexpr std::int64_t kChunks = 4, kSequence = 8, kMicroBatches = 8;  // of all data ranks together

plan::PlanInputs inputs_of(const Case& c, kernels::Device& device) {
  auto in = plan_inputs_of(c.config, device, c.compute);
  in.mesh = c.mesh;
  in.any_layout = c.any_layout;
  in.tensor_chunks = c.any_layout ? kChunks : c.mesh.tensor;
  in.split_sequence = c.split_sequence;
  in.units = model::model_units(c.config, in.tensor_chunks);
  in.stage = c.stage;
  in.reduce = c.reduce;
  in.recompute = c.recompute;
  in.pipeline.schedule = c.schedule;
  return in;
}

plan::PlanShape shape_of(const Mesh& mesh) {
  return {.sequence = kSequence, .micro = 1, .micro_batches = kMicroBatches / mesh.data};
}

train::Groups groups_of(const Mesh& mesh, std::int64_t rank) {
  train::Groups groups;
  const auto make = [&](MeshGroup kind) {
    const auto members = mesh.members(rank, kind);
    const auto n = static_cast<std::int64_t>(members.size());
    return comm::make_mpi_group(members, {.size = n, .local = n, .nodes = 1});
  };
  groups.world = make(MeshGroup::world);
  if (mesh.data > 1) groups.gather = make(MeshGroup::data), groups.reduce = make(MeshGroup::data);
  if (mesh.tensor > 1) groups.tensor = make(MeshGroup::tensor);
  if (mesh.pipeline > 1) {
    groups.forward = make(MeshGroup::pipeline), groups.backward = make(MeshGroup::pipeline);
    groups.ends = make(MeshGroup::ends);
  }
  return groups;
}

class Gradients : public testing::Test {
 protected:
  /// f(unit, parameter, element of the parameter, value) for every element that the run's rank
  /// updates.
  template <typename F>
  static void each(PlanRun& run, const StepShown& step, F&& f) {
    std::int64_t at = 0;
    const auto& units = run.inputs().units;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const auto& s = run.state().units()[u];
      if (!s.held) continue;
      for (const auto& slice : zero::slices_in(units[u], s.layout, s.owned)) {
        const auto& p = units[u].params[slice.parameter];
        const std::int64_t width = p.elements() / p.shape[0];
        std::int64_t i = at + slice.flat - s.owned.begin;
        for (std::int64_t r = slice.part.rows.begin; r < slice.part.rows.end; ++r) {
          for (std::int64_t c = slice.part.columns.begin; c < slice.part.columns.end; ++c, ++i)
            f(u, slice.parameter, r * width + c, step.gradients.at(static_cast<std::size_t>(i)));
        }
      }
      at += s.owned.count();
    }
  }

  /// Compares with one rank: bits in layout mode, else up to the order of sums.
  void compare(const Case& c) {
    SCOPED_TRACE(fmt::format("data {} x pipeline {} x tensor {}, stage {}, {}, {}, {}, {}",
                             c.mesh.data, c.mesh.pipeline, c.mesh.tensor, c.stage,
                             tessera::to_string(c.compute), enum_word(c.schedule),
                             enum_word(c.reduce), c.any_layout ? "layout mode" : "run mode"));
    const MeshPlace place = c.mesh.place_of(session().rank());
    PlanRun run(inputs_of(c, *device_), *device_, shape_of(c.mesh),
                groups_of(c.mesh, session().rank()), place);
    Case alone = c;
    alone.mesh = {}, alone.stage = 0, alone.recompute = plan::Recompute::none;
    alone.schedule = PipelineSchedule::one_f_one_b;
    PlanRun one(inputs_of(alone, *device_), *device_, shape_of({}));
    for (PlanRun* r : {&run, &one}) r->state().set_parameters(test_values(11));
    const StepShown got = run.step(100, {.lr = 0}), want = one.step(100, {.lr = 0});
    EXPECT_GT(want.norm, 0.1);

    std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> truth;
    each(one, want, [&](std::size_t u, std::size_t p, std::int64_t e, float value) {
      auto& values = truth[{u, p}];
      values.resize(std::max(values.size(), static_cast<std::size_t>(e) + 1));
      values[static_cast<std::size_t>(e)] = value;
    });
    // Some 200 roundings of the compute type along the longest path.
    const double unit = c.compute == DType::f32 ? 0x1p-24 : 0x1p-8;
    const double tolerance = c.any_layout ? 0 : 200 * unit * want.norm;
    EXPECT_LE(std::abs(got.loss - want.loss), c.any_layout ? 0 : 200 * unit * want.loss);
    EXPECT_LE(std::abs(got.norm - want.norm), tolerance);
    double worst = 0;
    std::string where;
    std::int64_t compared = 0;
    each(run, got, [&](std::size_t u, std::size_t p, std::int64_t e, float value) {
      const double off =
          std::abs(static_cast<double>(value) - truth.at({u, p}).at(static_cast<std::size_t>(e)));
      ++compared;
      if (off <= worst) return;
      worst = off;
      where = fmt::format("{}[{}]", run.inputs().units[u].params[p].name, e);
    });
    EXPECT_LE(worst, tolerance) << where;
    EXPECT_GT(compared, 0);
  }

  /// All meshes of this number of ranks with up to kChunks tensor ranks and as many stages as there
  /// are blocks.
  static std::vector<Mesh> meshes(const model::ModelConfig& config) {
    std::vector<Mesh> all;
    const std::int64_t n = session().size();
    for (std::int64_t t = 1; t <= std::min(n, kChunks); ++t) {
      for (std::int64_t p = 1; p <= config.layers; ++p) {
        if (n % (t * p) == 0 && kChunks % t == 0) all.push_back({t, n / (t * p), p});
      }
    }
    return all;
  }

  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
};

// Traps 6, 7, 10, 16, 18, 19, 20, 23, 25, 27, 32, 33, 34, 35 and 36.
TEST_F(Gradients, AreThoseOfOneRankOnEveryMesh) {
  for (auto config : {gpt2_like(), llama_like()}) {
    config.dropout = 0.1F;
    for (const Mesh& mesh : meshes(config)) {
      for (int stage = 0; stage <= 3; ++stage) {
        compare({.config = config,
                 .mesh = mesh,
                 .stage = stage,
                 .reduce = stage % 2 == 0 ? ReduceWhen::step : ReduceWhen::micro});
      }
    }
  }
}

TEST_F(Gradients, WithEverySchedule) {
  const auto config = llama_like();
  for (const Mesh& mesh : meshes(config)) {
    for (const auto schedule : {PipelineSchedule::gpipe, PipelineSchedule::zero_bubble}) {
      compare({.config = config,
               .mesh = mesh,
               .stage = 1,
               .recompute = plan::Recompute::full,
               .schedule = schedule});
    }
  }
}

TEST_F(Gradients, InBf16AndWithoutSplittingTheSequence) {
  const auto config = gpt2_like();
  for (const Mesh& mesh : meshes(config)) {
    compare({.config = config,
             .mesh = mesh,
             .compute = DType::bf16,
             .split_sequence = false,
             .recompute = plan::Recompute::selective});
  }
}

// Trap 21: fewer kv heads than tensor ranks.
TEST_F(Gradients, OfAKvHeadThatSeveralRanksRead) {
  auto config = llama_like();
  config.kv_heads = 1;
  for (const Mesh& mesh : meshes(config)) compare({.config = config, .mesh = mesh, .stage = 1});
}

TEST_F(Gradients, InRunModeUpToTheOrderOfSums) {
  for (const auto& config : {gpt2_like(), llama_like()}) {
    for (const Mesh& mesh : meshes(config)) {
      compare({.config = config, .mesh = mesh, .any_layout = false});
      compare({.config = config, .mesh = mesh, .any_layout = false, .split_sequence = false});
    }
  }
}

}  // namespace
}  // namespace tessera::test
