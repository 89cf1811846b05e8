// All ranks choose together how matrix products are computed; the library is the emulator's, and
// refuses what a test says, on whichever rank.
#include <gtest/gtest.h>

#include "backend/cuda/tune_products.hpp"
#include "memory/tier.hpp"
#include "support/emulator/products.hpp"
#include "support/temporary_directory.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

using kernels::cuda::Epilogue;
using kernels::cuda::GemmKey;
using kernels::cuda::Matmul;
using kernels::cuda::ProductRules;

class Products : public testing::Test {
 protected:
  void TearDown() override { emulator::refuse_products(nullptr); }

  View view(std::int64_t rows, std::int64_t columns) {
    auto& bytes = memory_.emplace_back(static_cast<std::size_t>(2 * rows * columns));
    return View(reinterpret_cast<std::byte*>(bytes.data()), DType::bf16, {rows, columns});
  }
  /// A product with gelu and bias and its way back, and one with a bias alone; each rank has rows
  /// of its own number.
  std::vector<kernels::KernelCall> calls() {
    const std::int64_t rows = 8 + 8 * control().rank(), in = 16, out = 32;
    const View x = view(rows, in), w = view(out, in), y = view(rows, out), before = view(rows, out);
    const View bias = view(1, out).reshaped({out});
    return {kernels::Linear{.x = x, .weight = w, .bias = bias, .y = y, .preactivation = before},
            kernels::Linear{.x = x, .weight = w, .bias = bias, .y = y},
            kernels::LinearBackwardInput{
                .d_y = x, .weight = view(in, out), .d_x = y, .preactivation = before}};
  }
  /// The keys with which the rank then computes.
  std::vector<GemmKey> tuned(Matmul& matmul, const std::vector<kernels::KernelCall>& calls) {
    memory::HostTier tier;
    said_.clear();
    backend::tune_products(matmul, calls, ProductRules{}, tier, control(),
                           {.file = dir_.path() / "algorithms.txt",
                            .timed = true,
                            .memory = {},
                            .say = [&](const std::string& line) { said_.push_back(line); }});
    return gemm_keys(calls, ProductRules{}, matmul.refused());
  }

  static constexpr int kDriver = 13000;
  std::vector<std::vector<std::uint16_t>> memory_;
  TemporaryDirectory dir_;
  std::vector<std::string> said_;
  CudaQueue queue_;
};

TEST_F(Products, AreAllThereWhereNothingIsRefused) {
  Matmul matmul(queue_, kDriver);
  const auto calls = this->calls();
  const auto keys = tuned(matmul, calls);
  EXPECT_EQ(keys, gemm_keys(calls, ProductRules{}));
  EXPECT_EQ(matmul.table().chosen.size(),
            control().rank() == 0 ? 3 * static_cast<std::size_t>(session().size()) : 3);
  EXPECT_TRUE(matmul.refused().empty());
}

// The last rank's library refuses gelu of its own products: nobody's are less for it; all leave out
// what it refuses.
TEST_F(Products, AreWithoutWhatAnyRankRefuses) {
  const auto calls = this->calls();
  for (const bool bias_too : {false, true}) {
    emulator::refuse_products([&](const GemmKey& key) {
      if (control().rank() + 1 < session().size()) return false;
      return bias_too ? !is_plain(key) : key.epilogue != Epilogue::none;
    });
    Matmul matmul(queue_, kDriver);
    const auto keys = tuned(matmul, calls);
    const bool last = control().rank() + 1 == session().size();
    for (const GemmKey& key : keys) {
      EXPECT_TRUE(matmul.table().chosen.contains(key)) << text_of(key);
      if (last) {
        EXPECT_TRUE(bias_too ? is_plain(key) : key.epilogue == Epilogue::none);
      }
    }
    // What one leaves out, all know.
    const auto refused = static_cast<double>(matmul.refused().size());
    EXPECT_EQ(refused, bias_too ? 3 : 2);
    EXPECT_EQ(control().sum(refused), refused * static_cast<double>(session().size()));
    const auto has = [&](const char* text) {
      return std::ranges::any_of(said_,
                                 [&](const std::string& s) { return s.find(text) != s.npos; });
    };
    EXPECT_EQ(has("cuBLASLt refuses gelu within 2 matrix products: own kernels do it"),
              control().rank() == 0);
    EXPECT_EQ(has("cuBLASLt refuses the bias within"), control().rank() == 0 && bias_too);
  }
}

TEST_F(Products, AreTimedAnewWithAnotherDriver) {
  const auto calls = this->calls();
  const auto times = [&](int driver) {
    Matmul matmul(queue_, driver);
    tuned(matmul, calls);
    return std::ranges::any_of(
        said_, [](const std::string& s) { return s.find("are timed now") != s.npos; });
  };
  const bool says = control().rank() == 0;
  EXPECT_EQ(times(kDriver), says);
  EXPECT_FALSE(times(kDriver)) << "the table is there";
  EXPECT_EQ(times(kDriver + 10), says);
}

TEST_F(Products, EndTheStartWhereAPlainOneIsRefused) {
  const auto calls = this->calls();
  emulator::refuse_products([](const GemmKey&) { return true; });
  Matmul matmul(queue_, kDriver);
  EXPECT_THROW(tuned(matmul, calls), AgreedError);
}

}  // namespace
}  // namespace tessera::test
