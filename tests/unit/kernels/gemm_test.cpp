#include "kernels/cuda/gemm.hpp"

#include "kernels/cuda/algorithm_table.hpp"
#include "kernels/cuda/scratch.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::cuda {
namespace {

using test::Tensor;

constexpr ProductRules kTf32{.math = MatmulMath::tf32};

// What the products mean is tested by running them (linear_test); here: what tells them apart.

TEST(Gemm, AForwardProductIsDescribedColumnByColumn) {
  const Tensor x(DType::bf16, {2, 3, 5}, 1), w(DType::bf16, {7, 5}, 3), y(DType::f32, {2, 3, 7}, 2),
      b(DType::bf16, {7});
  const GemmKey want{.type_a = DType::bf16,
                     .type_b = DType::bf16,
                     .result = DType::f32,
                     .a = Turn::transpose,
                     .b = Turn::none,
                     .m = 7,
                     .n = 6,
                     .k = 5,
                     .lda = 8,
                     .ldb = 6,
                     .ldd = 9,
                     .align_a = 16,
                     .align_b = 16,
                     .align_d = 16,
                     .bias = true};
  const Gemm got =
      gemm_of(Linear{.x = x.view(), .weight = w.view(), .bias = b.view(), .y = y.view()}, kTf32);
  EXPECT_EQ(got.key, want) << "TF32 is for f32 operands only";
  EXPECT_EQ(got.a, w.view().data);
  EXPECT_EQ(got.b, x.view().data);
  EXPECT_EQ(got.d, y.view().data);
}

TEST(Gemm, AddressesCountByTheirAlignmentOnly) {
  const Tensor x(DType::bf16, {64, 64}), w(DType::bf16, {64, 64}), y(DType::bf16, {64, 64});
  const auto key = [&](std::int64_t first_column) {
    const View some = x.view().col_range(first_column, 16);
    return gemm_of(
               LinearBackwardInput{
                   .d_y = some, .weight = w.view().row_range(0, 16), .d_x = y.view()},
               ProductRules{})
        .key;
  };
  EXPECT_EQ(key(0), key(8));
  EXPECT_EQ(key(0), key(32));
  EXPECT_EQ(key(1).align_b, 2);
  EXPECT_EQ(key(2).align_b, 4);
  EXPECT_EQ(key(4).align_b, 8);
  EXPECT_EQ(key(8).align_b, kOperandAlignment);
}

TEST(Gemm, GeluIsAppliedWhereRowsAndTypeAllowIt) {
  for (const auto& [type, gap] : {std::pair{DType::bf16, 0},
                                  {DType::bf16, 1},
                                  {DType::bf16, 4},
                                  {DType::f16, 8},
                                  {DType::f32, 0},
                                  {DType::f32, 8}}) {
    const bool applied = type != DType::f32 && gap % 8 == 0;
    const Tensor x(type, {6, 16}), w(type, {40, 16}), y(type, {6, 40}), before(type, {6, 40}, gap);
    const Linear forward{
        .x = x.view(), .weight = w.view(), .y = y.view(), .preactivation = before.view()};
    const LinearBackwardInput backward{.d_y = x.view(),
                                       .weight = w.view().matrix().reshaped({16, 40}),
                                       .d_x = y.view(),
                                       .preactivation = before.view()};
    const Gemm up = gemm_of(forward, ProductRules{}), down = gemm_of(backward, ProductRules{});
    EXPECT_EQ(down.d, y.view().data);
    const ProductRules apart{.gelu = false};
    EXPECT_EQ(gemm_of(forward, apart).d, before.view().data);
    EXPECT_EQ(gemm_of(backward, apart).key, gemm_of(product_of(backward), ProductRules{}).key);
    if (applied) {
      EXPECT_EQ(up.key.epilogue, Epilogue::gelu);
      EXPECT_EQ(down.key.epilogue, Epilogue::gelu_slope);
      EXPECT_EQ(up.key.ld_aux, 40 + gap);
      EXPECT_EQ(down.key.align_aux, 16);
      EXPECT_EQ(up.aux, before.view().data);
      EXPECT_EQ(up.d, y.view().data);
    } else {
      EXPECT_EQ(up.key.epilogue, Epilogue::none);
      EXPECT_EQ(down.key, gemm_of(product_of(backward), ProductRules{}).key);
      EXPECT_EQ(up.aux, nullptr);
      EXPECT_EQ(up.d, before.view().data);
    }
  }
}

/// What is computed of the call where these products are apart.
template <typename Call>
Gemm in_parts(const Call& call, const Apart& apart) {
  return gemm_of(call, ProductRules{}, apart);
}

// What is left of a product is the one of an operation that does less.
TEST(Gemm, PartsAreProductsOfSimplerOperations) {
  const Tensor x(DType::bf16, {6, 16}), w(DType::bf16, {40, 16}), y(DType::bf16, {6, 40}),
      before(DType::bf16, {6, 40}, 8), b(DType::bf16, {40});
  const Linear call{.x = x.view(),
                    .weight = w.view(),
                    .bias = b.view(),
                    .y = y.view(),
                    .preactivation = before.view()};
  const Linear with_bias = product_of(call);
  Linear alone = with_bias;
  alone.bias = {};
  const auto expect_same = [](const Gemm& got, const Gemm& want) {
    EXPECT_EQ(got.key, want.key) << text_of(got.key);
    EXPECT_EQ(got.d, want.d);
    EXPECT_EQ(got.aux, want.aux);
  };
  const Gemm whole = gemm_of(call, ProductRules{});
  const Gemm second = gemm_of(with_bias, ProductRules{}), last = gemm_of(alone, ProductRules{});
  EXPECT_EQ(second.d, before.view().data);
  expect_same(in_parts(call, {}), whole);
  expect_same(without_last(whole), second);
  expect_same(without_last(second), last);
  expect_same(in_parts(call, {whole.key}), second);
  expect_same(in_parts(call, {second.key}), whole);
  expect_same(in_parts(call, {whole.key, second.key}), last);
  EXPECT_THROW(without_last(last), InternalError);

  const LinearBackwardInput back{.d_y = x.view(),
                                 .weight = w.view().matrix().reshaped({16, 40}),
                                 .d_x = y.view(),
                                 .preactivation = before.view()};
  const Gemm slope = gemm_of(back, ProductRules{});
  expect_same(in_parts(back, {slope.key}), gemm_of(product_of(back), ProductRules{}));
}

// Both along k, so that what is summed over rows is turned.
TEST(Gemm, OfFp8OperandsAreOfCodesInScratch) {
  const Tensor x(DType::bf16, {32, 48}, 16), w(DType::bf16, {80, 48}), y(DType::bf16, {32, 80}),
      scratch(DType::f32, {(kMatmulWorkspace >> 2) + 40000});
  const View bytes(scratch.view().data, DType::u8, {scratch.view().span_bytes()});
  const auto at = [&](std::int64_t begin) { return after_workspace(bytes) + begin; };
  GemmKey want{.type_a = DType::e4m3,
               .type_b = DType::e4m3,
               .result = DType::bf16,
               .a = Turn::transpose,
               .m = 80,
               .n = 32,
               .k = 48,
               .lda = 48,
               .ldb = 48,
               .ldd = 80,
               .align_a = 16,
               .align_b = 16,
               .align_d = 16};
  const Linear forward{.x = x.view(),
                       .weight = w.view(),
                       .y = y.view(),
                       .operands = Operands::fp8,
                       .scratch = bytes};
  const Gemm product = gemm_of(forward, kTf32);
  EXPECT_EQ(product.key, want);
  EXPECT_EQ(product.a, at(0));
  EXPECT_EQ(product.b, at(Fp8Scratch(w.view()).bytes));
  EXPECT_EQ(product.scale_a, at(Fp8Scratch(w.view()).scale));
  EXPECT_EQ(product.scale_b - product.b, Fp8Scratch(x.view()).scale);

  want.type_b = DType::e5m2;
  want.m = 48, want.n = 32, want.k = want.lda = want.ldb = 80, want.ldd = 64;
  const LinearBackwardInput backward{.d_y = y.view(),
                                     .weight = w.view(),
                                     .d_x = x.view(),
                                     .operands = Operands::fp8,
                                     .scratch = bytes};
  EXPECT_EQ(gemm_of(backward, ProductRules{}).key, want);
  EXPECT_EQ(fp8_operands(backward)[0].turn, Turn::transpose);
  EXPECT_EQ(fp8_operands(backward)[1].turn, Turn::none);

  want.m = want.ldd = 48, want.n = 80, want.k = want.lda = want.ldb = 32;
  want.write = Write::add;
  const LinearBackwardWeight gradient{.d_y = y.view(),
                                      .x = x.view(),
                                      .d_weight = w.view(),
                                      .write = Write::add,
                                      .operands = Operands::fp8,
                                      .scratch = bytes};
  EXPECT_EQ(gemm_of(gradient, ProductRules{}).key, want);
  for (const Fp8Operand& operand : fp8_operands(gradient)) EXPECT_EQ(operand.turn, Turn::transpose);
}

// cuBLASLt adds no f32 bias to such products, and its gelu is not asked for.
TEST(Gemm, OfFp8OperandsHaveBiasOf16BitsAndNoGelu) {
  const Tensor scratch(DType::f32, {(kMatmulWorkspace >> 2) + 40000});
  for (const DType type : {DType::f32, DType::bf16}) {
    const Tensor x(type, {16, 16}), w(type, {16, 16}), b(type, {16}), y(type, {16, 16});
    const Linear call{
        .x = x.view(),
        .weight = w.view(),
        .bias = b.view(),
        .y = y.view(),
        .preactivation = x.view(),
        .operands = Operands::fp8,
        .scratch = View(scratch.view().data, DType::u8, {scratch.view().span_bytes()})};
    EXPECT_EQ(gemm_of(call, ProductRules{}).key.bias, type == DType::bf16);
    EXPECT_EQ(gemm_of(call, ProductRules{}).key.epilogue, Epilogue::none);
  }
}

// cuBLASLt has no algorithm with gelu for others.
TEST(Gemm, GeluIsAppliedWhereAllRowsAreAligned) {
  struct Off {
    std::int64_t column = 0, gap = 0;  // of the first element; between rows
  };
  const Off good[] = {{0, 0}, {8, 0}, {0, 8}, {16, 24}}, bad[] = {{1, 0}, {4, 0}, {0, 1}, {0, 4}};
  const auto applied = [](const std::array<Off, 4>& offs) {
    std::vector<Tensor> tensors;
    const auto view = [&](std::size_t which, std::int64_t rows, std::int64_t columns) {
      const auto [column, gap] = offs[which];
      // Room for the columns before, so that the distance of rows is a multiple of 8 but for `gap`.
      tensors.emplace_back(DType::bf16, std::vector<std::int64_t>{rows, columns + 24 + gap});
      return tensors.back().view().col_range(column, columns);
    };
    tensors.reserve(4);
    const View a = view(0, 6, 16), b = view(1, 16, 16), d = view(2, 6, 16), aux = view(3, 6, 16);
    const Linear up{.x = a, .weight = b, .y = d, .preactivation = aux};
    const LinearBackwardInput down{.d_y = a, .weight = b, .d_x = d, .preactivation = aux};
    const bool both = gemm_of(up, ProductRules{}).key.epilogue == Epilogue::gelu;
    EXPECT_EQ(gemm_of(down, ProductRules{}).key.epilogue == Epilogue::gelu_slope, both);
    return both;
  };
  for (std::size_t which = 0; which < 4; ++which) {
    std::array<Off, 4> offs;
    for (const Off& off : good) {
      offs[which] = off;
      EXPECT_TRUE(applied(offs)) << which;
    }
    for (const Off& off : bad) {
      offs[which] = off;
      EXPECT_FALSE(applied(offs)) << which;
    }
  }
}

TEST(Gemm, KeysOfCallsAreDistinctAndOfProductsOnly) {
  const Tensor x(DType::f32, {4, 8}), w(DType::f32, {8, 8}), y(DType::f32, {4, 8});
  const Linear forward{.x = x.view(), .weight = w.view(), .y = y.view()};
  LinearBackwardWeight gradient{.d_y = y.view(), .x = x.view(), .d_weight = w.view()};
  std::vector<KernelCall> calls = {forward, forward, gradient, Fill{.out = x.view()}};
  gradient.write = Write::add;
  calls.emplace_back(gradient);
  EXPECT_EQ(gemm_keys(calls, ProductRules{}).size(), 3U);
  EXPECT_NE(gemm_keys(calls, kTf32), gemm_keys(calls, ProductRules{}));
}

TEST(Gemm, ArgumentsThatBreakTheContractAreRefused) {
  const Tensor x(DType::bf16, {4, 8}), w(DType::bf16, {8, 8}), y(DType::f16, {4, 8});
  EXPECT_THROW(gemm_of(Linear{.x = x.view(), .weight = w.view(), .y = y.view()}, ProductRules{}),
               InternalError);
}

AlgorithmTable example() {
  AlgorithmTable table{
      .machine = {.library = 130100, .gpu = "NVIDIA H200", .major = 9, .minor = 0, .driver = 13000},
      .chosen = {},
      .apart = {}};
  const GemmKey key{.type_a = DType::bf16,
                    .type_b = DType::bf16,
                    .result = DType::bf16,
                    .a = Turn::transpose,
                    .m = 3072,
                    .n = 1024,
                    .k = 768,
                    .lda = 768,
                    .ldb = 768,
                    .ldd = 3072,
                    .align_a = 16,
                    .align_b = 16,
                    .align_d = 4,
                    .bias = true};
  Algorithm algorithm{};
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    algorithm[i] = static_cast<std::uint8_t>(37 * i + 1);
  }
  table.chosen.emplace(key, algorithm);
  GemmKey other = key;
  other.type_a = other.type_b = other.result = DType::f32;
  other.b = Turn::transpose, other.bias = false;
  other.write = Write::add, other.math = MatmulMath::tf32;
  table.chosen.emplace(other, Algorithm{});
  GemmKey activated = key;
  activated.n = 2048;
  activated.epilogue = Epilogue::gelu, activated.ld_aux = 3080, activated.align_aux = 8;
  table.chosen.emplace(activated, algorithm);
  GemmKey fp8 = key;
  fp8.type_a = DType::e4m3, fp8.type_b = DType::e5m2;
  table.chosen.emplace(fp8, algorithm);
  GemmKey apart = activated;
  apart.n = 4096;
  table.apart.insert(apart);
  return table;
}

TEST(AlgorithmTable, ReadsWhatItWrote) {
  const AlgorithmTable table = example();
  const auto read = parse_algorithms(to_text(table), "algorithms.txt", table.machine);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, table);
}

TEST(AlgorithmTable, IsToBeMadeAgainOnAnotherMachine) {
  const AlgorithmTable table = example();
  const std::string text = to_text(table);
  const auto reads_on = [&](auto&& change) {
    GemmMachine machine = table.machine;
    change(machine);
    return parse_algorithms(text, "algorithms.txt", machine).has_value();
  };
  EXPECT_TRUE(reads_on([](GemmMachine&) {}));
  EXPECT_FALSE(reads_on([](GemmMachine& m) { m.library = 130200; }));
  EXPECT_FALSE(reads_on([](GemmMachine& m) { m.gpu = "NVIDIA H100"; }));
  EXPECT_FALSE(reads_on([](GemmMachine& m) { m.major = 10; }));
  EXPECT_FALSE(reads_on([](GemmMachine& m) { m.minor = 3; }));
  EXPECT_FALSE(reads_on([](GemmMachine& m) { m.driver = 12080; }));
  EXPECT_FALSE(parse_algorithms("tessera matrix products 1\nwhatever", "a", table.machine));
  std::string before = text;
  before.replace(before.find("products 5"), 10, "products 4");
  EXPECT_FALSE(parse_algorithms(before, "a", table.machine));
}

std::string refusal(const std::string& text) {
  try {
    parse_algorithms(text, "run/algorithms.txt", example().machine);
  } catch (const DataError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(AlgorithmTable, SaysWhereItIsNotOne) {
  const std::string text = to_text(example());
  EXPECT_EQ(refusal(""),
            "run/algorithms.txt:0: the file is empty; remove the file to choose again");
  EXPECT_EQ(refusal("\x7f"
                    "ELF\n"),
            "run/algorithms.txt:1: 'tessera matrix products ' is expected; remove the file to "
            "choose again");
  EXPECT_EQ(refusal(text.substr(0, text.find("gpu"))),
            "run/algorithms.txt:2: the file ends within its header; remove the file to choose "
            "again");
  EXPECT_EQ(
      refusal(text + text.substr(text.find("bf16"))),
      "run/algorithms.txt:11: a product that is there twice; remove the file to choose again");
  std::string line = text.substr(text.rfind("bf16 bf16 bf16"));
  EXPECT_TRUE(line.ends_with(" gelu 3080 8 apart\n")) << line;
  EXPECT_EQ(
      refusal(text + line),
      "run/algorithms.txt:11: a product that is there twice; remove the file to choose again");
  line.replace(line.find("bias"), std::string::npos, "plain overwrite same none apart\n");
  EXPECT_EQ(refusal(text + line),
            "run/algorithms.txt:11: a product that has no parts; remove the file to choose again");
}

// Whatever is done to a byte or to the end of it, the table is read, made again, or refused.
TEST(AlgorithmTable, SurvivesDamage) {
  const std::string text = to_text(example());
  int refused = 0;
  const auto read = [&](const std::string& damaged) {
    try {
      parse_algorithms(damaged, "a", example().machine);
    } catch (const DataError&) {
      ++refused;
    }
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    read(text.substr(0, i));
    for (const char byte : {'\0', '\n', ' ', '-', '9', 'z', '\xff'}) {
      std::string damaged = text;
      damaged[i] = byte;
      read(damaged);
      read(text.substr(0, i) + byte + text.substr(i));
    }
  }
  EXPECT_GT(refused, static_cast<int>(text.size()));
}

TEST(AlgorithmTable, NamesWhatIsWrongInALine) {
  const std::string text = to_text(example());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return refusal(changed);
  };
  EXPECT_EQ(with(" 3072 1024", " 0 1024"),
            "run/algorithms.txt:6: '0' is not an integer of at least 1; remove the file to choose "
            "again");
  EXPECT_EQ(
      with(" 16 16 4 ", " 16 12 4 "),
      "run/algorithms.txt:6: 12 is no power of two up to 16; remove the file to choose again");
  EXPECT_EQ(with(" t n ", " t x "),
            "run/algorithms.txt:7: 'x' is none of n|t; remove the file to choose again");
  EXPECT_EQ(with(" gelu 3080", " silu 3080"),
            "run/algorithms.txt:8: 'silu' is none of none|gelu|gelu_slope; remove the file to "
            "choose again");
  EXPECT_EQ(with("\nbf16", "\nf64"),
            "run/algorithms.txt:7: 'f64' is none of f32|bf16|f16|e4m3|e5m2; remove the file to "
            "choose again");
}

}  // namespace
}  // namespace tessera::kernels::cuda
