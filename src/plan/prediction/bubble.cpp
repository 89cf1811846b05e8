#include "plan/prediction/bubble.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace tessera::plan {

double pipeline_bubble(const PipelineRule& rule, std::int64_t stages, std::int64_t micro_batches,
                       std::span<const double> costs, double backward) {
  TESSERA_CHECK(std::ssize(costs) == stages * rule.virtual_stages, "{} costs of {} x {} parts",
                costs.size(), stages, rule.virtual_stages);
  using Kind = PipelineAction::Kind;
  double busy = 0, length = 0;
  const auto duration = [&](const PipelineAction& a, std::int64_t part) {
    const double cost = at(costs, part) * (a.kind == Kind::backward         ? backward
                                           : a.kind == Kind::backward_input ? backward - 1
                                                                            : 1);
    busy += cost;
    return cost;
  };
  const auto times =
      play(pipeline_actions(rule, stages, micro_batches, true), std::ssize(costs), duration);
  for (const auto& ends : times.ends)
    if (!ends.empty()) length = std::max(length, ends.back());
  return length > 0 ? 1 - busy / (length * static_cast<double>(stages)) : 0;
}

}  // namespace tessera::plan
