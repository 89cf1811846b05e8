// Raw gradients on every mesh, before clipping and without an optimizer to hide a wrong scale,
// against one rank that computes all micro-batches itself.
#include <gtest/gtest.h>

#include "core/hash.hpp"
#include "kernels/cpu/device.hpp"
#include "support/blocks.hpp"
#include "support/plan_run.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

struct Case {
  model::ModelConfig config;
  Mesh mesh;
  DType compute = DType::f32;
  int stage = 0;
  bool layout_mode = true, split_sequence = true;
  ReduceWhen reduce = ReduceWhen::step;
  Recompute recompute = Recompute::none;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  double clip_norm = 0;
  kernels::LossTerms loss_terms = {};
};

constexpr std::int64_t kChunks = 4, kSequence = 8, kMicroBatches = 8;  // of all data ranks together

plan::PlanInputs inputs_of(const Case& c, kernels::Device& device) {
  auto in = plan_inputs_of(c.config, device, c.compute);
  in.layout.mesh = c.mesh;
  in.numerics.layout_mode = c.layout_mode;
  in.layout.tensor_chunks = c.layout_mode ? kChunks : c.mesh.tensor;
  in.layout.split_sequence = c.split_sequence;
  in.model.units = model::model_units(c.config, in.layout.tensor_chunks);
  in.sharding.stage = c.stage;
  in.sharding.reduce = c.reduce;
  in.recompute = c.recompute;
  in.layout.pipeline.schedule = c.schedule;
  in.optimizer.clip_norm = c.clip_norm;
  in.loss_terms = c.loss_terms;
  return in;
}

plan::PlanShape shape_of(const Mesh& mesh) {
  return {.sequence = kSequence, .micro = 1, .micro_batches = kMicroBatches / mesh.data};
}

train::Groups groups_of(const plan::PlanInputs& in, std::int64_t rank) {
  return train::make_groups(in, rank, [](auto members, const auto& shape, comm::Traffic) {
    return comm::make_mpi_group(members, shape);
  });
}

class Gradients : public testing::Test {
 protected:
  /// f(unit, parameter, element of the parameter, its value) for every element that the run's rank
  /// updates; `values` is of them all, unit by unit.
  template <typename F>
  static void each(PlanRun& run, std::span<const float> values, F&& f) {
    std::int64_t at = 0;
    const auto& units = run.inputs().model.units;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const auto& s = run.state().units()[u];
      if (!s.held) continue;
      for (const auto& slice : zero::slices_in(units[u], s.layout, s.owned)) {
        const auto& p = units[u].params[slice.parameter];
        const std::int64_t width = p.elements() / p.shape[0];
        std::int64_t i = at + slice.flat - s.owned.begin;
        for (std::int64_t r = slice.part.rows.begin; r < slice.part.rows.end; ++r) {
          for (std::int64_t c = slice.part.columns.begin; c < slice.part.columns.end; ++c, ++i)
            f(u, slice.parameter, r * width + c, values[static_cast<std::size_t>(i)]);
        }
      }
      at += s.owned.count();
    }
  }

  /// The largest difference from what one rank has of the same elements.
  static void expect_near(PlanRun& run, std::span<const float> got, PlanRun& one,
                          std::span<const float> want, double tolerance) {
    std::map<std::pair<std::size_t, std::size_t>, std::vector<float>> truth;
    each(one, want, [&](std::size_t u, std::size_t p, std::int64_t e, float value) {
      auto& values = truth[{u, p}];
      values.resize(std::max(values.size(), static_cast<std::size_t>(e) + 1));
      values[static_cast<std::size_t>(e)] = value;
    });
    double worst = 0;
    std::string where;
    std::int64_t compared = 0;
    each(run, got, [&](std::size_t u, std::size_t p, std::int64_t e, float value) {
      const double off =
          std::abs(static_cast<double>(value) - truth.at({u, p}).at(static_cast<std::size_t>(e)));
      ++compared;
      if (off <= worst) return;
      worst = off;
      where = fmt::format("{}[{}]", run.inputs().model.units[u].params[p].name, e);
    });
    EXPECT_LE(worst, tolerance) << where;
    EXPECT_GT(compared, 0);
  }

  /// What the run's rank keeps in a row, in the order of its gradients.
  static std::vector<float> held(PlanRun& run, std::size_t row) {
    std::vector<float> all;
    for (const auto& s : run.state().units()) {
      if (!s.held) continue;
      const auto part = widened(run.real(s.kept[row].live));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  struct Both {
    std::unique_ptr<PlanRun> run, one;
    StepShown got, want;
  };
  /// A step on the mesh, and by one rank that computes all of it.
  Both step(const Case& c, double lr) {
    const MeshPlace place = c.mesh.place_of(session().rank());
    Case alone = c;
    alone.mesh = {}, alone.stage = 0, alone.recompute = Recompute::none;
    alone.schedule = PipelineSchedule::one_f_one_b;
    const auto in = inputs_of(c, *device_);
    Both both{.run = std::make_unique<PlanRun>(in, *device_, shape_of(c.mesh),
                                               groups_of(in, session().rank()), place),
              .one = std::make_unique<PlanRun>(inputs_of(alone, *device_), *device_, shape_of({}))};
    for (PlanRun* r : {both.run.get(), both.one.get()}) r->state().set_parameters(test_values(11));
    both.got = both.run->step(100, {.lr = lr});
    both.want = both.one->step(100, {.lr = lr});
    return both;
  }

  /// Compares with one rank: bits in layout mode, else up to the order of sums.
  void compare(const Case& c) {
    SCOPED_TRACE(fmt::format("data {} x pipeline {} x tensor {}, stage {}, {}, {}, {}, {}",
                             c.mesh.data, c.mesh.pipeline, c.mesh.tensor, c.stage,
                             tessera::to_string(c.compute), enum_word(c.schedule),
                             enum_word(c.reduce), c.layout_mode ? "layout mode" : "run mode"));
    const auto [run, one, got, want] = step(c, 0);
    EXPECT_GT(want.norm, 0.1);
    // Some 200 roundings of the compute type along the longest path.
    const double unit = c.compute == DType::f32 ? 0x1p-24 : 0x1p-8;
    const double tolerance = c.layout_mode ? 0 : 200 * unit * want.norm;
    EXPECT_LE(std::abs(got.loss - want.loss), c.layout_mode ? 0 : 200 * unit * want.loss);
    EXPECT_LE(std::abs(got.norm - want.norm), tolerance);
    expect_near(*run, got.gradients, *one, want.gradients, tolerance);
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

// Traps 6, 7, 10, 16, 18, 19, 20, 23, 25, 27, 32, 33, 34, 35, 36 and 37: the norm's bits too.
TEST_F(Gradients, AreThoseOfOneRankOnEveryMesh) {
  for (auto config : {gpt2_like(), llama_like()}) {
    config.dropout = model::same_dropout(0.1F);
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
               .recompute = Recompute::full,
               .schedule = schedule});
    }
  }
}

// Traps 17 and 23.
TEST_F(Gradients, OfSmoothedLabelsAndTheZLoss) {
  for (const Mesh& mesh : meshes(llama_like())) {
    compare({.config = llama_like(),
             .mesh = mesh,
             .stage = 1,
             .loss_terms = {.label_smoothing = 0.2F, .z_loss = 0.01F}});
  }
}

TEST_F(Gradients, InBf16AndWithoutSplittingTheSequence) {
  const auto config = gpt2_like();
  for (const Mesh& mesh : meshes(config)) {
    compare({.config = config,
             .mesh = mesh,
             .compute = DType::bf16,
             .split_sequence = false,
             .recompute = Recompute::selective});
  }
}

// Trap 21: fewer kv heads than tensor ranks.
TEST_F(Gradients, OfAKvHeadThatSeveralRanksRead) {
  auto config = llama_like();
  config.kv_heads = 1;
  for (const Mesh& mesh : meshes(config)) compare({.config = config, .mesh = mesh, .stage = 1});
}

// What every tensor rank has whole stays alike where gradients travel in blocks, also if the data
// ranks of one are on other nodes than those of another.
TEST_F(Gradients, InBlocksLeaveTensorRanksAlike) {
  auto few_kv = llama_like();
  few_kv.kv_heads = 1;
  for (const auto& config : {gpt2_like(), few_kv}) {
    for (const Mesh& mesh : meshes(config)) {
      if (mesh.tensor == 1 || mesh.pipeline > 1) continue;
      const Case c{.config = config, .mesh = mesh};
      auto in = inputs_of(c, *device_);
      for (std::int64_t r = 0; r < mesh.size(); ++r)
        in.layout.node_of.push_back(static_cast<int>(r / 3));
      travel_in_blocks(in, {}, {{.type = kernels::BlockType::int4, .block = 32}});
      const auto run =
          std::make_unique<PlanRun>(in, *device_, shape_of(mesh), groups_of(in, session().rank()),
                                    mesh.place_of(session().rank()));
      run->state().set_parameters(test_values(11));
      for (int t = 1; t <= 3; ++t) EXPECT_TRUE(run->step(100 * t, {.update = t}).applied);
      Hasher hash;
      std::int64_t pieces = 0;
      for (std::size_t u = 0; u < in.model.units.size(); ++u) {
        const auto& s = run->state().units()[u];
        for (const auto& piece : s.layout.pieces) {
          if (!piece.whole) continue;
          ++pieces;
          for (const float x :
               widened(run->real(s.parameters.range(piece.offset, piece.part.elements()))))
            hash.add(std::bit_cast<std::uint32_t>(x));
        }
      }
      EXPECT_GT(pieces, 0);
      const auto word = static_cast<std::int64_t>(hash.value() >> 1);
      EXPECT_EQ(control().min(word), control().max(word)) << mesh.tensor << " tensor ranks";
    }
  }
}

// Trap 38: after all reductions and once, by one coefficient on all ranks. Adam hides the scale of
// its gradients from the weights, but not from the moments.
TEST_F(Gradients, AreClippedOnceByOneCoefficient) {
  for (const auto& config : {gpt2_like(), llama_like()}) {
    for (const Mesh& mesh : meshes(config)) {
      for (const int stage : {0, 3}) {
        SCOPED_TRACE(fmt::format("data {} x pipeline {} x tensor {}, stage {}", mesh.data,
                                 mesh.pipeline, mesh.tensor, stage));
        const auto [run, one, got, want] =
            step({.config = config, .mesh = mesh, .stage = stage, .clip_norm = 0.1}, 1e-2);
        EXPECT_GT(want.norm, 0.2) << "nothing is clipped";
        for (std::size_t row = 0; row < kept_tensors(run->inputs()).size(); ++row)
          expect_near(*run, held(*run, row), *one, held(*one, row), 0);
        const auto first_moment = held(*run, plan::kMasterRow + 1);
        const double scale = 0.1 / (want.norm + 1e-6) * (1 - static_cast<double>(0.9F));
        double worst = 0;  // beyond three roundings: the coefficient's, and of two products
        for (std::size_t i = 0; i < first_moment.size(); ++i) {
          const double expected = scale * static_cast<double>(got.gradients.at(i));
          const double off = std::abs(static_cast<double>(first_moment[i]) - expected);
          worst = std::max(worst, off - 4 * 0x1p-24 * std::abs(expected));
        }
        EXPECT_EQ(worst, 0);
      }
    }
  }
}

TEST_F(Gradients, InRunModeUpToTheOrderOfSums) {
  for (const auto& config : {gpt2_like(), llama_like()}) {
    for (const Mesh& mesh : meshes(config)) {
      compare({.config = config, .mesh = mesh, .layout_mode = false});
      compare({.config = config, .mesh = mesh, .layout_mode = false, .split_sequence = false});
    }
  }
}

}  // namespace
}  // namespace tessera::test
