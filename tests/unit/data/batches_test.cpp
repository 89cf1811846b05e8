// Who computes which sample, and what a micro-batch holds.
#include "data/batches.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "support/temporary_directory.hpp"

namespace tessera::data {
namespace {

constexpr std::int64_t kSequence = 4, kSequences = 10, kVocab = 1000;

/// A corpus whose token i is i: 10 sequences of 4 tokens, and the last target.
class BatchesTest : public testing::Test {
 protected:
  BatchesTest() {
    std::array<std::int32_t, 256> header{20240520, 1,
                                         static_cast<std::int32_t>(kSequences * kSequence + 1)};
    std::string bytes(reinterpret_cast<const char*>(header.data()), sizeof header);
    for (std::uint16_t i = 0; i <= kSequences * kSequence; ++i)
      bytes.append(reinterpret_cast<const char*>(&i), 2);
    test::write_file(directory_ / "tokens.bin", bytes);
    corpus_ = std::make_unique<io::TokenCorpus>(
        std::vector<std::string>{(directory_ / "tokens.bin").string()}, kVocab);
  }

  struct Loaded {
    std::vector<std::int32_t> tokens, targets;
    std::vector<std::int64_t> samples;
  };
  static Loaded load(const data::Batches& batches, std::int64_t k, std::int64_t micro,
                     std::int64_t length = kSequence) {
    Loaded l;
    l.tokens.resize(static_cast<std::size_t>(micro * length));
    l.targets = l.tokens;
    l.samples.resize(static_cast<std::size_t>(micro));
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    batches.load(k, {.tokens = View(bytes(l.tokens), DType::i32, {micro, length}),
                     .targets = View(bytes(l.targets), DType::i32, {micro, length}),
                     .samples = View(bytes(l.samples), DType::i64, {micro})});
    return l;
  }

  static data::SampleBegin shuffled() {
    return data::sequences_of(io::Sampler(kSequences, 7, io::Shuffle::yes), kSequence);
  }

  test::TemporaryDirectory directory_;
  std::unique_ptr<io::TokenCorpus> corpus_;
};

// Trap 6, by brute force: on every layout the ranks' micro-batches are a partition of the step's
// samples, and micro-batch m of the whole step is the same samples in the same order.
TEST_F(BatchesTest, EveryLayoutHasTheSameSamples) {
  const io::Sampler sampler(kSequences, 7, io::Shuffle::yes);
  constexpr std::int64_t kGlobal = 72, kFirst = 53;  // over the ends of several epochs
  for (std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (std::int64_t micro : {1, 3}) {
      for (auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
        const std::int64_t count = kGlobal / (ranks * micro);
        std::vector<int> seen(kGlobal);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const data::BatchShare share{.data_ranks = ranks,
                                       .data_rank = rank,
                                       .sequence = kSequence,
                                       .micro = micro,
                                       .micro_batches = count,
                                       .reduce = reduce};
          data::Batches batches(*corpus_, data::sequences_of(sampler, kSequence));
          batches.begin(kFirst, share);
          for (std::int64_t k = 0; k < count; ++k) {
            const Loaded l = load(batches, k, micro);
            EXPECT_EQ(share.first_sample(k) % micro, 0);
            for (std::int64_t b = 0; b < micro; ++b) {
              const std::int64_t offset = share.first_sample(k) + b;
              ++seen.at(static_cast<std::size_t>(offset));
              EXPECT_EQ(l.samples[static_cast<std::size_t>(b)], kFirst + offset);
              const std::int64_t begin = sampler.sequence_of(kFirst + offset) * kSequence;
              for (std::int64_t t = 0; t < kSequence; ++t) {
                const auto at = static_cast<std::size_t>(b * kSequence + t);
                EXPECT_EQ(l.tokens[at], begin + t);
                EXPECT_EQ(l.targets[at], begin + t + 1);  // trap 8
              }
            }
          }
        }
        EXPECT_EQ(seen, std::vector<int>(kGlobal, 1)) << ranks << " ranks, micro " << micro;
      }
    }
  }
}

// Under "step" a rank's gradient is a sum of neighbours, under "micro" each reduction is: both are
// subtrees of one aligned tree over the micro-batches.
TEST(BatchShare, IsABlockOrEveryDth) {
  data::BatchShare share{.data_ranks = 4, .data_rank = 2, .micro = 3, .micro_batches = 5};
  for (std::int64_t k = 0; k < 5; ++k) {
    share.reduce = ReduceWhen::step;
    EXPECT_EQ(share.first_sample(k), (2 * 5 + k) * 3);
    share.reduce = ReduceWhen::micro;
    EXPECT_EQ(share.first_sample(k), (k * 4 + 2) * 3);
  }
}

// Each epoch is a permutation of all sequences: trap 9, nothing is left out at its end.
TEST_F(BatchesTest, AnEpochHasEachSequenceOnce) {
  data::Batches batches(*corpus_, shuffled());
  const data::BatchShare share{.sequence = kSequence, .micro = 1, .micro_batches = kSequences};
  std::vector<std::int32_t> first_epoch;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    batches.begin(epoch * kSequences, share);
    std::vector<int> seen(kSequences);
    std::vector<std::int32_t> order;
    for (std::int64_t k = 0; k < kSequences; ++k) {
      order.push_back(load(batches, k, 1).tokens[0]);
      ++seen.at(static_cast<std::size_t>(order.back() / kSequence));
    }
    EXPECT_EQ(seen, std::vector<int>(kSequences, 1));
    EXPECT_NE(order, first_epoch);
    first_epoch = order;
  }
}

TEST_F(BatchesTest, ReadingAheadChangesNothing) {
  const data::BatchShare share{.sequence = kSequence, .micro = 2, .micro_batches = 3};
  data::Batches plain(*corpus_, shuffled()), ahead = data::Batches(*corpus_, shuffled());
  for (std::int64_t step = 0; step < 5; ++step) {
    plain.begin(step * 6, share);
    ahead.begin(step * 6, share);
    ahead.prefetch((step + 1) * 6, share);
    for (std::int64_t k = 0; k < 3; ++k)
      EXPECT_EQ(load(plain, k, 2).tokens, load(ahead, k, 2).tokens);
  }
  // What was read ahead is not what is wanted: after a rollback, or when the batch grows.
  ahead.begin(6, share);
  plain.begin(6, share);
  EXPECT_EQ(load(plain, 2, 2).tokens, load(ahead, 2, 2).tokens);
}

// A curriculum that truncates: the beginnings of the same samples, in the same order.
TEST_F(BatchesTest, AShorterStepHasTheBeginningsOfItsSamples) {
  data::Batches whole(*corpus_, shuffled()), part(*corpus_, shuffled());
  data::BatchShare share{.sequence = kSequence, .micro = 2, .micro_batches = 3};
  whole.begin(8, share);
  part.prefetch(8, share);  // of another length, as that of the step before
  share.sequence = 3;
  part.begin(8, share);
  for (std::int64_t k = 0; k < 3; ++k) {
    const Loaded want = load(whole, k, 2), got = load(part, k, 2, 3);
    EXPECT_EQ(got.samples, want.samples);
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t t = 0; t < 3; ++t) {
        EXPECT_EQ(got.tokens[b * 3 + t], want.tokens[b * kSequence + t]);
        EXPECT_EQ(got.targets[b * 3 + t], want.targets[b * kSequence + t]);
      }
    }
  }
}

// After a rollback a sample may have been cut for a later phase: its end is left out, or, at the
// end of the corpus, it begins earlier.
TEST_F(BatchesTest, NoSampleIsReadBeyondTheCorpus) {
  data::Batches batches(*corpus_, [](std::int64_t sample) { return 36 + sample; });
  batches.begin(0, {.sequence = kSequence, .micro = 2, .micro_batches = 1});
  EXPECT_EQ(load(batches, 0, 2).targets,
            (std::vector<std::int32_t>{37, 38, 39, 40, 37, 38, 39, 40}));
}

TEST_F(BatchesTest, BadTokensSurfaceWhereTheStepBegins) {
  const io::TokenCorpus small(std::vector<std::string>{(directory_ / "tokens.bin").string()}, 20);
  data::Batches batches(small,
                        data::sequences_of(io::Sampler(kSequences, 7, io::Shuffle::no), kSequence));
  const data::BatchShare share{.sequence = kSequence, .micro = 1, .micro_batches = 2};
  batches.prefetch(6, share);  // tokens 24 .. 32 of a vocabulary of 20
  EXPECT_THROW(batches.begin(6, share), DataError);
}

}  // namespace
}  // namespace tessera::data
