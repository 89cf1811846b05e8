#include "plan/bubble.hpp"

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
          const auto start = ready(static_cast<std::int64_t>(s), a);
          if (!start) break;
          time[s] = std::max(time[s], *start) + duration(static_cast<std::int64_t>(s), a);
          busy += duration(static_cast<std::int64_t>(s), a);
          if (a.kind != Kind::backward_weight) {  // for which nobody waits
            const bool back = a.kind != Kind::forward;
            finished_[key(back, part(static_cast<std::int64_t>(s), a), a.micro_batch)] = time[s];
          }
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
  using Key = std::array<std::int64_t, 3>;  // backward, part of the layers, micro-batch
  static Key key(bool back, std::int64_t part, std::int64_t micro_batch) {
    return {back ? 1 : 0, part, micro_batch};
  }
  std::int64_t part(std::int64_t stage, const PipelineAction& a) const {
    return a.chunk * stages_ + stage;
  }
  double duration(std::int64_t stage, const PipelineAction& a) const {
    const double cost = costs_[static_cast<std::size_t>(part(stage, a))];
    switch (a.kind) {
      case Kind::forward:
      case Kind::backward_weight: return cost;
      case Kind::backward: return backward_ * cost;
      case Kind::backward_input: return (backward_ - 1) * cost;
    }
    throw InternalError("action without a duration");
  }
  /// When what the action needs is finished; nothing while it is not.
  std::optional<double> ready(std::int64_t stage, const PipelineAction& a) const {
    const std::int64_t p = part(stage, a), last = static_cast<std::int64_t>(costs_.size()) - 1;
    if (a.kind == Kind::backward_weight || (a.kind == Kind::forward && p == 0)) return 0;
    const bool back = a.kind != Kind::forward;
    const Key before = !back       ? key(false, p - 1, a.micro_batch)
                       : p == last ? key(false, p, a.micro_batch)
                                   : key(true, p + 1, a.micro_batch);
    const auto it = finished_.find(before);
    return it == finished_.end() ? std::nullopt : std::optional(it->second);
  }

  std::int64_t stages_;
  std::span<const double> costs_;
  double backward_;
  std::map<Key, double> finished_;
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
