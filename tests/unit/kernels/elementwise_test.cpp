#include <bit>
#include <limits>

#include "core/exact_sum.hpp"
#include "kernels/cpu/hot/hot.hpp"
#include "support/tree_order.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

TEST(Fill, ClearsAllAndNothingElse) {
  for_devices([](Device& device) {
    for (std::int64_t n : {1, 17, 4097, 100003}) {
      const auto x = Tensor::random(DType::bf16, {n + 2}, 1);
      const double first = x[0], last = x[n + 1];
      run(device, Fill{.out = x.view().range(1, n)});
      EXPECT_EQ(x[0], first);
      EXPECT_EQ(x[n + 1], last);
      for (std::int64_t i = 1; i <= n; ++i) ASSERT_EQ(x[i], 0);
    }
  });
}

TEST(TakeRow, GoesThroughRowsAndBeginsAgain) {
  for_devices([](Device& device) {
    for (std::int64_t bytes : {16, 48, 32 * 1024 + 16, 400000}) {
      constexpr std::int64_t kRows = 3;
      const auto x = Tensor::random(DType::f32, {kRows * bytes / 4}, 1);
      const Tensor next(DType::i64, {1});
      const auto out = Tensor::random(DType::f32, {bytes / 4 + 1}, 2);
      const double behind = out[bytes / 4];
      const View rows(x.view().data, DType::u8, {kRows, bytes}),
          to(out.view().data, DType::u8, {bytes});
      for (std::int64_t i = 0; i < 2 * kRows; ++i) {
        run(device, TakeRow{.x = rows, .next = next.view(), .out = to});
        const std::int64_t first = i % kRows * bytes / 4;
        for (std::int64_t j = 0; j < bytes / 4; ++j) ASSERT_EQ(out[j], x[first + j]) << i;
      }
      EXPECT_EQ(out[bytes / 4], behind);
    }
  });
}

/// Scalar conversion of core, which its own test checks.
void set_scalar(const View& v, std::int64_t i, float x) {
  switch (v.type) {
    case DType::bf16: v.as<bf16>()[i] = bf16(x); break;
    case DType::f16: v.as<f16>()[i] = f16(x); break;
    default: v.as<float>()[i] = x;
  }
}
float scalar(const View& v, std::int64_t i) {
  switch (v.type) {
    case DType::bf16: return static_cast<float>(v.as<bf16>()[i]);
    case DType::f16: return static_cast<float>(v.as<f16>()[i]);
    default: return v.as<float>()[i];
  }
}

/// Values all over the range of `type`: random bits, then every special one.
Tensor any_bits(DType type, std::int64_t n) {
  Tensor x(type, {n});
  std::mt19937 random(7);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    std::memcpy(x.view().data + i * size_of(type), &bits, static_cast<std::size_t>(size_of(type)));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const float special[] = {
      0.0F,     -0.0F,     infinity,    -infinity,       65519.0F,
      65520.0F, 0x1p-24F,  0x1p-25F,    0x1.000002p-25F, 0x1p-14F,
      3.4e38F,  0x1p-149F, 1.00390625F, 1.01171875F,     std::numeric_limits<float>::quiet_NaN()};
  std::int64_t i = 0;
  for (float s : special) set_scalar(x.view(), i++, s);
  return x;
}

// Trap 57: every pairing, NaN, infinities, denormals and ties; bits as core's scalar conversion.
TEST(Convert, MatchesTheScalarConversionToTheBit) {
  for_devices([](Device& device) {
    for (DType from : kTypes) {
      const std::int64_t n = from == DType::f32 ? 200003 : 70001;
      Tensor x = any_bits(from, n);
      if (from != DType::f32) {  // all of them
        for (int bits = 0; bits < 0x10000; ++bits)
          reinterpret_cast<std::uint16_t*>(x.view().data)[bits] = static_cast<std::uint16_t>(bits);
      }
      for (DType to : kTypes) {
        SCOPED_TRACE(fmt::format("{} to {}", to_string(from), to_string(to)));
        const Tensor out(to, {n}), want(to, {n});
        run(device, Convert{.x = x.view(), .out = out.view()});
        int wrong = 0;
        for (std::int64_t i = 0; i < n; ++i) {
          const float value = scalar(x.view(), i);
          set_scalar(want.view(), i, value);
          const float got = scalar(out.view(), i), expected = scalar(want.view(), i);
          const bool same = std::isnan(expected) ? std::isnan(got)
                                                 : std::bit_cast<std::uint32_t>(got) ==
                                                       std::bit_cast<std::uint32_t>(expected);
          if (!same && ++wrong < 4) ADD_FAILURE() << value << " became " << got;
        }
      }
    }
  });
}

TEST(Convert, AddsInF32) {
  for_devices_and_types([](Device& device, DType type) {
    const auto x = Tensor::random(type, {1003}, 1);
    for (DType to : kTypes) {
      const auto before = Tensor::random(to, {1003}, 2);
      const Tensor out = before.copy(), want(to, {1003});
      run(device, Convert{.x = x.view(), .out = out.view(), .write = Write::add});
      for (std::int64_t i = 0; i < 1003; ++i) {
        set_scalar(want.view(), i, scalar(before.view(), i) + scalar(x.view(), i));
      }
      EXPECT_TRUE(out.same_bits(want));
    }
  });
}

// The factor of y is rounded three times at most (1 / unscale, and by it and the coefficient), its
// product once, and the sum once; without fused multiply-adds the other product is too.
TEST(Scale, IsOneRoundedProduct) {
  for_devices_and_types([](Device& device, DType type) {
    const auto x = Tensor::random(type, {2, 3, 37}, 1, 1, 2);
    const Tensor out(type, {2, 3, 37}, 1);
    run(device, Scale{.x = x.view(), .out = out.view(), .factor = 27.712812F});
    Numbers want;
    for (std::int64_t i = 0; i < x.size(); ++i)
      want.push_back(x[i] * static_cast<double>(27.712812F));
    expect_within(
        out, want,
        [&](std::int64_t i) {
          const double w = want[static_cast<std::size_t>(i)];
          return 0x1p-24 * std::abs(w) + write_error(type, w);
        },
        "out");
  });
}

TEST(Blend, AgreesWithDouble) {
  for_devices([](Device& device) {
    Tensor scalars(DType::f32, {kScalars}), verdict(DType::f32, {kVerdictFields});
    scalars.set(static_cast<std::int64_t>(StepScalar::unscale), 0.3);
    verdict.set(static_cast<std::int64_t>(VerdictField::apply), 1);
    verdict.set(static_cast<std::int64_t>(VerdictField::coefficient), 0.7);
    const double scale = 1 / scalars[static_cast<std::int64_t>(StepScalar::unscale)],
                 coefficient = verdict[static_cast<std::int64_t>(VerdictField::coefficient)];
    for (std::int64_t n : {1, 3, 31, 4097, 10007}) {
      for (const bool scaled : {false, true}) {
        for (const bool judged : {false, true}) {
          const auto all_y = Tensor::random(DType::f32, {n + 1}, 1);
          for (std::int64_t offset : {0, 1}) {
            const View y = all_y.view().range(offset, n);
            const auto before = Tensor::random(DType::f32, {n}, 2);
            const Tensor out = before.copy();
            const Blend call{.y = y,
                             .out = out.view(),
                             .keep = 0.9F,
                             .add = 0.1F,
                             .scalars = scaled ? scalars.view() : View(),
                             .verdict = judged ? verdict.view() : View()};
            run(device, call);
            const double keep = static_cast<double>(call.keep),
                         add = static_cast<double>(call.add) * (scaled ? scale : 1) *
                               (judged ? coefficient : 1);
            Numbers want, bound;
            for (std::int64_t i = 0; i < n; ++i) {
              const double kept = keep * before[i], added = add * all_y[offset + i];
              want.push_back(kept + added);
              bound.push_back(0x1p-24 * (2.01 * std::abs(kept) + 5.01 * std::abs(added)));
            }
            expect_within(
                out, want, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; },
                "out");
          }
        }
      }
    }
  });
}

TEST(Blend, LeavesWhatASkippedStepHas) {
  for_devices([](Device& device) {
    Tensor verdict(DType::f32, {kVerdictFields});
    verdict.set(static_cast<std::int64_t>(VerdictField::coefficient),
                std::numeric_limits<double>::quiet_NaN());
    const auto y = Tensor::random(DType::f32, {1003}, 1), before = y.copy();
    run(device, Blend{.y = y.view(), .out = y.view(), .add = 1, .verdict = verdict.view()});
    EXPECT_TRUE(y.same_bits(before));
    const Tensor short_of_one(DType::f32, {1002}), narrow(DType::bf16, {1003});
    for (const Tensor* other : {&short_of_one, &narrow})
      EXPECT_THROW(run(device, Blend{.y = y.view(), .out = other->view()}), InternalError);
  });
}

/// The sum of an element over (parts, n).
float tree(const Tensor& parts, std::int64_t element) {
  const View all = parts.view();
  return tessera::test::tree_order_sum(
      0, all.rows(), [&](std::int64_t p) { return scalar(all, p * all.cols() + element); });
}

/// A sum of some parts of a type, with a bias of another or without one, against the tree.
void expect_tree_sum(Device& device, DType type, const Tensor& parts, std::int64_t columns,
                     const Tensor* bias) {
  const std::int64_t count = parts.view().rows(), n = parts.view().cols(), rows = n / columns;
  const auto before = Tensor::random(type, {rows, columns}, 3);
  for (Write write : {Write::overwrite, Write::add}) {
    const Tensor out = before.copy(), want(type, {rows, columns});
    run(device, TreeSum{.parts = parts.view().reshaped({count, rows, columns}),
                        .bias = bias != nullptr ? bias->view() : View(),
                        .out = out.view(),
                        .write = write});
    for (std::int64_t i = 0; i < n; ++i) {
      float sum = tree(parts, i);
      if (bias != nullptr) sum += scalar(bias->view(), i % columns);
      if (write == Write::add) sum = scalar(before.view(), i) + sum;
      set_scalar(want.view(), i, sum);
    }
    ASSERT_TRUE(out.same_bits(want))
        << count << " parts of " << rows << " rows of " << to_string(parts.view().type);
  }
}

TEST(TreeSum, AddsInAnAlignedTreeAndRoundsOnce) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t columns = 17;
    for (std::int64_t rows : {1, 3, 251}) {
      for (std::int64_t count : {1, 2, 3, 5, 7, 8, 13, 17}) {
        const auto parts = Tensor::random(DType::f32, {count, rows * columns}, 1);
        expect_tree_sum(device, type, parts, columns, nullptr);
        for (DType bias_type : {DType::f32, type}) {
          const auto bias = Tensor::random(bias_type, {columns}, 2);
          expect_tree_sum(device, type, parts, columns, &bias);
        }
        const auto narrow = Tensor::random(type, {count, rows * columns}, 4);
        expect_tree_sum(device, DType::f32, narrow, columns, nullptr);
        expect_tree_sum(device, type, narrow, columns, nullptr);
      }
    }
    const Tensor narrow(DType::bf16, {2, 17}), bias(DType::bf16, {17}), out(DType::bf16, {17});
    EXPECT_THROW(
        run(device, TreeSum{.parts = narrow.view(), .bias = bias.view(), .out = out.view()}),
        InternalError);
  });
}

/// Parts of f32 among those of a 16-bit type, where these travel: rounded as they are read.
TEST(SumOfParts, RoundsWhatDidNotTravel) {
  for (Isa isa : isas()) {
    for (DType wire : {DType::f32, DType::bf16}) {
      for (std::size_t count : {1, 2, 3, 8, 9, 23, 33, 65, 200}) {
        for (std::size_t own = 0; own < count; own += 1 + count / 3) {
          constexpr std::int64_t kElements = 133;
          std::vector<Tensor> tensors;
          std::vector<SumPart> parts;
          for (std::size_t p = 0; p < count; ++p) {
            const DType type = p == own ? DType::f32 : wire;
            tensors.push_back(Tensor::random(type, {kElements}, static_cast<unsigned>(p)));
            parts.push_back({tensors.back().view().data, type});
          }
          const auto term = [&](std::int64_t p, std::int64_t i) {
            const float x = scalar(tensors[static_cast<std::size_t>(p)].view(), i);
            return wire == DType::bf16 ? static_cast<float>(bf16(x)) : x;
          };
          for (DType type : {DType::f32, DType::bf16}) {
            for (Write write : {Write::overwrite, Write::add}) {
              const auto out = Tensor::random(type, {kElements}, 40);
              const Tensor want = out.copy();
              for (std::int64_t i = 3; i < kElements; ++i) {
                float sum =
                    tessera::test::tree_order_sum(0, static_cast<std::int64_t>(count),
                                                  [&](std::int64_t p) { return term(p, i); });
                if (write == Write::add) sum = scalar(out.view(), i) + sum;
                set_scalar(want.view(), i, sum);
              }
              hot_kernels(isa).sum_parts({.parts = parts,
                                          .wire = wire,
                                          .out = out.view().data,
                                          .out_type = type,
                                          .write = write},
                                         {3, kElements});
              ASSERT_TRUE(out.same_bits(want)) << enum_word(isa) << ", " << count << " parts";
            }
          }
        }
      }
    }
  }
}

// Trap 57, on the wire.
TEST(SumOfParts, RoundsTiesToEven) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> own = {1,     1 + 0x1p-9F, 1 + 0x1p-8F, 1 + 3 * 0x1p-8F,
                                  -0.0F, 3e38F,       infinity,    nan};
  const std::vector<float> expected = {1,        1,  1, 1 + 2 * 0x1p-7F, -0.0F, 0x1.c4p+127F,
                                       infinity, nan};
  const auto count = static_cast<std::int64_t>(own.size());
  for (Isa isa : isas()) {
    const SumPart part{reinterpret_cast<const std::byte*>(own.data()), DType::f32};
    std::vector<float> out(own.size());
    hot_kernels(isa).sum_parts(
        {.parts = {&part, 1}, .wire = DType::bf16, .out = reinterpret_cast<std::byte*>(out.data())},
        {0, count});
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), std::isnan(expected[i])) << i;
      if (!std::isnan(out[i])) {
        EXPECT_EQ(out[i], expected[i]) << i;
      }
    }
  }
}

// The sum may go where one of the parts lies, as it does when a rank reduces in place.
TEST(SumOfParts, MayBeWrittenOverAPart) {
  for (Isa isa : isas()) {
    for (std::size_t own : {0, 1, 4}) {
      for (DType wire : {DType::f32, DType::bf16}) {
        std::vector<Tensor> tensors;
        std::vector<SumPart> parts;
        for (unsigned p = 0; p < 5; ++p) {
          const DType type = p == own ? DType::f32 : wire;
          tensors.push_back(Tensor::random(type, {41}, p));
          parts.push_back({tensors.back().view().data, type});
        }
        const Tensor want(DType::f32, {41});
        for (std::int64_t i = 0; i < 41; ++i) {
          set_scalar(want.view(), i, tessera::test::tree_order_sum(0, 5, [&](std::int64_t p) {
                       const float x = scalar(tensors[static_cast<std::size_t>(p)].view(), i);
                       return wire == DType::bf16 ? static_cast<float>(bf16(x)) : x;
                     }));
        }
        hot_kernels(isa).sum_parts({.parts = parts, .wire = wire, .out = tensors[own].view().data},
                                   {0, 41});
        EXPECT_TRUE(tensors[own].same_bits(want)) << enum_word(isa);
      }
    }
  }
}

using Words = std::array<std::int64_t, kExactSumWords>;

Words words_of(const View& x, ExactSum::Of of) {
  Words words{};
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const double v = scalar(x, i);
    if (std::isnan(v)) {
      ++words[kExactSumNan];
    } else if (std::isinf(v)) {
      ++words[kExactSumInf];
    } else {
      exact_add(words, of == ExactSum::Of::squares ? v * v : v);
    }
  }
  exact_normalise(words);
  return words;
}

void expect_exact(Device& device, const View& x, const char* what) {
  for (ExactSum::Of of : {ExactSum::Of::values, ExactSum::Of::squares}) {
    Words words{};
    const View accumulator(reinterpret_cast<std::byte*>(words.data()), DType::i64,
                           {kExactSumWords});
    run(device, ExactSum{.x = x, .accumulator = accumulator, .of = of});
    EXPECT_EQ(words, words_of(x, of)) << what << ", " << x.elements() << " elements";
    run(device, ExactSum{.x = x, .accumulator = accumulator, .of = of});  // adds to what is there
    Words twice = words_of(x, of);
    exact_merge(twice, words_of(x, of));
    exact_normalise(twice);
    EXPECT_EQ(words, twice) << what;
  }
}

TEST(ExactSum, EqualsOneExactAdditionAnElement) {
  for_devices_and_types([](Device& device, DType type) {
    for (std::int64_t n : {1, 15, 2047, 2048, 2049, 20011}) {
      expect_exact(device, any_bits(type, std::max<std::int64_t>(n, 15)).view().range(0, n),
                   "any bits");
      expect_exact(device, Tensor::random(type, {n}, 3, 1e-4).view(), "gradients");
      expect_exact(device, Tensor(type, {n}).view(), "zeros");
    }
  });
}

// The most that a block's sums must hold without rounding: every term as large as its exponent
// allows, every bit set.
TEST(ExactSum, HoldsABlockOfTheLargestTerms) {
  for_devices([](Device& device) {
    Tensor x(DType::f32, {4096});
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, i % 2 == 0 ? 0x1.fffffep0 : 0x1.fffffcp0);
    expect_exact(device, x.view(), "all alike");
  });
}

// Blocks whose smallest element is so far below the largest that one more sum is needed, or just
// not (as values by 2^60 and 2^100, as squares by 2^18 and 2^38), of terms that the sums before
// lose altogether, so that the last one is as large as it may become. Any 2048 elements are such a
// block.
TEST(ExactSum, HoldsBlocksOfAnySpread) {
  constexpr int kBitsOfASum = 40;
  for_devices([](Device& device) {
    for (const int lost_by : {kBitsOfASum, 2 * kBitsOfASum}) {
      for (const int power : {1, 2}) {
        for (const int most : {18, 38, 60, 100}) {
          for (int spread = most - 2; spread <= most + 2; ++spread) {
            Tensor x(DType::f32, {4 * 2048});
            for (std::int64_t i = 0; i < x.size(); ++i) {
              x.set(i, i % 2048 == 0   ? 1
                       : i % 2048 == 1 ? std::ldexp(1 + 0x1p-23, -spread)
                                       : std::ldexp(1 - 0x1p-24, -lost_by / power));
            }
            expect_exact(device, x.view(), ("a spread of 2^" + std::to_string(spread)).c_str());
          }
        }
      }
    }
  });
}

// A GPU's warps keep sums of several tiles as integers. Here each has a dozen tiles (the emulator's
// 24 blocks of 8 warps take 512 elements each in turn): of terms as large as their exponent allows,
// then of some far above those before and far below, also within a tile.
TEST(ExactSum, HoldsManyTilesOfTermsOfAnySize) {
  constexpr std::int64_t kRound = 24 * 8 * 512;
  constexpr int kPowers[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 10, -20, -60, 0};
  for_devices([&](Device& device) {
    for (const DType type : {DType::f32, DType::bf16}) {
      Tensor x(type, {kRound * std::ssize(kPowers)});
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const auto round = static_cast<std::size_t>(i / kRound);
        const double most = type == DType::f32 ? 0x1.fffffep0 : 0x1.fep0;
        x.set(i, std::ldexp(most, kPowers[round] - (i % 1999 == 0 && round > 6 ? 40 : 0)));
      }
      for (const ExactSum::Of of : {ExactSum::Of::values, ExactSum::Of::squares}) {
        Words words{};
        const View accumulator(reinterpret_cast<std::byte*>(words.data()), DType::i64,
                               {kExactSumWords});
        run(device, ExactSum{.x = x.view(), .accumulator = accumulator, .of = of});
        EXPECT_EQ(words, words_of(x.view(), of)) << to_string(type);
      }
    }
  });
}

TEST(ExactSum, CancelsToTheLastBit) {
  for_devices([](Device& device) {
    Tensor x = Tensor::random(DType::f32, {10001}, 3, 1e20);
    for (std::int64_t i = 0; i < 5000; ++i) x.set(5000 + i, -x[i]);
    x.set(10000, -0x1p-149);
    Words words{};
    const View accumulator(reinterpret_cast<std::byte*>(words.data()), DType::i64,
                           {kExactSumWords});
    run(device, ExactSum{.x = x.view(), .accumulator = accumulator, .of = ExactSum::Of::values});
    EXPECT_EQ(exact_value(words), -0x1p-149);
  });
}

// Rows of one sum beside each other and apart, sums without a row, and rows of no sum.
TEST(ExactSums, AddEachRowToItsSum) {
  for_devices_and_types([](Device& device, DType type) {
    std::vector<std::int32_t> into{2, 0, -1, 2, 2, 4, 0};
    const std::int64_t rows = std::ssize(into), sums = 5;
    const View of(reinterpret_cast<std::byte*>(into.data()), DType::i32, {rows});
    for (std::int64_t columns : {1, 17, 512, 4099}) {
      const Tensor x = columns == 17 ? any_bits(type, rows * columns)
                                     : Tensor::random(type, {rows * columns}, 3);
      std::vector<Words> got(sums), want(sums);
      got[1][0] = want[1][0] = 7;  // what is there stays
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int32_t k = into[static_cast<std::size_t>(r)];
        if (k < 0) continue;
        Words& sum = want[static_cast<std::size_t>(k)];
        exact_merge(sum, words_of(x.view().range(r * columns, columns), ExactSum::Of::values));
        exact_normalise(sum);
      }
      run(device, ExactSums{.x = x.view().reshaped({rows, columns}),
                            .into = of,
                            .accumulators = View(reinterpret_cast<std::byte*>(got.data()),
                                                 DType::i64, {sums, kExactSumWords})});
      EXPECT_EQ(got, want) << columns << " columns";
    }
  });
}

TEST(OrderChunks, PutsChunksInTheOrderOfTokensAndBack) {
  const std::int64_t shares = 3, samples = 2, tokens = 5, columns = 7;
  const std::int64_t chunks = 2 * shares, rows = chunks * samples * tokens;
  for_devices_and_types([&](Device& device, DType type) {
    const auto x = Tensor::random(type, {rows, columns}, 1, 1, 3);
    Tensor by_tokens(type, {rows, columns}, 1), back(type, {rows, columns}, 2);
    const OrderChunks call{
        .x = x.view(), .out = by_tokens.view(), .samples = samples, .chunks = {.shares = shares}};
    run(device, call);
    run(device, OrderChunks{.x = by_tokens.view(),
                            .out = back.view(),
                            .samples = samples,
                            .chunks = {.shares = shares},
                            .to = OrderChunks::To::shares});
    EXPECT_TRUE(back.gaps_intact() && by_tokens.gaps_intact());
    std::int64_t row = 0;  // of x
    for (std::int64_t share = 0; share < shares; ++share) {
      for (const std::int64_t chunk : {share, chunks - 1 - share}) {
        for (std::int64_t b = 0; b < samples; ++b) {
          for (std::int64_t t = 0; t < tokens; ++t, ++row) {
            const std::int64_t at = (b * chunks + chunk) * tokens + t;
            for (std::int64_t c = 0; c < columns; ++c) {
              ASSERT_EQ(by_tokens[at * columns + c], x[row * columns + c]);
              ASSERT_EQ(back[row * columns + c], x[row * columns + c]);
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
