// Where an element's bits are a function of its inputs alone, a GPU's are the CPU's: elementwise
// operations, trees and exact sums. The CPU's baseline rounds multiply-adds twice and is left out.
#include "core/exact_sum.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/sdpa_rules.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// What a call writes, by its copies of the tensors.
using Outputs = std::vector<Tensor>;

void expect_same_bits(const std::function<Outputs(Device&)>& f, const std::string& what) {
  const Outputs cpu = f(*make_cpu_device({.threads = 2}));
  const Outputs gpu = f(*tessera::test::make_cuda_test_device());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_TRUE(cpu[i].same_bits(gpu[i])) << what << ", output " << i;
    EXPECT_TRUE(gpu[i].gaps_intact()) << what << ", output " << i;
  }
}

/// Wide accesses, ragged rows, gaps that break alignment and gaps that keep it.
struct Shape {
  std::int64_t samples, tokens, columns, gap;
};
const std::vector<Shape> kShapes = {{2, 7, 64, 0}, {2, 5, 72, 8}, {3, 5, 37, 3}, {1, 3, 1, 0}};

class BackEnds : public testing::Test {
 protected:
  void SetUp() override {
    if (best_isa() < Isa::v3) GTEST_SKIP() << "needs a CPU with fused multiply-add";
  }
  void for_shapes(const std::function<void(DType, const Shape&, const std::string&)>& f) {
    for (DType type : kTypes) {
      for (const Shape& s : kShapes) {
        f(type, s,
          fmt::format("{} ({}, {}, {}) + {}", to_string(type), s.samples, s.tokens, s.columns,
                      s.gap));
      }
    }
  }
  static Tensor random(DType type, const Shape& s, unsigned seed) {
    return Tensor::random(type, {s.samples, s.tokens, s.columns}, seed, 2, s.gap);
  }
  static Tensor indices(std::int64_t samples) {
    Tensor t(DType::i64, {samples});
    for (std::int64_t b = 0; b < samples; ++b) t.set(b, static_cast<double>(7 * b + 1));
    return t;
  }
};

TEST_F(BackEnds, AgreeOnDropoutAndSums) {
  for_shapes([](DType type, const Shape& s, const std::string& what) {
    const Tensor samples = indices(s.samples), x = random(type, s, 1), y = random(type, s, 2);
    for (std::int64_t first : {0, 1, 2, 3, 1000000007}) {
      const Dropout dropout{
          .p = 0.3F, .seed = 5, .site = 2, .first = first, .samples = samples.view()};
      expect_same_bits(
          [&](Device& device) {
            Outputs out;
            for (int i = 0; i < 2; ++i) out.push_back(x.copy());
            run(device, AddPending{.resid = x.view(),
                                   .pending = y.view(),
                                   .sum = out[0].view(),
                                   .dropout = dropout});
            run(device, ApplyDropout{.x = x.view(), .out = out[1].view(), .dropout = dropout});
            return out;
          },
          what + " from " + std::to_string(first));
    }
  });
}

TEST_F(BackEnds, AgreeOnExamples) {
  for_shapes([](DType type, const Shape& s, const std::string& what) {
    expect_same_bits(
        [&](Device& device) {
          Outputs all;
          const auto tensor = [&] {
            all.push_back(random(type, s, static_cast<unsigned>(all.size())));
            return all.back().view();
          };
          for_each_example(tensor, [&](const auto& call) { run(device, call); });
          return all;
        },
        what);
  });
}

/// Documents of `length` tokens, the last of what is left.
Tensor documents_of(const Shape& s, std::int64_t length) {
  Tensor documents(DType::i32, {s.samples, s.tokens, 2});
  for (std::int64_t i = 0; i < s.samples * s.tokens; ++i) {
    const std::int64_t begin = i % s.tokens / length * length;
    documents.set(2 * i, static_cast<double>(begin));
    documents.set(2 * i + 1, static_cast<double>(std::min(begin + length, s.tokens)));
  }
  return documents;
}

TEST_F(BackEnds, AgreeOnEmbedding) {
  for_shapes([](DType type, const Shape& s, const std::string& what) {
    const std::int64_t vocabulary = 5, n = s.samples * s.tokens;
    const Tensor samples = indices(s.samples), d = random(type, s, 3);
    const auto table = Tensor::random(type, {vocabulary, s.columns}, 4, 1, s.gap);
    const auto positions = Tensor::random(type, {s.tokens + 2, s.columns}, 5);
    const auto x = Tensor::random(DType::f32, {s.samples, s.tokens, s.columns}, 6);
    Tensor tokens(DType::i32, {s.samples, s.tokens});
    for (std::int64_t i = 0; i < n; ++i) tokens.set(i, i * i % 4);
    const Dropout dropout{.p = 0.2F, .seed = 5, .site = 3, .samples = samples.view()};
    const Tensor documents = documents_of(s, 3);
    const Tensor longer = documents_of({s.samples, s.tokens + 1, s.columns, 0}, 3);
    for (const View& within : {View(), documents.view()}) {
      const View add_within = within ? longer.view() : View();
      expect_same_bits(
          [&](Device& device) {
            Outputs out;
            out.push_back(d.copy());
            out.push_back(d.copy());
            out.push_back(Tensor::random(DType::f32, {vocabulary, s.columns}, 7, 1, s.gap));
            out.push_back(Tensor::random(type, {s.tokens + 2, s.columns}, 8));
            run(device, Embed{.tokens = tokens.view(),
                              .token_table = table.view(),
                              .position_table = positions.view(),
                              .documents = within,
                              .out = out[0].view(),
                              .first_position = within ? 0 : 2,
                              .dropout = dropout});
            run(device, AddPositions{.x = x.view(),
                                     .position_table = positions.view(),
                                     .documents = add_within,
                                     .out = out[1].view(),
                                     .first_position = 1,
                                     .dropout = dropout});
            run(device, EmbedBackward{.tokens = tokens.view(),
                                      .d = d.view(),
                                      .d_token_table = out[2].view(),
                                      .d_position_table = out[3].view(),
                                      .documents = within,
                                      .position_write = Write::add,
                                      .dropout = dropout});
            return out;
          },
          what + (within ? " with documents" : ""));
    }
  });
}

TEST_F(BackEnds, AgreeOnPooling) {
  const auto expect = [](DType type, const Shape& s, const std::string& what) {
    const Tensor x = random(type, s, 3), documents = documents_of(s, s.tokens * 2 / 5 + 1);
    for (const Pooling kind : {Pooling::mean, Pooling::first, Pooling::last}) {
      for (const View& within : {View(), documents.view()}) {
        // Of the first document, and of more than there are.
        const auto d = Tensor::random(type, {s.samples * (within ? 4 : 1), s.columns}, 4, 1, s.gap);
        expect_same_bits(
            [&](Device& device) {
              Outputs out;
              out.push_back(d.copy());
              out.push_back(x.copy());
              run(device,
                  Pool{.x = x.view(), .documents = within, .out = out[0].view(), .kind = kind});
              run(device,
                  PoolBackward{
                      .d_out = d.view(), .documents = within, .d_x = out[1].view(), .kind = kind});
              return out;
            },
            what + ", " + std::string(enum_word(kind)));
      }
    }
  };
  for_shapes(expect);
  for (const DType type : kTypes) {  // more tokens than a thread has on their way at a time
    for (const std::int64_t gap : {0, 3}) {
      const Shape s{2, 601, 70, gap};
      expect(type, s, fmt::format("{} tokens of {} + {}", s.tokens, to_string(type), gap));
    }
  }
}

TEST_F(BackEnds, AgreeOnColumnsThatAreScaled) {
  for_shapes([](DType type, const Shape& s, const std::string& what) {
    const auto magnitude = Tensor::random(DType::f32, {s.columns}, 4);
    const auto bias = Tensor::random(type, {s.columns}, 5);
    Tensor squares(DType::f32, {s.columns});
    for (std::int64_t c = 0; c < s.columns; ++c) squares.set(c, static_cast<double>(c % 7));
    for (const DType of_x : {type, DType::f32}) {
      const auto x = Tensor::random(of_x, {s.samples, s.tokens, s.columns}, 3, 1, s.gap);
      for (const bool scaled : {true, false}) {
        expect_same_bits(
            [&](Device& device) {
              Outputs out;
              out.push_back(random(type, s, 6));
              run(device, ScaleColumns{.x = x.view(),
                                       .magnitude = scaled ? magnitude.view() : View(),
                                       .squares = scaled ? squares.view() : View(),
                                       .bias = bias.view(),
                                       .out = out[0].view()});
              return out;
            },
            what + " of " + std::string(to_string(of_x)));
      }
    }
  });
}

// Also where experts, choices and groups are as many as there may be.
struct Router {
  std::int64_t experts;
  Routing routing;
};
const std::vector<Router> kRouters = {
    {8, {.choices = 2, .normalized = true}},
    {40,
     {.choices = 6,
      .scores = RouterScores::sigmoid,
      .normalized = true,
      .scale = 2.5F,
      .groups = 5,
      .open_groups = 2,
      .group_score = GroupScore::two_largest}},
    {kMostExperts, {.choices = kMostChoices, .groups = kMostGroups, .open_groups = 7}},
};

TEST_F(BackEnds, AgreeOnExperts) {
  const std::int64_t samples = 2, tokens = 2 * 37, columns = 50;
  for (const auto& [experts, routing] : kRouters) {
    const auto logits = Tensor::random(DType::f32, {tokens, experts}, 1, 2),
               bias = Tensor::random(DType::f32, {experts}, 2, 0.1),
               d_weights = Tensor::random(DType::f32, {tokens, routing.choices}, 3),
               scale = Tensor::random(DType::f32, {1}, 4),
               x = Tensor::random(DType::bf16, {tokens, columns}, 5);
    Tensor verdict(DType::f32, {kVerdictFields});
    for (std::int64_t i = 0; i < kVerdictFields; ++i) verdict.set(i, 1);
    const auto run_all = [&](Device& device) {
      Outputs out;
      const auto make = [&](DType type, std::vector<std::int64_t> shape) {
        out.emplace_back(type, std::move(shape));
        return out.back().view();
      };
      const std::int64_t choices = routing.choices;
      const View chosen = make(DType::i32, {tokens, choices}),
                 weights = make(DType::f32, {tokens, choices}),
                 stats = make(DType::f32, {tokens, kRouteStats}),
                 counts = make(DType::f32, {samples, experts}), dropped = make(DType::i64, {1});
      run(device, Route{.logits = logits.view(),
                        .bias = bias.view(),
                        .experts = chosen,
                        .weights = weights,
                        .stats = stats,
                        .routing = routing});
      run(device, ExpertLoad{.logits = logits.view(),
                             .stats = stats,
                             .experts = chosen,
                             .counts = counts,
                             .shares = make(DType::f32, {samples, experts}),
                             .routing = routing});
      run(device, RouteBackward{.logits = logits.view(),
                                .stats = stats,
                                .experts = chosen,
                                .d_weights = d_weights.view(),
                                .counts = counts,
                                .scale = scale.view(),
                                .d_logits = make(DType::bf16, {tokens, experts}),
                                .terms = {.balance = 0.01F, .z = 0.1F},
                                .routing = routing});
      run(device, CountChoices{.experts = chosen, .counts = make(DType::i64, {experts})});
      const View counted = make(DType::i64, {experts});
      run(device, CountChoices{.experts = chosen, .counts = counted});
      run(device, BalanceExperts{.choices = counted,
                                 .kept = make(DType::f32, {experts}),
                                 .verdict = verdict.view(),
                                 .rate = 0.001F});
      run(device, BalanceExperts{.choices = counted,
                                 .kept = make(DType::f32, {experts}),
                                 .verdict = verdict.view(),
                                 .by = BalanceBy::shares});
      run(device, CountChoices{.experts = chosen,
                               .counts = make(DType::i64, {experts}),
                               .dropped = dropped,
                               .capacity = 5});
      EXPECT_GT(*dropped.as<std::int64_t>(), 0);
      for (const auto& [own, capacity] :
           {std::pair{Range{0, experts}, 0}, {Range{experts / 4, experts / 2}, 5}}) {
        const std::int64_t rows = dispatched_rows(tokens, choices, own.count(), capacity);
        const View place = make(DType::i32, {tokens, choices}), source = make(DType::i32, {rows}),
                   spread = make(DType::bf16, {rows, columns});
        run(device, Dispatch{.experts = chosen,
                             .place = place,
                             .source = source,
                             .begins = make(DType::i32, {own.count() + 1}),
                             .first = own.begin,
                             .all = experts,
                             .capacity = capacity});
        run(device, SpreadRows{.x = x.view(),
                               .weights = weights,
                               .source = source,
                               .rows = spread,
                               .choices = choices});
        run(device, CombineRows{.rows = spread,
                                .weights = weights,
                                .place = place,
                                .out = make(DType::f32, {tokens, columns})});
        run(device,
            PartsOfChoices{
                .experts = chosen,
                .place = place,
                .parts = make(DType::i32, {tokens, std::min<std::int64_t>(choices, own.count())}),
                .own = make(DType::i32, {tokens, choices}),
                .first = own.begin,
                .count = own.count()});
        run(device, SpreadRows{.x = x.view(),
                               .source = source,
                               .rows = make(DType::bf16, {rows, columns}),
                               .choices = choices});
      }
      return out;
    };
    expect_same_bits(run_all, fmt::format("{} of {} experts", routing.choices, experts));
  }
}

TEST_F(BackEnds, AgreeOnGatesOfTwoLevels) {
  const std::int64_t tokens = 2 * 37 + 129;
  for (const Router& r : std::vector<Router>{
           {9, {.choices = 4, .groups = 3, .open_groups = 2}},
           {kMostExperts, {.choices = kMostChoices, .groups = kMostGroups, .open_groups = 8}}}) {
    const std::int64_t columns = r.experts + r.routing.groups;
    const auto logits = Tensor::random(DType::f32, {tokens, columns}, 1, 2),
               d_joined = Tensor::random(DType::f32, {tokens, r.experts}, 2);
    expect_same_bits(
        [&](Device& device) {
          Outputs out;
          for (const DType type : {DType::f32, DType::bf16})
            out.emplace_back(type, std::vector{tokens, columns});
          out.emplace_back(DType::f32, std::vector{tokens, r.experts});
          const View joined = out.back().view();
          run(device, JoinGates{.logits = logits.view(), .joined = joined, .routing = r.routing});
          for (std::size_t i = 0; i < 2; ++i) {
            run(device, JoinGatesBackward{.joined = joined,
                                          .d_joined = d_joined.view(),
                                          .d_logits = out[i].view(),
                                          .routing = r.routing});
          }
          return out;
        },
        fmt::format("{} experts in {} groups", r.experts, r.routing.groups));
  }
}

// Hot tokens have several hundred places, in several tiles of the sort; rows need three digits.
TEST_F(BackEnds, AgreeOnTheOrderOfManyPlaces) {
  const std::int64_t samples = 2, tokens = 3001, columns = 12, vocabulary = 70000;
  Tensor ids(DType::i32, {samples, tokens});
  std::mt19937 random(3);
  for (std::int64_t i = 0; i < ids.size(); ++i) {
    const auto r = static_cast<std::int64_t>(random());
    ids.set(i, static_cast<double>(r % 4 == 0 ? r / 4 % 3 * 300 : r / 4 % vocabulary));
  }
  const auto d = Tensor::random(DType::bf16, {samples, tokens, columns}, 1);
  for (std::int64_t first : {0, 257}) {
    expect_same_bits(
        [&](Device& device) {
          Outputs out;
          out.push_back(Tensor(DType::f32, {vocabulary - 2 * first, columns}));
          run(device, EmbedBackward{.tokens = ids.view(),
                                    .d = d.view(),
                                    .d_token_table = out[0].view(),
                                    .first_token = first,
                                    .vocab = first == 0 ? 0 : vocabulary});
          return out;
        },
        "first token " + std::to_string(first));
  }
}

TEST_F(BackEnds, AgreeOnActivationsAndTurns) {
  for_shapes([](DType type, const Shape& s, const std::string& what) {
    const Tensor x = random(type, s, 1), d = random(type, s, 2);
    for (auto kind : {ActivationKind::gelu, ActivationKind::gelu_erf, ActivationKind::relu,
                      ActivationKind::swiglu, ActivationKind::geglu}) {
      if (gated(kind) && s.columns % 2 != 0) continue;
      const std::int64_t width = gated(kind) ? s.columns / 2 : s.columns;
      expect_same_bits(
          [&](Device& device) {
            Outputs out;
            out.push_back(Tensor(type, {s.samples, s.tokens, width}, s.gap));
            out.push_back(x.copy());
            run(device, Activate{.x = x.view(), .y = out[0].view(), .kind = kind});
            run(device, ActivateBackward{.x = out[1].view(),  // in place
                                         .d_y = d.view().col_range(0, width),
                                         .d_x = out[1].view(),
                                         .kind = kind});
            return out;
          },
          what + " " + std::string(enum_word(kind)));
    }
    for (std::int64_t dim : {2, 8, 24, 32}) {
      if (s.columns % dim != 0) continue;
      for (auto direction : {Rope::Direction::forward, Rope::Direction::inverse}) {
        expect_same_bits(
            [&](Device& device) {
              Outputs out;
              out.push_back(x.copy());
              run(device, Rope{.x = out[0].view(),
                               .head_dim = dim,
                               .first_position = 29,
                               .direction = direction});
              return out;
            },
            what + " heads of " + std::to_string(dim));
      }
      const Tensor documents = documents_of(s, 3);
      for (const std::int64_t turned : {dim, dim / 2}) {
        if (turned % 2 != 0) continue;
        for (const auto& [pairs, word] : EnumWords<RopePairs>::table) {
          expect_same_bits(
              [&](Device& device) {
                Outputs out;
                out.push_back(x.copy());
                run(device, Rope{.x = out[0].view(),
                                 .documents = documents.view(),
                                 .head_dim = dim,
                                 .rotary_dim = turned,
                                 .pairs = pairs,
                                 .scaling = {.kind = RopeScalingKind::yarn,
                                             .factor = 4,
                                             .original_positions = 32}});
                return out;
              },
              fmt::format("{} {} of {} columns, {}", what, turned, dim, word));
        }
      }
    }
  });
}

TEST_F(BackEnds, AgreeOnTheStep) {
  for (DType gradient_type : kTypes) {
    for (DType parameter_type : kTypes) {
      for (std::int64_t n : {1, 5000, 12345}) {
        const auto gradient = Tensor::random(gradient_type, {n}, 1);
        Tensor scalars(DType::f32, {static_cast<std::int64_t>(StepScalar::count)});
        for (std::int64_t i = 0; i < scalars.size(); ++i) scalars.set(i, 0.1 + 0.1 * double(i));
        expect_same_bits(
            [&](Device& device) {
              Outputs out;
              out.push_back(Tensor(DType::i64, {kExactSumWords}));
              out.push_back(Tensor(DType::f32, {static_cast<std::int64_t>(VerdictField::count)}));
              out.push_back(Tensor::random(DType::f32, {n}, 2));
              out.push_back(Tensor::random(DType::f32, {n}, 3));
              out.push_back(Tensor(DType::f32, {n}));
              out.push_back(Tensor(parameter_type, {n}));
              for (int s = 0; s < 2; ++s) out.push_back(Tensor(DType::bf16, {n}));
              run(device, ExactSum{.x = gradient.view(), .accumulator = out[0].view()});
              run(device, Verdict{.squares = out[0].view(),
                                  .scalars = scalars.view(),
                                  .verdict = out[1].view(),
                                  .clip_norm = 0.7});
              for (auto decay : {Decay::decoupled, Decay::l2}) {
                run(device, OptimizerUpdate{.gradient = gradient.view(),
                                            .master = out[2].view(),
                                            .state = {out[3].view(), out[4].view()},
                                            .parameter = out[5].view(),
                                            .scalars = scalars.view(),
                                            .verdict = out[1].view(),
                                            .settings = {.decay = 0.1F, .decay_kind = decay}});
                run(device, OptimizerUpdate{.gradient = gradient.view(),
                                            .master = out[2].view(),
                                            .state = {out[6].view(), out[7].view()},
                                            .parameter = out[5].view(),
                                            .scalars = scalars.view(),
                                            .verdict = out[1].view(),
                                            .settings = {.decay = 0.1F, .decay_kind = decay}});
              }
              for (const std::size_t m : {3, 6}) {  // moments of f32 and of bf16
                out.push_back(Tensor(DType::i64, {kTensorWords}));
                OptimizerUpdate lamb{.rule = UpdateRule::lamb_moments,
                                     .gradient = gradient.view(),
                                     .master = out[2].view(),
                                     .state = {out[m].view(), out[m + 1].view()},
                                     .sums = out.back().view(),
                                     .scalars = scalars.view(),
                                     .verdict = out[1].view(),
                                     .settings = {.eps = 1e-6F, .decay = 0.1F}};
                run(device, lamb);
                lamb.rule = UpdateRule::lamb;
                lamb.gradient = {}, lamb.parameter = out[5].view();
                run(device, lamb);
                out.push_back(Tensor(parameter_type, {n}));
                OptimizerUpdate muon{.rule = UpdateRule::muon_moment,
                                     .gradient = gradient.view(),
                                     .master = out[2].view(),
                                     .state = {out[m].view()},
                                     .direction = out.back().view(),
                                     .scalars = scalars.view(),
                                     .verdict = out[1].view(),
                                     .settings = {.decay = 0.1F, .nesterov = m == 3}};
                run(device, muon);
                muon.rule = UpdateRule::muon;
                muon.gradient = {}, muon.state = {}, muon.parameter = out[5].view();
                run(device, muon);
                run(device, OptimizerUpdate{.rule = UpdateRule::frozen_adam,
                                            .master = out[2].view(),
                                            .state = {out[m].view(), out[m + 1].view()},
                                            .parameter = out[5].view(),
                                            .scalars = scalars.view(),
                                            .verdict = out[1].view(),
                                            .settings = {.decay = 0.1F}});
                out.push_back(Tensor::random(DType::f32, {n}, 4));
                for (const UpdateRule rule : {UpdateRule::lion, UpdateRule::sgd}) {
                  run(device, OptimizerUpdate{.rule = rule,
                                              .gradient = gradient.view(),
                                              .master = out[2].view(),
                                              .state = {out[m].view()},
                                              .average = out.back().view(),
                                              .parameter = out[5].view(),
                                              .scalars = scalars.view(),
                                              .verdict = out[1].view(),
                                              .settings = {.decay = 0.1F,
                                                           .lr_factor = 0.5F,
                                                           .average_decay = 0.75F,
                                                           .nesterov = m == 6}});
                }
              }
              return out;
            },
            fmt::format("{} and {}, {}", to_string(gradient_type), to_string(parameter_type), n));
      }
    }
  }
}

TEST_F(BackEnds, AgreeOnTreesAndConversion) {
  for (DType type : kTypes) {
    for (std::int64_t parts : {1, 6, 31}) {
      const std::int64_t rows = 9, columns = parts == 6 ? 40 : 17;
      const auto x = Tensor::random(DType::f32, {parts, rows, columns}, 1);
      const auto travelled = Tensor::random(type, {parts, rows, columns}, 3);
      const auto bias = Tensor::random(type, {columns}, 2);
      expect_same_bits(
          [&](Device& device) {
            Outputs out;
            for (unsigned i = 0; i < 4; ++i) {
              out.push_back(Tensor::random(type, {rows, columns}, i));
            }
            run(device, TreeSum{.parts = travelled.view(), .out = out[3].view()});
            run(device, TreeSum{.parts = x.view(), .bias = bias.view(), .out = out[0].view()});
            run(device, TreeSum{.parts = x.view(), .out = out[1].view(), .write = Write::add});
            run(device, Convert{.x = x.view().range(0, rows * columns),
                                .out = out[2].view().range(0, rows * columns),
                                .write = Write::add});
            return out;
          },
          fmt::format("{} parts, {}", parts, to_string(type)));
    }
  }
}

TEST_F(BackEnds, AgreeOnBlends) {
  Tensor scalars(DType::f32, {kScalars}), verdict(DType::f32, {kVerdictFields});
  for (std::int64_t i = 0; i < kScalars; ++i) scalars.set(i, 0.3);
  for (std::int64_t i = 0; i < kVerdictFields; ++i) verdict.set(i, 0.7);
  for (std::int64_t n : {1, 31, 5000, 12345}) {
    const auto y = Tensor::random(DType::f32, {n}, 1);
    expect_same_bits(
        [&](Device& device) {
          Outputs out;
          for (int i = 0; i < 4; ++i) {
            out.push_back(Tensor::random(DType::f32, {n}, 2));
            run(device, Blend{.y = y.view(),
                              .out = out.back().view(),
                              .keep = 0.9F,
                              .add = 0.1F,
                              .scalars = i % 2 == 1 ? scalars.view() : View(),
                              .verdict = i / 2 == 1 ? verdict.view() : View()});
          }
          return out;
        },
        std::to_string(n));
  }
}

// What is lost too, by each format and from either sum.
TEST_F(BackEnds, AgreeOnBlocks) {
  Tensor scalars(DType::f32, {kScalars});
  for (std::int64_t i = 0; i < kScalars; ++i) scalars.set(i, 0.3);
  for_shapes([&](DType type, const Shape& s, const std::string& what) {
    const Tensor x = random(type, s, 1);
    const std::int64_t n = s.columns;
    for (const BlockType block_type : kRoundedTypes) {
      const BlockFormat format{.type = block_type, .block = 32};
      expect_same_bits(
          [&](Device& device) {
            Outputs out;
            out.push_back(Tensor(DType::u8, {s.tokens, s.samples, format.bytes(n)}));
            out.push_back(Tensor::random(DType::bf16, {s.samples, s.tokens, n}, 2, 0.1, s.gap));
            out.push_back(Tensor(type, {s.samples, n}, s.gap));
            out.push_back(Tensor(DType::u8, {s.samples, format.bytes(n)}));
            out.push_back(Tensor::random(DType::bf16, {s.samples, n}, 3, 0.1, s.gap));
            run(device, Quantize{.x = x.view(),
                                 .code = out[0].view(),
                                 .format = format,
                                 .lost = out[1].view(),
                                 .scalars = scalars.view()});
            run(device,
                SumQuantized{.code = out[0].view(), .out = out[2].view(), .format = format});
            run(device, RequantizeSum{.code = out[0].view(),
                                      .sum = out[3].view(),
                                      .elements = n,
                                      .format = format,
                                      .lost = out[4].view(),
                                      .scalars = scalars.view()});
            return out;
          },
          fmt::format("{}, {}", what, enum_word(block_type)));
    }
  });
}

// A laptop's plan of a GPU's run asks for the same memory.
TEST(CudaPlanner, AsksForTheScratchOfTheDevice) {
  const auto planner = make_cuda_planner(cuda::kAtOnce);
  const auto device = tessera::test::make_cuda_test_device();
  const Tensor x(DType::bf16, {2, 300, 64}), table(DType::f32, {1000, 64}),
      tokens(DType::i32, {2, 300}), d_weight(DType::f32, {4, 64}),
      cached(DType::i32, {2, kCachedColumns});
  const std::vector<KernelCall> calls = {
      Rope{.x = x.view(), .head_dim = 32},
      Rope{.x = x.view(), .cached = cached.view(), .head_dim = 32},
      NormBackward{.sum = x.view(), .d_weight = d_weight.view(), .groups = 4},
      EmbedBackward{.tokens = tokens.view(), .d = x.view(), .d_token_table = table.view()},
      Fill{.out = x.view()}};
  const std::int64_t bytes[] = {300 * 32 * 4, 2 * 300 * 32 * 4, 2 * 4 * 10 * 64 * 4,
                                (4 * 600 + 256) * 4, 0};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(planner->scratch_bytes(calls[i]), bytes[i]) << name_of(calls[i]);
    EXPECT_EQ(device->scratch_bytes(calls[i]), bytes[i]) << name_of(calls[i]);
  }
  EXPECT_THROW(planner->run(calls.back()), InternalError);
}

// Each of 70 parts of a bias gradient has one term here: every 32nd part is added to one of 32
// sums, which are folded by halves. How many columns there are, and blocks for them, changes
// nothing.
TEST(CudaDevice, AddsColumnsUpInAnOrderThatRowsAloneDecide) {
  constexpr std::int64_t kParts = 70, kPartRows = 64;
  const auto device = tessera::test::make_cuda_test_device();
  for (const std::int64_t columns : {1, 8, 37}) {
    const auto terms = Tensor::random(DType::f32, {kParts, columns}, 5);
    Tensor d_y(DType::f32, {kParts * kPartRows, columns}), d_bias(DType::f32, {columns});
    for (std::int64_t i = 0; i < terms.size(); ++i)
      d_y.set(i / columns * kPartRows * columns + i % columns, terms[i]);
    const Tensor x(DType::f32, {kParts * kPartRows, 4}), d_weight(DType::f32, {columns, 4});
    run(*device, LinearBackwardWeight{.d_y = d_y.view(),
                                      .x = x.view(),
                                      .d_weight = d_weight.view(),
                                      .d_bias = d_bias.view()});
    for (std::int64_t c = 0; c < columns; ++c) {
      std::array<float, 32> sums{};
      for (std::int64_t part = 0; part < kParts; ++part)
        sums[static_cast<std::size_t>(part % 32)] += static_cast<float>(terms[part * columns + c]);
      for (std::size_t half = 16; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      }
      EXPECT_EQ(static_cast<float>(d_bias[c]), sums[0]) << "column " << c << " of " << columns;
    }
  }
}

// Device memory cannot be looked into before a kernel runs, so a wrong token is seen in its row.
TEST(CudaDevice, MakesRowsOfTokensBeyondTheVocabularyNan) {
  const auto device = tessera::test::make_cuda_test_device();
  const std::int64_t columns = 20, vocabulary = 7;
  for (double wrong : {-3.0, 7.0, 1e9}) {
    Tensor tokens(DType::i32, {1, 3}), out(DType::f32, {1, 3, columns});
    tokens.set(1, wrong);
    const auto table = Tensor::random(DType::f32, {vocabulary, columns}, 1);
    run(*device, Embed{.tokens = tokens.view(), .token_table = table.view(), .out = out.view()});
    const Tensor d_table(DType::f32, {vocabulary, columns});
    run(*device,
        EmbedBackward{.tokens = tokens.view(), .d = out.view(), .d_token_table = d_table.view()});
    for (std::int64_t i = 0; i < columns; ++i) {
      EXPECT_EQ(out[i], table[i]);
      EXPECT_TRUE(std::isnan(out[columns + i]));
      EXPECT_EQ(d_table[i], 2 * table[i]);
    }
    if (wrong < 0) continue;  // an ignored target
    const auto logits = Tensor::random(DType::f32, {2, 8}, 2);
    Tensor targets(DType::i32, {2}), losses(DType::f32, {2}), stats(DType::f32, {2, kPartStats}),
        scale(DType::f32, {1});
    targets.set(1, wrong), scale.set(0, 1);
    run(*device, ClassifyPart{.logits = logits.view(),
                              .targets = targets.view(),
                              .stats = stats.view(),
                              .vocab = vocabulary});
    EXPECT_TRUE(std::isnan(stats[kPartStats + 2]));
    run(*device, Classify{.logits = logits.view(),
                          .targets = targets.view(),
                          .losses = losses.view(),
                          .scale = scale.view(),
                          .vocab = vocabulary});
    EXPECT_TRUE(std::isfinite(losses[0]));
    EXPECT_TRUE(std::isnan(losses[1]));
    EXPECT_TRUE(std::isnan(logits[8]));
  }
}

}  // namespace
}  // namespace tessera::kernels::test
