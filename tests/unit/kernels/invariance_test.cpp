// What must not change a bit: the number of threads, where a range is cut, and which of the
// instruction sets with fused multiply-add runs.
#include "core/exact_sum.hpp"
#include "support/sanitized.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

Dropout dropout_of(const Tensor& samples) {
  return {.p = 0.2F, .seed = 1, .site = 1, .samples = samples.view()};
}

enum class Products { without, with };

/// Outputs of attention and of matrix products.
void run_products(Device& device, DType type, const Tensor& x, const Tensor& y, const Tensor& index,
                  const Tensor& ids, std::vector<Tensor>& all) {
  const std::int64_t samples = x.view().extent(0), tokens = x.view().extent(1),
                     columns = x.view().cols();
  const std::vector<std::int64_t> shape = {samples, tokens, columns};
  const auto output = [&](DType t, std::vector<std::int64_t> s) {
    all.push_back(Tensor(t, std::move(s)));
    return all.back().view();
  };
  run(device, LinearBackwardWeight{.d_y = y.view(),
                                   .x = x.view(),
                                   .d_weight = output(DType::f32, {columns, columns}),
                                   .d_bias = output(DType::f32, {columns})});
  Tensor documents(DType::i32, {samples, tokens, 2});  // of 50 tokens, and what is left
  for (std::int64_t i = 0; i < samples * tokens; ++i) {
    const std::int64_t begin = i % tokens / 50 * 50;
    documents.set(2 * i, static_cast<double>(begin));
    documents.set(2 * i + 1, static_cast<double>(std::min(begin + 50, tokens)));
  }
  const AttentionShape plain{.heads = 5, .kv_heads = 5, .head_dim = 24, .scale = 0.2F};
  AttentionShape masked = plain;
  masked.mask = AttentionMask::bidirectional, masked.window = 30, masked.soft_cap = 2;
  for (const AttentionShape& heads : {plain, masked}) {
    const View within = heads.window > 0 ? documents.view() : View();
    const View lse = output(DType::f32, {samples, 5, tokens}), out = output(type, shape);
    run(device, Attention{.q = x.view(),
                          .k = y.view(),
                          .v = x.view(),
                          .out = out,
                          .lse = lse,
                          .documents = within,
                          .shape = heads,
                          .dropout = dropout_of(index)});
    run(device, AttentionBackward{.q = x.view(),
                                  .k = y.view(),
                                  .v = x.view(),
                                  .out = out,
                                  .lse = lse,
                                  .documents = within,
                                  .d_out = y.view(),
                                  .d_q = output(type, shape),
                                  .d_k = output(type, shape),
                                  .d_v = output(type, shape),
                                  .shape = heads,
                                  .dropout = dropout_of(index)});
  }
  run(device, EmbedBackward{.tokens = ids.view(),
                            .d = x.view(),
                            .d_token_table = output(DType::f32, {40, columns}),
                            .d_position_table = output(DType::f32, {tokens + 3, columns}),
                            .documents = documents.view(),
                            .dropout = dropout_of(index)});
}

/// Codes, their sum and its codes, with error feedback and without.
void run_quantized(Device& device, const Tensor& x, std::vector<Tensor>& all) {
  const std::int64_t a = x.view().extent(0), b = x.view().extent(1), n = x.view().cols();
  Tensor scalars(DType::f32, {kScalars});
  for (std::int64_t i = 0; i < kScalars; ++i) scalars.set(i, 0.3);
  for (const BlockType type : kRoundedTypes) {
    const BlockFormat format{.type = type, .block = type == BlockType::sign ? 64 : 50};
    for (const bool feedback : {false, true}) {
      Tensor code(DType::u8, {b, a, format.bytes(n)}), sum(DType::u8, {a, format.bytes(n)}),
          out(x.view().type, {a, n}), lost = Tensor::random(DType::bf16, {a, b, n}, 8, 0.1),
                                      lost_sum = Tensor::random(DType::bf16, {a, n}, 9, 0.1);
      Quantize quantize{.x = x.view(), .code = code.view(), .format = format};
      RequantizeSum requantize{
          .code = code.view(), .sum = sum.view(), .elements = n, .format = format};
      if (feedback) {
        quantize.lost = lost.view(), requantize.lost = lost_sum.view();
        quantize.scalars = requantize.scalars = scalars.view();
      }
      run(device, quantize);
      run(device, SumQuantized{.code = code.view(), .out = out.view(), .format = format});
      run(device, requantize);
      for (Tensor* t : {&code, &out, &sum, &lost, &lost_sum}) all.push_back(std::move(*t));
    }
  }
}

/// Rows of a part of the experts, with a capacity, and what is made of them.
void run_experts(Device& device, const Tensor& x, std::vector<Tensor>& all) {
  const std::int64_t tokens = x.view().rows(), columns = x.view().cols(), choices = 3;
  const std::int64_t experts = 37, own = 20, capacity = 17;
  const auto output = [&](DType t, std::vector<std::int64_t> s) {
    all.push_back(Tensor(t, std::move(s)));
    return all.back().view();
  };
  Tensor chosen(DType::i32, {tokens, choices});
  for (std::int64_t i = 0; i < chosen.size(); ++i) {
    const std::int64_t n = i / choices, k = i % choices;
    chosen.set(i, static_cast<double>((n * n + 5 * k) % experts));
  }
  const std::int64_t rows = dispatched_rows(tokens, choices, own, capacity);
  const auto weights = Tensor::random(DType::f32, {tokens, choices}, 8);
  const View place = output(DType::i32, {tokens, choices}), source = output(DType::i32, {rows}),
             spread = output(x.view().type, {rows, columns});
  run(device, CountChoices{.experts = chosen.view(),
                           .counts = output(DType::i64, {experts}),
                           .dropped = output(DType::i64, {1}),
                           .capacity = capacity});
  run(device, Dispatch{.experts = chosen.view(),
                       .place = place,
                       .source = source,
                       .begins = output(DType::i32, {own + 1}),
                       .first = 9,
                       .all = experts,
                       .capacity = capacity});
  run(device, SpreadRows{.x = x.view(),
                         .weights = weights.view(),
                         .source = source,
                         .rows = spread,
                         .choices = choices});
  run(device, CombineRows{.rows = spread,
                          .weights = weights.view(),
                          .place = place,
                          .out = output(DType::f32, {tokens, columns})});
  run(device, RowDots{.x = x.view(),
                      .rows = spread,
                      .place = place,
                      .dots = output(DType::f32, {tokens, choices})});
}

/// Outputs of operations, on one set of inputs.
std::vector<Tensor> run_all(Device& device, DType type, Products products = Products::with) {
  const std::int64_t samples = 3, tokens = 131, columns = 120, rows = samples * tokens;
  const std::vector<std::int64_t> shape = {samples, tokens, columns};
  std::vector<Tensor> all;
  const auto output = [&](DType t, std::vector<std::int64_t> s) {
    all.push_back(Tensor(t, std::move(s)));
    return all.back().view();
  };
  const auto output_of = [&](const Tensor& t) {
    all.push_back(t.copy());
    return all.back().view();
  };
  Tensor index(DType::i64, {samples}), ids(DType::i32, {samples, tokens}),
      targets(DType::i32, {rows});
  for (std::int64_t b = 0; b < samples; ++b) index.set(b, static_cast<double>(b));
  for (std::int64_t i = 0; i < rows; ++i) ids.set(i, i * i % 37), targets.set(i, i % 100);
  const auto x = Tensor::random(type, shape, 1, 2), y = Tensor::random(type, shape, 2);
  const auto weight = Tensor::random(type, {columns}, 3), bias = Tensor::random(type, {columns}, 4);
  const auto table = Tensor::random(type, {40, columns}, 5);
  const auto positions = Tensor::random(type, {tokens, columns}, 6);
  const auto wide = Tensor::random(DType::f32, shape, 7);

  run(device, Embed{.tokens = ids.view(),
                    .token_table = table.view(),
                    .out = output(type, shape),
                    .dropout = dropout_of(index)});
  run(device, EmbedBackward{.tokens = ids.view(),
                            .d = x.view(),
                            .d_token_table = output(DType::f32, {40, columns}),
                            .d_position_table = output(DType::f32, {tokens + 3, columns}),
                            .dropout = dropout_of(index)});
  run(device, AddPositions{.x = wide.view(),
                           .position_table = positions.view(),
                           .out = output(type, shape),
                           .dropout = dropout_of(index)});
  const View stats = output(DType::f32, {rows, 2});
  run(device, AddNorm{.resid = x.view(),
                      .pending = y.view(),
                      .weight = weight.view(),
                      .bias = bias.view(),
                      .sum = output(type, shape),
                      .out = output(type, shape),
                      .stats = stats,
                      .dropout = dropout_of(index)});
  run(device, NormBackward{.d_out = y.view(),
                           .sum = x.view(),
                           .weight = weight.view(),
                           .stats = stats,
                           .d_sum = output(type, shape),
                           .d_weight = output(DType::f32, {columns}),
                           .d_bias = output(DType::f32, {columns})});
  run(device, NormBackward{.d_out = y.view(),
                           .sum = x.view(),
                           .weight = weight.view(),
                           .stats = stats,
                           .d_sum = output(type, shape),
                           .d_weight = output(DType::f32, {tokens, columns}),
                           .d_bias = output(DType::f32, {tokens, columns}),
                           .groups = tokens});
  run(device, AddPending{.resid = x.view(),
                         .pending = y.view(),
                         .sum = output(type, shape),
                         .dropout = dropout_of(index)});
  run(device,
      ApplyDropout{.x = x.view(), .out = output(type, shape), .dropout = dropout_of(index)});
  if (products == Products::with) run_products(device, type, x, y, index, ids, all);
  run(device, Rope{.x = output_of(x), .head_dim = 24});
  const auto squares = Tensor::random(DType::f32, {columns}, 8);
  run(device, RowSquares{.weight = x.view(),
                         .update = wide.view(),
                         .scale = 0.7F,
                         .out = output(DType::f32, {rows})});
  run(device, ScaleColumns{.x = wide.view(),
                           .magnitude = squares.view(),
                           .squares = squares.view(),
                           .bias = bias.view(),
                           .out = output(type, shape)});
  run(device, MagnitudeBackward{.d_y = x.view(),
                                .x = y.view(),
                                .squares = squares.view(),
                                .out = output(DType::f32, {columns})});
  const View pooled = output(type, {samples, columns});
  run(device, Pool{.x = x.view(), .out = pooled});
  run(device, PoolBackward{.d_out = pooled, .d_x = output(type, shape)});
  for (auto kind : {ActivationKind::gelu, ActivationKind::relu, ActivationKind::tanh}) {
    run(device, Activate{.x = x.view(), .y = output(type, shape), .kind = kind});
    run(device,
        ActivateBackward{.x = x.view(), .d_y = y.view(), .d_x = output(type, shape), .kind = kind});
  }
  run(device, Activate{.x = x.view(),
                       .y = output(type, {samples, tokens, columns / 2}),
                       .kind = ActivationKind::swiglu});
  Tensor scale(DType::f32, {1});
  scale.set(0, 0.01);
  run(device, Classify{.logits = output_of(x),
                       .targets = targets.view(),
                       .losses = output(DType::f32, {rows}),
                       .scale = scale.view(),
                       .vocab = 113});
  const View part_stats = output(DType::f32, {1, rows, kPartStats}),
             part_lse = output(DType::f32, {rows});
  run(device,
      ClassifyPart{
          .logits = x.view(), .targets = targets.view(), .stats = part_stats, .vocab = 113});
  run(device, ClassifyLoss{.stats = part_stats,
                           .targets = targets.view(),
                           .losses = output(DType::f32, {rows}),
                           .lse = part_lse,
                           .vocab = 113});
  for (std::int64_t i = 0; i < rows; ++i) targets.set(i, i % 4 - 1);
  run(device,
      Confusion{
          .logits = x.view(), .targets = targets.view(), .counts = output(DType::i64, {5, 5})});
  for (std::int64_t i = 0; i < rows; ++i) targets.set(i, i % 100);
  run_experts(device, x, all);
  run(device, ClassifyGradient{.logits = output_of(x),
                               .targets = targets.view(),
                               .lse = part_lse,
                               .scale = scale.view(),
                               .vocab = 113});
  const auto losses_of_values = Tensor::random(DType::f32, {rows}, 9);
  run(device, PolicyLoss{.target_losses = part_lse,
                         .targets = targets.view(),
                         .advantages = part_lse,
                         .scale = scale.view(),
                         .losses = output(DType::f32, {rows}),
                         .slopes = output(DType::f32, {rows})});
  run(device, ValueLoss{.values = part_lse,
                        .targets = targets.view(),
                        .returns = wide.view().range(0, rows),
                        .drawn = wide.view().range(rows, rows),
                        .scale = scale.view(),
                        .losses = output_of(losses_of_values),
                        .slopes = output(DType::f32, {rows}),
                        .terms = {.weight = 0.5F, .clip = 0.2F}});
  const std::int64_t half = rows / 2;
  Tensor reference(DType::f64, {2});
  run(device, PreferenceLoss{.target_losses = part_lse.range(0, 2 * half).reshaped({2, half}),
                             .targets = targets.view().range(0, 2 * half),
                             .reference = reference.view(),
                             .scale = scale.view(),
                             .losses = output(DType::f32, {2}),
                             .slopes = output(DType::f32, {2 * half}),
                             .statistics = output(DType::f32, {kPreferenceStats}),
                             .terms = {PreferenceKind::dpo, 0.1F, 0}});
  run(device,
      TreeSum{.parts = wide.view(), .bias = bias.view(), .out = output(type, {tokens, columns})});
  run(device, Convert{.x = x.view().reshaped({rows * columns}),
                      .out = output(DType::bf16, {rows * columns})});
  run(device, Blend{.y = wide.view(), .out = output_of(wide), .keep = 0.9F, .add = 0.3F});
  const auto random = [&] {
    all.push_back(Tensor::random(type, shape, static_cast<unsigned>(all.size())));
    return all.back().view();
  };
  for_each_example(random, [&](const auto& call) { run(device, call); });
  run(device, ExactSum{.x = x.view().reshaped({rows * columns}),
                       .accumulator = output(DType::i64, {kExactSumWords})});
  run_quantized(device, x, all);
  return all;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].same_bits(b[i])) << what << ": output " << i;
  }
}

TEST(Invariance, ThreadsChangeNoBit) {
  for (DType type : kTypes) {
    const auto one = run_all(*make_cpu_device({.threads = 1}), type);
    expect_same(run_all(*make_cpu_device({.threads = 2}), type), one, "2 threads");
    expect_same(run_all(*make_cpu_device({.threads = 3}), type), one, "3 threads");
  }
}

TEST(Invariance, Avx512AndAvx2AgreeToTheBit) {
  if (best_isa() < Isa::v4) GTEST_SKIP() << "needs a machine with AVX-512";
  for (DType type : kTypes) {
    expect_same(run_all(*make_cpu_device({.threads = 1, .isa = Isa::v4}), type),
                run_all(*make_cpu_device({.threads = 1, .isa = Isa::v3}), type), "v3");
  }
}

// The order in which a GPU's threads run, and how addresses are aligned.
TEST(Invariance, SchedulesOfAGpuChangeNoBit) {
  if (gpu() != Gpu::emulated) GTEST_SKIP() << "only an emulated GPU's schedule can be chosen";
  const auto device = tessera::test::make_cuda_test_device();
  for (DType type : gpu_types()) {
    const auto first = run_all(*device, type, Products::without);
    for (std::uint64_t seed = 1; seed < (tessera::test::kSanitized ? 2 : 4); ++seed) {
      tessera::test::set_schedule(seed);
      expect_same(run_all(*device, type, Products::without), first, "seed");
    }
  }
  // These take longest to emulate; sanitizers see them in other tests.
  if (tessera::test::kSanitized) return;
  const auto first = run_all(*device, DType::bf16);
  tessera::test::set_schedule(4);
  expect_same(run_all(*device, DType::bf16), first, "seed");
}

// Trap 54: shard boundaries move with the number of ranks; an element's bits must not.
TEST(Invariance, CutsAndAlignmentChangeNoBit) {
  const std::int64_t n = 1009;
  for_devices_and_types([&](Device& device, DType type) {
    const auto x = Tensor::random(type, {n}, 1), d = Tensor::random(type, {n}, 2);
    const auto m = Tensor::random(DType::f32, {n}, 3, 0.1), w = Tensor::random(DType::f32, {n}, 4);
    Tensor scalars(DType::f32, {static_cast<std::int64_t>(StepScalar::count)});
    Tensor verdict(DType::f32, {static_cast<std::int64_t>(VerdictField::count)});
    for (std::int64_t i = 0; i < scalars.size(); ++i) scalars.set(i, 0.3);
    for (std::int64_t i = 0; i < verdict.size(); ++i) verdict.set(i, 0.7);
    const auto run_range = [&](const Tensor& y, const Tensor& d_x, const Tensor& state,
                               const Tensor& out, std::int64_t begin, std::int64_t count) {
      const auto part = [&](const Tensor& t) { return t.view().range(begin, count); };
      run(device, Activate{.x = part(x), .y = part(y)});
      run(device, ActivateBackward{.x = part(x), .d_y = part(d), .d_x = part(d_x)});
      const View v = state.view().range(n + begin, count),
                 m_part = state.view().range(begin, count);
      run(device, OptimizerUpdate{.gradient = part(x),
                                  .master = state.view().range(2 * n + begin, count),
                                  .state = {m_part, v},
                                  .parameter = part(out),
                                  .scalars = scalars.view(),
                                  .verdict = verdict.view(),
                                  .settings = {.decay = 0.1F}});
      run(device, Convert{.x = m_part, .out = part(out), .write = Write::add});
      run(device, Blend{.y = part(w),
                        .out = m_part,
                        .keep = 0.9F,
                        .add = 0.1F,
                        .scalars = scalars.view(),
                        .verdict = verdict.view()});
      run(device, OptimizerUpdate{.rule = UpdateRule::frozen_adam,
                                  .master = state.view().range(2 * n + begin, count),
                                  .state = {m_part, v},
                                  .scalars = scalars.view(),
                                  .verdict = verdict.view(),
                                  .settings = {.decay = 0.1F}});
    };
    const auto make = [&](auto f) {
      Tensor y(type, {n}), d_x(type, {n}), state(DType::f32, {3 * n}), out(type, {n});
      for (std::int64_t i = 0; i < n; ++i) {
        state.set(i, m[i]), state.set(n + i, m[i] * m[i]), state.set(2 * n + i, w[i]);
      }
      f(y, d_x, state, out);
      std::vector<Tensor> all;
      for (Tensor* t : {&y, &d_x, &state, &out}) all.push_back(t->copy());
      return all;
    };
    const auto whole = make([&](auto&&... t) { run_range(t..., 0, n); });
    for (std::int64_t cut : {1, 15, 16, 17, 500, 1008}) {
      expect_same(make([&](auto&&... t) {
                    run_range(t..., 0, cut);
                    run_range(t..., cut, n - cut);
                  }),
                  whole, "cut");
    }
  });
}

TEST(Invariance, CutsAndAlignmentChangeNoBitOfAnExample) {
  const std::int64_t n = 1009;
  for_devices_and_types([&](Device& device, DType type) {
    const auto run_cut_at = [&](std::int64_t cut) {
      std::vector<Tensor> all;
      for (const Range part : {Range{0, cut}, Range{cut, n}}) {
        unsigned next = 0;
        const auto tensor = [&] {
          if (next == all.size()) all.push_back(Tensor::random(type, {n}, next));
          return all[next++].view().range(part.begin, part.count()).reshaped({1, 1, part.count()});
        };
        for_each_example(tensor, [&](const auto& call) { run(device, call); });
      }
      return all;
    };
    const auto whole = run_cut_at(n);
    for (std::int64_t cut : {1, 15, 16, 17, 500, 1008}) expect_same(run_cut_at(cut), whole, "cut");
  });
}

TEST(Invariance, AlignmentChangesNoCode) {
  const std::int64_t n = 1009;
  BlockFormat format{.block = 64};
  for_devices_and_types([&](Device& device, DType type) {
    const auto x = Tensor::random(type, {n}, 1), before = Tensor::random(type, {n}, 2);
    const auto at = [&](std::int64_t offset) {
      const Tensor moved(type, {n + offset}), out(type, {n + offset});
      const auto bytes = static_cast<std::size_t>(n * size_of(type));
      const View from = moved.view().range(offset, n).reshaped({1, 1, n});
      const View to = out.view().range(offset, n).reshaped({1, n});
      std::memcpy(from.data, x.view().data, bytes);
      std::memcpy(to.data, before.view().data, bytes);
      std::vector<Tensor> all;
      all.emplace_back(DType::u8, std::vector{std::int64_t{1}, std::int64_t{1}, format.bytes(n)});
      const View code = all[0].view();
      run(device, Quantize{.x = from, .code = code, .format = format});
      run(device, SumQuantized{.code = code, .out = to, .format = format, .write = Write::add});
      all.emplace_back(type, std::vector{n});
      std::memcpy(all[1].view().data, to.data, bytes);
      return all;
    };
    for (const BlockType block_type : kRoundedTypes) {
      format.type = block_type;
      const auto aligned = at(0);
      for (std::int64_t offset : {1, 2, 3, 8}) expect_same(at(offset), aligned, "offset");
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
