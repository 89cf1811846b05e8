// Every back end's bytes are those of a scalar definition; errors are bounded against double.
#include <bit>
#include <limits>
#include <span>

#include "kernels/common/slots.hpp"
#include "support/tree_order.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

constexpr BlockType kIntegers[] = {BlockType::int8, BlockType::int4};
constexpr BlockType kBlockTypes[] = {BlockType::int8, BlockType::int4, BlockType::sign};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float most_of(BlockType type) {
  return type == BlockType::int8 ? 127.0F : type == BlockType::int4 ? 7.0F : 32768.0F;
}

/// Blocks of so many elements, or of a few more where the format's must be.
BlockFormat format_of(BlockType type, std::int64_t block) {
  return {.type = type, .block = type == BlockType::sign ? round_up(block, 32) : block};
}

using Bytes = std::vector<std::uint8_t>;

/// The scale of signs by the definition; `unit` is what their integers are multiples of.
float sign_scale_of(std::span<const float> block, float unit, float inverse) {
  std::int64_t sum = 0;
  for (float x : block) sum += static_cast<std::int64_t>(std::nearbyint(std::abs(x) * inverse));
  return static_cast<float>(
      bf16(static_cast<float>(sum) / static_cast<float>(block.size()) * unit));
}

/// A slot's bytes by the definition, one element after another. `offset` is what chance adds.
Bytes bytes_of_slot(
    const std::vector<float>& x, const BlockFormat& format,
    const std::function<float(std::int64_t)>& offset = [](std::int64_t) { return 0.0F; }) {
  const auto n = static_cast<std::int64_t>(x.size());
  const float most = most_of(format.type);
  Bytes bytes(static_cast<std::size_t>(format.bytes(n)));
  for (std::int64_t first = 0; first < n; first += format.block) {
    const std::int64_t end = std::min(first + format.block, n);
    float largest = 0;
    bool finite = true;
    for (std::int64_t i = first; i < end; ++i) {
      const float size = std::abs(x[static_cast<std::size_t>(i)]);
      finite = finite && std::isfinite(size);
      largest = std::max(largest, size);
    }
    float scale = largest / most, inverse = most / largest;
    if (largest < most * std::numeric_limits<float>::min()) scale = inverse = 0;
    if (!finite) scale = kNan, inverse = 0;
    const bool signs = format.type == BlockType::sign;
    if (signs && inverse > 0) {
      const auto begin = static_cast<std::size_t>(first),
                 count = static_cast<std::size_t>(end) - begin;
      scale = sign_scale_of(std::span(x).subspan(begin, count), scale, inverse);
    }
    for (std::int64_t i = first; i < end && inverse > 0; ++i) {
      const float value = x[static_cast<std::size_t>(i)], exact = value * inverse + offset(i);
      const auto q = signs ? (std::signbit(value) ? 1 : 0)
                           : static_cast<int>(std::nearbyint(std::clamp(exact, -most, most)));
      const std::int64_t bits = format.bits(), mask = (1 << bits) - 1;
      bytes[static_cast<std::size_t>(i * bits / 8)] |=
          static_cast<std::uint8_t>((q & mask) << i * bits % 8);
    }
    const bf16 half(scale);
    std::memcpy(&bytes[static_cast<std::size_t>(format.scales_at(n) +
                                                first / format.block * format.scale_bytes())],
                signs ? static_cast<const void*>(&half) : &scale,
                static_cast<std::size_t>(format.scale_bytes()));
  }
  return bytes;
}

/// Element i of a slot.
float number(const std::byte* slot, std::int64_t i, std::int64_t n, const BlockFormat& format) {
  const std::byte* at = slot + format.scales_at(n) + i / format.block * format.scale_bytes();
  const int byte = std::to_integer<int>(slot[i * format.bits() / 8]);
  if (format.type == BlockType::sign) {
    bf16 scale;
    std::memcpy(&scale, at, sizeof(scale));
    return (byte >> i % 8 & 1) != 0 ? -static_cast<float>(scale) : static_cast<float>(scale);
  }
  float scale;
  std::memcpy(&scale, at, sizeof(scale));
  if (format.type == BlockType::int8)
    return static_cast<float>(static_cast<std::int8_t>(byte)) * scale;
  const int code = i % 2 == 0 ? byte & 15 : byte >> 4;
  return static_cast<float>(code < 8 ? code : code - 16) * scale;
}

std::vector<float> floats_of(const Tensor& x, std::int64_t begin, std::int64_t count) {
  std::vector<float> all;
  for (std::int64_t i = begin; i < begin + count; ++i) all.push_back(static_cast<float>(x[i]));
  return all;
}

Bytes bytes_in(const View& v, std::int64_t begin, std::int64_t count) {
  Bytes all(static_cast<std::size_t>(count));
  std::memcpy(all.data(), v.data + begin, all.size());
  return all;
}

/// The bytes of (A, B, n) on a device, as (B, A, bytes).
Tensor quantized(Device& device, const Tensor& x, const BlockFormat& format) {
  const View& v = x.view();
  Tensor code(DType::u8, {v.extent(1), v.extent(0), format.bytes(v.cols())});
  std::memset(code.view().data, 0x77, static_cast<std::size_t>(code.view().span_bytes()));
  run(device, Quantize{.x = v, .code = code.view(), .format = format});
  return code;
}

/// The values of (parts, S, bytes) as (S, n), added up.
Tensor summed(Device& device, const Tensor& code, std::int64_t n, DType type,
              const BlockFormat& format) {
  Tensor out(type, {code.view().extent(1), n});
  run(device, SumQuantized{.code = code.view(), .out = out.view(), .format = format});
  return out;
}

/// f(format, n) for these types, odd sizes and blocks that are shorter, longer and not whole.
void for_formats(std::span<const BlockType> types,
                 const std::function<void(const BlockFormat&, std::int64_t)>& f) {
  for (BlockType type : types) {
    for (std::int64_t block : {2, 6, 32, 256}) {
      if (format_of(type, block).block != block) continue;
      for (std::int64_t n : {1, 2, 15, 16, 17, 31, 127, 255, 256, 257, 521}) {
        SCOPED_TRACE(fmt::format("{} blocks of {}, {} elements", enum_word(type), block, n));
        f({.type = type, .block = block}, n);
      }
    }
  }
}

/// Elements in whole blocks, a third of them and then the others.
void encode_in_slot(const BlockFormat& format, std::span<const float> values, Tensor& slot,
                    std::int64_t n) {
  std::byte* bytes = slot.view().data;
  for (const Range& some : {Range{0, n / 3 / format.block * format.block},
                            Range{n / 3 / format.block * format.block, n}}) {
    const auto [codes, scales] = slot_bytes(format, n, some);
    const auto of = [&](Range r) {
      return std::span(bytes + r.begin, static_cast<std::size_t>(r.count()));
    };
    encode_blocks(format,
                  values.subspan(static_cast<std::size_t>(some.begin),
                                 static_cast<std::size_t>(some.count())),
                  of(codes), of(scales));
  }
}

std::vector<float> decoded_of_slot(const BlockFormat& format, Tensor& slot, std::int64_t n,
                                   Range some) {
  const auto [codes, scales] = slot_bytes(format, n, some);
  std::vector<float> values(static_cast<std::size_t>(some.count()));
  decode_blocks(format, slot.view().data + codes.begin, slot.view().data + scales.begin,
                some.begin % format.block, values);
  return values;
}

// What the host makes of slots for itself is what kernels make of them, and what it makes of values
// of codes are these codes.
TEST(Quantize, OfTheHostIsThatOfKernels) {
  const auto device = make_cpu_device({});
  for_formats(kIntegers, [&](const BlockFormat& format, std::int64_t n) {
    Tensor x = Tensor::random(DType::f32, {1, 1, n}, static_cast<std::uint64_t>(n));
    if (n > 40) x.set(35, 0), x.set(36, -1e-40);
    std::vector<float> values = floats_of(x, 0, n);
    const Tensor code = quantized(*device, x, format);
    Tensor slot(DType::u8, {format.bytes(n)});
    for (int times = 0; times < 2; ++times) {
      std::memset(slot.view().data, 0x77, static_cast<std::size_t>(slot.view().span_bytes()));
      encode_in_slot(format, values, slot, n);
      ASSERT_EQ(bytes_in(slot.view(), 0, format.bytes(n)),
                bytes_in(code.view(), 0, format.bytes(n)));
      values = decoded_of_slot(format, slot, n, {0, n});
      ASSERT_EQ(values, floats_of(summed(*device, code, n, DType::f32, format), 0, n));
    }
    for (const Range& some : {Range{n - n / 2, n}, Range{n / 3, n / 3 + 1}, Range{1, n / 2}}) {
      if (some.end <= some.begin) continue;
      const auto part = decoded_of_slot(format, slot, n, some);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + some.begin));
    }
  });
  const std::vector<float> bad{1, kNan, 2, 3};
  Tensor slot(DType::u8, {BlockFormat{.block = 2}.bytes(4)});
  encode_in_slot({.block = 2}, bad, slot, 4);
  const auto read = decoded_of_slot({.block = 2}, slot, 4, {0, 4});
  EXPECT_TRUE(std::isnan(read[0]) && std::isnan(read[1]) && read[3] == 3);
}

// On either side of 0 they are equally likely apart, as far as a probability of 0.9677083, 7 below
// and 8 above (Dettmers et al. 2023, section 3: k + 1 quantiles of each half).
TEST(NormalFloats, AreQuantilesOfNormalNumbers) {
  const double end = 0.9677083, farthest = 1.8481308;  // of which `end` are below
  const auto below = [](double x) { return (1 + std::erf(x / std::sqrt(2.0))) / 2; };
  EXPECT_NEAR(below(farthest), end, 1e-7);
  for (int i = 0; i < 16; ++i) {
    const double steps = i < 7 ? 7 : 8;
    const double p = 0.5 + (end - 0.5) * (i - 7) / steps;
    EXPECT_NEAR(below(static_cast<double>(kNormalFloats.of[i]) * farthest), p, 1e-6) << i;
  }
}

// What the host makes, kernels read as the host does; and again the same codes come of that.
TEST(NormalFloats, AreReadAsTheHostMakesThem) {
  const BlockType nf4[] = {BlockType::nf4};
  for_devices_and_types([&](Device& device, DType type) {
    for_formats(nf4, [&](const BlockFormat& format, std::int64_t n) {
      Tensor x = Tensor::random(DType::f32, {1, n}, static_cast<std::uint64_t>(n));
      if (n > 40) x.set(35, 0), x.set(36, -1e-40);
      const std::vector<float> values = floats_of(x, 0, n);
      Tensor slot(DType::u8, {1, 1, format.bytes(n)}), again(DType::u8, {1, 1, format.bytes(n)});
      std::memset(slot.view().data, 0x77, static_cast<std::size_t>(slot.view().span_bytes()));
      encode_in_slot(format, values, slot, n);
      const std::vector<float> read = decoded_of_slot(format, slot, n, {0, n});
      for (std::int64_t first = 0; first < n; first += format.block) {
        const std::int64_t end = std::min(n, first + format.block);
        float largest = 0;
        for (std::int64_t i = first; i < end; ++i)
          largest = std::max(largest, std::abs(values[static_cast<std::size_t>(i)]));
        for (std::int64_t i = first; i < end; ++i) {
          const float at = values[static_cast<std::size_t>(i)];
          float error = kInfinity;
          for (float number : kNormalFloats.of)
            error = std::min(error, std::abs(number * largest - at));
          // What is as far from two but for roundings may become either.
          ASSERT_LE(std::abs(read[static_cast<std::size_t>(i)] - at), error + 0x1p-22F * largest);
        }
      }
      Tensor two(DType::u8, {1, 2, format.bytes(n)}), out(type, {2, n}, 3), want(type, {2, n});
      for (std::int64_t i = 0; i < 2 * n; ++i)
        want.set(i, static_cast<double>(read[static_cast<std::size_t>(i % n)]));
      for (std::int64_t i : {0, 1})
        std::memcpy(two.view().data + i * format.bytes(n), slot.view().data,
                    static_cast<std::size_t>(format.bytes(n)));
      run(device, SumQuantized{.code = two.view(), .out = out.view(), .format = format});
      ASSERT_TRUE(out.same_bits(want));
      EXPECT_TRUE(out.gaps_intact());
      encode_in_slot(format, read, again, n);
      ASSERT_EQ(bytes_in(again.view(), 0, format.bytes(n)),
                bytes_in(slot.view(), 0, format.bytes(n)));
    });
  });
}

TEST(NormalFloats, LoseLessOfNormalNumbersThanIntegersDo) {
  const std::int64_t n = 1 << 16;
  const std::vector<float> values = floats_of(Tensor::random(DType::f32, {1, n}, 3), 0, n);
  const auto lost = [&](BlockType type) {
    const BlockFormat format{.type = type, .block = 64};
    Tensor slot(DType::u8, {format.bytes(n)});
    encode_in_slot(format, values, slot, n);
    const std::vector<float> read = decoded_of_slot(format, slot, n, {0, n});
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(read[i]) - static_cast<double>(values[i]);
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(n));
  };
  // 0.092 and 0.107 of 256,000 numbers in NumPy. A block's sum of squares is off by a third of
  // itself or less, the root of 1024 blocks' by a hundredth.
  EXPECT_NEAR(lost(BlockType::nf4), 0.092, 0.003);
  EXPECT_NEAR(lost(BlockType::int4), 0.107, 0.003);
}

TEST(NormalFloats, OfZerosAreZerosAndOfWhatIsNoNumberNone) {
  const BlockFormat format{.type = BlockType::nf4, .block = 2};
  const std::vector<float> values{0, -0.0F, 1, kNan, kInfinity, 1, -3, 1e-45F};
  const auto n = static_cast<std::int64_t>(values.size());
  for_devices([&](Device& device) {
    Tensor slot(DType::u8, {1, 1, format.bytes(n)}), out(DType::f32, {1, n});
    encode_in_slot(format, values, slot, n);
    run(device, SumQuantized{.code = slot.view(), .out = out.view(), .format = format});
    for (std::int64_t i : {0, 1, 7}) EXPECT_TRUE(out[i] == 0 && !std::signbit(out[i])) << i;
    for (std::int64_t i : {2, 3, 4, 5}) EXPECT_TRUE(std::isnan(out[i])) << i;
    EXPECT_EQ(out[6], -3);
  });
}

TEST(NormalFloats, AreNeitherMadeNorAddedUpByKernels) {
  for_devices([](Device& device) {
    const BlockFormat format{.type = BlockType::nf4, .block = 32};
    const Tensor x(DType::f32, {2, 1, 40}), code(DType::u8, {1, 2, format.bytes(40)}),
        parts(DType::u8, {2, 1, format.bytes(40)}), out(DType::f32, {1, 40}),
        sum(DType::u8, {1, format.bytes(40)});
    EXPECT_THROW(run(device, Quantize{.x = x.view(), .code = code.view(), .format = format}),
                 InternalError);
    EXPECT_THROW(
        run(device, SumQuantized{.code = parts.view(), .out = out.view(), .format = format}),
        InternalError);
    EXPECT_THROW(
        run(device,
            RequantizeSum{
                .code = parts.view(), .sum = sum.view(), .elements = 40, .format = format}),
        InternalError);
  });
}

TEST(Quantize, BytesAreThoseOfTheDefinition) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t a_slots = 2, b_slots = 3;
    for_formats(kBlockTypes, [&](const BlockFormat& format, std::int64_t n) {
      const auto x = Tensor::random(type, {a_slots, b_slots, n}, static_cast<unsigned>(n));
      const Tensor code = quantized(device, x, format);
      for (std::int64_t a = 0; a < a_slots; ++a) {
        for (std::int64_t b = 0; b < b_slots; ++b) {
          EXPECT_EQ(bytes_in(code.view(), (b * a_slots + a) * format.bytes(n), format.bytes(n)),
                    bytes_of_slot(floats_of(x, (a * b_slots + b) * n, n), format))
              << "slot " << a << ", " << b;
        }
      }
    });
  });
}

/// What chance adds to an element: uniform in (-1/2, 1/2).
float offset_of(const Chance& chance, std::int64_t sample, std::int64_t slot, std::int64_t i) {
  const auto bits =
      random_bits(chance.key(), static_cast<std::uint64_t>(sample),
                  static_cast<std::uint64_t>(chance.first + slot * chance.stride + i));
  return (static_cast<float>(static_cast<std::int32_t>(bits) >> 8) + 0.5F) * 0x1p-24F;
}

Tensor sample_number(std::int64_t number) {
  Tensor samples(DType::i64, {1});
  *samples.view().as<std::int64_t>() = number;
  return samples;
}

TEST(Quantize, BytesByChanceAreThoseOfTheDefinition) {
  for_devices_and_types([](Device& device, DType type) {
    const Tensor samples = sample_number(12345678901);
    for_formats(kIntegers, [&](const BlockFormat& format, std::int64_t n) {
      const Chance chance{
          .seed = 7, .site = 3, .first = 5 * n, .stride = 3 * n, .samples = samples.view()};
      const auto x = Tensor::random(type, {2, 3, n}, static_cast<unsigned>(n));
      Tensor code(DType::u8, {3, 2, format.bytes(n)}), sum(DType::u8, {3, format.bytes(n)});
      run(device, Quantize{.x = x.view(), .code = code.view(), .format = format, .chance = chance});
      for (std::int64_t s = 0; s < 6; ++s) {
        EXPECT_EQ(
            bytes_in(code.view(), (s % 3 * 2 + s / 3) * format.bytes(n), format.bytes(n)),
            bytes_of_slot(floats_of(x, s * n, n), format,
                          [&](std::int64_t i) { return offset_of(chance, 12345678901, s, i); }))
            << "slot " << s;
      }
      run(device, RequantizeSum{.code = code.view().reshaped({2, 3, format.bytes(n)}),
                                .sum = sum.view(),
                                .elements = n,
                                .format = format,
                                .chance = chance});
      for (std::int64_t s = 0; s < 3; ++s) {
        std::vector<float> total;
        for (std::int64_t i = 0; i < n; ++i) {
          total.push_back(number(code.view().data + s * format.bytes(n), i, n, format) +
                          number(code.view().data + (3 + s) * format.bytes(n), i, n, format));
        }
        EXPECT_EQ(
            bytes_in(sum.view(), s * format.bytes(n), format.bytes(n)),
            bytes_of_slot(total, format,
                          [&](std::int64_t i) { return offset_of(chance, 12345678901, s, i); }))
            << "sum " << s;
      }
    });
  });
}

// The mean over samples is x: what one rounding errs by is bounded by a scale and so deviates by
// half of one at most, the mean of N by that over sqrt(N). Eight elements of six deviations each.
TEST(Quantize, IsRightOnAverageByChance) {
  for_devices([](Device& device) {
    constexpr int kSamples = 4096;
    for (BlockType type : kIntegers) {
      const BlockFormat format{.type = type, .block = 8};
      Tensor x(DType::f32, {1, 1, 8});
      for (std::int64_t i = 0; i < 8; ++i) x.set(i, (i + 1) * 0.1237);
      const double scale = 8 * 0.1237 / static_cast<double>(most_of(type));
      std::vector<double> mean(8);
      Tensor code(DType::u8, {1, 1, format.bytes(8)});
      for (int s = 0; s < kSamples; ++s) {
        const Tensor samples = sample_number(s);
        run(device, Quantize{.x = x.view(),
                             .code = code.view(),
                             .format = format,
                             .chance = {.seed = 1, .samples = samples.view()}});
        for (std::int64_t i = 0; i < 8; ++i) {
          const auto value = static_cast<double>(number(code.view().data, i, 8, format));
          EXPECT_LE(std::abs(value - x[i]), scale * 1.0001);
          mean[static_cast<std::size_t>(i)] += value / kSamples;
        }
      }
      for (std::int64_t i = 0; i < 8; ++i)
        EXPECT_NEAR(mean[static_cast<std::size_t>(i)], x[i], 6 * scale / 2 / std::sqrt(kSamples));
    }
  });
}

// What rounding loses, kept in 16 bits, is what is missing: values and loss make up x and the loss
// before it, up to half a unit of bf16 of the loss and to f32's roundings.
TEST(Quantize, KeepsWhatItLoses) {
  for_devices_and_types([](Device& device, DType type) {
    for_formats(kBlockTypes, [&](const BlockFormat& format, std::int64_t n) {
      for (const bool by_chance : {false, true}) {
        if (by_chance && format.type == BlockType::sign) continue;
        const float unscale = 0x1p-10F;
        Tensor scalars(DType::f32, {kScalars});
        scalars.set(static_cast<std::int64_t>(StepScalar::unscale), static_cast<double>(unscale));
        const Tensor samples = sample_number(5);
        const auto x = Tensor::random(type, {2, 1, n}, static_cast<unsigned>(n)),
                   error = Tensor::random(DType::bf16, {2, 1, n}, 3, 0x1p-10 / 16);
        Tensor code(DType::u8, {1, 2, format.bytes(n)}), lost(DType::bf16, {2, 1, n});
        Quantize call{.x = x.view(), .code = code.view(), .format = format};
        if (by_chance) call.chance = {.seed = 1, .stride = n, .samples = samples.view()};
        call.error = error.view(), call.lost = lost.view(), call.scalars = scalars.view();
        const auto expect_kept = [&](const Tensor& before) {
          run(device, call);
          for (std::int64_t i = 0; i < 2 * n; ++i) {
            const auto value = static_cast<double>(
                number(code.view().data + i / n * format.bytes(n), i % n, n, format));
            const double y = x[i] + before[i] / static_cast<double>(unscale),
                         missing = (y - value) * static_cast<double>(unscale);
            EXPECT_NEAR(lost[i], missing,
                        std::abs(missing) * 0x1p-8 + 4 * 0x1p-24 * std::abs(y) * 0x1p-10);
          }
        };
        expect_kept(error);
        call.error = {};  // again, with what the first has lost
        expect_kept(lost.copy());
      }
    });
  });
}

// Columns of all slots that begin on a block, one range after another, are rounded, kept and added
// as in the whole.
TEST(Quantize, RangesOfColumnsAreAsTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    constexpr std::int64_t kAll = 101;
    const Tensor samples = sample_number(5);
    Tensor scalars(DType::f32, {kScalars});
    scalars.set(static_cast<std::int64_t>(StepScalar::unscale), 0x1p-4);
    const auto x = Tensor::random(type, {2, 3, kAll}, 1),
               error = Tensor::random(DType::bf16, {2, 3, kAll}, 2);
    for (BlockType of : kBlockTypes) {
      const BlockFormat format{.type = of, .block = 32};
      struct Result {
        Tensor lost, sum;
      };
      const auto result = [&](std::initializer_list<Range> ranges) {
        Result r{.lost = Tensor(DType::bf16, {2, 3, kAll}), .sum = Tensor(type, {3, kAll})};
        for (const Range& columns : ranges) {
          const std::int64_t n = columns.count(), bytes = format.bytes(n);
          const Tensor code(DType::u8, {3, 2, bytes});
          const auto of_whole = [&](const View& v) { return v.col_range(columns.begin, n); };
          Quantize quantize{.x = of_whole(x.view()),
                            .code = code.view(),
                            .format = format,
                            .error = of_whole(error.view()),
                            .lost = of_whole(r.lost.view()),
                            .scalars = scalars.view()};
          if (of != BlockType::sign) {
            quantize.chance = {.first = columns.begin, .stride = kAll, .samples = samples.view()};
          }
          run(device, quantize);
          run(device, SumQuantized{.code = code.view().reshaped({2, 3, bytes}),
                                   .out = of_whole(r.sum.view()),
                                   .format = format});
        }
        return r;
      };
      const Result whole = result({{0, kAll}}), ranges = result({{0, 64}, {64, 96}, {96, kAll}});
      for (std::int64_t i = 0; i < 6 * kAll; ++i) ASSERT_EQ(ranges.lost[i], whole.lost[i]) << i;
      for (std::int64_t i = 0; i < 3 * kAll; ++i) ASSERT_EQ(ranges.sum[i], whole.sum[i]) << i;
    }
  });
}

// A fused multiply-add would decide what rounding to f32 makes a tie.
TEST(Quantize, RoundsTheProductBeforeTheCode) {
  for_devices([](Device& device) {
    for (BlockType type : kIntegers) {
      const double most = static_cast<double>(most_of(type));
      const BlockFormat format{.type = type, .block = 256};
      Tensor x(DType::f32, {1, 1, 255});
      for (std::int64_t i = 0; i < 254; ++i) x.set(i, (i % 127 + 0.5) / (i < 127 ? most : -most));
      for (std::int64_t i = 0; i < 254; ++i) x.set(i, std::remainder(x[i], 1));
      x.set(254, 1);
      const auto numbers = floats_of(x, 0, 255);
      EXPECT_EQ(bytes_in(quantized(device, x, format).view(), 0, format.bytes(255)),
                bytes_of_slot(numbers, format));
      int fused = 0;
      for (float value : numbers)
        fused += std::nearbyint(value * most_of(type)) !=
                 std::nearbyint(static_cast<double>(value) * most);
      EXPECT_GT(fused, 0) << "of these elements none tells";
    }
  });
}

TEST(Quantize, LargeBlocks) {
  for_devices([](Device& device) {
    for (BlockType type : kBlockTypes) {
      for (std::int64_t block : {512, 514, 4096, 4098, 10000}) {
        SCOPED_TRACE(fmt::format("{} blocks of {}", enum_word(type), block));
        const BlockFormat format = format_of(type, block);
        for (DType element : {DType::f32, DType::bf16}) {
          const auto x = Tensor::random(element, {1, 1, 9001}, 3);
          EXPECT_EQ(bytes_in(quantized(device, x, format).view(), 0, format.bytes(9001)),
                    bytes_of_slot(floats_of(x, 0, 9001), format));
        }
      }
    }
  });
}

// With s = largest / most, exactly, and u = 2^-24: inverse and x inverse are rounded, so q is
// within 1/2 + 2.01 u most of x / s; scale and q scale are rounded, 2.01 u |q| s more. Then the
// result is rounded to its type.
TEST(Quantize, ErrsByHalfAScale) {
  for_devices_and_types([](Device& device, DType type) {
    for_formats(kIntegers, [&](const BlockFormat& format, std::int64_t n) {
      for (double size : {1e-30, 1.0, 1e30}) {
        if (type == DType::f16 && size != 1.0) continue;
        const auto x = Tensor::random(DType::f32, {1, 1, n}, static_cast<unsigned>(n), size);
        Numbers want = x.numbers(), half;
        for (std::int64_t i = 0; i < n; ++i) {
          double largest = 0;
          const std::int64_t first = i / format.block * format.block;
          for (std::int64_t j = first; j < std::min(first + format.block, n); ++j)
            largest = std::max(largest, std::abs(x[j]));
          half.push_back(largest / static_cast<double>(most_of(format.type)) / 2 +
                         4.02 * 0x1p-24 * largest);
        }
        const Tensor out = summed(device, quantized(device, x, format), n, type, format);
        expect_within(
            out, want,
            [&](std::int64_t i) {
              const double error = half[static_cast<std::size_t>(i)];
              return error + write_error(type, std::abs(x[i]) + error);
            },
            "value");
      }
    });
  });
}

// s = fl(largest / most) has fl(fl(most s) / most) = s, so scales and codes come back. So do signs:
// integers that are all 2^15 have no other mean.
TEST(Quantize, TwiceIsOnce) {
  for_devices([](Device& device) {
    for (BlockType type : kBlockTypes) {
      const BlockFormat format = format_of(type, 16);
      const std::int64_t n = 20001;
      for (double size : {3e-36, 1.0, 1e37}) {
        const auto x = Tensor::random(DType::f32, {1, 1, n}, 1, size);
        const Tensor code = quantized(device, x, format);
        Tensor back(DType::f32, {1, 1, n});
        run(device,
            SumQuantized{
                .code = code.view(), .out = back.view().reshaped({1, n}), .format = format});
        EXPECT_TRUE(quantized(device, back, format).same_bits(code)) << enum_word(type);
      }
    }
  });
}

// The mean of magnitudes, with m the largest and u = 2^-24: an integer is within 1/2 + 2.01 u 2^15
// of its quotient by m / 2^15, and so is the mean of them. Their sum, the quotient and the product
// are rounded to f32, and the product to bf16, which is within 2^-8.
TEST(Quantize, SignsHaveTheMeanMagnitude) {
  for_devices_and_types([](Device& device, DType type) {
    const BlockType sign[] = {BlockType::sign};
    for_formats(sign, [&](const BlockFormat& format, std::int64_t n) {
      for (double size : {1e-30, 1.0, 1e30}) {
        if (type == DType::f16 && size != 1.0) continue;
        const auto x = Tensor::random(type, {1, 1, n}, static_cast<unsigned>(n), size);
        const Tensor out = summed(device, quantized(device, x, format), n, DType::f32, format);
        Numbers want, bound;
        for (std::int64_t first = 0; first < n; first += format.block) {
          const std::int64_t end = std::min(first + format.block, n);
          double sum = 0, largest = 0;
          for (std::int64_t i = first; i < end; ++i)
            sum += std::abs(x[i]), largest = std::max(largest, std::abs(x[i]));
          const double mean = sum / static_cast<double>(end - first),
                       of_integers = largest * (0x1p-16 + 2.01 * 0x1p-24);
          for (std::int64_t i = first; i < end; ++i) {
            want.push_back(std::signbit(x[i]) ? -mean : mean);
            bound.push_back(of_integers + (mean + of_integers) * (0x1p-8 + 4 * 0x1p-24));
          }
        }
        expect_within(
            out, want, [&](std::int64_t i) { return bound[static_cast<std::size_t>(i)]; }, "value");
      }
    });
  });
}

TEST(Quantize, ExtremeBlocksOfSigns) {
  for_devices_and_types([](Device& device, DType type) {
    if (type == DType::f16) return;  // which has none of these numbers
    const bool wide = type == DType::f32;
    const BlockFormat format{.type = BlockType::sign, .block = 1 << 15};
    const float least = 0x1p-111F, below = wide ? std::nextafter(least, 0.0F) : 0x0.ffp-111F,
                huge = wide ? std::numeric_limits<float>::max() : 0x1.fep127F;
    struct Case {
      std::vector<float> block;  // zeros follow
      std::int64_t count;
      float scale;
    };
    const std::vector<Case> cases = {{{-0.0F, 0}, 5, 0},
                                     {{wide ? -0x1p-149F : -0x1p-133F, 0x1p-130F}, 33, 0},
                                     {{below, -below}, 2, 0},
                                     {{-least}, 1, least},
                                     {{-least}, 1 << 15, 0x1p-126F},
                                     // Half of what bf16 makes of it: of f32 2^128.
                                     {{huge, -1}, 2, wide ? huge / 2 + 0x1p103F : huge / 2},
                                     {{huge, -1}, 64, wide ? 0x1p122F : huge / 64},
                                     {{huge, -huge}, 2, wide ? kInfinity : huge},
                                     {{1, kInfinity}, 64, kNan},
                                     {{3, -kInfinity}, 31, kNan},
                                     {{-kNan, 1}, 1 << 15, kNan},
                                     {{5, -6, -0.0F, 1}, 4, 3}};
    for (const Case& c : cases) {
      Tensor x(type, {1, 1, c.count}), lost(DType::bf16, {1, 1, c.count}),
          scalars(DType::f32, {kScalars}), code(DType::u8, {1, 1, format.bytes(c.count)});
      scalars.set(static_cast<std::int64_t>(StepScalar::unscale), 1);
      for (std::size_t i = 0; i < c.block.size(); ++i)
        x.set(static_cast<std::int64_t>(i), static_cast<double>(c.block[i]));
      for (std::int64_t i = 0; i < c.count; ++i) lost.set(i, -0.0);  // which changes no x
      run(device, Quantize{.x = x.view(),
                           .code = code.view(),
                           .format = format,
                           .lost = lost.view(),
                           .scalars = scalars.view()});
      const std::vector<float> numbers = floats_of(x, 0, c.count);
      EXPECT_EQ(bytes_in(code.view(), 0, format.bytes(c.count)), bytes_of_slot(numbers, format));
      const Tensor out = summed(device, code, c.count, DType::f32, format);
      const bool same_sign = c.scale == 0 || std::isnan(c.scale);  // then codes are 0
      for (std::int64_t i = 0; i < c.count; ++i) {
        const float y = numbers[static_cast<std::size_t>(i)],
                    value = std::signbit(y) && !same_sign ? -c.scale : c.scale;
        if (std::isnan(c.scale)) {
          ASSERT_TRUE(std::isnan(out[i]) && std::isnan(lost[i])) << i;
        } else {
          ASSERT_EQ(out[i], static_cast<double>(value)) << i << " of " << c.count;
          ASSERT_EQ(lost[i], static_cast<double>(static_cast<float>(bf16(y - value)))) << i;
        }
      }
    }
  });
}

TEST(Quantize, ExtremeBlocks) {
  constexpr std::int64_t kBlock = 64;
  for_devices_and_types([](Device& device, DType numbers) {
    if (numbers == DType::f16) return;  // which has none of these numbers
    const bool wide = numbers == DType::f32;
    for (BlockType type : kIntegers) {
      SCOPED_TRACE(enum_word(type));
      const float most = most_of(type), least = most * 0x1p-126F;
      const BlockFormat format{.type = type, .block = kBlock};
      const float below = wide ? std::nextafter(least, 0.0F) : least - most * 0x1p-134F,
                  huge = wide ? std::numeric_limits<float>::max() : 0x1.fep127F;
      const std::vector<std::vector<float>> blocks = {
          {0, -0.0F, 0},        {wide ? 0x1p-149F : 0x1p-133F, -0x1p-130F},
          {below, -below},      {least, -least, least / 3},
          {huge, -huge / 3, 1}, {1, kInfinity, 2},
          {-kInfinity},         {3, -4, kNan},
          {kNan, -kInfinity},   {5, -6}};
      Tensor x(numbers, {1, 1, std::ssize(blocks) * kBlock});
      for (std::size_t k = 0; k < blocks.size(); ++k) {
        for (std::size_t i = 0; i < blocks[k].size(); ++i)
          x.set(static_cast<std::int64_t>(k * kBlock + i), static_cast<double>(blocks[k][i]));
      }
      const std::int64_t n = x.size();
      const Tensor code = quantized(device, x, format);
      EXPECT_EQ(bytes_in(code.view(), 0, format.bytes(n)),
                bytes_of_slot(floats_of(x, 0, n), format));
      const Tensor out = summed(device, code, n, DType::f32, format);
      for (std::int64_t i = 0; i < kBlock; ++i) {
        for (std::int64_t k : {0, 1, 2}) EXPECT_EQ(out[k * kBlock + i], 0) << k;
        for (std::int64_t k : {5, 6, 7, 8}) EXPECT_TRUE(std::isnan(out[k * kBlock + i])) << k;
        EXPECT_TRUE(std::isfinite(out[9 * kBlock + i]));
      }
      EXPECT_EQ(out[3 * kBlock], static_cast<double>(least));
      EXPECT_EQ(out[3 * kBlock + 1], -static_cast<double>(least));
      // 127 fl(largest / 127) of the largest f32 is one rounding beyond it.
      const float largest = type == BlockType::int8 ? kInfinity : huge;
      EXPECT_EQ(out[4 * kBlock], wide ? largest : most * (huge / most));
      EXPECT_TRUE(std::isfinite(out[4 * kBlock + 1]));
    }
  });
}

/// (parts, S, bytes) with scales that differ by part.
Tensor parts_of(Device& device, std::int64_t parts, std::int64_t slots, std::int64_t n,
                const BlockFormat& format) {
  Tensor x(DType::f32, {slots, parts, n});
  std::mt19937 generator(static_cast<unsigned>(parts * n));
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < x.size(); ++i)
    x.set(i, normal(generator) * std::exp2(static_cast<double>(i / n % parts % 5)));
  return quantized(device, x, format);
}

/// The sum of element i of slot s over the parts.
float tree(const View& code, std::int64_t s, std::int64_t i, std::int64_t n,
           const BlockFormat& format) {
  const std::int64_t parts = code.extent(0), slots = code.extent(1);
  return tessera::test::tree_order_sum(0, parts, [&](std::int64_t p) {
    return number(code.data + (p * slots + s) * format.bytes(n), i, n, format);
  });
}

TEST(SumQuantized, AddsInAnAlignedTreeAndRoundsOnce) {
  for_devices_and_types([](Device& device, DType type) {
    const std::int64_t slots = 2;
    for (BlockType block_type : kBlockTypes) {
      for (std::int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 21, 300}) {
        for (const auto& [block, n] : {std::pair<std::int64_t, std::int64_t>{32, 95},
                                       {6, 17},
                                       {256, 1},
                                       {256, 521},
                                       {64, 128}}) {
          if (parts > 100 && n > 17) continue;
          const BlockFormat format = format_of(block_type, block);
          const Tensor code = parts_of(device, parts, slots, n, format);
          const auto before = Tensor::random(type, {slots, n}, 5);
          for (Write write : {Write::overwrite, Write::add}) {
            const Tensor out = before.copy();
            Tensor want(type, {slots, n});
            run(device,
                SumQuantized{
                    .code = code.view(), .out = out.view(), .format = format, .write = write});
            for (std::int64_t i = 0; i < out.size(); ++i) {
              const float sum = tree(code.view(), i / n, i % n, n, format);
              want.set(i, static_cast<double>(
                              write == Write::add ? static_cast<float>(before[i]) + sum : sum));
            }
            ASSERT_TRUE(out.same_bits(want)) << enum_word(block_type) << ", " << parts
                                             << " parts of " << n << " in blocks of " << block;
          }
        }
      }
    }
  });
}

TEST(RequantizeSum, HasTheBytesOfTheQuantizedSum) {
  for_devices([](Device& device) {
    const std::int64_t slots = 2;
    for (BlockType type : kBlockTypes) {
      for (std::int64_t parts : {1, 2, 3, 4, 5, 8, 13}) {
        for (const auto& [block, n] : {std::pair<std::int64_t, std::int64_t>{2, 7},
                                       {6, 17},
                                       {32, 95},
                                       {256, 255},
                                       {256, 521},
                                       {1000, 1777},
                                       {4096, 4097},
                                       {5000, 5003}}) {
          if (n > 1000 && parts > 3 && parts < 13) continue;
          const BlockFormat format = format_of(type, block);
          const Tensor code = parts_of(device, parts, slots, n, format);
          Tensor sum(DType::u8, {slots, format.bytes(n)});
          std::memset(sum.view().data, 0x77, static_cast<std::size_t>(sum.size()));
          run(device, RequantizeSum{
                          .code = code.view(), .sum = sum.view(), .elements = n, .format = format});
          for (std::int64_t s = 0; s < slots; ++s) {
            std::vector<float> total;
            for (std::int64_t i = 0; i < n; ++i)
              total.push_back(tree(code.view(), s, i, n, format));
            EXPECT_EQ(bytes_in(sum.view(), s * format.bytes(n), format.bytes(n)),
                      bytes_of_slot(total, format))
                << enum_word(type) << ", " << parts << " parts of " << n << " in blocks of "
                << block;
          }
        }
      }
    }
  });
}

// What is rounded is the sum and what earlier roundings lost of it; what this one loses is what its
// bytes miss, rounded to bf16. Each step is one rounding of f32, so bits are known.
TEST(RequantizeSum, KeepsWhatItLoses) {
  for_devices([](Device& device) {
    const std::int64_t slots = 2;
    const float unscale = 0x1p-10F;
    Tensor scalars(DType::f32, {kScalars});
    scalars.set(static_cast<std::int64_t>(StepScalar::unscale), static_cast<double>(unscale));
    const Tensor samples = sample_number(11);
    const auto expect_kept = [&](RequantizeSum call, const std::vector<float>& total,
                                 std::int64_t gap) {
      const std::int64_t n = call.elements;
      const auto error = Tensor::random(DType::bf16, {slots, n}, 3, 0x1p-10 / 16, gap);
      Tensor sum(DType::u8, {slots, call.format.bytes(n)}), lost(DType::bf16, {slots, n}, gap);
      call.sum = sum.view(), call.error = error.view(), call.lost = lost.view();
      call.scalars = scalars.view();
      for (const bool in_place : {false, true}) {  // again, with what the first has lost
        const Tensor before = in_place ? lost.copy() : error.copy();
        if (in_place) call.error = {};
        run(device, call);
        Tensor want(DType::bf16, {slots, n});
        for (std::int64_t s = 0; s < slots; ++s) {
          std::vector<float> y;
          for (std::int64_t i = 0; i < n; ++i) {
            const float e = static_cast<float>(before[s * n + i]) * (1.0F / unscale);
            y.push_back(total[static_cast<std::size_t>(s * n + i)] + e);
          }
          EXPECT_EQ(bytes_in(sum.view(), s * call.format.bytes(n), call.format.bytes(n)),
                    bytes_of_slot(y, call.format, [&](std::int64_t i) {
                      return call.chance ? offset_of(call.chance, 11, s, i) : 0.0F;
                    }));
          const std::byte* slot = sum.view().data + s * call.format.bytes(n);
          for (std::int64_t i = 0; i < n; ++i) {
            const float missing =
                (y[static_cast<std::size_t>(i)] - number(slot, i, n, call.format)) * unscale;
            want.set(s * n + i, static_cast<double>(missing));
          }
        }
        EXPECT_TRUE(lost.same_bits(want)) << (in_place ? "in place" : "from another");
        EXPECT_TRUE(lost.gaps_intact());
      }
    };
    for (BlockType type : kBlockTypes) {
      for (std::int64_t parts : {1, 3, 8, 13}) {
        for (const auto& [block, n] : {std::pair<std::int64_t, std::int64_t>{2, 1},
                                       {32, 31},
                                       {32, 95},
                                       {256, 521},
                                       {1000, 1777},
                                       {5000, 5003}}) {
          if (n > 1000 && parts != 3 && parts != 13) continue;
          const BlockFormat format = format_of(type, block);
          SCOPED_TRACE(fmt::format("{}, {} parts of {} in blocks of {}", enum_word(type), parts, n,
                                   format.block));
          const Tensor code = parts_of(device, parts, slots, n, format);
          std::vector<float> total;
          for (std::int64_t i = 0; i < slots * n; ++i)
            total.push_back(tree(code.view(), i / n, i % n, n, format));
          RequantizeSum call{.code = code.view(), .elements = n, .format = format};
          for (std::int64_t gap : {0, 3}) expect_kept(call, total, gap);
          if (type == BlockType::sign) continue;
          call.chance = {.seed = 1, .stride = n, .samples = samples.view()};
          expect_kept(call, total, 0);
        }
      }
    }
  });
}

TEST(RequantizeSum, NotANumberInAPartIsOneInTheSum) {
  for_devices([](Device& device) {
    for (BlockType type : kBlockTypes) {
      const BlockFormat format{.type = type, .block = 32};
      Tensor x = Tensor::random(DType::f32, {1, 3, 96}, 1);
      x.set(96 + 40, static_cast<double>(kInfinity));
      const Tensor code = quantized(device, x, format);
      Tensor sum(DType::u8, {1, format.bytes(96)}), lost(DType::bf16, {1, 96}),
          scalars(DType::f32, {kScalars});
      scalars.set(static_cast<std::int64_t>(StepScalar::unscale), 1);
      run(device, RequantizeSum{.code = code.view(),
                                .sum = sum.view(),
                                .elements = 96,
                                .format = format,
                                .lost = lost.view(),
                                .scalars = scalars.view()});
      const Tensor out = summed(device, code, 96, DType::f32, format);
      for (std::int64_t i = 0; i < 96; ++i) {
        const bool nan = i / 32 == 1;
        EXPECT_EQ(std::isnan(out[i]), nan) << i;
        EXPECT_EQ(std::isnan(number(sum.view().data, i, 96, format)), nan) << i;
        EXPECT_EQ(std::isnan(lost[i]), nan) << i;
      }
    }
  });
}

TEST(Quantize, RefusesWhatBreaksItsContract) {
  for_devices([](Device& device) {
    const BlockFormat format{.block = 32};
    const Tensor x(DType::f32, {2, 3, 40}), code(DType::u8, {3, 2, format.bytes(40)});
    const auto refused = [&](const View& from, const View& to, const BlockFormat& f) {
      EXPECT_THROW(run(device, Quantize{.x = from, .code = to, .format = f}), InternalError);
    };
    run(device, Quantize{.x = x.view(), .code = code.view(), .format = format});
    refused(x.view(), code.view(), {.block = 31});
    refused(x.view(), code.view(), {.block = 0});
    refused(x.view(), code.view(), {.type = BlockType::sign, .block = 48});
    refused(x.view(), code.view(), {.type = BlockType::sign, .block = 1 << 16});
    refused(x.view(), code.view(), {.type = BlockType::int4, .block = 32});
    refused(x.view(), code.view().reshaped({2, 3, format.bytes(40)}), format);
    refused(x.view().reshaped({6, 40}), code.view(), format);
    refused(x.view(), x.view(), format);
    const Tensor errors(DType::bf16, {2, 3, 40}), scalars(DType::f32, {kScalars});
    Quantize feedback{.x = x.view(), .code = code.view(), .format = format, .lost = errors.view()};
    EXPECT_THROW(run(device, feedback), InternalError) << "without a loss scale";
    feedback.scalars = scalars.view(), feedback.lost = x.view();
    EXPECT_THROW(run(device, feedback), InternalError) << "errors in f32";
    feedback.lost = {}, feedback.error = errors.view();
    EXPECT_THROW(run(device, feedback), InternalError) << "errors that are not kept";
    const BlockFormat signs{.type = BlockType::sign};
    const Tensor one_bit(DType::u8, {3, 2, signs.bytes(40)}), samples = sample_number(1);
    EXPECT_THROW(run(device, Quantize{.x = x.view(),
                                      .code = one_bit.view(),
                                      .format = signs,
                                      .chance = {.samples = samples.view()}}),
                 InternalError)
        << "signs by chance";
    RequantizeSum sum{
        .code = code.view(),
        .sum = code.view().range(0, 2 * format.bytes(40)).reshaped({2, format.bytes(40)}),
        .elements = 40,
        .format = format,
        .lost = errors.view().matrix().row_range(0, 2),
        .scalars = scalars.view()};
    run(device, sum);
    sum.lost = errors.view().matrix().row_range(0, 3);
    EXPECT_THROW(run(device, sum), InternalError) << "errors of other slots";
    sum.lost = {};
    EXPECT_THROW(run(device, sum), InternalError) << "a loss scale alone";
    const Tensor bytes(DType::u8, {code.size() + 16});
    View odd = bytes.view().range(4, code.size()).reshaped({3, 2, format.bytes(40)});
    refused(x.view(), odd, format);
    EXPECT_THROW(run(device, SumQuantized{.code = code.view(),
                                          .out = x.view().range(0, 39).reshaped({1, 39}),
                                          .format = format}),
                 InternalError);
    EXPECT_THROW(run(device, RequantizeSum{.code = code.view(),
                                           .sum = code.view().range(0, format.bytes(40)),
                                           .elements = 40,
                                           .format = format}),
                 InternalError);
  });
}

}  // namespace
}  // namespace tessera::kernels::test
