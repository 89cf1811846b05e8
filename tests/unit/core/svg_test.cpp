#include "core/svg.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::svg {
namespace {

TEST(Svg, TextCannotBecomeMarkup) {
  EXPECT_EQ(escaped("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
  EXPECT_EQ(escaped("two\nlines\x1b[0m"), "two\nlines\\x1b[0m");
  EXPECT_NE(words(1, 2, "</text><script>").find("&lt;/text&gt;&lt;script&gt;"), std::string::npos);
  EXPECT_NE(rectangle({}, "red", "", "<i>").find("<title>&lt;i&gt;</title>"), std::string::npos);
}

TEST(Svg, TicksAreRoundAndNotTooMany) {
  for (const double length : {1e-6, 0.37, 1.0, 9.99, 10.0, 12345.0, 7e11}) {
    for (const int count : {5, 6, 10}) {
      const double tick = tick_of(length, count);
      EXPECT_LE(length / tick, count * (1 + 1e-12)) << length;
      EXPECT_GE(length / tick, count / 2.6) << length;
      const double digit = tick / std::pow(10, std::floor(std::log10(tick * (1 + 1e-12))));
      EXPECT_TRUE(std::abs(digit - 1) < 1e-9 || std::abs(digit - 2) < 1e-9 ||
                  std::abs(digit - 5) < 1e-9)
          << tick;
    }
  }
}

}  // namespace
}  // namespace tessera::svg
