#include "train/expert_loads.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace tessera::train {

double ExpertLoads::most() const {
  const auto all = std::accumulate(choices.begin(), choices.end(), std::int64_t{0});
  if (all == 0) return 1;
  return static_cast<double>(std::ranges::max(choices)) * static_cast<double>(choices.size()) /
         static_cast<double>(all);
}

std::int64_t ExpertLoads::unused() const { return std::ranges::count(choices, 0); }

std::vector<ExpertLoads> expert_loads(const model::ModelConfig& config,
                                      std::span<const std::int64_t> choices) {
  const auto counts = static_cast<std::size_t>(config.experts.count + 1);
  std::vector<ExpertLoads> all;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (!config.experts.in(layer)) continue;
    const auto of_layer = choices.subspan(all.size() * counts, counts);
    all.push_back({.layer = layer,
                   .choices = {of_layer.begin(), of_layer.end() - 1},
                   .dropped = of_layer.back()});
  }
  TESSERA_CHECK(choices.size() == all.size() * counts, "{} counts of choices in {} layers",
                choices.size(), all.size());
  return all;
}

}  // namespace tessera::train
