#include "plan/prediction/bubble.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "core/error.hpp"

namespace tessera::plan {
namespace {

using Kind = PipelineAction::Kind;

/// Runs every stage's actions as soon as what they need is there.
class Timing {
 public:
  Timing(std::int64_t stages, std::span<const double> costs, double backward)
      : stages_(stages), costs_(costs), backward_(backward) {}

  double bubble(const std::vector<std::vector<PipelineAction>>& actions) {
    std::vector<std::size_t> next(actions.size());
    std::vector<double> time(actions.size());
    double busy = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < actions.size(); ++s) {
        while (next[s] < actions[s].size()) {
          const PipelineAction& a = actions[s][next[s]];
          const std::int64_t part = a.chunk * stages_ + static_cast<std::int64_t>(s);
          const auto start = ready(a, part);
          if (!start) break;
          time[s] = std::max(time[s], *start) + duration(a, part);
          busy += duration(a, part);
          if (const auto result = result_of(a, part)) finished_[*result] = time[s];
          ++next[s];
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < actions.size(); ++s)
      TESSERA_CHECK(next[s] == actions[s].size(), "stage {} comes to a halt", s);
    const double length = *std::max_element(time.begin(), time.end());
    return length > 0 ? 1 - busy / (length * static_cast<double>(stages_)) : 0;
  }

 private:
  double duration(const PipelineAction& a, std::int64_t part) const {
    const double cost = costs_[static_cast<std::size_t>(part)];
    switch (a.kind) {
      case Kind::forward:
      case Kind::backward_weight: return cost;
      case Kind::backward: return backward_ * cost;
      case Kind::backward_input: return (backward_ - 1) * cost;
    }
    throw InternalError("action without a duration");
  }
  /// When what the action needs is finished; nothing while it is not.
  std::optional<double> ready(const PipelineAction& a, std::int64_t part) const {
    const auto needed = needed_by(a, part, static_cast<std::int64_t>(costs_.size()));
    if (!needed) return 0;
    const auto it = finished_.find(*needed);
    return it == finished_.end() ? std::nullopt : std::optional(it->second);
  }

  std::int64_t stages_;
  std::span<const double> costs_;
  double backward_;
  std::map<PipelineResult, double> finished_;
};

}  // namespace

double pipeline_bubble(const PipelineRule& rule, std::int64_t stages, std::int64_t micro_batches,
                       std::span<const double> costs, double backward) {
  TESSERA_CHECK(static_cast<std::int64_t>(costs.size()) == stages * rule.virtual_stages,
                "{} costs of {} x {} parts", costs.size(), stages, rule.virtual_stages);
  return Timing(stages, costs, backward)
      .bubble(pipeline_actions(rule, stages, micro_batches, true));
}

}  // namespace tessera::plan
