// What a resumed run says where its new length moves the learning rate.
#pragma once

#include <cstdint>
#include <string>

#include "train/course.hpp"

namespace tessera::train {

/// `step` is done and `steps` are the run's length. Of the decks, the one before and now: what else
/// differs in them that the curve follows is named too, for the length alone is not to blame then.
std::string moved_rate_text(const Course::MovedRate& moved, std::int64_t step, std::int64_t steps,
                            const deck::Deck& before, const deck::Deck& now);

}  // namespace tessera::train
