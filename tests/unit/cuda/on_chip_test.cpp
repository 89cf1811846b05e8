// Where shared memory differs between GPUs, results do not.
#include "support/emulator/emulator.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// A device whose blocks may have so many bytes.
std::unique_ptr<Device> device_with(std::size_t shared_bytes) {
  emulator::set_shared_bytes(shared_bytes);
  auto device = tessera::test::make_cuda_test_device();
  emulator::set_shared_bytes(emulator::kSharedBytes);
  return device;
}

// All of a row, some of it and none; a row of 60000 floats is more than fits into any.
TEST(OnChip, HowMuchOfARowOfLogitsFitsChangesNoBit) {
  for (const DType type : kTypes) {
    for (const std::int64_t vocabulary : {97, 5003, 60000}) {
      if (vocabulary == 60000 && type != DType::f32) continue;
      for (const float cap : {0.0F, 5.0F}) {
        const auto logits = Tensor::random(type, {3, vocabulary + 5}, 1, 4, 3);
        Tensor targets(DType::i32, {3}), scale(DType::f32, {1});
        targets.set(0, 96), targets.set(1, -1), targets.set(2, static_cast<double>(vocabulary / 2));
        scale.set(0, 0.125);
        std::vector<Tensor> losses, gradients;
        for (const std::size_t bytes :
             {emulator::kSharedBytes, std::size_t{3000}, std::size_t{0}}) {
          losses.emplace_back(DType::f32, std::vector<std::int64_t>{3});
          gradients.push_back(logits.copy());
          run(*device_with(bytes), Classify{.logits = gradients.back().view(),
                                            .targets = targets.view(),
                                            .losses = losses.back().view(),
                                            .scale = scale.view(),
                                            .vocab = vocabulary,
                                            .soft_cap = cap});
          EXPECT_TRUE(losses.back().same_bits(losses.front())) << bytes << " bytes";
          EXPECT_TRUE(gradients.back().same_bits(gradients.front())) << bytes << " bytes";
        }
        EXPECT_FALSE(gradients.front().same_bits(logits));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::test
