// The lengths of a run's sequences: a curriculum has them grow over its first steps (Li et al.
// 2021, "Curriculum learning: a regularization method for efficient and stable billion-scale GPT
// model pre-training").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace tessera::deck {

/// Most phases of a curriculum: each length has plans of its own, all of which are made and proved
/// when a run starts.
inline constexpr std::int64_t kMostPhases = 64;

/// How many phases a curriculum asks for at most, of which its lengths are not made.
std::int64_t phases_asked(const Curriculum& curriculum);

/// What is wrong with a curriculum in a deck whose full length is `sequence`, and the remedy;
/// nothing where it can be had.
std::optional<std::string> curriculum_problem(const Curriculum& curriculum, std::int64_t sequence);

/// The phases of a run: from each entry's step on its length, steps ascending from 0. One of
/// batch.sequence where there is no curriculum. For curricula without a problem.
std::vector<LengthEntry> phases(const BatchSection& batch);

}  // namespace tessera::deck
