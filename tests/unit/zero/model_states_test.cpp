// The formulas of model states against ZeRO's published accounting and capacity (Rajbhandari et al.
// 2020: table 1, section 3 and 9).
#include "zero/model_states.hpp"

#include <gtest/gtest.h>

namespace tessera::zero {
namespace {

/// 16 bytes a parameter: 2 + 2 + 12.
StateBytes mixed(std::int64_t elements, std::int64_t ranks, int stage) {
  return model_states({.trained = elements}, ranks, stage,
                      {.compute = DType::bf16, .accumulate = DType::bf16, .optimizer = 8});
}

constexpr std::int64_t kBillion = 1'000'000'000;

TEST(ModelStates, AreThePublishedAccounting) {
  for (const std::int64_t p : {std::int64_t{64} * 1024, 1536 * kBillion}) {
    for (const std::int64_t n : {1, 2, 8, 64, 512}) {
      EXPECT_EQ(mixed(p, n, 0).total(), 16 * p);
      EXPECT_EQ(mixed(p, n, 1).total(), 4 * p + 12 * p / n);
      EXPECT_EQ(mixed(p, n, 2).total(), 2 * p + 14 * p / n);
      EXPECT_EQ(mixed(p, n, 3).total(), 16 * p / n);
    }
  }
}

TEST(ModelStates, AreThePublishedTable) {
  // 7.5B, in GB: 64 ranks.
  const auto gb = [](const StateBytes& s) { return static_cast<double>(s.total()) / 1e9; };
  const std::int64_t p = 7'500'000'000;
  EXPECT_NEAR(gb(mixed(p, 64, 0)), 120, 0.05);
  EXPECT_NEAR(gb(mixed(p, 64, 1)), 31.4, 0.05);
  EXPECT_NEAR(gb(mixed(p, 64, 2)), 16.6, 0.05);
  EXPECT_NEAR(gb(mixed(p, 64, 3)), 1.88, 0.05);
  EXPECT_NEAR(gb(mixed(1000 * kBillion, 1024, 3)), 15.6, 0.05);
}

TEST(ModelStates, OfThePublishedSizesFitDevicesOf32GB) {
  constexpr std::int64_t kDevice = 32 * kBillion;
  EXPECT_LE(mixed(1'500'000'000, 8, 1).total(), kDevice);
  EXPECT_GT(mixed(10 * kBillion, 32, 1).total(), kDevice);
  EXPECT_LE(mixed(10 * kBillion, 32, 2).total(), kDevice);
  EXPECT_GT(mixed(1000 * kBillion, 512, 2).total(), kDevice);
  EXPECT_LE(mixed(1000 * kBillion, 512, 3).total(), kDevice);
}

TEST(ModelStates, HaveNoMasterWeightsApartInF32) {
  const StateBytes s = model_states({.trained = 1000}, 4, 1, {.optimizer = 8});
  EXPECT_EQ(s.parameters, 4000);
  EXPECT_EQ(s.gradients, 4000);
  EXPECT_EQ(s.optimizer, 8 * 250);
}

TEST(ModelStates, OfFrozenElementsAreParametersInTheirOwnType) {
  const model::Storage codes{
      .type = DType::u8,
      .codes = kernels::BlockFormat{.type = kernels::BlockType::int4, .block = 64}};
  const StateElements elements{
      .trained = 1000,
      .frozen = {{{.type = DType::bf16}, 6000}, {{.type = DType::f32}, 200}, {codes, 2560}}};
  const StateTypes types{.compute = DType::bf16, .optimizer = 8};
  const StateBytes s = model_states(elements, 4, 3, types);
  // Of 640 codes two are in a byte; 10 blocks have scales, which end on 16 bytes.
  EXPECT_EQ(s.parameters, 2 * 250 + 2 * 1500 + 4 * 50 + 320 + 48);
  EXPECT_EQ(s.gradients, 4 * 250);
  EXPECT_EQ(s.optimizer, 12 * 250);
  EXPECT_EQ(model_states(elements, 4, 2, types).parameters, 2 * 7000 + 4 * 200 + 1280 + 160);
}

TEST(ModelStates, AreDividedOverTheRanksThatShareThem) {
  const SharedElements shared{{4, {.trained = 1000}}, {2, {.trained = 600}}, {1, {.trained = 7}}};
  const StateBytes s = model_states(shared, 3, {.compute = DType::bf16, .optimizer = 8});
  EXPECT_EQ(s.parameters, 2 * (250 + 300 + 7));
  EXPECT_EQ(s.gradients, 4 * (250 + 300 + 7));
  EXPECT_EQ(s.optimizer, 12 * (250 + 300 + 7));
}

TEST(ModelStates, LieWhereTheyArePut) {
  const StateBytes s = mixed(1000, 4, 2);
  const StateChoice choice{
      .stage = 2, .optimizer = StateTier::disk, .gradients = StateTier::host, .parameters = {}};
  EXPECT_EQ(s.in(StateTier::device, choice), 2000);
  EXPECT_EQ(s.in(StateTier::host, choice), 500);
  EXPECT_EQ(s.in(StateTier::disk, choice), 3000);
}

}  // namespace
}  // namespace tessera::zero
