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
  void TearDown() override {
    emulator::refuse_products(nullptr);
    emulator::make_faster_apart(nullptr);
  }

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
  /// That the rank was told something with this text, where it is the one that is told.
  void expect_said(const char* text, bool said = true) const {
    EXPECT_EQ(std::ranges::any_of(said_, [&](const auto& s) { return s.find(text) != s.npos; }),
              said && control().rank() == 0)
        << text;
  }
  /// The keys with which the rank then computes.
  std::vector<GemmKey> tuned(Matmul& matmul, const std::vector<kernels::KernelCall>& calls) {
    memory::HostTier tier;
    said_.clear();
    const kernels::cuda::OwnKernels own = [](const auto&, std::byte*) {};
    backend::tune_products({.matmul = matmul, .rules = ProductRules{}, .own = own}, calls, tier,
                           control(),
                           {.file = dir_.path() / "algorithms.txt",
                            .timed = true,
                            .memory = {},
                            .say = [&](const std::string& line) { said_.push_back(line); }});
    return gemm_keys(calls, ProductRules{}, matmul.apart());
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
  EXPECT_TRUE(matmul.apart().empty());
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
    const auto refused = static_cast<double>(matmul.apart().size());
    EXPECT_EQ(refused, bias_too ? 3 : 2);
    EXPECT_EQ(control().sum(refused), refused * static_cast<double>(session().size()));
    expect_said("cuBLASLt refuses gelu within 2 matrix products: own kernels do it");
    expect_said("cuBLASLt refuses the bias within", bias_too);
  }
}

// What rank 0 finds faster so, all compute in parts, and what is left of it by one algorithm; so
// does the next start, which finds nothing faster by itself.
TEST_F(Products, AreInPartsWhereThatIsFaster) {
  const auto calls = this->calls();
  const auto whole = gemm_keys(calls, ProductRules{});
  for (const bool bias_too : {false, true}) {
    const auto faster = [&](const GemmKey& key) {
      return key.epilogue == Epilogue::gelu || (bias_too && key.bias);
    };
    std::filesystem::remove(dir_.path() / "algorithms.txt");
    for (const bool again : {false, true}) {
      SCOPED_TRACE(fmt::format("bias too {}, again {}", bias_too, again));
      emulator::make_faster_apart(
          [&](const GemmKey& key) { return control().rank() == 0 && !again && faster(key); });
      Matmul matmul(queue_, kDriver);
      const auto keys = tuned(matmul, calls);
      EXPECT_EQ(keys, gemm_keys(calls, ProductRules{}, matmul.apart()));
      EXPECT_TRUE(std::ranges::none_of(keys, faster));
      EXPECT_EQ(std::ranges::count_if(keys, &GemmKey::bias), bias_too ? 0 : 1);
      EXPECT_EQ(std::ranges::count(keys, Epilogue::gelu_slope, &GemmKey::epilogue), 1);
      for (const GemmKey& key : keys)
        EXPECT_TRUE(matmul.table().chosen.contains(key)) << text_of(key);
      for (const GemmKey& key : whole) {
        if (faster(key)) {
          EXPECT_TRUE(matmul.table().apart.contains(key)) << text_of(key);
        }
      }
      expect_said("own kernels do gelu behind ");
      expect_said("own kernels do the bias behind ", bias_too);
      expect_said("are timed now", !again);
    }
  }
}

// The last rank's library refuses what is left.
TEST_F(Products, AreInSmallerPartsWhereAPartIsRefused) {
  const auto calls = this->calls();
  emulator::make_faster_apart([](const GemmKey& key) { return key.epilogue == Epilogue::gelu; });
  emulator::refuse_products([&](const GemmKey& key) {
    return control().rank() + 1 == session().size() && key.bias && key.epilogue == Epilogue::none;
  });
  Matmul matmul(queue_, kDriver);
  const auto keys = tuned(matmul, calls);
  const bool last = control().rank() + 1 == session().size();
  EXPECT_EQ(std::ranges::count_if(keys, &GemmKey::bias), last ? 0 : 1);
  expect_said("cuBLASLt refuses the bias within 1 matrix products: own kernels do it");
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
