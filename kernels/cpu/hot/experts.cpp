// Loops of mixtures of experts: routing, and rows in the order of experts.
#include "kernels/common/experts.hpp"

#include "kernels/common/pool.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr std::int64_t kSumParts = 2 * kLanes;

/// sum of value(e, count), a vector of the values of experts e and on, over all experts; values
/// beyond them do not count.
template <typename Value>
TESSERA_INLINE float sum_over(std::int64_t experts, Value&& value) {
  Vec low(0.0F), high(0.0F);
  for (std::int64_t e = 0; e < experts; e += kSumParts) {
    const std::int64_t left = experts - e;
    low = low + first_lanes(value(e, left < kLanes ? left : kLanes), left);
    if (left <= kLanes) break;
    high = high +
           first_lanes(value(e + kLanes, left < kSumParts ? left - kLanes : kLanes), left - kLanes);
  }
  return sum_of(low + high);
}

float largest_of(const float* logits, std::int64_t experts) {
  float most = -__builtin_inff();
  for (std::int64_t e = 0; e < experts; ++e) most = logits[e] > most ? logits[e] : most;
  return most;
}

/// Writes what is known of a row.
void route_stats(const Route& a, const float* logits, float* stats) {
  const std::int64_t experts = columns_of(a.logits);
  stats[0] = largest_of(logits, experts);
  const Vec largest(stats[0]);
  stats[1] = 1.0F / sum_over(experts, [&](std::int64_t e, std::int64_t n) {
               return exp_of(load(logits + e, n) - largest);
             });
  stats[2] = a.routing.scores == RouterScores::softmax
                 ? 1.0F
                 : 1.0F / (kLeastSum + sum_over(experts, [&](std::int64_t e, std::int64_t n) {
                             return sigmoid(load(logits + e, n));
                           }));
}

/// Which groups are open, as flags.
void open_groups(const Routing& r, const float* keys, std::int64_t size, bool* open) {
  std::uint64_t words[kMostExperts];
  for (std::int64_t g = 0; g < r.groups; ++g) {
    const float key =
        group_key(r.group_score, size, [&](std::int64_t i) { return keys[g * size + i]; });
    words[g] = choice_word(key, static_cast<std::uint32_t>(g));
    open[g] = false;
  }
  for (std::int64_t k = 0; k < r.open_groups; ++k) {
    std::int64_t best = 0;
    for (std::int64_t g = 1; g < r.groups; ++g) best = words[g] > words[best] ? g : best;
    open[best] = true;
    words[best] = 0;
  }
}

void choose(const Routing& r, const float* keys, std::int64_t experts, std::int32_t* chosen) {
  std::uint64_t words[kMostExperts];
  bool open[kMostExperts];
  const std::int64_t size = experts / r.groups;
  if (r.open_groups < r.groups) open_groups(r, keys, size, open);
  for (std::int64_t e = 0; e < experts; ++e) {
    const bool closed = r.open_groups < r.groups && !open[e / size];
    words[e] = closed ? 0 : choice_word(keys[e], static_cast<std::uint32_t>(e));
  }
  for (std::int64_t k = 0; k < r.choices; ++k) {
    std::int64_t best = 0;
    for (std::int64_t e = 1; e < experts; ++e) best = words[e] > words[best] ? e : best;
    chosen[k] = static_cast<std::int32_t>(best);
    words[best] = 0;
  }
}

}  // namespace

void join_gates(const JoinGates& a, Range rows) {
  for (std::int64_t n = rows.begin; n < rows.end; ++n)
    kernels::join_gates(a.routing, columns_of(a.joined), row_of<float>(a.logits, n),
                        row_of<float>(a.joined, n));
}

void join_gates_backward(const JoinGatesBackward& a, Range rows) {
  const std::int64_t experts = columns_of(a.joined);
  float d[kMostExperts + kMostGroups];
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    separate_gates(a.routing, experts, row_of<float>(a.joined, n), row_of<float>(a.d_joined, n),
                   [&](std::int64_t i, float slope) { d[i] = slope; });
    with_type(a.d_logits.type, [&]<typename T>() {
      for_vectors(
          experts + a.routing.groups, [&](std::int64_t i,
                                          std::int64_t count) __attribute__((always_inline)) {
            store(row_of<T>(a.d_logits, n) + i, load(d + i, count), count);
          });
    });
  }
}

void route(const Route& a, Range rows) {
  const std::int64_t experts = columns_of(a.logits), choices = a.routing.choices;
  const auto* bias = reinterpret_cast<const float*>(a.bias.data);
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const float* logits = row_of<float>(a.logits, n);
    float* stats = reinterpret_cast<float*>(a.stats.data) + n * kRouteStats;
    route_stats(a, logits, stats);
    const RouteRow row(a.routing.scores, stats);
    float scores[kMostExperts], keys[kMostExperts];
    for_vectors(
        experts, [&](std::int64_t e, std::int64_t count) __attribute__((always_inline)) {
          const Vec score = row.score(load(logits + e, count));
          store(scores + e, score, count);
          store(keys + e, bias == nullptr ? score : score + load(bias + e, count), count);
        });
    std::int32_t* chosen = reinterpret_cast<std::int32_t*>(a.experts.data) + n * choices;
    float* weights = reinterpret_cast<float*>(a.weights.data) + n * choices;
    choose(a.routing, keys, experts, chosen);
    for (std::int64_t k = 0; k < choices; ++k) weights[k] = scores[chosen[k]];
    weigh(a.routing, weights);
  }
}

namespace {

/// Gradients of a row's scores: of what `balance` weighs, then of the chosen's weights.
void score_gradients(const RouteBackward& a, const RouteRow& row, float balance, std::int64_t n,
                     float* d_scores) {
  const std::int64_t experts = columns_of(a.logits), choices = a.routing.choices;
  const float* logits = row_of<float>(a.logits, n);
  if (a.terms.balance == 0) {
    std::memset(d_scores, 0, static_cast<std::size_t>(experts) * sizeof(float));
  } else {
    const std::int64_t tokens = row_count(a.logits) / row_count(a.counts);
    const float* counts = reinterpret_cast<const float*>(a.counts.data) + n / tokens * experts;
    const bool softmax = a.routing.scores == RouterScores::softmax;
    const float per_choice = row.inverse_scores * balance;
    const float mean = softmax ? 0 : sum_over(experts, [&](std::int64_t e, std::int64_t count) {
      return load(counts + e, count) * row.share(load(logits + e, count));
    });
    for_vectors(
        experts, [&](std::int64_t e, std::int64_t count) __attribute__((always_inline)) {
          const Vec d = (load(counts + e, count) - Vec(mean)) * Vec(per_choice);
          store(d_scores + e, d, count);
        });
  }
  const auto* chosen = reinterpret_cast<const std::int32_t*>(a.experts.data) + n * choices;
  const auto* d_weights = reinterpret_cast<const float*>(a.d_weights.data) + n * choices;
  float scores[kMostChoices], d[kMostChoices];
  for (std::int64_t k = 0; k < choices; ++k)
    scores[k] = sum_of(first_lanes(row.score(Vec(logits[chosen[k]])), 1));
  unweigh(a.routing, scores, d_weights, d);
  for (std::int64_t k = 0; k < choices; ++k) d_scores[chosen[k]] = d_scores[chosen[k]] + d[k];
}

}  // namespace

void route_backward(const RouteBackward& a, Range rows) {
  const std::int64_t experts = columns_of(a.logits);
  const bool softmax = a.routing.scores == RouterScores::softmax;
  const RouterTerms terms = scaled(a.terms, reinterpret_cast<const float*>(a.scale.data));
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const float* logits = row_of<float>(a.logits, n);
    const RouteRow row(a.routing.scores,
                       reinterpret_cast<const float*>(a.stats.data) + n * kRouteStats);
    float d[kMostExperts];
    score_gradients(a, row, terms.balance, n, d);
    const float mean =
        softmax ? sum_over(experts,
                           [&](std::int64_t e, std::int64_t count) {
                             return row.softmax(load(logits + e, count)) * load(d + e, count);
                           })
                : 0;
    const float z = z_slope(terms.z, row);
    with_type(a.d_logits.type, [&]<typename T>() {
      for_vectors(
          experts, [&](std::int64_t e, std::int64_t count) __attribute__((always_inline)) {
            const Vec x = load(logits + e, count), g = load(d + e, count), p = row.softmax(x);
            const Vec s = sigmoid(x);
            const Vec of_scores = softmax ? p * (g - Vec(mean)) : s * (Vec(1.0F) - s) * g;
            store(row_of<T>(a.d_logits, n) + e, fmadd(Vec(z), p, of_scores), count);
          });
    });
  }
}

void expert_load(const ExpertLoad& a, Range sixteens) {
  const std::int64_t experts = columns_of(a.logits), each = ceil_div(experts, kLanes);
  const std::int64_t samples = row_count(a.counts), tokens = row_count(a.logits) / samples;
  const std::int64_t choices = a.routing.choices;
  const Vec per_token(1.0F / static_cast<float>(tokens));
  for (std::int64_t i = sixteens.begin; i < sixteens.end; ++i) {
    const std::int64_t b = i / each, e = i % each * kLanes;
    const std::int64_t count = experts - e < kLanes ? experts - e : kLanes;
    Vec part[kPoolParts];
    for (Vec& p : part) p = Vec(0.0F);
    float counts[kLanes] = {};
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t n = b * tokens + t;
      const RouteRow row(a.routing.scores,
                         reinterpret_cast<const float*>(a.stats.data) + n * kRouteStats);
      part[t % kPoolParts] =
          part[t % kPoolParts] + row.share(load(row_of<float>(a.logits, n) + e, count));
      const auto* chosen = reinterpret_cast<const std::int32_t*>(a.experts.data) + n * choices;
      for (std::int64_t k = 0; k < choices; ++k) {
        const std::int64_t lane = chosen[k] - e;
        if (lane >= 0 && lane < count) counts[lane] += 1;
      }
    }
    fold_parts(part);
    store(row_of<float>(a.shares, b) + e, part[0] * per_token, count);
    store(row_of<float>(a.counts, b) + e, load(counts, kLanes), count);
  }
}

void spread_rows(const SpreadRows& a, Range rows) {
  const std::int64_t columns = columns_of(a.x);
  const auto* source = reinterpret_cast<const std::int32_t*>(a.source.data);
  const auto* weights = reinterpret_cast<const float*>(a.weights.data);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      T* to = row_of<T>(a.rows, r);
      if (source[r] < 0) {
        std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(columns) * sizeof(T));
        continue;
      }
      const T* from = row_of<T>(a.x, source[r] / a.choices);
      const Vec weight(weights[source[r]]);
      for_vectors(
          columns, [&](std::int64_t c, std::int64_t n) __attribute__((always_inline)) {
            store(to + c, load(from + c, n) * weight, n);
          });
    }
  });
}

void combine_rows(const CombineRows& a, Range rows) {
  const std::int64_t columns = columns_of(a.out), choices = columns_of(a.place);
  const auto* places = reinterpret_cast<const std::int32_t*>(a.place.data);
  const auto* weights = reinterpret_cast<const float*>(a.weights.data);
  with_type(a.rows.type, [&]<typename T>() {
    with_type(a.out.type, [&]<typename O>() {
      for (std::int64_t n = rows.begin; n < rows.end; ++n) {
        for_vectors(
            columns, [&](std::int64_t c, std::int64_t count) __attribute__((always_inline)) {
              Vec sum(0.0F);
              for (std::int64_t k = n * choices; k < (n + 1) * choices; ++k) {
                if (places[k] < 0) continue;
                const Vec x = load(row_of<T>(a.rows, places[k]) + c, count);
                sum = fmadd(Vec(weights == nullptr ? 1.0F : weights[k]), x, sum);
              }
              store(row_of<O>(a.out, n) + c, sum, count);
            });
      }
    });
  });
}

void row_dots(const RowDots& a, Range rows) {
  const std::int64_t columns = columns_of(a.x), choices = columns_of(a.place);
  const auto* places = reinterpret_cast<const std::int32_t*>(a.place.data);
  auto* dots = reinterpret_cast<float*>(a.dots.data);
  with_type(a.x.type, [&]<typename T>() {
    for (std::int64_t n = rows.begin; n < rows.end; ++n) {
      const T* x = row_of<T>(a.x, n);
      for (std::int64_t k = n * choices; k < (n + 1) * choices; ++k) {
        if (places[k] < 0) {
          dots[k] = 0;
          continue;
        }
        const T* y = row_of<T>(a.rows, places[k]);
        Vec sum(0.0F);
        for_vectors(
            columns, [&](std::int64_t c, std::int64_t count) __attribute__((always_inline)) {
              sum = fmadd(load(x + c, count), load(y + c, count), sum);
            });
        dots[k] = sum_of(sum);
      }
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
