// What a model says of answers that all ranks know: how likely their tokens are, what they are
// expected to earn, or how good they are.
#pragma once

#include <span>
#include <vector>

#include "data/batches.hpp"
#include "train/run.hpp"

namespace tessera::train {

/// The tokens of an answer, at least one, behind those of its prompt.
struct Said {
  std::span<const std::int32_t> prompt, answer;
};
/// Adds them as a sample of a step, without its number: the answer's tokens are the targets that
/// count, and padding follows. Returns at which target of the step the answer begins.
std::size_t add_sample(data::StepTokens& step, const Said& said, const data::DocumentRule& rule);

/// A plan of an engine that has scores, and how its deck has documents in sequences.
struct Scorer {
  Engine& engine;
  plan::PlanShape shape;
  data::DocumentRule documents;
};
/// Of each answer its scores: of each of its tokens, or one of a model whose outputs are pooled.
/// Collective; every rank has all answers, and gets all scores. DataError, on every rank, for a
/// token that the model does not know. What goes wrong within a pass,
/// other ranks wait for: this one leaves alone.
std::vector<std::vector<float>> scores_of(std::span<const Said> answers, const Scorer& by,
                                          const Run& run);

}  // namespace tessera::train
