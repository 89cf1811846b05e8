// Who computes which sample, and what a micro-batch holds.
#include "data/batches.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/at.hpp"
#include "io/megatron.hpp"
#include "io/token_labels.hpp"
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
    batches.current().load(k, {.tokens = View(bytes(l.tokens), DType::i32, {micro, length}),
                               .targets = View(bytes(l.targets), DType::i32, {micro, length}),
                               .samples = View(bytes(l.samples), DType::i64, {micro})});
    return l;
  }

  static data::SampleTokens ordered_by(const io::Sampler& sampler) {
    return [sampler](std::int64_t sample) {
      const std::int64_t begin = sampler.sequence_of(sample) * kSequence;
      return Stretches{{begin, begin + kSequence}};
    };
  }
  static data::SampleTokens shuffled() {
    return ordered_by(io::Sampler(kSequences, 7, io::Shuffle::yes));
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
          data::Batches batches(*corpus_, ordered_by(sampler));
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

// Traps 8 and 14: together context ranks have each token and its target once, and know where it is.
TEST_F(BatchesTest, ContextRanksHaveChunksOfTheSameSamples) {
  const io::Sampler sampler(kSequences, 7, io::Shuffle::yes);
  constexpr std::int64_t kMicro = 3, kCount = 2, kChunks = 4, kLength = kSequence / kChunks;
  static_assert(kSequence % kChunks == 0);
  for (const std::int64_t ranks : {1, 2}) {
    const std::int64_t rows = kMicro * kChunks / ranks, own = 2 / ranks;
    std::vector<int> seen(static_cast<std::size_t>(kCount * kMicro * kSequence));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const data::BatchShare share{.context_ranks = ranks,
                                   .context_rank = rank,
                                   .context_shares = 2,
                                   .sequence = kSequence,
                                   .micro = kMicro,
                                   .micro_batches = kCount};
      data::Batches batches(*corpus_, ordered_by(sampler));
      batches.begin(5, share);
      const data::StepTokens& step = batches.current();
      EXPECT_EQ(step.count(), kCount * rows * kLength);
      for (std::int64_t row = 0; row < kCount * rows; ++row) {
        const std::int64_t k = row / rows, b = row % kMicro, place = row % rows / kMicro;
        const std::int64_t of_share = rank * own + place / 2,
                           chunk = place % 2 == 0 ? of_share : kChunks - 1 - of_share;
        const std::int64_t sample = share.first_sample(k) + b;
        EXPECT_EQ(at(step.samples, row), 5 + sample);
        const std::int64_t begin = sampler.sequence_of(5 + sample) * kSequence;
        for (std::int64_t t = 0; t < kLength; ++t) {
          const std::int64_t token = chunk * kLength + t;
          EXPECT_EQ(at(step.tokens, row * kLength + t), begin + token);
          EXPECT_EQ(at(step.targets, row * kLength + t), begin + token + 1);
          EXPECT_EQ(t - at(step.positions, 2 * (row * kLength + t)), token);
          ++at(seen, sample * kSequence + token);
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << ranks << " ranks";
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
  data::Batches batches(*corpus_, [](std::int64_t sample) {
    return Stretches{{36 + sample, 40 + sample}};
  });
  batches.begin(0, {.sequence = kSequence, .micro = 2, .micro_batches = 1});
  EXPECT_EQ(load(batches, 0, 2).targets,
            (std::vector<std::int32_t>{37, 38, 39, 40, 37, 38, 39, 40}));
}

TEST_F(BatchesTest, BadTokensSurfaceWhereTheStepBegins) {
  const io::TokenCorpus small(std::vector<std::string>{(directory_ / "tokens.bin").string()}, 20);
  data::Batches batches(small, ordered_by(io::Sampler(kSequences, 7, io::Shuffle::no)));
  const data::BatchShare share{.sequence = kSequence, .micro = 1, .micro_batches = 2};
  batches.prefetch(6, share);  // tokens 24 .. 32 of a vocabulary of 20
  EXPECT_THROW(batches.begin(6, share), DataError);
}

/// Documents of 3, 1, 6, 2 and 9 tokens, of which tokens 0, 5, 6 and 12 are no targets; token i is
/// i, but the last of each document, which is 999.
class DocumentsTest : public testing::Test {
 protected:
  DocumentsTest() {
    const std::filesystem::path prefix = directory_ / "tokens";
    io::MegatronWriter tokens(prefix, kVocab);
    std::string targets;
    std::int32_t next = 0;
    for (const std::int32_t length : {3, 1, 6, 2, 9}) {
      std::vector<std::int32_t> document;
      for (std::int32_t i = 0; i < length; ++i, ++next) {
        document.push_back(i + 1 < length ? next : 999);
        targets.push_back(next == 0 || next == 5 || next == 6 || next == 12 ? 0 : 1);
      }
      tokens.append(document);
      tokens.end_document();
    }
    tokens.publish();
    corpus_ = open(prefix);
    write_targets(prefix, targets);
    masked_ = open(prefix);
  }
  static std::unique_ptr<io::TokenCorpus> open(const std::filesystem::path& prefix) {
    return std::make_unique<io::TokenCorpus>(std::vector{prefix.string()}, kVocab);
  }
  /// The pair of PREFIX.targets: the index of the tokens with elements of half the size.
  static void write_targets(const std::filesystem::path& prefix, const std::string& targets) {
    test::write_file(prefix.string() + ".targets.bin", targets);
    std::string index = test::read_file(prefix.string() + ".idx");
    index[17] = 1;  // u8
    for (std::size_t i = 0; i < 5; ++i) {
      std::int64_t pointer = 0;
      char* at = index.data() + 34 + 5 * 4 + i * 8;
      std::memcpy(&pointer, at, 8);
      pointer /= 2;
      std::memcpy(at, &pointer, 8);
    }
    test::write_file(prefix.string() + ".targets.idx", index);
  }

  struct Sequence {
    std::vector<std::int32_t> targets, documents;
    std::int64_t counted = 0;
  };
  /// The tokens from `first` on, of two sequences of five tokens.
  static Sequence read(const io::TokenCorpus& corpus, std::int64_t first,
                       const data::DocumentRule& rule) {
    data::Batches batches(corpus,
                          [first](std::int64_t s) {
                            return Stretches{{first + 5 * s, first + 5 * s + 5}};
                          },
                          {.documents = rule});
    batches.begin(0, {.sequence = 5, .micro = 2, .micro_batches = 1});
    Sequence s{.targets = std::vector<std::int32_t>(10),
               .documents = std::vector<std::int32_t>(rule.separate ? 20 : 0)};
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    batches.current().load(
        0, {.targets = View(bytes(s.targets), DType::i32, {10}),
            .documents = rule.separate ? View(bytes(s.documents), DType::i32, {20}) : View{}});
    s.counted = batches.current().count();
    return s;
  }

  test::TemporaryDirectory directory_;
  std::unique_ptr<io::TokenCorpus> corpus_, masked_;
};

TEST_F(DocumentsTest, AreOneWhereTheyAreJoined) {
  const Sequence s = read(*corpus_, 1, {});
  EXPECT_EQ(s.targets, (std::vector<std::int32_t>{999, 999, 4, 5, 6, 7, 8, 999, 10, 999}));
  EXPECT_EQ(s.counted, 10);
}

TEST_F(DocumentsTest, HaveTargetsThatDoNotCount) {
  const Sequence s = read(*masked_, 1, {});
  EXPECT_EQ(s.targets, (std::vector<std::int32_t>{999, 999, 4, -1, -1, 7, 8, 999, 10, 999}));
  EXPECT_EQ(s.counted, 8);
}

// Trap 8 of documents: the first token of one is no target of the one before it, also where a
// sequence ends between them.
TEST_F(DocumentsTest, AreSeparate) {
  for (const auto& separator : {std::optional<std::int32_t>(), std::optional<std::int32_t>(999)}) {
    const Sequence s = read(*masked_, 0, {.separate = true, .separator = separator});
    EXPECT_EQ(s.targets, (std::vector<std::int32_t>{1, 999, -1, -1, -1, -1, 7, 8, 999, -1}));
    EXPECT_EQ(s.documents, (std::vector<std::int32_t>{0, 3, 0, 3, 0, 3, 3, 4, 4, 5,  //
                                                      0, 5, 0, 5, 0, 5, 0, 5, 0, 5}));
    EXPECT_EQ(s.counted, 5);
  }
}

// A token budget: as many whole documents as fit, and padding, whose documents are no longer than
// the others may be.
// In whatever order samples come, and where a step has more samples than there are documents.
TEST_F(DocumentsTest, OfPairsStayTogetherAndCountOnce) {
  const std::filesystem::path prefix = directory_ / "pairs";
  io::MegatronWriter tokens(prefix, kVocab);
  for (const std::int32_t length : {3, 2, 6, 2, 4, 4, 2, 5}) {
    tokens.append(std::vector<std::int32_t>(static_cast<std::size_t>(length), 7));
    tokens.end_document();
  }
  tokens.publish();
  const auto corpus = open(prefix);
  deck::Deck deck;
  deck.task.kind = deck::TaskKind::dpo;
  deck.batch.sequence = 6;
  deck.model.context = 6;
  deck.data.train = {{.path = prefix.string()}};
  const SampleTokens samples = training_samples(*corpus, deck);
  std::vector<std::int64_t> order;
  for (std::int64_t pair = 0; pair < 4; ++pair) {
    EXPECT_EQ(samples(2 * pair).front().end, samples(2 * pair + 1).front().begin);
    order.push_back(samples(2 * pair).front().begin);
  }
  EXPECT_FALSE(std::ranges::is_sorted(order));
  std::ranges::sort(order);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 5, 13, 21}));

  const auto references = std::make_shared<const References>(
      *corpus, std::vector<double>{-1, -2, -3, -4, -5, -6, -7, -8});
  EXPECT_THROW(References(*corpus, {-1, -2}), DataError);
  data::Batches batches(
      *corpus, [&](std::int64_t s) { return s < 8 ? samples(s) : Stretches(); },
      {.documents = {.separate = true, .whole = true, .longest = 2}, .references = references});
  batches.begin(4, {.sequence = 6, .micro = 2, .micro_batches = 3});
  const StepTokens& step = batches.current();
  EXPECT_EQ(step.counted, (std::vector<std::int64_t>{1, 0, 1, 0, 0, 0}));
  EXPECT_EQ(step.count(), 2);
  for (std::size_t s = 0; s < 4; s += 2) EXPECT_EQ(step.reference[s] - 1, step.reference[s + 1]);
  EXPECT_EQ(step.reference[4], 0);

  // As a reward model has them: one target each.
  data::Batches scored(
      *corpus, [&](std::int64_t s) { return s < 8 ? samples(s) : Stretches(); },
      {.documents = {.separate = true, .whole = true, .longest = 2}, .scored = true});
  scored.begin(4, {.sequence = 6, .micro = 2, .micro_batches = 3});
  EXPECT_EQ(scored.current().tokens, step.tokens);
  EXPECT_EQ(scored.current().documents, step.documents);
  EXPECT_EQ(scored.current().counted, step.counted);
  EXPECT_EQ(scored.current().targets, (std::vector<std::int32_t>{0, 0, 0, 0, -1, -1}));
  EXPECT_TRUE(scored.current().reference.empty());
  scored.begin_blank({.sequence = 6, .micro = 2, .micro_batches = 3});
  EXPECT_EQ(scored.current().targets, std::vector<std::int32_t>(6, -1));
}

TEST_F(DocumentsTest, FillTokenBudgets) {
  const auto all = Sequences::of_documents(*masked_, {0, 21}, 11, {9}, "data.train");
  ASSERT_EQ(all.count(), 2);
  EXPECT_EQ(all[0], (Stretches{{0, 10}}));
  EXPECT_EQ(all[1], (Stretches{{10, 21}}));
  data::Batches batches(*masked_, [&](std::int64_t s) { return all[s]; },
                        {.documents = {.separate = true, .whole = true, .longest = 2}});
  batches.begin(0, {.sequence = 15, .micro = 2, .micro_batches = 1});
  std::vector<std::int32_t> tokens(30), targets(30), documents(60);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  batches.current().load(0, {.tokens = View(bytes(tokens), DType::i32, {30}),
                             .targets = View(bytes(targets), DType::i32, {30}),
                             .documents = View(bytes(documents), DType::i32, {60})});
  EXPECT_EQ(std::vector(tokens.begin() + 8, tokens.begin() + 17),
            (std::vector<std::int32_t>{8, 999, 0, 0, 0, 0, 0, 10, 999}));
  EXPECT_EQ(std::vector(targets.begin(), targets.begin() + 15),
            (std::vector<std::int32_t>{1, 999, -1, -1, -1, -1, 7, 8, 999, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(
      std::vector(targets.begin() + 15, targets.begin() + 30),
      (std::vector<std::int32_t>{999, -1, 13, 14, 15, 16, 17, 18, 19, 999, -1, -1, -1, -1, -1}));
  std::vector<std::int32_t> ends;  // of the first sequence's documents
  for (std::size_t t = 0; t < 15; ++t) {
    if (ends.empty() || ends.back() != documents[2 * t + 1]) ends.push_back(documents[2 * t + 1]);
  }
  EXPECT_EQ(ends, (std::vector<std::int32_t>{3, 4, 10, 12, 14, 15}));
  EXPECT_EQ(batches.current().count(), 5 + 9);
  // The document that no budget holds.
  const auto message = test::message_of<DataError>([&] {
    Sequences::of_documents(*corpus_, {0, 21}, 11, {8, "model.context"}, "data.train");
  });
  EXPECT_NE(
      message.find("data.train: document 5, which begins with token 12, has 9 tokens, more than "
                   "the 8 that model.context allows"),
      std::string::npos)
      << message;
}

// Masked language modelling: of 20,000 tokens as many are chosen, masked and exchanged as five
// deviations of the binomial distribution allow, the others stay; a sample is the same in any
// batch.
TEST_F(BatchesTest, MasksAShareOfTheTokens) {
  const data::MaskRule rule{.share = 0.3, .mask = 999, .never = {7, 8}, .vocab = 500, .seed = 3};
  data::Batches batches(*corpus_,
                        [](std::int64_t) {
                          return Stretches{{0, 40}};
                        },
                        {.masking = rule});
  constexpr std::int64_t kSamples = 500, kTokens = 40;
  batches.begin(0, {.sequence = kTokens, .micro = kSamples, .micro_batches = 1});
  const Loaded all = load(batches, 0, kSamples, kTokens);
  double chosen = 0, masked = 0, exchanged = 0;
  for (std::size_t i = 0; i < all.tokens.size(); ++i) {
    const auto original = static_cast<std::int32_t>(i % kTokens);
    if (all.targets[i] < 0) {
      ASSERT_EQ(all.tokens[i], original);
      continue;
    }
    ASSERT_EQ(all.targets[i], original);
    ASSERT_TRUE(original != 7 && original != 8);
    ++chosen;
    masked += all.tokens[i] == 999 ? 1 : 0;
    exchanged += all.tokens[i] != 999 && all.tokens[i] != original ? 1 : 0;
    ASSERT_TRUE(all.tokens[i] == 999 || (all.tokens[i] >= 0 && all.tokens[i] < 500));
  }
  EXPECT_EQ(batches.current().count(), static_cast<std::int64_t>(chosen));
  const auto near = [](double count, double of, double share) {
    EXPECT_NEAR(count, of * share, 5 * std::sqrt(of * share * (1 - share)));
  };
  near(chosen, 38 * kSamples, 0.3);
  near(masked, chosen, 0.8);
  near(exchanged, chosen, 0.1 * 499 / 500);
  batches.begin(17, {.sequence = kTokens, .micro = 2, .micro_batches = 1});
  const Loaded again = load(batches, 0, 2, kTokens);
  for (std::size_t i = 0; i < again.tokens.size(); ++i)
    ASSERT_EQ(again.tokens[i], all.tokens[17 * kTokens + i]);
}

TEST_F(DocumentsTest, AreWholeInABlankStep) {
  data::Batches batches(*corpus_,
                        [](std::int64_t) {
                          return Stretches{{0, 3}};
                        },
                        {.documents = {.separate = true}});
  batches.begin_blank({.sequence = 3, .micro = 2, .micro_batches = 1});
  std::vector<std::int32_t> documents(12);
  batches.current().load(
      0, {.documents = View(reinterpret_cast<std::byte*>(documents.data()), DType::i32, {12})});
  EXPECT_EQ(documents, (std::vector<std::int32_t>{0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3}));
  EXPECT_EQ(batches.current().count(), 0);
}

// Learned positions reach no further than the context.
TEST_F(DocumentsTest, OfABlankStepAreNoLongerThanPadding) {
  data::Batches batches(*corpus_,
                        [](std::int64_t) {
                          return Stretches{{0, 3}};
                        },
                        {.documents = {.separate = true, .longest = 2}});
  batches.begin_blank({.sequence = 5, .micro = 1, .micro_batches = 1});
  std::vector<std::int32_t> documents(10);
  batches.current().load(
      0, {.documents = View(reinterpret_cast<std::byte*>(documents.data()), DType::i32, {10})});
  EXPECT_EQ(documents, (std::vector<std::int32_t>{0, 2, 0, 2, 2, 4, 2, 4, 4, 5}));
}

deck::TaskSection classes(std::int64_t labels, deck::TaskKind kind = deck::TaskKind::classify) {
  deck::TaskSection task;
  task.kind = kind, task.labels = labels;
  return task;
}

/// Documents of 3, 1, 6, 2 and 9 tokens, each of a class, or words in them.
class LabelsTest : public DocumentsTest {
 protected:
  void label(const std::vector<std::int32_t>& labels, const std::vector<std::string>& names) {
    const std::filesystem::path prefix = directory_ / "labelled";
    write_tokens(prefix);
    io::MegatronShare of_documents(io::labels_prefix(prefix), DType::i32, 0);
    for (const std::int32_t l : labels) {
      of_documents.append(std::span(&l, 1));
      of_documents.end_document();
    }
    publish(of_documents);
    io::write_label_names(io::label_names_file(prefix), {.key = "y", .names = names});
    labelled_ = open(prefix);
  }

  /// Every third token begins a word, whose label is its number of three; documents are closed by
  /// two tokens, which have none.
  void label_words() {
    const std::filesystem::path prefix = directory_ / "labelled";
    write_tokens(prefix);
    io::MegatronShare of_tokens(io::labels_prefix(prefix), DType::i32, 0);
    std::int32_t next = 0;
    for (const std::int32_t length : kLengths) {
      for (std::int32_t i = 0; i < length; ++i, ++next) {
        const bool begins = next % 3 == 0 && i < length - 2;
        const std::int32_t element = begins ? 1 + next / 3 % 3 : 0;
        of_tokens.append(std::span(&element, 1));
      }
      of_tokens.end_document();
    }
    publish(of_tokens);
    io::write_label_names(
        io::label_names_file(prefix),
        {.key = "y", .names = {"a", "b", "c"}, .of = io::LabelsOf::words, .closing = 2});
    labelled_ = open(prefix);
  }

  static constexpr std::array<std::int32_t, 5> kLengths = {3, 1, 6, 2, 9};
  static void write_tokens(const std::filesystem::path& prefix) {
    io::MegatronWriter tokens(prefix, kVocab);
    std::int32_t next = 0;
    for (const std::int32_t length : kLengths) {
      std::vector<std::int32_t> document;
      for (std::int32_t i = 0; i < length; ++i) document.push_back(next++);
      tokens.append(document);
      tokens.end_document();
    }
    tokens.publish();
  }
  static void publish(io::MegatronShare& share) {
    share.place({}, share.extent());
    share.publish();
  }
  std::unique_ptr<io::TokenCorpus> labelled_;
};

TEST_F(LabelsTest, AreTheOnlyTargetsOfTheirDocuments) {
  label({1, 0, 2, 0, 1}, {"a", "b", "c"});
  const auto labels = std::make_shared<const LabelledDocuments>(*labelled_, classes(3));
  const std::vector<std::int64_t> ends = {3, 4, 10, 12, 21};
  for (std::int64_t token = 0, d = 0; token < 21; ++token) {
    if (token == ends[static_cast<std::size_t>(d)]) ++d;
    EXPECT_EQ(labels->at(token).label, (std::vector{1, 0, 2, 0, 1}[static_cast<std::size_t>(d)]));
  }
  const auto documents =
      Sequences::of_each_document(*labelled_, {0, 21}, {4}, deck::Overlong::cut, "labelled");
  ASSERT_EQ(documents.count(), 5);
  Batches batches(*labelled_, [&](std::int64_t s) { return s < 5 ? documents[s] : Stretches(); },
                  {.documents = {.separate = true, .longest = 2}, .labels = labels});
  batches.begin(2, {.sequence = 4, .micro = 4, .micro_batches = 1});
  std::vector<std::int32_t> targets(4), tokens(16), within(32);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  batches.current().load(0, {.tokens = View(bytes(tokens), DType::i32, {4, 4}),
                             .targets = View(bytes(targets), DType::i32, {4}),
                             .documents = View(bytes(within), DType::i32, {32})});
  EXPECT_EQ(targets, (std::vector{2, 0, 1, -1})) << "the last sample is padding alone";
  EXPECT_EQ(batches.current().count(), 3);
  EXPECT_EQ(tokens, (std::vector{4, 5, 6, 7, 10, 11, 0, 0, 12, 13, 14, 15, 0, 0, 0, 0}));
  EXPECT_EQ(within, (std::vector{0, 4, 0, 4, 0, 4, 0, 4, 0, 2, 0, 2, 2, 4, 2, 4,
                                 0, 4, 0, 4, 0, 4, 0, 4, 0, 2, 0, 2, 2, 4, 2, 4}));
  EXPECT_THROW(Sequences::of_each_document(*labelled_, {0, 21}, {4}, deck::Overlong::refuse, "x"),
               DataError);
}

// Each where least room is left: documents of 3, 1, 6, 2 and 8 tokens into sequences of 9.
TEST_F(LabelsTest, ShareSequencesThatHaveRoomForThem) {
  label({1, 0, 2, 0, 1}, {"a", "b", "c"});
  const auto documents =
      Sequences::of_each_document(*labelled_, {0, 21}, {8}, deck::Overlong::cut, "labelled");
  const auto packed = [&](std::int64_t most) {
    return Sequences::packed(documents, io::Sampler(5, 1, io::Shuffle::no), 9, most);
  };
  const Sequences all = packed(9);
  ASSERT_EQ(all.count(), 3);
  EXPECT_EQ(all[0], (Stretches{{0, 3}, {3, 4}}));
  EXPECT_EQ(all[1], (Stretches{{4, 10}, {10, 12}}));
  EXPECT_EQ(all[2], (Stretches{{12, 20}}));
  EXPECT_EQ(all.stretches(2), 4);
  EXPECT_EQ(packed(1).count(), 5);

  const auto labels = std::make_shared<const LabelledDocuments>(*labelled_, classes(3));
  Batches batches(
      *labelled_, [&](std::int64_t s) { return s < 3 ? all[s] : Stretches(); },
      {.documents = {.separate = true, .longest = 2}, .labels = labels, .most_documents = 4});
  batches.begin(0, {.sequence = 9, .micro = 1, .micro_batches = 4});
  const StepTokens& step = batches.current();
  EXPECT_EQ(step.targets, (std::vector{1, 0, -1, -1, 2, 0, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(step.counted, (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(std::vector(step.tokens.begin(), step.tokens.begin() + 18),
            (std::vector{0, 1, 2, 3, 0, 0, 0, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11, 0}));
  EXPECT_EQ(std::vector(step.documents.begin(), step.documents.begin() + 18),
            (std::vector{0, 3, 0, 3, 0, 3, 3, 4, 4, 6, 4, 6, 6, 8, 6, 8, 8, 9}));
  batches.begin_blank({.sequence = 9, .micro = 1, .micro_batches = 4});
  EXPECT_EQ(batches.current().targets, std::vector(16, -1));
}

// Every document is in one sequence, which holds what it may, and there are a tenth fewer of these
// than if documents were taken one after another.
TEST_F(LabelsTest, ArePackedOnceEach) {
  const std::filesystem::path prefix = directory_ / "many";
  io::MegatronWriter tokens(prefix, kVocab);
  constexpr std::int64_t kCount = 3000, kBudget = 100, kMost = 9;
  for (std::int64_t i = 0; i < kCount; ++i) {
    tokens.append(std::vector<std::int32_t>(static_cast<std::size_t>(1 + i * i % 50), 1));
    tokens.end_document();
  }
  tokens.publish();
  const auto corpus = open(prefix);
  const auto documents = Sequences::of_each_document(*corpus, {0, corpus->tokens()}, {60},
                                                     deck::Overlong::refuse, "many");
  for (const auto shuffle : {io::Shuffle::no, io::Shuffle::yes}) {
    const auto all = Sequences::packed(documents, io::Sampler(kCount, 5, shuffle), kBudget, kMost);
    Stretches seen;
    for (std::int64_t s = 0; s < all.count(); ++s) {
      const Stretches own = all[s];
      EXPECT_LE(std::ssize(own), kMost);
      std::int64_t sum = 0;
      for (const Range document : own) sum += document.count(), seen.push_back(document);
      EXPECT_LE(sum, kBudget);
      EXPECT_EQ(all.stretches(s + 1), std::ssize(seen));
    }
    std::int64_t one_by_one = 1, used = 0, count = 0;
    const io::Sampler order(kCount, 5, shuffle);
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::int64_t length = documents[order.sequence_of(i)].front().count();
      if (used + length > kBudget || count == kMost) used = count = 0, ++one_by_one;
      used += length, ++count;
    }
    EXPECT_LT(10 * all.count(), 9 * one_by_one);
    EXPECT_EQ(std::ranges::is_sorted(seen, {}, &Range::begin), false);
    std::ranges::sort(seen, {}, &Range::begin);
    ASSERT_EQ(std::ssize(seen), kCount);
    for (std::int64_t i = 0; i < kCount; ++i) EXPECT_EQ(at(seen, i), documents[i].front());
  }
}

TEST_F(LabelsTest, OfWordsAreTargetsOfTheirTokensAndCutsKeepWhatCloses) {
  label_words();
  const auto labels =
      std::make_shared<const LabelledDocuments>(*labelled_, classes(3, deck::TaskKind::tokens));
  const auto documents =
      Sequences::of_each_document(*labelled_, {0, 21}, {4}, deck::Overlong::cut, "labelled");
  Batches batches(*labelled_, [&](std::int64_t s) { return s < 5 ? documents[s] : Stretches(); },
                  {.documents = {.separate = true, .longest = 2}, .labels = labels});
  batches.begin(0, {.sequence = 4, .micro = 6, .micro_batches = 1});
  std::vector<std::int32_t> targets(24), tokens(24);
  const auto view = [](auto& v) {
    return View(reinterpret_cast<std::byte*>(v.data()), DType::i32, {24});
  };
  batches.current().load(0, {.tokens = view(tokens), .targets = view(targets)});
  EXPECT_EQ(tokens, (std::vector{0,  1,  2, 0, 3,  0,  0,  0,  4, 5, 8, 9,  //
                                 10, 11, 0, 0, 12, 13, 19, 20, 0, 0, 0, 0}));
  EXPECT_EQ(targets, (std::vector{0,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                  -1, -1, -1, -1, 1,  -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(batches.current().count(), 2);
  batches.begin_blank({.sequence = 4, .micro = 6, .micro_batches = 1});
  batches.current().load(0, {.targets = view(targets)});
  EXPECT_EQ(targets, std::vector(24, -1));
  EXPECT_THROW(LabelledDocuments(*labelled_, classes(3)), DataError) << "which are of words";
  label({1, 0, 2, 0, 1}, {"a", "b", "c"});
  EXPECT_THROW(LabelledDocuments(*labelled_, classes(3, deck::TaskKind::tokens)), DataError);
}

TEST_F(LabelsTest, MustBeAsManyAsDocumentsAndNoMoreThanClasses) {
  label({1, 0, 2, 0, 1}, {"a", "b", "c"});
  EXPECT_THROW(LabelledDocuments(*labelled_, classes(2)), DataError);
  EXPECT_THROW(LabelledDocuments(*corpus_, classes(3)), DataError) << "which has none";
  label({1, 0, 2, 0}, {"a", "b", "c"});
  EXPECT_THROW(LabelledDocuments(*labelled_, classes(3)), DataError);
}

}  // namespace
}  // namespace tessera::data
