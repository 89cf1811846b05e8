// The flat layout by brute force: every element of the model has one owner, padding has none.
#include "zero/unit_layout.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

namespace tessera::zero {
namespace {

model::ModelConfig config(bool llama) {
  model::ModelConfig c{.layers = 2,
                       .heads = 3,
                       .kv_heads = 3,
                       .head_dim = 2,
                       .hidden = 6,
                       .ffn_hidden = 11,
                       .vocab = 37,
                       .context = 5};
  if (llama) {
    c.kv_heads = 1;
    c.norm = NormKind::rmsnorm;
    c.activation = ActivationKind::swiglu;
    c.bias = c.tied_embeddings = false;
  }
  return c;
}

/// First element of a slice of a parameter that is not cut: its columns are whole, or it is within
/// one row.
std::int64_t first_of(const model::UnitDesc& unit, const ParameterSlice& s) {
  const auto& p = unit.params[s.parameter];
  return s.part.rows.begin * (p.elements() / p.shape[0]) + s.part.columns.begin;
}

/// f(unit, ranks, layout)
template <typename F>
void for_layouts(F&& f) {
  for (bool llama : {false, true}) {
    for (const auto& unit : model::model_units(config(llama))) {
      for (std::int64_t ranks : {1, 2, 3, 4, 5, 7, 8, 12, 64, 1000}) {
        SCOPED_TRACE(fmt::format("{} over {} ranks", unit.name, ranks));
        f(unit, ranks, unit_layout(unit, ranks));
      }
    }
  }
}

TEST(UnitLayout, ShardsDivideTheBufferEvenly) {
  for_layouts([](const auto&, std::int64_t ranks, const UnitLayout& l) {
    EXPECT_EQ(l.padded, l.shard * ranks);
    EXPECT_EQ(l.shard % kShardGrain, 0);
    EXPECT_GE(l.padded, l.used);
    EXPECT_LT(l.padded - l.used, ranks * kShardGrain);
    std::int64_t at = 0;
    for (std::int64_t r = 0; r < ranks; ++r) {
      EXPECT_EQ(l.shard_of(r).begin, at);
      at = l.shard_of(r).end;
    }
    EXPECT_EQ(at, l.padded);
  });
}

// Only padding at the end depends on the number of ranks, so shards of different layouts hold the
// same elements at the same places.
TEST(UnitLayout, OffsetsDoNotDependOnRanks) {
  for_layouts([](const auto& unit, std::int64_t, const UnitLayout& l) {
    const UnitLayout one = unit_layout(unit, 1);
    for (std::size_t i = 0; i < unit.params.size(); ++i)
      EXPECT_EQ(l.offset_of(i), one.offset_of(i)) << unit.params[i].name;
    EXPECT_EQ(l.used, one.used);
  });
}

TEST(UnitLayout, ParametersDoNotOverlapAndStartAligned) {
  for_layouts([](const auto& unit, std::int64_t, const UnitLayout& l) {
    std::int64_t end = 0;
    for (const LayoutPiece& piece : l.pieces) {
      const auto& p = unit.params[piece.parameter];
      EXPECT_EQ(piece.offset, p.joined ? end : round_up(end, kPieceGrain)) << p.name;
      EXPECT_EQ(piece.part.elements(), p.stored_elements()) << "one rank has all of it";
      end = piece.offset + p.stored_elements();
    }
    EXPECT_EQ(end, l.used);
  });
}

// Traps 35 and 47: each element of each parameter is in the slices of exactly one rank, whatever
// the number of ranks, also when most of them own nothing; padding and gaps are in none.
TEST(UnitLayout, EveryElementHasOneOwner) {
  for_layouts([](const auto& unit, std::int64_t ranks, const UnitLayout& l) {
    std::vector<int> owners(static_cast<std::size_t>(l.padded));
    std::vector<std::vector<int>> seen;
    for (const auto& p : unit.params) seen.emplace_back(static_cast<std::size_t>(p.elements()));
    for (std::int64_t r = 0; r < ranks; ++r) {
      std::int64_t last = -1;
      for (const auto& s : slices_in(unit, l, l.shard_of(r))) {
        EXPECT_GT(s.part.elements(), 0);
        EXPECT_GT(s.flat, last) << "not in flat order";
        EXPECT_EQ(s.flat, l.offset_of(s.parameter) + first_of(unit, s));
        EXPECT_GE(s.flat, l.shard_of(r).begin);
        EXPECT_LE(s.flat + s.part.elements(), l.shard_of(r).end);
        last = s.flat;
        for (std::int64_t e = 0; e < s.part.elements(); ++e) {
          ++owners[static_cast<std::size_t>(s.flat + e)];
          ++seen[s.parameter][static_cast<std::size_t>(first_of(unit, s) + e)];
        }
      }
    }
    std::int64_t owned = 0;
    for (int n : owners) {
      EXPECT_LE(n, 1);
      owned += n;
    }
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      for (int n : seen[i]) EXPECT_EQ(n, 1) << unit.params[i].name;
      elements += unit.params[i].elements();
    }
    EXPECT_EQ(owned, elements);
  });
}

// However a model is cut into chunks, tiles and what travels in blocks, over however many ranks of
// both kinds.
TEST(UnitLayout, EveryElementHasOneOwnerAmongTiles) {
  for (const auto& [tensor, tiles, more, block] : {std::array<std::int64_t, 4>{1, 3, 1, 0},
                                                   {1, 2, 2, 0},
                                                   {2, 2, 1, 0},
                                                   {3, 1, 1, 0},
                                                   {2, 2, 2, 0},
                                                   {1, 1, 1, 64},
                                                   {2, 1, 1, 6},
                                                   {1, 2, 1, 64},
                                                   {2, 2, 1, 2}}) {
    const std::int64_t chunks = tensor * tiles * more;
    model::ModelConfig c = config(false);
    c.heads = c.kv_heads = 9, c.hidden = 18;
    const auto units = model::model_units(c, chunks, {.tiles = tiles, .block = block});
    EXPECT_EQ(model::parameter_count(units), model::parameter_count(model::model_units(c)));
    std::map<std::string, std::vector<int>> owners;
    for (const auto& unit : model::model_units(c)) {
      for (const auto& p : unit.params)
        owners[p.name].assign(static_cast<std::size_t>(p.elements()), 0);
    }
    for (std::int64_t t = 0; t < tensor; ++t) {
      const model::TensorCut cut{.chunks = chunks, .ranks = tensor, .rank = t};
      for (const auto& unit : units) {
        const UnitLayout l = unit_layout(unit, 2, cut);
        for (const auto& s : slices_in(unit, l, {0, l.padded})) {
          if (s.whole && t > 0) continue;
          const auto& p = unit.params[s.parameter];
          const std::int64_t width = p.elements() / p.shape[0];
          for (std::int64_t row = s.part.rows.begin; row < s.part.rows.end; ++row) {
            for (std::int64_t x = s.part.columns.begin; x < s.part.columns.end; ++x)
              ++owners.at(p.name)[static_cast<std::size_t>(row * width + x)];
          }
        }
      }
    }
    for (const auto& [name, counts] : owners) {
      for (const int n : counts)
        ASSERT_EQ(n, 1) << name << " in " << tiles << " tiles on " << tensor << " ranks";
    }
  }
}

// ZeRO++: which elements share a scale depends on no number of data ranks, and no two matrices have
// a share in one block but those that one product serves. Vectors, and what every tensor rank must
// have alike, travel as they are.
TEST(UnitLayout, BlocksAreOfOneMatrixWhateverTheRanks) {
  for (const bool llama : {false, true}) {
    for (const std::int64_t block : {2, 6, 64, 256}) {
      for (const std::int64_t tensor : {1, 2, 4}) {
        model::ModelConfig c = config(llama);
        c.heads = 4, c.kv_heads = llama ? 2 : 4;
        std::int64_t in_blocks = 0;
        for (const auto& unit : model::model_units(c, tensor, {.block = block})) {
          const bool travels = unit.traits.block > 0;
          in_blocks += travels ? 1 : 0;
          for (const auto& p : unit.params) {
            const bool part = p.is_matrix() && (p.tensor_axis >= 0 || tensor == 1);
            EXPECT_EQ(travels, part) << p.name;
          }
          const model::TensorCut cut{.chunks = tensor, .ranks = tensor, .rank = tensor - 1};
          const UnitLayout one = unit_layout(unit, 1, cut);
          for (const std::int64_t data : {2, 3, 4}) {
            const UnitLayout l = unit_layout(unit, data, cut);
            for (std::size_t i = 0; i < l.pieces.size(); ++i) {
              EXPECT_EQ(l.pieces[i].offset, one.pieces[i].offset);
              const bool joined = unit.params[l.pieces[i].parameter].joined;
              if (travels && !joined) {
                EXPECT_EQ(l.pieces[i].offset % block, 0);
              }
            }
            if (travels) {
              EXPECT_EQ(l.shard % block, 0);
            }
          }
        }
        EXPECT_GT(in_blocks, c.layers);
      }
    }
  }
}

TEST(UnitLayout, SlicesOfAnyRangeAreItsElements) {
  const auto unit = model::model_units(config(false))[2];
  const UnitLayout l = unit_layout(unit, 3);
  std::vector<int> holder(static_cast<std::size_t>(l.padded), -1);
  for (const auto& s : slices_in(unit, l, {0, l.padded})) {
    for (std::int64_t e = 0; e < s.part.elements(); ++e)
      holder[static_cast<std::size_t>(s.flat + e)] = static_cast<int>(s.parameter);
  }
  for (std::int64_t begin = 0; begin < l.padded; begin += 7) {
    for (std::int64_t end = begin; end <= l.padded; end += 13) {
      std::vector<int> here(static_cast<std::size_t>(l.padded), -1);
      for (const auto& s : slices_in(unit, l, {begin, end})) {
        for (std::int64_t e = 0; e < s.part.elements(); ++e)
          here[static_cast<std::size_t>(s.flat + e)] = static_cast<int>(s.parameter);
      }
      for (std::int64_t i = 0; i < l.padded; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(here[at], i >= begin && i < end ? holder[at] : -1) << i;
      }
    }
  }
}

TEST(UnitLayout, MatricesComeBeforeVectors) {
  for_layouts([](const auto& unit, std::int64_t, const UnitLayout& l) {
    bool vectors = false;
    for (const auto& s : slices_in(unit, l, {0, l.padded})) {
      const auto& p = unit.params[s.parameter];
      EXPECT_FALSE(vectors && p.is_matrix()) << p.name;
      vectors = vectors || !p.is_matrix();
    }
  });
}

TEST(UnitLayout, ViewsHaveTheStoredShapes) {
  for_layouts([](const auto& unit, std::int64_t, const UnitLayout& l) {
    std::vector<std::byte> memory(static_cast<std::size_t>(4 * l.padded));
    const auto views = parameter_views(unit, l, View(memory.data(), DType::f32, {l.padded}));
    for (std::size_t i = 0; i < views.size(); ++i) {
      const auto& p = unit.params[i];
      ASSERT_EQ(views[i].size(), 1U);
      const View& view = views[i][0];
      EXPECT_EQ(view.data - memory.data(), 4 * l.offset_of(i));
      EXPECT_EQ(view.elements(), p.stored_elements());
      EXPECT_EQ(view.rank, static_cast<int>(p.shape.size()));
      EXPECT_EQ(view.cols(), p.shape.back());
    }
    EXPECT_THROW(parameter_views(unit, l, View(memory.data(), DType::f32, {l.padded - 1})),
                 InternalError);
  });
}

}  // namespace
}  // namespace tessera::zero
