// State in memory and in checkpoints, under many layouts in one process.
#include "train/state/model_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/system_calls.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/passes/place_buffers.hpp"
#include "support/blocks.hpp"
#include "support/plan_run.hpp"
#include "support/sanitized.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::test {
namespace {

struct Layout {
  std::int64_t data = 1;
  int stage = 0;
  DType compute = DType::f32;
  std::int64_t tensor = 1, pipeline = 1;
  bool frozen = false;  // all blocks
  bool error_feedback = false;
  bool ema = false;
  std::optional<kernels::BlockFormat> codes = {};  // which the matrices of blocks are kept as

  Mesh mesh() const { return {.tensor = tensor, .data = data, .pipeline = pipeline}; }
};

std::string to_string(const Layout& l) {
  return fmt::format("{} data x {} pipeline x {} tensor, stage {}, {}{}", l.data, l.pipeline,
                     l.tensor, l.stage, tessera::to_string(l.compute),
                     l.frozen ? ", blocks frozen" : "");
}

/// One rank's state with memory of its own.
class RankState {
 public:
  RankState(const model::ModelConfig& config, const Layout& l, std::int64_t rank,
            plan::PlanPurpose state_for = plan::PlanPurpose::train) {
    inputs_.state_for = state_for;
    inputs_.model.config = config;
    inputs_.layout.tensor_chunks = l.tensor;
    inputs_.layout.mesh = l.mesh();
    inputs_.model.units = model::model_units(config, l.tensor, {.codes = l.codes});
    if (l.error_feedback) travel_in_blocks(inputs_, {}, {{.block = 32}});
    inputs_.numerics.error_feedback = l.error_feedback;
    if (l.ema) inputs_.optimizer = optim::with_ema(optim::adam(), 0.5);
    for (model::UnitDesc& unit : inputs_.model.units)
      unit.traits.trained =
          unit.traits.trained && (!l.frozen || unit.kind != model::UnitKind::block);
    inputs_.numerics.compute = l.compute;
    inputs_.sharding.stage = l.stage;
    const MeshPlace place = inputs_.layout.mesh.place_of(rank);
    plan::set_place(layout_, inputs_, place);
    plan::add_state(layout_, inputs_);
    plan::place_buffers(layout_);
    for (const auto& [id, word] : EnumWords<plan::ArenaId>::table)
      arenas_[id] = std::make_unique<memory::Arena>(word, tier_, layout_.arena(id));
    state_.emplace(inputs_, place, arenas_);
  }
  train::ModelState& state() { return *state_; }
  const plan::PlanInputs& inputs() const { return inputs_; }
  std::int64_t bytes() const { return layout_.arena(plan::ArenaId::state); }
  std::span<float> floats(const View& symbolic) {
    const View v = real(symbolic);
    return {v.as<float>(), static_cast<std::size_t>(v.elements())};
  }
  View real(View v) {
    const plan::Buffer& buffer = layout_.buffer(plan::buffer_of(v));
    v.data = arenas_[plan::arena_of(buffer)]->base() + buffer.offset + plan::offset_of(v);
    return v;
  }

  /// f(parameter, element, value) for each element of a state that this rank updates; what belongs
  /// to no parameter must be zero.
  template <typename F>
  void each(std::size_t row, F&& f) {
    for (std::size_t u = 0; u < inputs_.model.units.size(); ++u) {
      const auto& s = state_->units()[u];
      if (!s.held || !s.kept[row].live) continue;
      const auto values = floats(s.kept[row].live);
      std::vector<char> named(values.size());
      for (const auto& slice : zero::slices_in(inputs_.model.units[u], s.layout, s.owned)) {
        const auto& p = inputs_.model.units[u].params[slice.parameter];
        auto at = static_cast<std::size_t>(slice.flat - s.owned.begin);
        for (std::int64_t r = slice.part.rows.begin; r < slice.part.rows.end; ++r) {
          for (std::int64_t c = slice.part.columns.begin; c < slice.part.columns.end; ++c) {
            named[at] = 1;
            f(p, r * (p.elements() / p.shape[0]) + c, values[at++]);
          }
        }
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (named[i] != 0) continue;
        EXPECT_EQ(values[i], 0) << "padding of " << inputs_.model.units[u].name;
      }
    }
  }

 private:
  plan::PlanInputs inputs_;
  plan::Plan layout_;
  memory::HostTier tier_;
  train::Arenas arenas_;
  std::optional<train::ModelState> state_;
};

float one_value(const train::ParameterSource& source, const model::ParamDesc& p, std::int64_t e) {
  float x = 0;
  source(p, {e, e + 1}, {&x, 1});
  return x;
}

constexpr std::array kRows = {"master", "adam_m", "adam_v"};

/// Saves the state that `fill` makes of each rank's under a layout.
template <typename Fill>
std::filesystem::path save(const std::filesystem::path& directory, const model::ModelConfig& config,
                           const Layout& l, Fill&& fill) {
  const auto temporary = io::begin_checkpoint(directory, 7);
  std::vector<io::RankPart> parts;
  for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
    RankState r(config, l, rank);
    fill(r);
    const auto pieces = r.state().pieces();
    io::CheckpointWriter writer(temporary, static_cast<int>(rank), pieces);
    r.state().save(writer, train::ModelState::From::live);
    parts.push_back(writer.finish());
  }
  io::CheckpointHeader header;
  header.step = 7;
  header.layout = {.world = l.mesh().size(), .mesh = l.mesh(), .zero_stage = l.stage};
  return io::commit_checkpoint(temporary, header, parts);
}

/// Values of seeds 1, 2 and 3.
std::filesystem::path save(const std::filesystem::path& directory, const model::ModelConfig& config,
                           const Layout& l) {
  return save(directory, config, l, [](RankState& r) {
    r.state().set_parameters(test_values(1));
    for (std::size_t i = 1; i < kRows.size(); ++i) {
      const auto source = test_values(i + 1);
      r.each(i, [&](const auto& p, std::int64_t e, float& x) { x = one_value(source, p, e); });
    }
  });
}

/// Every rank of a layout holds the saved values, and computes with them rounded.
void expect_loaded(const std::filesystem::path& path, const model::ModelConfig& config,
                   const Layout& l) {
  for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
    RankState r(config, l, rank);
    io::Checkpoint checkpoint = io::Checkpoint::open(path);
    r.state().load(checkpoint);
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      const auto source = test_values(i + 1);
      std::int64_t wrong = 0;
      r.each(i, [&](const auto& p, std::int64_t e, float& x) {
        wrong += x != one_value(source, p, e);
      });
      EXPECT_EQ(wrong, 0) << "state " << i << " on rank " << rank;
    }
    for (const auto& s : r.state().units()) {
      if (!s.copy) continue;
      const auto master = r.floats(s.master());
      const View copy = r.real(s.copy);
      for (std::size_t i = 0; i < master.size(); ++i)
        ASSERT_EQ(copy.as<bf16>()[i].bits, bf16(master[i]).bits);
    }
  }
}

// Traps 20, 34 and 46: any layout's checkpoint in any other; 40 ranks are more than some units have
// grains, and three tensor ranks cut four heads.
TEST(ModelState, MovesBetweenLayouts) {
  const std::vector<Layout> layouts = {{1, 0},
                                       {2, 0},
                                       {3, 1},
                                       {4, 2, DType::bf16},
                                       {5, 3},
                                       {40, 3},
                                       {1, 3, DType::bf16},
                                       {.tensor = 2},
                                       {.tensor = 3, .pipeline = 2},
                                       {.data = 2, .stage = 1, .pipeline = 4},
                                       {2, 3, DType::bf16, 4, 2}};
  for (const auto& config :
       {gpt2_like(), llama_like(), qwen_like(), gemma2_like(), balanced_like()}) {
    for (const Layout& from : test::some_of(layouts)) {
      const TemporaryDirectory directory;
      const auto path = save(directory.path(), config, from);
      for (const Layout& to : layouts) {
        SCOPED_TRACE("from " + to_string(from) + " to " + to_string(to));
        expect_loaded(path, config, to);
      }
    }
  }
}

/// Every rank of a layout has the weights of seed 1 where they are frozen, in its own type.
void expect_frozen(const std::filesystem::path& path, const Layout& l, DType rounded) {
  const auto source = test_values(1);
  for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
    RankState r(llama_like(), l, rank);
    io::Checkpoint checkpoint = io::Checkpoint::open(path);
    r.state().load(checkpoint);
    for (std::size_t u = 0; u < r.inputs().model.units.size(); ++u) {
      const auto& s = r.state().units()[u];
      if (!s.held || r.inputs().model.units[u].kind != model::UnitKind::block) continue;
      const std::vector<float> values = widened(r.real(s.own_shard));
      for (const auto& slice : zero::slices_in(r.inputs().model.units[u], s.layout, s.slice)) {
        const auto& p = r.inputs().model.units[u].params[slice.parameter];
        auto at = static_cast<std::size_t>(slice.flat - s.slice.begin);
        for (std::int64_t row = slice.part.rows.begin; row < slice.part.rows.end; ++row) {
          for (std::int64_t c = slice.part.columns.begin; c < slice.part.columns.end; ++c) {
            const float x = one_value(source, p, row * (p.elements() / p.shape[0]) + c);
            ASSERT_EQ(values[at++], rounded == DType::bf16 ? static_cast<float>(bf16(x)) : x)
                << p.name;
          }
        }
      }
    }
  }
}

// A checkpoint has what is frozen as it has all weights, in f32.
TEST(ModelState, FrozenUnitsMoveBetweenLayoutsToo) {
  const std::vector<Layout> layouts = {
      {.compute = DType::bf16, .frozen = true},
      {.data = 2, .stage = 1, .compute = DType::bf16, .frozen = true},
      {.data = 3, .stage = 3, .compute = DType::bf16, .tensor = 2, .pipeline = 2, .frozen = true}};
  for (const Layout& from : layouts) {
    const TemporaryDirectory directory;
    const auto path = save(directory.path(), llama_like(), from, [](RankState& r) {
      r.state().set_parameters(test_values(1));
      for (std::size_t i = 1; i < kRows.size(); ++i)
        r.each(i, [](const auto&, std::int64_t, float& x) { x = 7; });
    });
    for (const Layout& to : layouts) {
      SCOPED_TRACE("from " + to_string(from) + " to " + to_string(to));
      expect_frozen(path, to, DType::bf16);
    }
  }
}

/// All values that a checkpoint has of the matrices of blocks.
std::vector<float> matrices_of_blocks(const std::filesystem::path& path,
                                      const model::ModelConfig& config) {
  io::Checkpoint checkpoint = io::Checkpoint::open(path);
  std::vector<float> all;
  for (const model::UnitDesc& unit : model::model_units(config)) {
    for (const model::ParamDesc& p : unit.params) {
      if (unit.kind != model::UnitKind::block || !p.is_matrix()) continue;
      std::vector<float> values(static_cast<std::size_t>(p.elements()));
      checkpoint.read(p.name, "master", Range{0, p.elements()}, DType::f32,
                      std::as_writable_bytes(std::span(values)));
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

// What codes stand for becomes the same codes again, in shards of any number of ranks, and is saved
// from any of them.
TEST(ModelState, CodesMoveBetweenLayoutsWithTheirBits) {
  auto config = llama_like();
  config.adapter = {.rank = 2, .targets = {"*"}};
  // Half of the widest step between codes' numbers is so much of the largest one.
  for (const auto& [type, half] : {std::pair{kernels::BlockType::int8, 0.5F / 127},
                                   {kernels::BlockType::int4, 0.5F / 7},
                                   {kernels::BlockType::nf4, 0.5F * (1 - 0.6961928F)}}) {
    const kernels::BlockFormat codes{.type = type, .block = 48};
    const std::vector<Layout> layouts = {
        {.compute = DType::bf16, .codes = codes},
        {.data = 2, .stage = 1, .codes = codes},
        {.data = 3, .stage = 3, .compute = DType::bf16, .pipeline = 2, .codes = codes},
        {.data = 40, .stage = 3, .codes = codes}};
    for (const Layout& from : layouts) {
      const TemporaryDirectory directory;
      const auto path = save(directory.path() / "from", config, from, [](RankState& r) {
        EXPECT_FALSE(r.state().set_parameters(test_values(1)));
      });
      const std::vector<float> saved = matrices_of_blocks(path, config);
      const auto uncoded =
          matrices_of_blocks(save(directory.path() / "uncoded", config, {},
                                  [](RankState& r) { r.state().set_parameters(test_values(1)); }),
                             config);
      ASSERT_EQ(saved.size(), uncoded.size());
      // No value is farther off than half a step of the largest of all.
      const float largest =
          std::abs(*std::ranges::max_element(uncoded, {}, [](float x) { return std::abs(x); }));
      std::size_t equal = 0;
      for (std::size_t i = 0; i < saved.size(); ++i) {
        ASSERT_LE(std::abs(saved[i] - uncoded[i]), 1.00002F * half * largest) << i;
        equal += saved[i] == uncoded[i] ? 1 : 0;
      }
      EXPECT_LT(equal, saved.size() / 4);
      for (const Layout& to : layouts) {
        SCOPED_TRACE("from " + to_string(from) + " to " + to_string(to));
        const auto again = save(directory.path() / "to", config, to, [&](RankState& r) {
          io::Checkpoint checkpoint = io::Checkpoint::open(path);
          EXPECT_FALSE(r.state().load(checkpoint));
        });
        EXPECT_EQ(matrices_of_blocks(again, config), saved);
        std::filesystem::remove_all(directory.path() / "to");
      }
    }
  }
}

TEST(ModelState, TellsWhatItsWeightsLoseAsCodes) {
  auto config = llama_like();
  config.adapter = {.rank = 2, .targets = {"*"}};
  RankState r(config, {.codes = kernels::BlockFormat{.type = kernels::BlockType::int4, .block = 2}},
              0);
  // Of a pair (7, 0.5) the second becomes 0, of others nothing is lost.
  r.state().set_parameters([](const model::ParamDesc& p, Range range, std::span<float> out) {
    const bool lossy = p.name == "block.1.mlp.up.weight";
    for (std::int64_t i = range.begin; i < range.end; ++i)
      out[static_cast<std::size_t>(i - range.begin)] = i % 2 == 0 ? 7.0F : lossy ? 0.5F : 0.0F;
  });
  std::size_t of_blocks = 0;
  for (const auto& [name, lost, all] : r.state().code_errors()) {
    const bool lossy = name == "block.1.mlp.up.weight";
    EXPECT_DOUBLE_EQ(lost / all, lossy ? 0.25 / 49.25 : 0) << name;
    EXPECT_TRUE(name.starts_with("block.")) << name;
    ++of_blocks;
  }
  EXPECT_EQ(of_blocks, 7U * static_cast<std::size_t>(config.layers));
  r.state().set_parameters(
      [](const model::ParamDesc&, Range, std::span<float> out) { std::ranges::fill(out, 1.0F); });
  for (const auto& error : r.state().code_errors()) EXPECT_EQ(error.lost, 0) << error.parameter;
}

// Checkpoints have the errors' sum over data ranks; wherever it is loaded, the ranks' errors make
// it up again, but for what bf16 rounds. A checkpoint without errors starts from none.
TEST(ModelState, ErrorsMoveBetweenLayoutsAsTheirSum) {
  const TemporaryDirectory directory;
  const auto config = gpt2_like();
  constexpr std::size_t kSum = 3;  // behind master, adam_m and adam_v
  const auto source = test_values(4);
  const Layout from{.data = 4, .stage = 1, .error_feedback = true};
  const auto saved = save(directory.path() / "with", config, from, [&](RankState& r) {
    r.state().set_parameters(test_values(1));
    r.each(kSum, [&](const auto& p, std::int64_t e, float& x) { x = one_value(source, p, e); });
  });
  const auto plain = save(directory.path() / "without", config, {.data = 2});
  for (const Layout& to : {Layout{.data = 2, .stage = 3, .error_feedback = true},
                           Layout{.data = 2, .stage = 0, .tensor = 2, .error_feedback = true},
                           Layout{.data = 2, .stage = 1, .pipeline = 2, .error_feedback = true},
                           Layout{.data = 3, .stage = 2, .error_feedback = true}}) {
    SCOPED_TRACE(to_string(to));
    for (const bool any : {true, false}) {
      std::map<std::pair<std::string, std::int64_t>, float> sums;
      std::int64_t units = 0;
      for (std::int64_t rank = 0; rank < to.mesh().size(); ++rank) {
        RankState r(config, to, rank);
        io::Checkpoint checkpoint = io::Checkpoint::open(any ? saved : plain);
        EXPECT_FALSE(r.state().load(checkpoint));
        for (std::size_t u = 0; u < r.inputs().model.units.size(); ++u) {
          const auto& s = r.state().units()[u];
          if (!s.held) continue;
          EXPECT_EQ(static_cast<bool>(s.errors), r.inputs().model.units[u].traits.block > 0);
          if (!s.errors) continue;
          ++units;
          const auto errors = widened(r.real(s.errors));
          for (const auto& slice :
               zero::slices_in(r.inputs().model.units[u], s.layout, {0, s.layout.padded})) {
            const auto& p = r.inputs().model.units[u].params[slice.parameter];
            auto at = static_cast<std::size_t>(slice.flat);
            for (std::int64_t row = slice.part.rows.begin; row < slice.part.rows.end; ++row) {
              for (std::int64_t c = slice.part.columns.begin; c < slice.part.columns.end; ++c)
                sums[{p.name, row * (p.elements() / p.shape[0]) + c}] += errors[at++];
            }
          }
        }
      }
      EXPECT_GT(units, 0);
      for (const auto& unit : model::model_units(config, to.tensor, {.block = 32})) {
        for (const auto& p : unit.params) {
          for (std::int64_t e = 0; unit.traits.block > 0 && e < p.elements(); ++e) {
            const auto found = sums.find({p.name, e});
            ASSERT_NE(found, sums.end()) << p.name;
            const float want = any ? static_cast<float>(bf16(one_value(source, p, e))) : 0.0F;
            ASSERT_EQ(found->second, want) << p.name << ", element " << e;
          }
        }
      }
    }
  }
}

/// What evaluation keeps: the weights as forward reads them, with the bits that training has.
TEST(ModelState, EvaluationHoldsTheWeightsAlone) {
  for (const Layout& l : {Layout{1, 0}, Layout{1, 0, DType::bf16}, Layout{3, 0, DType::f16},
                          Layout{3, 1, DType::bf16}, Layout{3, 3, DType::bf16}, Layout{3, 3}}) {
    SCOPED_TRACE(to_string(l));
    const TemporaryDirectory directory;
    const auto path = save(directory.path(), llama_like(), l);
    for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
      RankState training(llama_like(), l, rank);
      RankState evaluating(llama_like(), l, rank, plan::PlanPurpose::evaluate);
      std::int64_t weights = 0;
      for (RankState* r : {&training, &evaluating}) {
        io::Checkpoint checkpoint = io::Checkpoint::open(path);
        r->state().load(checkpoint);
      }
      for (std::size_t u = 0; u < training.state().units().size(); ++u) {
        const auto& want = training.state().units()[u];
        const auto& got = evaluating.state().units()[u];
        EXPECT_EQ(widened(evaluating.real(got.own_shard)), widened(training.real(want.own_shard)));
        const View& held = got.parameters ? got.parameters : got.own_shard;
        weights += round_up(held.span_bytes(), 256);
      }
      EXPECT_LT(evaluating.bytes() - weights, 2048) << "words, scalars and verdict";
    }
  }
}

TEST(ModelState, ALoadOpensTheFilesOfItsOwnPiecesAlone) {
  const Layout l{4, 3};
  const TemporaryDirectory directory;
  const auto path = save(directory.path(), gpt2_like(), l);
  for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
    std::set<std::string> opened;
    io::set_io_hook([&](IoCall call, const std::filesystem::path& file, std::size_t) {
      if (call == IoCall::open) opened.insert(file.filename());
      return io::IoVerdict{};
    });
    io::Checkpoint checkpoint = io::Checkpoint::open(path);
    RankState r(gpt2_like(), l, rank);
    r.state().load(checkpoint);
    io::set_io_hook({});
    EXPECT_EQ(opened, (std::set<std::string>{io::kManifestFile,
                                             io::rank_file_name(static_cast<int>(rank))}));
  }
}

/// By state and name: which elements of a tensor, as a character for each, kHeld or 0.
using Elements = std::map<std::string, std::string>;
constexpr char kHeld = 1;

Elements held_by(RankState& rank) {
  Elements held;
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    const model::ParamDesc* last = nullptr;
    std::string* elements = nullptr;
    rank.each(i, [&](const model::ParamDesc& p, std::int64_t e, float&) {
      if (&p != last) {
        elements = &held[fmt::format("{}/{}", kRows[i], p.name)];
        elements->resize(static_cast<std::size_t>(p.elements()));
        last = &p;
      }
      (*elements)[static_cast<std::size_t>(e)] = kHeld;
    });
  }
  return held;
}

struct Needed {
  std::int64_t own = 0;     // bytes of elements that a rank holds
  std::int64_t blocks = 0;  // bytes of the blocks that they lie in
  std::int64_t cuts = 0;    // where a stretch of them begins or ends within a dataset
};

/// Element by element: what a rank must read of a dataset.
void add_needed(Needed& needed, const io::DatasetRecord& d, const std::string& held) {
  std::string wanted;  // of the dataset's elements, in its order
  for (const io::Box& box : d.boxes) {
    io::for_each_run(
        box, io::Box(d.shape), box, [&](std::int64_t from, std::int64_t, std::int64_t n) {
          wanted.append(held, static_cast<std::size_t>(from), static_cast<std::size_t>(n));
        });
  }
  const auto size = static_cast<std::size_t>(size_of(d.type));
  for (std::int64_t i = 0; i < d.blocks(); ++i) {
    const Range block = d.block_range(i);
    const auto elements =
        std::string_view(wanted).substr(static_cast<std::size_t>(block.begin) / size,
                                        static_cast<std::size_t>(block.count()) / size);
    if (elements.find(kHeld) != std::string_view::npos) needed.blocks += block.count();
  }
  for (std::size_t end = 0, begin = 0; (begin = wanted.find(kHeld, end)) != std::string::npos;) {
    end = std::min(wanted.find('\0', begin), wanted.size());
    needed.own += static_cast<std::int64_t>(size * (end - begin));
    needed.cuts += (begin > 0 ? 1 : 0) + (end < wanted.size() ? 1 : 0);
  }
}

// Each rank reads every block that holds an element of its own, for only a whole one can be
// verified, and reads it once. So beside its own elements it reads less than a block for each place
// where what is its own is cut from what is not: none, if the layout is that of the checkpoint.
// Where columns of a tensor are cut otherwise than they were saved there is a cut in every row, and
// the blocks are all that the tensor has: the first bound counts them.
TEST(ModelState, ALoadReadsTheBlocksOfItsOwnElementsAlone) {
  model::ModelConfig config = gpt2_like();
  config.hidden = 384;  // matrices of 9/16 and 9/4 blocks
  config.head_dim = 96;
  config.ffn_hidden = 1536;
  config.vocab = 1000;
  config.layers = 1;
  const std::vector<Layout> layouts = {{1, 0},
                                       {2, 1},
                                       {4, 3},
                                       {.tensor = 2},
                                       {.stage = 2, .pipeline = 2},
                                       {.data = 2, .stage = 3, .tensor = 2, .pipeline = 2}};
  for (const Layout& from : test::some_of(layouts)) {
    const TemporaryDirectory directory;
    const auto path = save(directory.path(), config, from, [](RankState& r) {
      r.state().set_parameters(
          [](const auto&, Range, std::span<float> out) { std::fill(out.begin(), out.end(), 1); });
    });
    for (const Layout& to : layouts) {
      for (std::int64_t rank = 0; rank < to.mesh().size(); ++rank) {
        SCOPED_TRACE(fmt::format("from {} to rank {} of {}", to_string(from), rank, to_string(to)));
        RankState r(config, to, rank);
        const std::int64_t before = io::io_bytes().read;
        io::Checkpoint checkpoint = io::Checkpoint::open(path);
        const std::int64_t manifest = io::io_bytes().read - before;
        r.state().load(checkpoint);
        const Elements held = held_by(r);
        Needed needed;
        for (const io::RankPart& part : checkpoint.manifest().parts) {
          for (const io::DatasetRecord& d : part.datasets) {
            if (const auto found = held.find(d.name()); found != held.end())
              add_needed(needed, d, found->second);
          }
        }
        EXPECT_EQ(checkpoint.bytes_read(), needed.blocks);
        EXPECT_EQ(io::io_bytes().read - before, needed.blocks + manifest);
        EXPECT_EQ(manifest,
                  static_cast<std::int64_t>(std::filesystem::file_size(path / io::kManifestFile)));
        EXPECT_LE(needed.blocks, needed.own + needed.cuts * (io::kBlockBytes - 1));
        if (to_string(from) == to_string(to) && to.stage > 0 && to.tensor == 1) {
          EXPECT_EQ(needed.blocks, needed.own);
        }
      }
    }
  }
}

/// One element of one matrix is not finite as f32, or not once it is rounded.
TEST(ModelState, NamesAWeightThatIsNotFinite) {
  constexpr const char* kName = "block.1.mlp.up.weight";
  constexpr std::int64_t kElement = 331;
  const std::vector<Layout> layouts = {
      {1, 0}, {3, 1, DType::bf16}, {2, 3, DType::f16}, {.tensor = 2, .pipeline = 2}};
  for (const float value : {std::nanf(""), -HUGE_VALF, 1e6F}) {
    const auto poisoned = [&](const model::ParamDesc& p, Range range, std::span<float> out) {
      test_values(1)(p, range, out);
      if (p.name == kName && range.begin <= kElement && kElement < range.end)
        out[static_cast<std::size_t>(kElement - range.begin)] = value;
    };
    const TemporaryDirectory directory;
    const auto path = save(directory.path(), gpt2_like(), {},
                           [&](RankState& r) { r.state().set_parameters(poisoned); });
    for (const Layout& l : layouts) {
      SCOPED_TRACE(fmt::format("{} on {}", value, to_string(l)));
      std::array<int, 2> found{};
      for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
        RankState r(gpt2_like(), l, rank, plan::PlanPurpose::evaluate);
        io::Checkpoint checkpoint = io::Checkpoint::open(path);
        const std::array all = {r.state().set_parameters(poisoned), r.state().load(checkpoint)};
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (!all[i]) continue;
          ++found[i];
          EXPECT_EQ(all[i]->parameter, kName);
          EXPECT_EQ(all[i]->element, kElement);
          EXPECT_EQ(all[i]->index, fmt::format("[{}, {}]", kElement / gpt2_like().hidden,
                                               kElement % gpt2_like().hidden));
          EXPECT_EQ(std::bit_cast<std::uint32_t>(all[i]->value),
                    std::bit_cast<std::uint32_t>(value));
        }
      }
      const bool is_bad = !std::isfinite(value) || l.compute == DType::f16;
      EXPECT_EQ(found[0] > 0, is_bad);
      EXPECT_EQ(found[1] > 0, is_bad);
    }
  }
}

TEST(ModelState, RefusesACheckpointOfAnotherModel) {
  const TemporaryDirectory directory;
  const auto path = save(directory.path(), gpt2_like(), {});
  auto wider = gpt2_like();
  wider.ffn_hidden = 48;
  RankState r(wider, {}, 0);
  io::Checkpoint checkpoint = io::Checkpoint::open(path);
  const std::string message = message_of<DataError>([&] { r.state().load(checkpoint); });
  EXPECT_NE(message.find("block.0.mlp.up.weight"), std::string::npos) << message;
  auto deeper = gpt2_like();
  deeper.layers = 3;
  RankState other(deeper, {}, 0);
  const std::string missing = message_of<DataError>([&] { other.state().load(checkpoint); });
  EXPECT_NE(missing.find("missing"), std::string::npos) << missing;
}

/// A checkpoint of a model with these updates behind it, of master weights alone.
std::filesystem::path save_weights_alone(const std::filesystem::path& directory,
                                         std::int64_t updates) {
  RankState r(gpt2_like(), {}, 0);
  std::vector<io::Piece> pieces;
  for (const io::Piece& piece : r.state().pieces()) {
    if (piece.state == "master") pieces.push_back(piece);
  }
  const auto temporary = io::begin_checkpoint(directory, updates);
  io::CheckpointWriter writer(temporary, 0, pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::vector<float> ones(static_cast<std::size_t>(pieces[i].box.elements()), 1.0F);
    writer.write(i, std::as_bytes(std::span(ones)));
  }
  const io::RankPart part = writer.finish();
  return io::commit_checkpoint(temporary, {.step = updates, .applied_updates = updates},
                               std::span(&part, 1));
}

TEST(ModelState, WeightsAreEnoughOfAModelThatWasNotTrained) {
  const TemporaryDirectory directory;
  RankState r(gpt2_like(), {}, 0);
  for (std::size_t i = 0; i < kRows.size(); ++i)
    r.each(i, [&](const auto&, std::int64_t, float& x) { x = 7; });
  io::Checkpoint imported = io::Checkpoint::open(save_weights_alone(directory.path(), 0));
  r.state().load(imported);
  for (std::size_t i = 0; i < kRows.size(); ++i)
    r.each(i, [&](const auto&, std::int64_t, float& x) { ASSERT_EQ(x, i == 0 ? 1 : 0); });
  io::Checkpoint trained = io::Checkpoint::open(save_weights_alone(directory.path(), 5));
  const std::string message = message_of<DataError>([&] { r.state().load(trained); });
  EXPECT_NE(message.find("adam_m"), std::string::npos) << message;
}

// An average that nobody kept so far begins as the weights; one that is there goes on.
TEST(ModelState, AveragesBeginAsTheWeights) {
  constexpr std::size_t kAverage = 3;
  const TemporaryDirectory directory;
  const Layout with{.data = 2, .stage = 1, .compute = DType::bf16, .ema = true};
  const auto expect_average = [&](RankState& r, std::uint64_t seed) {
    const auto source = test_values(seed);
    std::int64_t seen = 0;
    r.each(kAverage, [&](const auto& p, std::int64_t e, float& x) {
      ++seen;
      ASSERT_EQ(x, one_value(source, p, e));
    });
    EXPECT_GT(seen, 0);
  };
  RankState r(gpt2_like(), with, 1);
  r.state().set_parameters(test_values(5));
  expect_average(r, 5);
  io::Checkpoint without = io::Checkpoint::open(save(directory.path() / "a", gpt2_like(), {}));
  r.state().load(without);
  expect_average(r, 1);
  const auto kept = save(directory.path() / "b", gpt2_like(), with, [](RankState& of) {
    of.state().set_parameters(test_values(1));
    const auto source = test_values(9);
    of.each(kAverage,
            [&](const auto& p, std::int64_t e, float& x) { x = one_value(source, p, e); });
  });
  io::Checkpoint with_average = io::Checkpoint::open(kept);
  r.state().load(with_average);
  expect_average(r, 9);
}

// Trap 25: a rank's initial values are those that one rank would have there.
TEST(ModelState, InitialValuesDoNotDependOnTheLayout) {
  const auto source = train::initial_values(9);
  for (const Layout& l : {Layout{1, 0}, Layout{3, 0}, Layout{3, 1}, Layout{8, 3},
                          Layout{.tensor = 3, .pipeline = 2}, Layout{2, 1, DType::f32, 2, 2}}) {
    SCOPED_TRACE(to_string(l));
    for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
      RankState r(gpt2_like(), l, rank);
      r.state().set_parameters(source);
      std::int64_t wrong = 0;
      r.each(plan::kMasterRow, [&](const auto& p, std::int64_t e, float& x) {
        wrong += x != one_value(source, p, e);
      });
      EXPECT_EQ(wrong, 0) << rank;
    }
  }
}

// Whatever part of a parameter is asked for, one rank alone says each of its elements, and the
// others 0: their bits united are the weights.
TEST(ModelState, OneRankSaysEachWeight) {
  const auto source = train::initial_values(9);
  for (const auto& config : {gpt2_like(), llama_like(), mixtral_like()}) {
    for (const Layout& l : {Layout{1, 0}, Layout{3, 0}, Layout{3, 1, DType::bf16}, Layout{8, 3},
                            Layout{.tensor = 3, .pipeline = 2}, Layout{2, 3, DType::f32, 2, 2},
                            Layout{.data = 2, .stage = 2, .frozen = true}}) {
      SCOPED_TRACE(to_string(l));
      std::vector<std::unique_ptr<RankState>> ranks;
      for (std::int64_t rank = 0; rank < l.mesh().size(); ++rank) {
        ranks.push_back(std::make_unique<RankState>(config, l, rank));
        ranks.back()->state().set_parameters(source);
      }
      for (const auto& unit : model::model_units(config)) {
        for (const auto& p : unit.params) {
          for (const Range& range :
               {Range{0, p.elements()}, Range{p.elements() / 3, p.elements() - 1}}) {
            std::vector<float> want(static_cast<std::size_t>(range.count())), own(want);
            std::vector<std::uint32_t> united(want.size());
            std::vector<int> said(want.size());
            source(p, range, want);
            for (const auto& rank : ranks) {
              rank->state().own_weights(p, range, own);
              for (std::size_t i = 0; i < own.size(); ++i) {
                united[i] |= std::bit_cast<std::uint32_t>(own[i]);
                said[i] += own[i] != 0 ? 1 : 0;
              }
            }
            for (std::size_t i = 0; i < want.size(); ++i) {
              ASSERT_EQ(std::bit_cast<float>(united[i]), want[i]) << p.name;
              ASSERT_LE(said[i], 1) << p.name;
            }
          }
        }
      }
    }
  }
}

// Trap 26: no two layers, and no two parameters, draw the same numbers; 1 / sqrt(elements) is the
// deviation of a mean, 1 / sqrt(2 elements) the relative one of a deviation: five of them.
TEST(ModelState, InitialValuesHaveTheirDistribution) {
  auto config = gpt2_like();
  config.hidden = 64, config.head_dim = 16;
  const auto source = train::initial_values(9);
  std::map<float, std::string> first_values;
  for (const auto& unit : model::model_units(config)) {
    for (const auto& p : unit.params) {
      std::vector<float> values(static_cast<std::size_t>(p.elements()));
      source(p, {0, p.elements()}, values);
      if (p.init != model::Init::normal) {
        EXPECT_EQ(values.back(), p.init == model::Init::ones ? 1 : 0) << p.name;
        continue;
      }
      const auto [it, fresh] = first_values.emplace(values[0], p.name);
      EXPECT_TRUE(fresh) << p.name << " starts as " << it->second;
      double mean = 0, square = 0;
      for (float x : values) mean += x, square += static_cast<double>(x) * x;
      const auto n = static_cast<double>(values.size());
      EXPECT_NEAR(mean / n, 0, 5 * p.init_std / std::sqrt(n)) << p.name;
      EXPECT_NEAR(std::sqrt(square / n) / p.init_std, 1, 5 / std::sqrt(2 * n)) << p.name;
    }
  }
}

// After updates, too, forward reads the master weights rounded, and moments are f32.
TEST(ModelState, ParametersStayTheMasterRounded) {
  const auto device = kernels::make_cpu_device({});
  auto inputs = plan_inputs_of(llama_like(), *device, DType::bf16);
  PlanRun run(inputs, *device, {.sequence = 6, .micro = 2, .micro_batches = 2});
  run.state().set_parameters(test_values(11));
  const auto before = widened(run.real(run.state().units()[0].master()));
  for (int t = 1; t <= 3; ++t) EXPECT_TRUE(run.step(4 * t, {.update = t}).applied);
  EXPECT_NE(widened(run.real(run.state().units()[0].master())), before);
  for (const auto& s : run.state().units()) {
    const auto master = widened(run.real(s.master())), copy = widened(run.real(s.copy));
    for (std::size_t i = 0; i < master.size(); ++i)
      EXPECT_EQ(copy[i], static_cast<float>(bf16(master[i])));
  }
}

}  // namespace
}  // namespace tessera::test
