#include "io/finite.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace tessera {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float rounded(float x, DType type) {
  return type == DType::bf16  ? static_cast<float>(bf16(x))
         : type == DType::f16 ? static_cast<float>(f16(x))
                              : x;
}

TEST(FindNonFinite, FindsWhatRoundsToNoFiniteNumber) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> values = {0, -0.0F, 1e-45F, 1, kNaN, -kNaN, kInfinity, largest};
  for (const float edge : {65504.0F, 65520.0F, 0x1.fep127F, 0x1.ffp127F}) {
    for (const float x : {std::nextafter(edge, 0.0F), edge, std::nextafter(edge, kInfinity)})
      values.push_back(x);
  }
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (const float x : values) {
      for (const float signed_x : {x, -x}) {
        EXPECT_EQ(io::find_non_finite(std::array{signed_x}, type).has_value(),
                  !std::isfinite(rounded(signed_x, type)))
            << signed_x << " as " << to_string(type);
      }
    }
  }
}

TEST(FindNonFinite, FindsTheFirstWhereverItIs) {
  EXPECT_FALSE(io::find_non_finite({}, DType::f32));
  std::vector<float> values(10000, 1.0F);
  EXPECT_FALSE(io::find_non_finite(values, DType::f32));
  for (const std::size_t at : {9999, 9998, 8192, 4097, 4096, 4095, 1, 0}) {
    values[at] = at % 2 == 0 ? kNaN : -kInfinity;
    EXPECT_EQ(io::find_non_finite(values, DType::f32), static_cast<std::int64_t>(at));
  }
}

TEST(NonFiniteError, SaysWhatAndWhere) {
  EXPECT_EQ(io::index_text(std::vector<std::int64_t>{7}, 3), "[3]");
  EXPECT_EQ(io::index_text(std::vector<std::int64_t>{7, 5}, 17), "[3, 2]");
  EXPECT_EQ(io::index_text(std::vector<std::int64_t>{2, 3, 4}, 23), "[1, 2, 3]");
  const std::string nan = io::non_finite_error("a: b[3]", kNaN, DType::f32, "--this").what();
  EXPECT_TRUE(nan.starts_with("a: b[3] is nan, no finite number")) << nan;
  EXPECT_NE(nan.find("--this"), std::string::npos) << nan;
  const std::string large = io::non_finite_error("a: b[3]", 70000, DType::f16, "--this").what();
  EXPECT_TRUE(large.starts_with("a: b[3] is 70000, which f16 cannot hold")) << large;
}

}  // namespace
}  // namespace tessera
