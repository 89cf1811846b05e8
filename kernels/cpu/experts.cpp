// Mixtures of experts on the CPU: checks arguments, divides rows over the team.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/common/experts.hpp"
#include "kernels/cpu/clear.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// Refuses experts that there are not.
void check_experts_of(const View& chosen, std::int64_t experts) {
  const auto* expert = chosen.as<std::int32_t>();
  for (std::int64_t i = 0; i < chosen.elements(); ++i)
    TESSERA_CHECK(expert[i] >= 0 && expert[i] < experts, "expert {} at place {} of {}", expert[i],
                  i, experts);
}

}  // namespace

void run(const JoinGates& a, const Context& context) {
  parallel_ranges(context.threads, a.logits.rows(), 16,
                  [&](Range rows) { context.hot.join_gates(a, rows); });
}

void run(const JoinGatesBackward& a, const Context& context) {
  parallel_ranges(context.threads, a.joined.rows(), 16,
                  [&](Range rows) { context.hot.join_gates_backward(a, rows); });
}

void run(const Route& a, const Context& context) {
  parallel_ranges(context.threads, a.logits.rows(), 16,
                  [&](Range rows) { context.hot.route(a, rows); });
}

void run(const RouteBackward& a, const Context& context) {
  check_experts_of(a.experts, a.logits.cols());
  parallel_ranges(context.threads, a.logits.rows(), 16,
                  [&](Range rows) { context.hot.route_backward(a, rows); });
}

void run(const ExpertLoad& a, const Context& context) {
  parallel_ranges(context.threads, a.counts.rows() * ceil_div(a.logits.cols(), 16), 1,
                  [&](Range sixteens) { context.hot.expert_load(a, sixteens); });
}

void run(const CountChoices& a, const Context&) {
  check_experts_of(a.experts, a.counts.elements());
  const auto* expert = a.experts.as<std::int32_t>();
  auto* counts = a.counts.as<std::int64_t>();
  std::int64_t here[kMostExperts] = {}, dropped = 0;
  for (std::int64_t i = 0; i < a.experts.elements(); ++i) ++here[expert[i]];
  for (std::int64_t e = 0; e < a.counts.elements(); ++e) {
    counts[e] += here[e];
    dropped += beyond_capacity(here[e], a.capacity);
  }
  if (a.dropped) *a.dropped.as<std::int64_t>() += dropped;
}

void run(const BalanceExperts& a, const Context&) {
  if (a.verdict.as<float>()[static_cast<int>(VerdictField::apply)] == 0.0F) return;
  const std::int64_t experts = a.kept.elements();
  const auto* choices = a.choices.as<std::int64_t>();
  const std::int64_t all = std::accumulate(choices, choices + experts, std::int64_t{0});
  auto* kept = a.kept.as<float>();
  for (std::int64_t e = 0; e < experts; ++e)
    kept[e] = balanced(a.by, kept[e], choices[e], experts, all, a.rate);
}

void run(const Dispatch& a, const Context&) {
  const std::int64_t own = a.own(), copies = a.experts.elements();
  const std::int64_t most = a.capacity == 0 ? copies : a.capacity;  // rows of an expert
  check_experts_of(a.experts, a.experts_of_all());
  const auto* expert = a.experts.as<std::int32_t>();
  auto* begins = a.begins.as<std::int32_t>();
  auto* place = a.place.as<std::int32_t>();
  auto* source = a.source.as<std::int32_t>();
  std::int32_t rows[kMostExperts] = {}, first[kMostExperts];
  for (std::int64_t i = 0; i < copies; ++i) {  // places among the rows of an expert
    const std::int64_t e = expert[i] - a.first;
    place[i] = e >= 0 && e < own && rows[e] < most ? rows[e]++ : -1;
  }
  const std::int64_t of_part = own / a.parts, slot = a.source.elements() / a.parts;
  for (std::int64_t part = 0, e = 0; part < a.parts; ++part) {
    std::int32_t row = 0;
    for (std::int64_t i = 0; i < of_part; ++i, ++e) {
      *begins++ = row;
      first[e] = static_cast<std::int32_t>(part * slot) + row;
      row += static_cast<std::int32_t>(round_up(rows[e], kExpertRows));
    }
    *begins++ = row;
    TESSERA_CHECK(row <= slot, "{} rows of {}: a token has an expert twice", row, slot);
  }
  std::fill_n(source, a.source.elements(), -1);
  for (std::int64_t i = 0; i < copies; ++i) {
    if (place[i] < 0) continue;
    place[i] += first[expert[i] - a.first];
    source[place[i]] = static_cast<std::int32_t>(i);
  }
}

void run(const PartsOfChoices& a, const Context& context) {
  const std::int64_t choices = a.experts.cols(), parts = std::min(choices, a.count);
  parallel_ranges(context.threads, a.experts.rows(), 256, [&](Range tokens) {
    for (std::int64_t n = tokens.begin; n < tokens.end; ++n) {
      const std::int32_t* place = a.place ? a.place.as<std::int32_t>() + n * choices : nullptr;
      parts_of_choices(a.experts.as<std::int32_t>() + n * choices, place, choices, a.first,
                       a.of_part, a.count, a.parts.as<std::int32_t>() + n * parts,
                       a.own.as<std::int32_t>() + n * choices);
    }
  });
}

namespace {

/// Rows as they are.
void copy_rows(const SpreadRows& a, Range rows) {
  const std::int64_t size = size_of(a.x.type);
  const auto bytes = static_cast<std::size_t>(a.x.cols() * size);
  const auto* source = a.source.as<std::int32_t>();
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    std::byte* to = a.rows.data + r * a.rows.ld * size;
    if (source[r] < 0) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, a.x.data + source[r] / a.choices * a.x.ld * size, bytes);
    }
  }
}

}  // namespace

void run(const SpreadRows& a, const Context& context) {
  parallel_ranges(context.threads, a.rows.rows(), 1, [&](Range rows) {
    return a.weights ? context.hot.spread_rows(a, rows) : copy_rows(a, rows);
  });
}

void run(const CombineRows& a, const Context& context) {
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.combine_rows(a, rows); });
}

void run(const RowDots& a, const Context& context) {
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.row_dots(a, rows); });
}

namespace {

View part_of(const View& v, Range rows) { return v.matrix().row_range(rows.begin, rows.count()); }
View expert_of(const View& weight, std::int64_t e, std::int64_t rows) {
  return weight.row_range(e * rows, rows);
}

/// f(expert, its rows).
template <typename F>
void for_experts(const View& begins, std::int64_t rows, F&& f) {
  const auto* begin = begins.as<std::int32_t>();
  for (std::int64_t e = 0; e < begins.elements() - 1; ++e) {
    TESSERA_CHECK(begin[e] >= 0 && begin[e] <= begin[e + 1] && begin[e + 1] <= rows &&
                      begin[e + 1] % kExpertRows == 0,
                  "expert {} has rows {} to {} of {}", e, begin[e], begin[e + 1], rows);
    f(e, Range{begin[e], begin[e + 1]});
  }
}

Linear piece_of(const ExpertLinear& a, std::int64_t e, Range rows) {
  WeightCodes codes = a.codes;
  if (codes) {
    const std::int64_t scales = a.x.cols() * a.y.cols() / codes.format.block;
    codes.scales = codes.scales.range(e * scales, scales);
  }
  return {.x = part_of(a.x, rows),
          .weight = expert_of(a.weight, e, a.y.cols()),
          .y = part_of(a.y, rows),
          .codes = codes,
          .scratch = a.scratch};
}
LinearBackwardInput piece_of(const ExpertLinearBackwardInput& a, std::int64_t e, Range rows) {
  return {.d_y = part_of(a.d_y, rows),
          .weight = expert_of(a.weight, e, a.d_y.cols()),
          .d_x = part_of(a.d_x, rows),
          .scratch = a.scratch};
}
LinearBackwardWeight piece_of(const ExpertLinearBackwardWeight& a, std::int64_t e, Range rows) {
  return {.d_y = part_of(a.d_y, rows),
          .x = part_of(a.x, rows),
          .d_weight = expert_of(a.d_weight, e, a.d_y.cols()),
          .write = a.write,
          .scratch = a.scratch};
}

/// Rows of an expert that are multiplied at once, in pieces where codes meet few rows only.
std::int64_t most_rows(const ExpertLinear& a) {
  return a.codes ? std::min(kMostFewRows, a.x.rows()) : a.x.rows();
}
std::int64_t most_rows(const ExpertLinearBackwardInput& a) { return a.d_y.rows(); }
std::int64_t most_rows(const ExpertLinearBackwardWeight& a) { return a.d_y.rows(); }

/// What some expert's rows may need: few rows may be multiplied in another way, which needs more.
template <typename Operation>
std::int64_t bytes_of_experts(const Operation& a, const Context& context) {
  std::int64_t most = 0;
  for (const std::int64_t n : {most_rows(a), std::min(most_rows(a), kMostFewRows)})
    most = std::max(most, scratch_bytes(piece_of(a, 0, {0, n}), context));
  return most;
}

template <typename Operation>
void run_experts(const Operation& a, std::int64_t rows, const Context& context) {
  for_experts(a.begins, rows, [&](std::int64_t e, Range of_expert) {
    for (std::int64_t r = of_expert.begin; r < of_expert.end; r += most_rows(a))
      run(piece_of(a, e, {r, std::min(of_expert.end, r + most_rows(a))}), context);
  });
}

}  // namespace

std::int64_t scratch_bytes(const ExpertLinear& a, const Context& context) {
  return bytes_of_experts(a, context);
}
std::int64_t scratch_bytes(const ExpertLinearBackwardInput& a, const Context& context) {
  return bytes_of_experts(a, context);
}
std::int64_t scratch_bytes(const ExpertLinearBackwardWeight& a, const Context& context) {
  return bytes_of_experts(a, context);
}

void run(const ExpertLinear& a, const Context& context) { run_experts(a, a.x.rows(), context); }

void run(const ExpertLinearBackwardInput& a, const Context& context) {
  run_experts(a, a.d_y.rows(), context);
}

void run(const ExpertLinearBackwardWeight& a, const Context& context) {
  for_experts(a.begins, a.d_y.rows(), [&](std::int64_t e, Range rows) {
    if (!rows.empty()) return run(piece_of(a, e, rows), context);
    if (a.write == Write::overwrite)
      clear_rows(expert_of(a.d_weight, e, a.d_y.cols()), context.threads);
  });
}

}  // namespace tessera::kernels::cpu
