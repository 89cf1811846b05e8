// Products of few rows that multiply a weight's codes.
#include <array>

#include "core/at.hpp"
#include "kernels/common/slots.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// A weight as codes, and as the elements that a device makes of them.
class Coded {
 public:
  Coded(Device& device, const BlockFormat& format, DType type, std::int64_t rows,
        std::int64_t columns)
      : format_(format),
        n_(rows * columns),
        columns_(columns),
        slot_(DType::i32, {ceil_div(format.bytes(n_), 4)}),
        elements_(type, {rows, columns}) {
    const auto random = Tensor::random(DType::f32, {n_}, 7);
    std::vector<float> values;
    for (const double x : random.numbers()) values.push_back(static_cast<float>(x));
    const auto [codes, scales] = slot_bytes(format, n_, {0, n_});
    const auto of = [&](Range r) {
      return std::span(slot_.view().data + r.begin, static_cast<std::size_t>(r.count()));
    };
    encode_blocks(format, values, of(codes), of(scales));
    run(device, SumQuantized{.code = View(slot_.view().data, DType::u8, {1, 1, format.bytes(n_)}),
                             .out = elements_.view().reshaped({1, n_}),
                             .format = format});
  }

  View elements() const { return elements_.view(); }
  View weight() const {
    return View(slot_.view().data, DType::u8,
                {elements_.view().rows(), columns_ * format_.bits() / 8});
  }
  WeightCodes codes() const {
    return {.scales = View(slot_.view().data + format_.scales_at(n_), DType::f32,
                           {ceil_div(n_, format_.block)}),
            .format = format_};
  }

 private:
  BlockFormat format_;
  std::int64_t n_, columns_;
  Tensor slot_, elements_;
};

/// f(device, type of elements, format), of devices that multiply codes.
template <typename F>
void for_formats(F&& f) {
  for (const Isa isa : isas_of_products()) {
    for (const DType type : kTypes) {
      for (const BlockType kept : {BlockType::int8, BlockType::int4, BlockType::nf4}) {
        for (const std::int64_t block : {16, 24, 64, 4096}) {
          SCOPED_TRACE(fmt::format("{} {} {} in blocks of {}", enum_word(isa), to_string(type),
                                   enum_word(kept), block));
          f(*make_cpu_device({.threads = 2, .isa = isa, .few_rows = true}), type,
            BlockFormat{.type = kept, .block = block});
        }
      }
    }
  }
}

// Blocks that end within rows, as rows end within vectors.
TEST(CodedWeights, HaveTheBitsOfTheirElements) {
  for_formats([](Device& device, DType type, const BlockFormat& format) {
    const std::int64_t n = 37, k = 102;
    const Coded coded(device, format, type, n, k);
    const auto b = Tensor::random(type, {n}, 3);
    for (const std::int64_t rows : {1, 5, 32}) {
      const auto x = Tensor::random(type, {rows, k}, 1, 1, 2);
      for (const DType to : {type, DType::f32}) {
        for (const bool biased : {false, true}) {
          const Tensor want(to, {rows, n}), got(to, {rows, n}, 3);
          const View bias = biased ? b.view() : View();
          run(device,
              Linear{.x = x.view(), .weight = coded.elements(), .bias = bias, .y = want.view()});
          run(device, Linear{.x = x.view(),
                             .weight = coded.weight(),
                             .bias = bias,
                             .y = got.view(),
                             .codes = coded.codes()});
          EXPECT_TRUE(got.same_bits(want)) << rows;
          EXPECT_TRUE(got.gaps_intact());
        }
      }
    }
  });
}

/// Rows of three experts, of which there is room for `rows`.
void expect_bits_of_experts(Device& device, DType type, const BlockFormat& format,
                            std::int64_t rows, const std::array<std::int32_t, 4>& begins) {
  const std::int64_t out = 12, in = 96, experts = 3;
  const Coded coded(device, format, type, experts * out, in);
  const auto x = Tensor::random(type, {rows, in}, 1);
  const Tensor table(DType::i32, {experts + 1}), got(type, {rows, out});
  std::ranges::copy(begins, table.view().as<std::int32_t>());
  run(device, ExpertLinear{.x = x.view(),
                           .weight = coded.weight(),
                           .begins = table.view(),
                           .y = got.view(),
                           .codes = coded.codes()});
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t r = at(begins, e); r < at(begins, e + 1); ++r) {
      const Tensor want(type, {1, out});
      run(device, Linear{.x = x.view().row_range(r, 1),
                         .weight = coded.elements().row_range(e * out, out),
                         .y = want.view()});
      for (std::int64_t c = 0; c < out; ++c) ASSERT_EQ(got[r * out + c], want[c]) << r;
    }
  }
}

// Of an expert that has more rows than are multiplied at once each is as it is by itself; and of
// experts that have fewer together.
TEST(CodedWeights, OfExpertsHaveTheBitsOfTheirElements) {
  for_formats([](Device& device, DType type, const BlockFormat& format) {
    if (format.block > 64) return;  // a whole number of blocks for each expert
    expect_bits_of_experts(device, type, format, 96, {0, 64, 64, 80});
    expect_bits_of_experts(device, type, format, 16, {0, 0, 16, 16});
  });
}

TEST(CodedWeights, AreForDevicesAndRowsThatMultiplyThem) {
  const auto few = make_cpu_device({.few_rows = true}), other = make_cpu_device({});
  EXPECT_TRUE(few->multiplies_codes(32));
  EXPECT_FALSE(few->multiplies_codes(33));
  EXPECT_FALSE(other->multiplies_codes(1));
  const BlockFormat format{.type = BlockType::int4, .block = 32};
  const Coded coded(*few, format, DType::f32, 8, 64);
  const Tensor x(DType::f32, {33, 64}), y(DType::f32, {33, 8});
  Linear call{.x = x.view(), .weight = coded.weight(), .y = y.view(), .codes = coded.codes()};
  EXPECT_THROW(few->scratch_bytes(call), InternalError);
  call.x = x.view().row_range(0, 1), call.y = y.view().row_range(0, 1);
  EXPECT_GT(few->scratch_bytes(call), 0);
  call.codes.format.block = 64;  // half as many scales
  EXPECT_THROW(few->run(call), InternalError);
  call.codes.format = {.type = BlockType::int8, .block = 32};  // twice as many bytes
  EXPECT_THROW(few->run(call), InternalError);
  call.codes.format = {.type = BlockType::sign, .block = 32};
  EXPECT_THROW(few->run(call), InternalError);
}

}  // namespace
}  // namespace tessera::kernels::test
