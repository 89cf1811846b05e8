#include "core/exact_sum.hpp"

#include <algorithm>
#include <array>

#include "core/exact_words.hpp"

namespace tessera {

void exact_add(ExactWords words, double value) {
  exact_words::split(
      value, [&](int limb, std::int64_t part) { words[static_cast<std::size_t>(limb)] += part; });
}

void exact_merge(ExactWords words, ConstExactWords other) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] += other[i];
}

void exact_normalise(ExactWords words) { exact_words::normalise(words.data()); }

double exact_value(ConstExactWords words) {
  std::array<std::int64_t, kExactSumWords> sum;
  std::copy(words.begin(), words.end(), sum.begin());
  return exact_words::value(sum.data());
}

}  // namespace tessera
