#include "optim/loss_scaler.hpp"

#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

deck::PrecisionSection dynamic(std::int64_t window, std::int64_t hysteresis, double minimum) {
  deck::PrecisionSection p;
  p.compute = deck::Precision::f16;
  p.loss_scale_power = 4;
  p.loss_scale_window = window;
  p.loss_scale_hysteresis = hysteresis;
  p.loss_scale_min = minimum;
  return p;
}

TEST(LossScaler, DoublesAfterAWindowOfGoodSteps) {
  LossScaler scaler(dynamic(3, 2, 1));
  EXPECT_EQ(scaler.scale(), 16);
  for (int step = 1; step <= 9; ++step) {
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), 16 << (step / 3)) << step;
  }
}

TEST(LossScaler, AnOverflowStartsTheWindowAgain) {
  LossScaler scaler(dynamic(3, 2, 1));
  for (bool overflow : {false, false, true, false, false}) scaler.update(overflow);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, HalvesAfterAsManyOverflowsAsHysteresis) {
  LossScaler scaler(dynamic(100, 3, 1));
  for (int n = 1; n <= 6; ++n) {
    scaler.update(true);
    EXPECT_EQ(scaler.scale(), n < 3 ? 16 : 16 >> (n - 2)) << n;  // then at every one
  }
  LossScaler eager(dynamic(100, 1, 1));
  eager.update(true);
  EXPECT_EQ(eager.scale(), 8);
}

TEST(LossScaler, DoesNotFallBelowItsMinimum) {
  LossScaler scaler(dynamic(100, 1, 3));
  for (int n = 0; n < 10; ++n) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 3);
}

TEST(LossScaler, AFixedScaleStays) {
  deck::PrecisionSection p = dynamic(1, 1, 1);
  p.loss_scale = 128.0;
  LossScaler scaler(p);
  scaler.update(true);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, OtherTypesAreNotScaled) {
  for (auto type : {deck::Precision::f32, deck::Precision::bf16}) {
    deck::PrecisionSection p = dynamic(1, 1, 1);
    p.compute = type;
    LossScaler scaler(p);
    scaler.update(false);
    EXPECT_EQ(scaler.scale(), 1);
  }
}

// Trap 45: everything that decides the next scale is in what a checkpoint keeps.
TEST(LossScaler, RestoredGoesOnAlike) {
  const std::array history = {false, true, false, false, true, true, false, false, false, true};
  for (std::size_t cut = 0; cut < history.size(); ++cut) {
    LossScaler whole(dynamic(2, 2, 1)), second(dynamic(2, 2, 1));
    for (std::size_t i = 0; i < history.size(); ++i) {
      if (i == cut) second.restore(whole.state());
      whole.update(history[i]);
      if (i >= cut) second.update(history[i]);
    }
    EXPECT_EQ(second.scale(), whole.scale()) << cut;
  }
}

}  // namespace
}  // namespace tessera::optim
