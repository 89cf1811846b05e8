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

/// Tokens and their weights, the likeliest first, found only as far as they are asked for.
class Likeliest {
 public:
  Likeliest(std::span<const float> logits, double temperature)
      : logits_(logits), temperature_(temperature), rest_(logits.size()) {
    std::iota(rest_.begin(), rest_.end(), 0);
    top_ = *std::ranges::max_element(logits);
  }

  bool likelier(std::int32_t a, std::int32_t b) const {
    const float x = logit_of(logits_, a), y = logit_of(logits_, b);
    return x != y ? x > y : a < b;
  }
  struct Less {
    const Likeliest* of;
    bool operator()(std::int32_t a, std::int32_t b) const { return of->likelier(b, a); }
  };
  /// Leaves the k likeliest.
  void limit(std::size_t k) {
    if (k >= rest_.size()) return;
    const auto by = [this](std::int32_t a, std::int32_t b) { return likelier(a, b); };
    std::nth_element(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(k), rest_.end(),
                     by);
    rest_.resize(k);
    std::ranges::sort(rest_);
  }
  /// exp((x - the greatest) / temperature).
  double weight(std::int32_t id) const {
    return std::exp((static_cast<double>(logit_of(logits_, id)) - top_) / temperature_);
  }
  /// The sum of all weights that are left.
  double total() const {
    return std::accumulate(rest_.begin(), rest_.end(), 0.0,
                           [this](double sum, std::int32_t id) { return sum + weight(id); });
  }
  bool empty() const { return rest_.empty(); }
  std::int32_t first() {
    make_heap();
    return rest_.front();
  }
  void pop() {
    make_heap();
    std::ranges::pop_heap(rest_, Less{this});
    rest_.pop_back();
  }

 private:
  void make_heap() {
    if (!heap_) std::ranges::make_heap(rest_, Less{this});
    heap_ = true;
  }

  std::span<const float> logits_;
  double temperature_, top_ = 0;
  std::vector<std::int32_t> rest_;
  bool heap_ = false;
};

struct Weighed {
  std::int32_t id;
  double weight;
};

}  // namespace

std::int32_t sample_token(std::span<const float> given, const SamplingRule& rule, Draw draw,
                          std::span<const std::int32_t> before) {
  if (std::ranges::any_of(given, [](float x) { return std::isnan(x); })) {
    throw NonFiniteError("the model's logits are not numbers: its weights have diverged");
  }
  std::vector<float> copy;
  const std::span<const float> logits = penalised(given, rule, before, copy);
  if (rule.temperature <= 0) {
    const auto likeliest = std::ranges::max_element(logits);  // the first of equals
    return static_cast<std::int32_t>(likeliest - logits.begin());
  }
  Likeliest rest(logits, rule.temperature);
  if (rule.top_k > 0) rest.limit(static_cast<std::size_t>(rule.top_k));
  const double all = rest.total();
  double kept = all;
  std::vector<Weighed> found;
  const auto find = [&] {
    found.push_back({rest.first(), rest.weight(rest.first())});
    rest.pop();
  };
  const bool some = rule.top_p < 1 || rule.min_p > 0;
  if (some) {
    find();
    for (kept = found[0].weight; !rest.empty() && kept < rule.top_p * all &&
                                 rest.weight(rest.first()) >= rule.min_p * found[0].weight;
         kept += found.back().weight)
      find();
  }
  const RandomKey key = random_key(rule.seed, RandomPurpose::sampling, 0);
  double left =
      to_uniform(random_bits(key, draw.sequence, static_cast<std::uint64_t>(draw.position))) * kept;
  for (std::size_t i = 0;; ++i) {
    if (i == found.size()) {
      if (some || rest.empty()) return found.back().id;
      find();
    }
    left -= found[i].weight;
    if (left < 0) return found[i].id;
  }
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return static_cast<double>(logit_of(logits, token)) - top - std::log(sum);
}

}  // namespace tessera::train
