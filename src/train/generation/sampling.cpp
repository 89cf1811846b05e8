#include "train/generation/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.hpp"
#include "core/random.hpp"

namespace tessera::train {
namespace {

float logit_of(std::span<const float> logits, std::int32_t id) {
  return logits[static_cast<std::size_t>(id)];
}

/// The logits with repetition_penalty, in `copy` where it changes some.
std::span<const float> penalised(std::span<const float> logits, const SamplingRule& rule,
                                 std::span<const std::int32_t> before, std::vector<float>& copy) {
  if (rule.repetition_penalty == 1 || before.empty()) return logits;
  copy.assign(logits.begin(), logits.end());
  const auto penalty = static_cast<float>(rule.repetition_penalty);
  for (const std::int32_t id : before) {
    const float x = logit_of(logits, id);  // however often it was there
    copy[static_cast<std::size_t>(id)] = x > 0 ? x / penalty : x * penalty;
  }
  return copy;
}

/// Tokens that may be drawn, and how likely each is beside the likeliest.
struct Candidates {
  Candidates(std::span<const float> logits, double temperature)
      : ids(logits.size()), weights(logits.size()) {
    std::iota(ids.begin(), ids.end(), 0);
    const double top = *std::ranges::max_element(logits);
    std::ranges::transform(logits, weights.begin(), [&](float x) {
      return std::exp((static_cast<double>(x) - top) / temperature);
    });
  }

  double weight(std::int32_t id) const { return weights[static_cast<std::size_t>(id)]; }
  bool likelier(std::int32_t a, std::int32_t b) const {
    return weight(a) != weight(b) ? weight(a) > weight(b) : a < b;
  }
  double total() const {
    return std::accumulate(ids.begin(), ids.end(), 0.0,
                           [this](double sum, std::int32_t id) { return sum + weight(id); });
  }
  /// Leaves the k likeliest.
  void keep_likeliest(std::size_t k) {
    if (k >= ids.size()) return;
    std::ranges::nth_element(ids, ids.begin() + static_cast<std::ptrdiff_t>(k),
                             [this](std::int32_t a, std::int32_t b) { return likelier(a, b); });
    ids.resize(k);
    std::ranges::sort(ids);
  }
  /// Leaves the likeliest ones that make up `share` of all, if they are at least `least` as likely
  /// as the likeliest one, which stays. They are found one after the other.
  void keep_share(double share, double least) {
    const double all = total();
    const auto less = [this](std::int32_t a, std::int32_t b) { return likelier(b, a); };
    std::ranges::make_heap(ids, less);
    const double limit = least * weight(ids.front());
    std::vector<std::int32_t> kept;
    for (double sum = 0; !ids.empty(); ids.pop_back()) {
      const std::int32_t id = ids.front();
      if (!kept.empty() && (sum >= share * all || weight(id) < limit)) break;
      kept.push_back(id);
      sum += weight(id);
      std::ranges::pop_heap(ids, less);
    }
    ids = std::move(kept);
  }
  /// The one at `u`, uniform in (0, 1), of their sum.
  std::int32_t at(double u) const {
    double left = u * total();
    for (const std::int32_t id : ids) {
      left -= weight(id);
      if (left < 0) return id;
    }
    return ids.back();  // by rounding
  }

  std::vector<std::int32_t> ids;
  std::vector<double> weights;  // of all tokens
};

}  // namespace

std::int32_t sample_token(std::span<const float> given, const SamplingRule& rule, Draw draw,
                          std::span<const std::int32_t> before) {
  if (std::ranges::any_of(given, [](float x) { return !std::isfinite(x); })) {
    throw NonFiniteError(
        "the model's logits are not finite: its weights have diverged, or are computed with in a "
        "type that overflows");
  }
  std::vector<float> copy;
  const std::span<const float> logits = penalised(given, rule, before, copy);
  if (rule.temperature <= 0) {
    const auto likeliest = std::ranges::max_element(logits);  // the first of equals
    return static_cast<std::int32_t>(likeliest - logits.begin());
  }
  Candidates candidates(logits, rule.temperature);
  if (rule.top_k > 0) candidates.keep_likeliest(static_cast<std::size_t>(rule.top_k));
  if (rule.top_p < 1 || rule.min_p > 0) candidates.keep_share(rule.top_p, rule.min_p);
  const RandomKey key = random_key(rule.seed, RandomPurpose::sampling, 0);
  return candidates.at(
      to_uniform(random_bits(key, draw.sequence, static_cast<std::uint64_t>(draw.position))));
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return static_cast<double>(logit_of(logits, token)) - top - std::log(sum);
}

}  // namespace tessera::train
