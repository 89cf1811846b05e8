#include "io/tokenize.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/token_files.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;
namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

Tokenizer gpt2() {
  return Tokenizer::open(fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers/gpt2.json");
}

TokenizeSummary tokenize(const std::vector<fs::path>& inputs, const fs::path& prefix,
                         Tokenizer& tokenizer, std::int64_t parts) {
  for (std::int64_t i = 0; i < parts; ++i) {
    std::int64_t last = 0, total = -1;
    tokenize_part(inputs, prefix, tokenizer, {.index = i, .count = parts},
                  [&](std::int64_t done, std::int64_t all) {
                    EXPECT_LE(last, done);
                    last = done, total = all;
                  });
    EXPECT_EQ(last, total);
  }
  return merge_parts(prefix, parts, tokenizer);
}

TEST(Tokenize, DoesNotDependOnTheNumberOfParts) {
  const TemporaryDirectory dir;
  std::string lines;
  Ids expected;
  auto tokenizer = gpt2();
  const auto expect = [&](const std::string& text) {
    tokenizer.encode(text, expected);
    expected.push_back(*tokenizer.end_of_text());
  };
  test::write_file(dir / "first.txt", "The first\nfile.\n");
  expect("The first\nfile.\n");
  for (int i = 0; i < 50; ++i) {
    const std::string text = std::string(static_cast<std::size_t>(i * 13 % 70), 'x') + " é 日\n";
    lines += nlohmann::json{{"id", i}, {"text", text}}.dump() + (i % 7 ? "\n" : "\r\n\n");
    expect(text);
  }
  lines += R"({"text": ""})";  // an empty document, and no newline at the end
  test::write_file(dir / "lines.jsonl", lines);
  test::write_file(dir / "empty.txt", "");
  test::write_file(dir / "last", "last");
  expect("last");
  const std::vector<fs::path> inputs = {dir / "first.txt", dir / "lines.jsonl", dir / "empty.txt",
                                        dir / "last"};
  std::string bin, idx;
  for (const std::int64_t parts : {1, 2, 3, 7, 64, 500}) {
    const fs::path prefix = dir / "out";
    const auto summary = tokenize(inputs, prefix, tokenizer, parts);
    EXPECT_EQ(summary.documents, 52);
    EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(expected.size()));
    if (parts == 1) {
      bin = test::read_file(dir / "out.bin"), idx = test::read_file(dir / "out.idx");
      const std::vector<std::string> entries{prefix.string()};
      const TokenCorpus corpus(entries, tokenizer.vocab());
      Ids ids(static_cast<std::size_t>(corpus.tokens()));
      corpus.read(0, ids);
      EXPECT_EQ(ids, expected);
    }
    EXPECT_EQ(test::read_file(dir / "out.bin"), bin) << parts;
    EXPECT_EQ(test::read_file(dir / "out.idx"), idx) << parts;
    EXPECT_FALSE(fs::exists(dir / "out.part00000.bin"));
    EXPECT_FALSE(fs::exists(dir / "out.part00000.idx"));
  }
}

TEST(Tokenize, BytesHaveNoEndOfText) {
  const TemporaryDirectory dir;
  test::write_file(dir / "a.txt", "hi");
  test::write_file(dir / "b.txt", "\xff!");
  auto bytes = Tokenizer::bytes();
  tokenize({dir / "a.txt", dir / "b.txt"}, dir / "out", bytes, 2);
  EXPECT_EQ(test::read_file(dir / "out.bin"), std::string("h\0i\0\xff\0!\0", 8));
}

TEST(Tokenize, LinesLongerThanABlockAndCutByIt) {
  const TemporaryDirectory dir;
  std::string lines, text;
  for (const std::size_t length :
       {std::size_t{3} << 20, std::size_t{1}, (std::size_t{1} << 20) - 14, std::size_t{5}}) {
    lines += R"({"text": ")" + std::string(length, 'a') + "\"}\n";
    text += std::string(length, 'a');
  }
  test::write_file(dir / "l.jsonl", lines);
  auto bytes = Tokenizer::bytes();
  for (const std::int64_t parts : {1, 5}) {
    const auto summary = tokenize({dir / "l.jsonl"}, dir / "out", bytes, parts);
    EXPECT_EQ(summary.documents, 4);
    EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(text.size()));
  }
}

TEST(Tokenize, NamesFileAndByteOfBadLines) {
  const TemporaryDirectory dir;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": \"a\"}\n{\"text\": 3}\n", "byte 14: $.text: expected a string, found 3"},
      {"{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n", "byte 15: $: \"text\" is missing"},
      {"{\"text\": \"a\"}\n{\"text\": \"b", "byte 14: not valid JSON"},
      {"plain\n", "byte 0: not valid JSON"},
      {"[1]", "byte 0: $: expected an object"}};
  for (const auto& [content, expected] : cases) {
    test::write_file(dir / "l.jsonl", content);
    auto bytes = Tokenizer::bytes();
    const auto message =
        message_of<DataError>([&] { tokenize({dir / "l.jsonl"}, dir / "out", bytes, 1); });
    EXPECT_NE(message.find("l.jsonl: " + expected), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(dir / "out.bin"));
    EXPECT_FALSE(fs::exists(dir / "out.part00000.bin.tmp"));
  }
  auto bytes = Tokenizer::bytes();
  message_of<DataError>([&] { tokenize({dir / "none.txt"}, dir / "out", bytes, 1); });
}

}  // namespace
}  // namespace tessera
