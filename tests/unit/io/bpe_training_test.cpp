#include "io/bpe_training.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "io/tokenize.hpp"
#include "io/tokenizer_json.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;
using Merges = std::vector<io::LearnedMerge>;

std::array<std::int32_t, 256> gpt2_byte_ids() {
  return std::get<io::BpeModel>(
             io::parse_tokenizer_json(io::gpt2_tokenizer_json({}), "bytes").model)
      .byte_ids;
}

/// The definition: counts everything anew before each merge. A merge that is made again, because
/// the same bytes have become a token in another way, is not named again.
Merges learn_slowly(const std::map<std::string, std::int64_t>& words, std::size_t tokens) {
  const auto byte_ids = gpt2_byte_ids();
  std::vector<std::string> bytes_of(256);
  for (std::size_t b = 0; b < 256; ++b)
    bytes_of[static_cast<std::size_t>(byte_ids[b])] = std::string(1, static_cast<char>(b));
  std::vector<std::pair<std::vector<std::int32_t>, std::int64_t>> rows;
  for (const auto& [word, count] : words) {
    rows.push_back({{}, count});
    for (const char c : word) rows.back().first.push_back(byte_ids[static_cast<unsigned char>(c)]);
  }
  Merges merges;
  while (bytes_of.size() < tokens) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> pairs;
    for (const auto& [row, count] : rows)
      for (std::size_t i = 1; i < row.size(); ++i) pairs[{row[i - 1], row[i]}] += count;
    const auto most = std::max_element(pairs.begin(), pairs.end(), [](auto& a, auto& b) {
      return a.second < b.second;  // the first of equals, which has the lowest ids
    });
    if (most == pairs.end() || most->second < 2) break;
    const auto [left, right] = most->first;
    const io::LearnedMerge merge{bytes_of[left], bytes_of[right]};
    if (std::find(merges.begin(), merges.end(), merge) == merges.end()) merges.push_back(merge);
    const std::string made = merge.left + merge.right;
    auto known = std::find(bytes_of.begin(), bytes_of.end(), made);
    const auto id = static_cast<std::int32_t>(known - bytes_of.begin());
    if (known == bytes_of.end()) bytes_of.push_back(made);
    for (auto& [row, count] : rows) {
      for (std::size_t i = 0; i + 1 < row.size(); ++i) {
        if (row[i] != left || row[i + 1] != right) continue;
        row[i] = id;
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

TEST(BpeTraining, LearnsWhatTheReferenceLearnsFromTheSameText) {
  const fs::path data = fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers";
  const std::vector<fs::path> inputs = {data / "gpt2.corpus.jsonl"};
  const json reference = json::parse(test::read_file(data / "gpt2.json"));
  std::set<std::string> made;
  for (const std::int64_t parts : {1, 3}) {
    io::WordCounts words;
    for (std::int64_t i = 0; i < parts; ++i) {
      io::WordCounts part = io::count_words(inputs, {.index = i, .count = parts}, {});
      // On its way to another rank, in many messages.
      for (std::string packed; !(packed = part.take_packed(100)).empty();) words.add_packed(packed);
      EXPECT_EQ(part.distinct(), 0);
    }
    const std::string learned = io::learn_tokenizer(words, 500);
    const json content = json::parse(learned);
    EXPECT_EQ(content["model"]["merges"], reference["model"]["merges"]);
    EXPECT_EQ(content["model"]["vocab"].size(), 500U);
    EXPECT_EQ(content["model"]["vocab"]["<|endoftext|>"], 499);
    made.insert(learned);
  }
  EXPECT_EQ(made.size(), 1U);
}

TEST(BpeTraining, CountsThatAreKeptUpAreThoseCountedAnew) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    std::map<std::string, std::int64_t> counts;
    io::WordCounts words;
    const unsigned letters = 1 + random() % 4;  // few: runs of one letter, and many equal counts
    for (int i = 0; i < 40; ++i) {
      std::string word(1 + random() % 12, 'a');
      for (char& c : word) c = static_cast<char>('a' + random() % letters);
      const auto count = static_cast<std::int64_t>(random() % 5);
      counts[word] += count;
      words.add(word, count);
    }
    const std::size_t tokens = 256 + random() % 60;
    std::int64_t reported = 0;
    const Merges learned =
        io::learn_merges(words, gpt2_byte_ids(), static_cast<std::int64_t>(tokens),
                         [&](std::int64_t n) { reported = n; });
    EXPECT_EQ(learned, learn_slowly(counts, tokens)) << round;
    if (!learned.empty()) {
      EXPECT_LE(reported, static_cast<std::int64_t>(tokens));
    }
  }
}

TEST(BpeTraining, TheTokenizerCutsAndEncodesWhatItLearned) {
  test::TemporaryDirectory dir;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "low lower lowest<|endoftext|> new newer \xff newest";
  text += std::string(io::WordCounts::kLongestWord + 1, 'x') + " once";
  test::write_file(dir / "text.txt", text);
  const std::vector<fs::path> inputs = {dir / "text.txt"};
  const io::WordCounts words = io::count_words(inputs, {}, {});
  words.for_each([](std::string_view word, std::int64_t) {
    EXPECT_LE(word.size(), 10U);
    EXPECT_EQ(word.find("endoftext"), std::string_view::npos);
  });
  auto tokenizer = io::Tokenizer::parse(io::learn_tokenizer(words, 1000), "learned");
  EXPECT_LT(tokenizer.vocab(), 300);  // no more pairs occur twice
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.vocab() - 1);
  EXPECT_EQ(tokenizer.encode(" newest<|endoftext|> lower").size(), 3U);
  EXPECT_GT(tokenizer.encode(" once").size(), 2U);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

}  // namespace
}  // namespace tessera
