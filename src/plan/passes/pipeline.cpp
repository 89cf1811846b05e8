#include "plan/passes/pipeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "core/error.hpp"

namespace tessera::plan {

std::vector<Range> balanced_parts(std::span<const double> costs, std::int64_t parts) {
  const auto n = std::ssize(costs);
  TESSERA_CHECK(parts >= 1 && parts <= n, "{} parts of {} layers", parts, n);
  std::vector<double> before(costs.size() + 1);
  for (std::size_t i = 0; i < costs.size(); ++i) before[i + 1] = before[i] + costs[i];
  const auto cost = [&](std::int64_t begin, std::int64_t end) {
    return at(before, end) - at(before, begin);
  };
  // best[p][i]: the most expensive part's cost in the best cut of the first i layers into p
  // parts; begin[p][i]: where the last part of that cut begins.
  const double never = std::numeric_limits<double>::infinity();
  const auto rows = static_cast<std::size_t>(parts) + 1;
  std::vector best(rows, std::vector<double>(costs.size() + 1, never));
  std::vector begin(rows, std::vector<std::int64_t>(costs.size() + 1, 0));
  best[0][0] = 0;
  for (std::size_t p = 1; p < rows; ++p) {
    for (std::int64_t i = static_cast<std::int64_t>(p); i <= n; ++i) {
      for (std::int64_t j = i - 1; j >= static_cast<std::int64_t>(p) - 1; --j) {
        if (cost(j, i) >= at(best[p], i)) break;  // it only grows
        const double worst = std::max(at(best[p - 1], j), cost(j, i));
        if (worst < at(best[p], i)) {
          at(best[p], i) = worst;
          at(begin[p], i) = j;
        }
      }
    }
  }
  std::vector<Range> result(static_cast<std::size_t>(parts));
  for (std::int64_t p = parts, end = n; p > 0; --p) {
    const std::int64_t first = at(at(begin, p), end);
    result[static_cast<std::size_t>(p) - 1] = {first, end};
    end = first;
  }
  return result;
}

namespace {

using Kind = PipelineAction::Kind;

/// How long an action takes, if a forward takes 1.
std::int64_t length_of(const PipelineAction& a) { return a.kind == Kind::backward ? 2 : 1; }

/// Simulates a schedule's rule on all stages: again and again, takes the action that can start
/// first.
class ScheduleRule {
 public:
  ScheduleRule(const PipelineRule& rule, std::int64_t stages, std::int64_t micro_batches,
               bool training, std::int64_t slack)
      : rule_(rule),
        p_(stages),
        v_(rule.virtual_stages),
        k_(micro_batches),
        training_(training),
        split_(rule.schedule == PipelineSchedule::zero_bubble),
        stages_(static_cast<std::size_t>(stages)) {
    // Micro-batches pass a stage in groups as large as the pipeline is deep, virtual stage by
    // virtual stage.
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
      auto& most = at(stages_, s).most_in_flight;
      most = v_ == 1 ? p_ - s : 2 * (p_ - s - 1) + (v_ - 1) * p_ + 1;
      most += slack;
      if (rule.schedule == PipelineSchedule::gpipe || !training) most = v_ * k_;
    }
  }

  /// Every stage's actions; nothing when no stage may go on before all is done.
  std::optional<std::vector<std::vector<PipelineAction>>> play() {
    std::size_t left = static_cast<std::size_t>(p_) * forwards_.size();
    if (training_) left *= split_ ? 3 : 2;
    std::vector<std::optional<Choice>> choices;
    for (std::int64_t s = 0; s < p_; ++s) choices.push_back(choice(s));
    for (; left > 0; --left) {
      std::optional<Choice> first;
      std::int64_t who = 0;
      for (std::int64_t s = 0; s < p_; ++s) {
        const auto& c = at(choices, s);
        if (c && (!first || c->start < first->start)) first = c, who = s;
      }
      if (!first) return std::nullopt;
      take(who, *first);
      // An action changes what its own stage and the two neighbours may do next, and nothing else.
      for (const std::int64_t s : {who, (who + 1) % p_, (who + p_ - 1) % p_})
        at(choices, s) = choice(s);
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
    return a.virtual_stage * p_ + stage;
  }

  /// When the result that the action waits for exists; nothing while it does not.
  std::optional<std::int64_t> ready(std::int64_t stage, const PipelineAction& a) const {
    const auto needed = needed_by(a, part_of(stage, a), p_ * v_);
    if (!needed) return 0;
    const auto it = finished_.find(*needed);
    return it == finished_.end() ? std::nullopt : std::optional(it->second);
  }

  std::optional<Choice> choice(std::int64_t stage) const {
    const Stage& s = at(stages_, stage);
    const auto next = [&](const std::vector<PipelineAction>& order,
                          std::size_t at) -> std::optional<Choice> {
      if (at == order.size()) return std::nullopt;
      const auto when = ready(stage, order[at]);
      return when ? std::optional(Choice{order[at], std::max(s.time, *when)}) : std::nullopt;
    };
    // GPipe, interleaved and zero bubble go forward as long as the limit on micro-batches in flight
    // lets them; 1F1B goes backward as soon as it can.
    const bool eager = rule_.schedule == PipelineSchedule::gpipe || v_ > 1 || split_;
    const bool may_forward = s.next_forward < forwards_.size() && s.in_flight < s.most_in_flight;
    std::optional<Choice> forward, backward;
    if (may_forward) forward = next(forwards_, s.next_forward);
    if (training_ && !(eager && may_forward)) backward = next(backwards_, s.next_backward);
    const auto best =
        backward && (!forward || backward->start <= forward->start) ? backward : forward;
    // Zero bubble: later stages, which have fewer micro-batches in flight, put off the weights'
    // gradients of as many more of them, so that all stages hold as much as the first (ZB-H1). Work
    // that was put off fills gaps.
    const auto put_off = static_cast<std::int64_t>(s.weights.size() - s.next_weight);
    if (put_off > stage || (put_off > 0 && (!best || best->start > s.time)))
      return Choice{s.weights[s.next_weight], s.time};
    return best;
  }

  void take(std::int64_t stage, const Choice& c) {
    Stage& s = at(stages_, stage);
    s.time = c.start + length_of(c.action);
    s.done.push_back(c.action);
    if (const auto result = result_of(c.action, part_of(stage, c.action)))
      finished_[*result] = s.time;
    switch (c.action.kind) {
      case Kind::forward: ++s.next_forward, ++s.in_flight; break;
      case Kind::backward: ++s.next_backward, --s.in_flight; break;
      case Kind::backward_input:
        ++s.next_backward, --s.in_flight;
        s.weights.push_back({Kind::backward_weight, c.action.virtual_stage, c.action.micro_batch});
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
  // With some numbers of micro-batches the rule's limit on those in flight is too tight for any
  // order; then it is raised, one by one.
  for (std::int64_t slack = 0; slack <= rule.virtual_stages * micro_batches; ++slack) {
    if (auto actions = ScheduleRule(rule, stages, micro_batches, training, slack).play())
      return *actions;
  }
  throw InternalError(fmt::format("no {} schedule of {} micro-batches over {} stages",
                                  enum_word(rule.schedule), micro_batches, stages));
}

PipelineTimes play(std::span<const std::vector<PipelineAction>> actions, std::int64_t parts,
                   const PipelineDuration& duration) {
  const std::int64_t stages = std::ssize(actions);
  PipelineTimes times{.there = {}, .ends = std::vector<std::vector<double>>(actions.size())};
  std::vector<double> time(actions.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < actions.size(); ++s) {
      auto& ends = times.ends[s];
      for (; ends.size() < actions[s].size(); moved = true) {
        const PipelineAction& a = actions[s][ends.size()];
        const std::int64_t part = a.virtual_stage * stages + static_cast<std::int64_t>(s);
        if (const auto needed = needed_by(a, part, parts)) {
          const auto it = times.there.find(*needed);
          if (it == times.there.end()) break;
          time[s] = std::max(time[s], it->second);
        }
        time[s] += duration(a, part);
        ends.push_back(time[s]);
        if (const auto result = result_of(a, part)) times.there[*result] = time[s];
      }
    }
  }
  for (std::size_t s = 0; s < actions.size(); ++s) {
    TESSERA_CHECK(times.ends[s].size() == actions[s].size(), "stage {} of a pipeline halts", s);
  }
  return times;
}

std::vector<std::vector<PipelineAction>> pipeline_receives(
    std::span<const std::vector<PipelineAction>> actions, std::int64_t stage) {
  const auto& own = at(actions, stage);
  const std::int64_t stages = std::ssize(actions);
  std::int64_t parts = 0;
  for (const PipelineAction& a : own) parts = std::max(parts, (a.virtual_stage + 1) * stages);
  const PipelineTimes times = play(actions, parts, [](const PipelineAction& a, std::int64_t) {
    return static_cast<double>(length_of(a));
  });
  // Messages of the same time are ordered by their sender: a stage sends one at a time.
  using Moment = std::pair<double, std::int64_t>;
  const auto moment_of = [&](const PipelineResult& r) {
    return Moment{times.there.at(r), r.part % stages};
  };
  struct Message {
    Moment sent;
    std::size_t before = 0;
    PipelineAction needed_by;
  };
  std::vector<Message> messages;
  std::vector<Moment> ends;  // of each action
  for (const PipelineAction& a : own) {
    const std::int64_t part = a.virtual_stage * stages + stage;
    ends.emplace_back(at(times.ends, stage)[ends.size()], stage);
    const auto needed = needed_by(a, part, parts);
    if (!needed || needed->part == part) continue;  // the last part's own
    const Moment sent = moment_of(*needed);
    const auto before = std::upper_bound(ends.begin(), ends.end(), sent) - ends.begin();
    messages.push_back({sent, static_cast<std::size_t>(before), a});
  }
  std::ranges::sort(messages, {}, &Message::sent);
  std::vector<std::vector<PipelineAction>> all(own.size());
  for (const Message& m : messages) all[m.before].push_back(m.needed_by);
  return all;
}

}  // namespace tessera::plan
