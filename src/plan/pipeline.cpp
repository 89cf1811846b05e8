#include "plan/pipeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "core/error.hpp"

namespace tessera::plan {

std::vector<Range> balanced_parts(std::span<const double> costs, std::int64_t parts) {
  const auto n = static_cast<std::int64_t>(costs.size());
  TESSERA_CHECK(parts >= 1 && parts <= n, "{} parts of {} layers", parts, n);
  std::vector<double> before(costs.size() + 1);
  for (std::size_t i = 0; i < costs.size(); ++i) before[i + 1] = before[i] + costs[i];
  const auto cost = [&](std::int64_t begin, std::int64_t end) {
    return before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)];
  };
  // dearest[p][i]: of the best cut of the first i layers into p parts; begin[p][i] its last part's.
  const double never = std::numeric_limits<double>::infinity();
  const auto rows = static_cast<std::size_t>(parts) + 1;
  std::vector dearest(rows, std::vector<double>(costs.size() + 1, never));
  std::vector begin(rows, std::vector<std::int64_t>(costs.size() + 1, 0));
  dearest[0][0] = 0;
  for (std::size_t p = 1; p < rows; ++p) {
    for (std::int64_t i = static_cast<std::int64_t>(p); i <= n; ++i) {
      for (std::int64_t j = i - 1; j >= static_cast<std::int64_t>(p) - 1; --j) {
        if (cost(j, i) >= dearest[p][static_cast<std::size_t>(i)]) break;  // it only grows
        const double worst = std::max(dearest[p - 1][static_cast<std::size_t>(j)], cost(j, i));
        if (worst < dearest[p][static_cast<std::size_t>(i)]) {
          dearest[p][static_cast<std::size_t>(i)] = worst;
          begin[p][static_cast<std::size_t>(i)] = j;
        }
      }
    }
  }
  std::vector<Range> result(static_cast<std::size_t>(parts));
  for (std::int64_t p = parts, end = n; p > 0; --p) {
    const std::int64_t first = begin[static_cast<std::size_t>(p)][static_cast<std::size_t>(end)];
    result[static_cast<std::size_t>(p) - 1] = {first, end};
    end = first;
  }
  return result;
}

namespace {

using Kind = PipelineAction::Kind;

/// Plays a schedule's rule on all stages at once.
class Player {
 public:
  Player(const PipelineRule& rule, std::int64_t stages, std::int64_t micro_batches, bool training,
         std::int64_t slack)
      : rule_(rule),
        p_(stages),
        v_(rule.virtual_stages),
        k_(micro_batches),
        training_(training),
        split_(rule.schedule == PipelineSchedule::zero_bubble),
        stages_(static_cast<std::size_t>(stages)) {
    // Micro-batches pass a stage in groups as large as the pipeline is deep, chunk by chunk.
    const std::int64_t group = v_ == 1 ? k_ : p_;
    for (std::int64_t g = 0; g < k_; g += group) {
      for (std::int64_t c = 0; c < v_; ++c) {
        for (std::int64_t m = g; m < std::min(k_, g + group); ++m) {
          forwards_.push_back({Kind::forward, c, m});
          backwards_.push_back({split_ ? Kind::backward_input : Kind::backward, v_ - 1 - c, m});
        }
      }
    }
    for (std::int64_t s = 0; s < p_; ++s) {
      auto& most = stages_[static_cast<std::size_t>(s)].most_in_flight;
      most = v_ == 1 ? p_ - s : 2 * (p_ - s - 1) + (v_ - 1) * p_ + 1;
      most += slack;
      if (rule.schedule == PipelineSchedule::gpipe || !training) most = v_ * k_;
    }
  }

  /// Every stage's actions; nothing when the rule comes to a halt.
  std::optional<std::vector<std::vector<PipelineAction>>> play() {
    std::size_t left = static_cast<std::size_t>(p_) * forwards_.size();
    if (training_) left *= split_ ? 3 : 2;
    std::vector<std::optional<Choice>> choices;
    for (std::int64_t s = 0; s < p_; ++s) choices.push_back(choice(s));
    for (; left > 0; --left) {
      std::optional<Choice> first;
      std::int64_t who = 0;
      for (std::int64_t s = 0; s < p_; ++s) {
        const auto& c = choices[static_cast<std::size_t>(s)];
        if (c && (!first || c->start < first->start)) first = c, who = s;
      }
      if (!first) return std::nullopt;
      take(who, *first);
      // What a stage does matters to its neighbours only.
      for (const std::int64_t s : {who, (who + 1) % p_, (who + p_ - 1) % p_})
        choices[static_cast<std::size_t>(s)] = choice(s);
    }
    std::vector<std::vector<PipelineAction>> all;
    for (auto& s : stages_) all.push_back(std::move(s.done));
    return all;
  }

 private:
  struct Choice {
    PipelineAction action;
    std::int64_t start = 0;
  };
  struct Stage {
    std::int64_t time = 0, in_flight = 0, most_in_flight = 0;
    std::size_t next_forward = 0, next_backward = 0;
    std::vector<PipelineAction> weights;  // parts of backward that were put off
    std::size_t next_weight = 0;
    std::vector<PipelineAction> done;
  };
  std::int64_t part_of(std::int64_t stage, const PipelineAction& a) const {
    return a.chunk * p_ + stage;
  }

  /// When what the action needs of another is there; nothing while it is not.
  std::optional<std::int64_t> ready(std::int64_t stage, const PipelineAction& a) const {
    const auto needed = needed_by(a, part_of(stage, a), p_ * v_);
    if (!needed) return 0;
    const auto it = finished_.find(*needed);
    return it == finished_.end() ? std::nullopt : std::optional(it->second);
  }

  std::optional<Choice> choice(std::int64_t stage) const {
    const Stage& s = stages_[static_cast<std::size_t>(stage)];
    const auto next = [&](const std::vector<PipelineAction>& order,
                          std::size_t at) -> std::optional<Choice> {
      if (at == order.size()) return std::nullopt;
      const auto when = ready(stage, order[at]);
      return when ? std::optional(Choice{order[at], std::max(s.time, *when)}) : std::nullopt;
    };
    // Some schedules go forward as long as they may, the others backward as soon as they can.
    const bool eager = rule_.schedule == PipelineSchedule::gpipe || v_ > 1 || split_;
    const bool may_forward = s.next_forward < forwards_.size() && s.in_flight < s.most_in_flight;
    std::optional<Choice> forward, backward;
    if (may_forward) forward = next(forwards_, s.next_forward);
    if (training_ && !(eager && may_forward)) backward = next(backwards_, s.next_backward);
    const auto best =
        backward && (!forward || backward->start <= forward->start) ? backward : forward;
    // Later stages, which have fewer micro-batches in flight, put off as many more weights: all
    // hold what the first stage does (ZB-H1). What is put off fills time that is left.
    const auto put_off = static_cast<std::int64_t>(s.weights.size() - s.next_weight);
    if (put_off > stage || (put_off > 0 && (!best || best->start > s.time)))
      return Choice{s.weights[s.next_weight], s.time};
    return best;
  }

  void take(std::int64_t stage, const Choice& c) {
    Stage& s = stages_[static_cast<std::size_t>(stage)];
    s.time = c.start + (c.action.kind == Kind::backward ? 2 : 1);
    s.done.push_back(c.action);
    if (const auto result = result_of(c.action, part_of(stage, c.action)))
      finished_[*result] = s.time;
    switch (c.action.kind) {
      case Kind::forward: ++s.next_forward, ++s.in_flight; break;
      case Kind::backward: ++s.next_backward, --s.in_flight; break;
      case Kind::backward_input:
        ++s.next_backward, --s.in_flight;
        s.weights.push_back({Kind::backward_weight, c.action.chunk, c.action.micro_batch});
        break;
      case Kind::backward_weight: ++s.next_weight; break;
    }
  }

  const PipelineRule& rule_;
  std::int64_t p_, v_, k_;
  bool training_, split_;
  std::vector<PipelineAction> forwards_, backwards_;  // the same order on every stage
  std::vector<Stage> stages_;
  std::map<PipelineResult, std::int64_t> finished_;
};

}  // namespace

std::optional<PipelineResult> needed_by(const PipelineAction& a, std::int64_t part,
                                        std::int64_t parts) {
  switch (a.kind) {
    case Kind::forward:
      return part == 0 ? std::nullopt
                       : std::optional(PipelineResult{false, part - 1, a.micro_batch});
    case Kind::backward:
    case Kind::backward_input:
      return part == parts - 1 ? PipelineResult{false, part, a.micro_batch}
                               : PipelineResult{true, part + 1, a.micro_batch};
    case Kind::backward_weight: return std::nullopt;
  }
  return std::nullopt;
}

std::optional<PipelineResult> result_of(const PipelineAction& a, std::int64_t part) {
  if (a.kind == Kind::backward_weight) return std::nullopt;
  return PipelineResult{a.kind != Kind::forward, part, a.micro_batch};
}

std::vector<std::vector<PipelineAction>> pipeline_actions(const PipelineRule& rule,
                                                          std::int64_t stages,
                                                          std::int64_t micro_batches,
                                                          bool training) {
  // A limit on micro-batches in flight that is too tight for an odd number of them is relaxed.
  for (std::int64_t slack = 0; slack <= rule.virtual_stages * micro_batches; ++slack) {
    if (auto actions = Player(rule, stages, micro_batches, training, slack).play()) return *actions;
  }
  throw InternalError(fmt::format("no {} schedule of {} micro-batches over {} stages",
                                  enum_word(rule.schedule), micro_batches, stages));
}

}  // namespace tessera::plan
