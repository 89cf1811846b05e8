// Where weights are said to come from.
#include "train/state/starting_state.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace tessera::train {
namespace {

TEST(StartingState, NamesTheSourceOfWeights) {
  LoadedCheckpoint from;
  EXPECT_EQ(source_of(from), "");
  EXPECT_EQ(source_of(from.deck), "");
  from.deck.model.init_from = "hf/gpt2";
  EXPECT_EQ(source_of(from.deck), std::filesystem::current_path() / "hf/gpt2")
      << "a run that begins here";
  EXPECT_EQ(source_of(from), "hf/gpt2") << "a checkpoint made elsewhere, who knows where";
  from.header.source = "/models/hf/gpt2";
  EXPECT_EQ(source_of(from), "/models/hf/gpt2");
}

}  // namespace
}  // namespace tessera::train
