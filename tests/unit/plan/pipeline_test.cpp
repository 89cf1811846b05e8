#include "plan/passes/pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "core/error.hpp"

namespace tessera::plan {
namespace {

using Kind = PipelineAction::Kind;

double most_expensive(const std::vector<double>& costs, const std::vector<Range>& parts) {
  double worst = 0;
  for (const Range& part : parts) {
    double sum = 0;
    for (std::int64_t i = part.begin; i < part.end; ++i) sum += costs[static_cast<std::size_t>(i)];
    worst = std::max(worst, sum);
  }
  return worst;
}

/// The best cut, by trying all.
double best_by_trying(const std::vector<double>& costs, std::int64_t first, std::int64_t parts) {
  const auto n = static_cast<std::int64_t>(costs.size());
  if (parts == 1) return most_expensive(costs, {{first, n}});
  double best = 1e300;
  for (std::int64_t end = first + 1; end <= n - parts + 1; ++end) {
    best = std::min(best, std::max(most_expensive(costs, {{first, end}}),
                                   best_by_trying(costs, end, parts - 1)));
  }
  return best;
}

TEST(Placement, IsAsBalancedAsCanBe) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> costs(2 + random() % 9);
    for (double& c : costs) c = static_cast<double>(random() % 7);
    const auto parts = 1 + static_cast<std::int64_t>(random() % costs.size());
    const auto cut = balanced_parts(costs, parts);
    std::int64_t at = 0;
    for (const Range& part : cut) {
      EXPECT_EQ(part.begin, at);
      EXPECT_FALSE(part.empty());
      at = part.end;
    }
    EXPECT_EQ(at, static_cast<std::int64_t>(costs.size()));
    EXPECT_EQ(most_expensive(costs, cut), best_by_trying(costs, 0, parts));
  }
}

struct Play {
  std::int64_t time = 0;  // of the whole step, forward 1, backward 2, its halves 1 each
  std::vector<std::int64_t> most_in_flight;  // of each stage
};

/// Plays the actions by the clock: an action starts once its stage is free and what it needs is
/// there. Fails where that never comes, or where something is done twice or not at all.
Play play(const PipelineRule& rule, std::int64_t stages, std::int64_t k,
          const std::vector<std::vector<PipelineAction>>& all) {
  const std::int64_t last = stages * rule.virtual_stages - 1;
  std::map<std::tuple<bool, std::int64_t, std::int64_t>, std::int64_t> done;  // back, part, m
  std::map<std::pair<std::int64_t, std::int64_t>, int> weights;
  std::vector<std::size_t> next(all.size());
  std::vector<std::int64_t> time(all.size()), in_flight(all.size());
  Play result{.most_in_flight = std::vector<std::int64_t>(all.size())};
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < all.size(); ++s) {
      if (next[s] == all[s].size()) continue;
      const PipelineAction& a = all[s][next[s]];
      const std::int64_t part = a.virtual_stage * stages + static_cast<std::int64_t>(s);
      std::int64_t ready = 0;
      const auto needs = [&](bool back, std::int64_t of) {
        const auto it = done.find({back, of, a.micro_batch});
        ready = it == done.end() ? -1 : std::max(ready, it->second);
      };
      if (a.kind == Kind::forward && part > 0) needs(false, part - 1);
      const bool back = a.kind == Kind::backward || a.kind == Kind::backward_input;
      if (back) needs(false, part);
      if (back && ready >= 0 && part < last) needs(true, part + 1);
      if (a.kind == Kind::backward_weight) needs(true, part);
      if (ready < 0) continue;
      moved = true;
      ++next[s];
      time[s] = std::max(time[s], ready) + (a.kind == Kind::backward ? 2 : 1);
      if (a.kind == Kind::backward_weight) {
        EXPECT_EQ(++weights[std::pair(part, a.micro_batch)], 1);
      } else {
        EXPECT_TRUE(done.insert({{back, part, a.micro_batch}, time[s]}).second);
      }
      if (a.kind == Kind::forward) ++in_flight[s];
      if (a.kind == Kind::backward || a.kind == Kind::backward_weight) --in_flight[s];
      result.most_in_flight[s] = std::max(result.most_in_flight[s], in_flight[s]);
    }
  }
  for (std::size_t s = 0; s < all.size(); ++s) {
    EXPECT_EQ(next[s], all[s].size()) << "stage " << s << " comes to a halt";
    EXPECT_EQ(in_flight[s], 0);
    result.time = std::max(result.time, time[s]);
  }
  EXPECT_EQ(static_cast<std::int64_t>(done.size()), 2 * (last + 1) * k);
  return result;
}

// Traps 29 and 31: any number of micro-batches, also fewer than stages; as few in flight as 1F1B
// promises; a unit's micro-batches run backward in index order.
TEST(Schedule, EveryActionOnceAndNoHalt) {
  for (std::int64_t p = 1; p <= 5; ++p) {
    for (std::int64_t k = 1; k <= 11; ++k) {
      for (const auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe,
                                  PipelineSchedule::interleaved, PipelineSchedule::zero_bubble}) {
        const std::int64_t most_chunks = schedule == PipelineSchedule::interleaved ? 3 : 1;
        for (std::int64_t v = 1; v <= most_chunks; ++v) {
          const PipelineRule rule{.schedule = schedule, .virtual_stages = v, .first_layers = {}};
          SCOPED_TRACE(fmt::format("{} over {} stages x {}, {} micro-batches", enum_word(schedule),
                                   p, v, k));
          const auto actions = pipeline_actions(rule, p, k, true);
          const Play result = play(rule, p, k, actions);
          std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> latest;
          for (std::size_t s = 0; s < actions.size(); ++s) {
            for (const PipelineAction& a : actions[s]) {
              if (a.kind == Kind::forward) continue;
              const bool weight = a.kind == Kind::backward_weight;
              auto& before =
                  latest.try_emplace({s, 2 * a.virtual_stage + weight}, -1).first->second;
              EXPECT_EQ(a.micro_batch, before + 1);
              before = a.micro_batch;
            }
            if (schedule == PipelineSchedule::one_f_one_b) {
              EXPECT_LE(result.most_in_flight[s], std::min(k, p - static_cast<std::int64_t>(s)));
            } else if (schedule == PipelineSchedule::zero_bubble) {
              EXPECT_LE(result.most_in_flight[s], std::min(k, p)) << "more than 1F1B's most";
            }
          }
        }
      }
    }
  }
}

// The idle share of 1F1B and GPipe is (P - 1) / (K + P - 1); V chunks divide the bubble by V where
// the stages divide the micro-batches. Zero bubble has a third of it (Qi et al. 2023, table 2:
// ZB-H1 idles (P - 1) (F + B - W)).
TEST(Schedule, HasTheBubbleOfThePapers) {
  for (const std::int64_t p : {2, 3, 4, 8}) {
    for (const std::int64_t k : {p, 2 * p, 4 * p}) {
      const auto idle = [&](PipelineSchedule schedule, std::int64_t v) {
        const PipelineRule rule{.schedule = schedule, .virtual_stages = v, .first_layers = {}};
        return play(rule, p, k, pipeline_actions(rule, p, k, true)).time - 3 * k * v;
      };
      EXPECT_EQ(idle(PipelineSchedule::one_f_one_b, 1), 3 * (p - 1));
      EXPECT_EQ(idle(PipelineSchedule::gpipe, 1), 3 * (p - 1));
      EXPECT_EQ(idle(PipelineSchedule::zero_bubble, 1), p - 1) << p << ' ' << k;
      // In units of a chunk, which is 1 / V of the stage's work.
      EXPECT_EQ(idle(PipelineSchedule::interleaved, 2), 3 * (p - 1)) << p << ' ' << k;
    }
  }
}

/// What a stage sends and receives, in the order in which it says so.
struct Message {
  PipelineResult what;
  bool sends = false;
};
std::deque<Message> messages_of(const std::vector<std::vector<PipelineAction>>& all,
                                std::int64_t stage, std::int64_t parts, std::int64_t most_ahead) {
  const std::int64_t stages = std::ssize(all);
  const auto& own = all[static_cast<std::size_t>(stage)];
  const auto receives = pipeline_receives(all, stage);
  EXPECT_EQ(receives.size(), own.size());
  std::deque<Message> messages;
  std::vector<PipelineAction> received;
  std::int64_t ahead = 0;  // received, and not used yet
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (const PipelineAction& a : receives[i]) {
      received.push_back(a);
      ++ahead;
      messages.push_back({*needed_by(a, a.virtual_stage * stages + stage, parts), false});
    }
    const std::int64_t part = own[i].virtual_stage * stages + stage;
    const auto needed = needed_by(own[i], part, parts);
    if (needed && needed->part % stages != stage) {
      EXPECT_EQ(std::ranges::count(received, own[i]), 1) << "action " << i << " has no input";
      EXPECT_LE(ahead, most_ahead) << "action " << i << ": each takes memory";
      --ahead;
    }
    const auto result = result_of(own[i], part);
    if (result && part != (result->backward ? 0 : parts - 1)) messages.push_back({*result, true});
  }
  return messages;
}

// Where each is done, at both ends, before a stage begins its next: as where a GPU runs what it
// sends and receives one after another.
TEST(Schedule, MessagesHaveOneOrderOnAllStages) {
  for (std::int64_t p = 2; p <= 5; ++p) {
    for (std::int64_t k = 1; k <= 9; ++k) {
      for (const auto& [schedule, word] : EnumWords<PipelineSchedule>::table) {
        const std::int64_t v = schedule == PipelineSchedule::interleaved ? 1 + k % 3 : 1;
        SCOPED_TRACE(fmt::format("{} over {} stages x {}, {} micro-batches", word, p, v, k));
        const auto actions =
            pipeline_actions({.schedule = schedule, .virtual_stages = v}, p, k, k % 4 != 0);
        std::vector<std::deque<Message>> left;
        for (std::int64_t s = 0; s < p; ++s)
          left.push_back(messages_of(actions, s, p * v, v == 1 ? 2 : 4));
        for (bool moved = true; moved;) {
          moved = false;
          for (auto& stage : left) {
            if (stage.empty() || !stage.front().sends) continue;
            const PipelineResult m = stage.front().what;
            const std::int64_t to = (m.part % p + (m.backward ? p - 1 : 1)) % p;
            auto& other = left[static_cast<std::size_t>(to)];
            if (other.empty() || other.front().sends || other.front().what != m) continue;
            stage.pop_front(), other.pop_front();
            moved = true;
          }
        }
        for (const auto& stage : left) EXPECT_TRUE(stage.empty()) << "it waits for ever";
      }
    }
  }
}

TEST(Schedule, EvaluationRunsForwardOnly) {
  const PipelineRule rule;
  const auto actions = pipeline_actions(rule, 3, 4, false);
  for (const auto& stage : actions) {
    ASSERT_EQ(stage.size(), 4U);
    for (std::size_t m = 0; m < stage.size(); ++m)
      EXPECT_EQ(stage[m], (PipelineAction{Kind::forward, 0, static_cast<std::int64_t>(m)}));
  }
}

}  // namespace
}  // namespace tessera::plan
