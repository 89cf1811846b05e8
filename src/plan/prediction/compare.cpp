#include "plan/prediction/compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace tessera::plan {
namespace {

/// Rows by their place in the table: group, order within it, name.
using Key = std::tuple<TimeGroup, int, std::string>;
struct Share {
  double seconds = 0, count = 0;
};
using Shares = std::map<Key, Share>;

constexpr int kFirstWait = 100, kBetween = 200, kTotal = 201;

std::string call_of(const Op& op) {
  const std::string call(call_name(op.call));
  return op.kind == OpKind::kernel ? call : fmt::format("{} {}", enum_word(op.kind), call);
}

/// Adds one rank's.
void add(Shares& shares, const TimedRank& rank) {
  double compute = 0;
  const auto put = [&](TimeGroup group, int order, std::string name, double seconds, double count) {
    Share& share = shares[{group, order, std::move(name)}];
    share.seconds += seconds, share.count += count;
  };
  for (std::size_t i = 0; i < rank.ops.size(); ++i) {
    const Op& op = rank.plan.ops[i];
    const double seconds = rank.ops[i].end - rank.ops[i].begin;
    const bool on_compute = op.stream == Stream::compute;
    if (on_compute) compute += seconds;
    const Activity activity = activity_of(op);
    put(on_compute ? TimeGroup::compute : TimeGroup::background, static_cast<int>(activity),
        std::string(enum_word(activity)), seconds, 1);
    put(TimeGroup::operations, 0, call_of(op), seconds, 1);
  }
  const Waits waits = exposed_waits(rank);
  for (std::size_t s = 1; s < kStreams; ++s) {
    if (waits.count[s] == 0) continue;
    put(TimeGroup::compute, kFirstWait + static_cast<int>(s),
        fmt::format("waits for {}", enum_word(static_cast<Stream>(s))), waits.seconds[s],
        static_cast<double>(waits.count[s]));
  }
  const double waited = std::accumulate(waits.seconds.begin(), waits.seconds.end(), 0.0);
  const double all = rank.end - rank.begin;
  put(TimeGroup::compute, kBetween, "between operations", all - compute - waited, 0);
  put(TimeGroup::compute, kTotal, "in all", all, 0);
}

const char* title_of(TimeGroup group) {
  switch (group) {
    case TimeGroup::compute: return "compute stream";
    case TimeGroup::background: return "other streams, beside it";
    case TimeGroup::operations: return "all streams by operation";
  }
  return "?";
}

Shares shares_of(const TimedStep& step) {
  Shares shares;
  for (const TimedRank& rank : step) add(shares, rank);
  for (auto& [key, share] : shares) {
    share.seconds /= static_cast<double>(step.size());
    share.count /= static_cast<double>(step.size());
  }
  return shares;
}

}  // namespace

Waits exposed_waits(const TimedRank& rank) {
  Waits waits;
  double now = rank.begin;
  std::array<double, kStreams> last{};
  const auto wait = [&](std::size_t stream, double until) {
    if (until <= now) return;
    waits.seconds[stream] += until - now;
    ++waits.count[stream];
    now = until;
  };
  for (std::size_t i = 0; i < rank.ops.size(); ++i) {
    const Op& op = rank.plan.ops[i];
    const auto stream = static_cast<std::size_t>(op.stream);
    last[stream] = rank.ops[i].end;
    if (op.stream != Stream::compute) continue;
    for (const OpId id : op.waits) {
      const auto w = static_cast<std::size_t>(id);
      wait(static_cast<std::size_t>(rank.plan.ops[w].stream), rank.ops[w].end);
    }
    now = rank.ops[i].end;
  }
  for (std::size_t s = 1; s < kStreams; ++s) wait(s, last[s]);
  return waits;
}

std::vector<TimeRow> compare(const TimedStep* predicted, const TimedStep* measured) {
  std::map<Key, TimeRow> rows;
  const auto fill = [&](const TimedStep* step, std::optional<double> TimeRow::*column) {
    if (step == nullptr) return;
    for (const auto& [key, share] : shares_of(*step)) {
      TimeRow& row = rows[key];
      row.group = std::get<0>(key), row.name = std::get<2>(key), row.count = share.count;
      row.*column = share.seconds;
    }
  };
  fill(predicted, &TimeRow::predicted);
  fill(measured, &TimeRow::measured);
  std::vector<TimeRow> result;
  for (auto& [key, row] : rows) {
    if (predicted != nullptr && !row.predicted) row.predicted = 0;  // a wait that the other has
    if (measured != nullptr && !row.measured) row.measured = 0;
    result.push_back(std::move(row));
  }
  std::ranges::stable_sort(result, [](const TimeRow& a, const TimeRow& b) {
    const auto seconds = [](const TimeRow& r) { return r.measured ? r.measured : r.predicted; };
    return a.group != b.group ? a.group < b.group
                              : a.group == TimeGroup::operations && seconds(a) > seconds(b);
  });
  return result;
}

double length_of(const TimedStep& step) {
  double begin = 0, end = 0;
  for (const TimedRank& rank : step) {
    begin = &rank == &step.front() ? rank.begin : std::min(begin, rank.begin);
    end = std::max(end, rank.end);
  }
  return end - begin;
}

std::string to_text(const std::vector<TimeRow>& rows) {
  const auto ms = [](const std::optional<double>& seconds) {
    // Without the sign of a remainder that rounds to nothing.
    return seconds ? fmt::format("{:.3f}", std::round(*seconds * 1e6) / 1e3 + 0.0) : "-";
  };
  std::string text;
  const TimeRow* before = nullptr;
  for (const TimeRow& row : rows) {
    if (before == nullptr || before->group != row.group) {
      text += fmt::format("{}{:<44}{:>8}{:>13}{:>13}{:>10}\n", before == nullptr ? "" : "\n",
                          fmt::format("ms, {}", title_of(row.group)), "ops", "predicted",
                          "measured", "ratio");
    }
    before = &row;
    const bool both = std::round(row.predicted.value_or(0) * 1e6) > 0 && row.measured;
    text += fmt::format("  {:<42}{:>8}{:>13}{:>13}{:>10}\n", row.name,
                        row.count > 0 ? fmt::format("{:.6g}", row.count) : "", ms(row.predicted),
                        ms(row.measured),
                        both ? fmt::format("{:.2f}", *row.measured / *row.predicted) : "-");
  }
  return text;
}

}  // namespace tessera::plan
