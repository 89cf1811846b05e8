// How much better answers are than others to the same prompt.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::train {

/// Mean and standard deviation, that of n with n - 1 degrees of freedom, of the rewards of a group.
struct GroupStatistics {
  double mean = 0, deviation = 0;
};
GroupStatistics group_statistics(std::span<const double> rewards);

/// Group-relative advantages (Shao et al. 2024, DeepSeekMath, section 4.1.1): of each answer its
/// reward less the mean over its group, `samples` answers that follow one another. `scale`: divided
/// by the group's standard deviation plus 1e-4, which keeps what rounding leaves of equal rewards
/// from becoming something.
std::vector<double> group_advantages(std::span<const double> rewards, std::int64_t samples,
                                     bool scale);

/// Generalised advantages (Schulman et al. 2016, equation 16) of an answer's tokens: with delta_t =
/// r_t + gamma v_{t+1} - v_t, what token t's reward and the next state's value are more than its
/// own, the sum over l >= 0 of (gamma lambda)^l delta_{t+l}. Behind the last token the value is 0.
std::vector<double> generalised_advantages(std::span<const double> rewards,
                                           std::span<const float> values, double gamma,
                                           double lambda);

}  // namespace tessera::train
