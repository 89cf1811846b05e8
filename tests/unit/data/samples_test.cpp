// Which tokens the samples of a curriculum have, against sets of all tokens.
#include "data/samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace tessera::data {
namespace {

deck::BatchSection batch(std::vector<deck::LengthEntry> table,
                         std::vector<deck::RampEntry> ramp = {}) {
  deck::BatchSection b{.sequence = 16, .micro = 1, .global = 4, .ramp = std::move(ramp)};
  b.curriculum.table = std::move(table);
  b.curriculum.cut = deck::Cut::anew;
  return b;
}

struct Sample {
  std::int64_t begin = 0, length = 0;
};

std::vector<Sample> samples_of(const CutAnew& cut, const optim::Timeline& timeline,
                               std::int64_t steps) {
  std::vector<Sample> all;
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::int64_t i = 0; i < timeline.global(step); ++i)
      all.push_back({cut.first_token(std::ssize(all)), timeline.sequence(step)});
  }
  return all;
}

/// Every epoch is cut into sequences without a gap or an overlap, from its first token on; what is
/// left over at its end is less than the sequence that comes next. Returns how many epochs are
/// over.
std::int64_t expect_each_token_once(const std::vector<Sample>& samples, std::int64_t tokens) {
  std::int64_t epochs = 0, used = 0;
  std::map<std::int64_t, std::int64_t> lengths;  // by begin
  for (const Sample& sample : samples) {
    if (used + sample.length > tokens) {
      std::int64_t next = 0;
      for (const auto& [begin, length] : lengths) {
        EXPECT_EQ(begin, next) << "epoch " << epochs;
        next = begin + length;
      }
      EXPECT_EQ(next, used);
      lengths.clear();
      used = 0;
      ++epochs;
    }
    EXPECT_TRUE(lengths.emplace(sample.begin, sample.length).second);
    EXPECT_GE(sample.begin, 0);
    EXPECT_LE(sample.begin + sample.length, tokens);
    used += sample.length;
  }
  return epochs;
}

TEST(CutAnew, HasEachTokenOfAnEpochOnce) {
  const std::vector<std::vector<deck::LengthEntry>> tables = {
      {{0, 4}, {20, 7}, {60, 16}},                  // all within the first epoch of a large corpus
      {{0, 3}, {2, 5}, {3, 16}, {9, 2}, {30, 13}},  // also shorter again
      {{0, 16}},
      {{0, 1}, {500, 16}}};  // whole epochs before the last phase
  for (const auto& table : tables) {
    for (const std::int64_t tokens : {16, 17, 61, 997, 20000}) {
      for (const auto shuffle : {io::Shuffle::yes, io::Shuffle::no}) {
        const optim::Timeline timeline(batch(table, {{.step = 7, .global = 9}}), 0);
        const CutAnew cut(tokens, timeline, 3, shuffle);
        const auto samples = samples_of(cut, timeline, 900);
        EXPECT_GE(expect_each_token_once(samples, tokens), 1) << tokens;
        if (shuffle == io::Shuffle::no) {
          for (std::size_t i = 1; i < samples.size(); ++i) {  // on from the one before, or anew
            const Sample& before = samples[i - 1];
            EXPECT_TRUE(samples[i].begin == before.begin + before.length || samples[i].begin == 0);
          }
        }
      }
    }
  }
}

// A phase's samples come from all parts of the corpus, in an order of the seed's.
TEST(CutAnew, ShufflesEachPhaseOverTheWholeCorpus) {
  const optim::Timeline timeline(batch({{0, 4}, {100, 8}, {200, 16}}), 0);
  constexpr std::int64_t kTokens = 40000;
  const auto of_seed = [&](std::uint64_t seed) {
    return samples_of(CutAnew(kTokens, timeline, seed, io::Shuffle::yes), timeline, 250);
  };
  const auto samples = of_seed(1), again = of_seed(1), other = of_seed(2);
  std::map<std::int64_t, std::vector<int>> quarters;  // by length
  std::size_t ascending = 0, moved = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(samples[i].begin, again[i].begin);
    moved += samples[i].begin != other[i].begin ? 1U : 0U;
    ascending += i > 0 && samples[i].begin > samples[i - 1].begin ? 1U : 0U;
    auto& of_length = quarters.try_emplace(samples[i].length, 4).first->second;
    ++of_length[static_cast<std::size_t>(samples[i].begin * 4 / kTokens)];
  }
  for (const auto& [length, counts] : quarters) {
    const auto [least, most] = std::ranges::minmax(counts);
    // The last phase has not seen all of its sequences.
    EXPECT_LE(most - least, length == 16 ? most / 2 : 2) << length;
  }
  EXPECT_GT(moved, samples.size() * 9 / 10);
  EXPECT_GT(ascending, samples.size() * 4 / 10);
  EXPECT_LT(ascending, samples.size() * 6 / 10);
}

// Of any first samples each corpus has its share, to within one less than there are corpora, and
// its own samples in order.
TEST(Mixture, DealsExactShares) {
  for (const std::vector<double>& shares : {std::vector<double>{1},
                                            {0.5, 0.5},
                                            {3, 1},
                                            {0.5, 0.3, 0.2},
                                            {1e-6, 1, 2.5, 7},
                                            {1, 1, 1}}) {
    const Mixture mixture(shares);
    double all = 0;
    for (const double share : shares) all += share;
    std::vector<std::int64_t> dealt(shares.size());
    for (std::int64_t sample = 0; sample < 5000; ++sample) {
      const auto [corpus, of_corpus] = mixture.place_of(sample);
      ASSERT_EQ(of_corpus, dealt.at(corpus)++);
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const double expected = static_cast<double>(sample + 1) * shares[i] / all;
        ASSERT_LE(std::abs(static_cast<double>(dealt[i]) - expected),
                  std::max<double>(1, static_cast<double>(shares.size() - 1)))
            << sample << " of corpus " << i;
      }
    }
  }
  // Far into a run too.
  const Mixture mixture(std::vector<double>{1, 2});
  const std::int64_t far = std::int64_t{3} << 40;
  EXPECT_LE(std::abs(mixture.place_of(far).sample -
                     (mixture.place_of(far).corpus == 0 ? far / 3 : far / 3 * 2)),
            1);
}

// One length: what a run without a curriculum reads.
TEST(CutAnew, OfOneLengthIsTheSampler) {
  const optim::Timeline timeline(batch({{0, 16}}), 0);
  const CutAnew cut(1000, timeline, 5, io::Shuffle::yes);
  const Sequences plain({0, 1001}, 16);
  const io::Sampler order(plain.count(), 5, io::Shuffle::yes);
  for (std::int64_t sample = 0; sample < 300; ++sample)
    EXPECT_EQ(cut.first_token(sample), plain[order.sequence_of(sample)].front().begin) << sample;
}

}  // namespace
}  // namespace tessera::data
