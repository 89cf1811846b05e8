// What a rank must have is said before it is taken.
#include "train/setup.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "unit/deck/deck_text.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(CheckGpu, SaysHowMuchIsMissingAndWhatToDo) {
  const deck::Deck deck = deck::small_deck().deck;
  const Mesh mesh{.tensor = 1, .data = 2, .pipeline = 1};
  const plan::ArenaBytes arenas{300 * kMiB, 200 * kMiB, 5000 * kMiB};  // the last is the host's
  check_gpu(deck, mesh, arenas, {.in_use = 1548 * kMiB, .total = 2048 * kMiB});
  check_gpu(deck, mesh, arenas, {});  // a CPU
  try {
    check_gpu(deck, mesh, arenas, {.in_use = 1558 * kMiB, .total = 2048 * kMiB});
    FAIL() << "10 MiB too much";
  } catch (const MemoryError& e) {
    const std::string what = e.what();
    for (const char* text : {"needs 500.00 MiB, 10.00 MiB more than the 490.00 MiB that are free "
                             "of its GPU's 2.00 GiB",
                             "nvidia-smi", "300.00 MiB in arena state", "200.00 MiB in arena step",
                             "recompute.policy", "zero.stage"})
      EXPECT_NE(what.find(text), what.npos) << what;
  }
}

}  // namespace
}  // namespace tessera::train
