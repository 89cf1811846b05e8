#include "io/tokenize.hpp"

#include <gtest/gtest.h>

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/json.hpp"
#include "io/json_line.hpp"
#include "io/token_files.hpp"
#include "io/tokenizer_files.hpp"
#include "support/temporary_directory.hpp"
#include "support/tokenizing.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;
namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

io::Tokenizer gpt2() {
  return io::Tokenizer::open(fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers/gpt2.json");
}

io::TokenizeSummary tokenize(const std::vector<fs::path>& inputs, const fs::path& prefix,
                             io::Tokenizer& tokenizer, std::int64_t parts,
                             const io::DocumentRules& rules = {}) {
  std::int64_t last = 0, total = 0;
  const auto summary = test::tokenize_in_parts(
      inputs, prefix, tokenizer, parts, rules, [&](std::int64_t done, std::int64_t all) {
        EXPECT_TRUE(last <= done || last == total) << "each part from its begin to its end";
        last = done, total = all;
      });
  EXPECT_EQ(last, total);
  return summary;
}

/// As gzip makes it; several texts become as many members of one file.
std::string gzipped(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    z_stream stream{};
    deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    std::string member(deflateBound(&stream, text.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(member.data());
    stream.avail_out = static_cast<uInt>(member.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed += member.substr(0, stream.total_out);
    deflateEnd(&stream);
  }
  return packed;
}

/// The documents of token files made of bytes, by their .idx.
std::vector<std::string> byte_documents(const fs::path& prefix) {
  const std::string bin = test::read_file(prefix.string() + ".bin"),
                    idx = test::read_file(prefix.string() + ".idx");
  std::int64_t sequences = 0;
  std::memcpy(&sequences, idx.data() + 18, 8);
  std::vector<std::string> all;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    std::int32_t length = 0;
    std::memcpy(&length, idx.data() + 34 + 4 * i, 4);
    std::string& document = all.emplace_back();
    for (std::int32_t j = 0; j < length; ++j, at += 2) document += bin[at];
  }
  return all;
}

std::vector<std::string> split(std::string text, const std::string& separator) {
  std::vector<std::string> all;
  for (std::size_t end = 0; end != std::string::npos;) {
    end = text.find(separator);
    if (end != 0 && !text.empty()) all.push_back(text.substr(0, end));
    if (end != std::string::npos) text.erase(0, end + separator.size());
  }
  return all;
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
  test::write_file(dir / "last", "last");
  expect("last");
  const std::vector<fs::path> inputs = {dir / "first.txt", dir / "lines.jsonl", dir / "last"};
  std::string bin, idx;
  for (const std::int64_t parts : {1, 2, 3, 7, 64, 500}) {
    const fs::path prefix = dir / "out";
    const auto summary = tokenize(inputs, prefix, tokenizer, parts);
    EXPECT_EQ(summary.documents, 52);
    EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(expected.size()));
    if (parts == 1) {
      bin = test::read_file(dir / "out.bin"), idx = test::read_file(dir / "out.idx");
      const std::vector<std::string> entries{prefix.string()};
      const io::TokenCorpus corpus(entries, tokenizer.vocab());
      Ids ids(static_cast<std::size_t>(corpus.tokens()));
      corpus.read(0, ids);
      EXPECT_EQ(ids, expected);
    }
    EXPECT_EQ(test::read_file(dir / "out.bin"), bin) << parts;
    EXPECT_EQ(test::read_file(dir / "out.idx"), idx) << parts;
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 3 + 4) << "left-overs";
  }
}

TEST(Tokenize, BytesHaveNoEndOfText) {
  const TemporaryDirectory dir;
  test::write_file(dir / "a.txt", "hi");
  test::write_file(dir / "b.txt", "\xff!");
  auto bytes = io::Tokenizer::bytes();
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
  auto bytes = io::Tokenizer::bytes();
  for (const std::int64_t parts : {1, 5}) {
    const auto summary = tokenize({dir / "l.jsonl"}, dir / "out", bytes, parts);
    EXPECT_EQ(summary.documents, 4);
    EXPECT_EQ(summary.tokens, static_cast<std::int64_t>(text.size()));
  }
}

TEST(Tokenize, NamesFileAndLineOfBadLines) {
  const TemporaryDirectory dir;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": \"a\"}\n{\"text\": 3}\n", "line 2: $.text: expected a string, found 3"},
      {"{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n", "line 3: $: \"text\" is missing"},
      {"{\"text\": \"a\"}\n{\"text\": \"b", "line 2: not valid JSON: column 12: "},
      {"plain\n", "line 1: not valid JSON"},
      {"[1]", "line 1: $: expected an object"}};
  for (const auto& [content, expected] : cases) {
    test::write_file(dir / "l.jsonl", content);
    test::write_file(dir / "l.jsonl.gz", gzipped({content}));
    for (const char* name : {"l.jsonl", "l.jsonl.gz"}) {
      for (const std::int64_t parts : {1, 3}) {
        auto bytes = io::Tokenizer::bytes();
        const auto message =
            message_of<DataError>([&] { tokenize({dir / name}, dir / "out", bytes, parts); });
        EXPECT_NE(message.find(name + (": " + expected)), std::string::npos) << message;
        EXPECT_FALSE(fs::exists(dir / "out.bin"));
        EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2) << "left-overs";
      }
    }
  }
  auto bytes = io::Tokenizer::bytes();
  message_of<DataError>([&] { tokenize({dir / "none.txt"}, dir / "out", bytes, 1); });
}

TEST(Tokenize, ASeparatorCutsTextIntoDocuments) {
  const TemporaryDirectory dir;
  std::string text;
  for (int i = 0; i < 300; ++i) {  // runs of newlines of every length, and beginnings of the others
    text += std::string(static_cast<std::size_t>(i * 7 % 5), '\n') + "ab" +
            std::string(static_cast<std::size_t>(i * 11 % 9), 'x') + (i % 3 ? "<|>" : "<|");
  }
  test::write_file(dir / "t.txt", text);
  test::write_file(dir / "u.txt.gz", gzipped({text, "\n\n\nlast"}));
  auto bytes = io::Tokenizer::bytes();
  for (const std::string separator : {"<|>", "\n\n", "\n", "xaabx", "b", "<|>\n\nab"}) {
    std::vector<std::string> expected = split(text, separator);
    for (auto& more : split(text + "\n\n\nlast", separator)) expected.push_back(std::move(more));
    for (const std::int64_t parts : {1, 2, 7, 31}) {
      const auto summary = tokenize({dir / "t.txt", dir / "u.txt.gz"}, dir / "out", bytes, parts,
                                    {.separator = separator});
      EXPECT_EQ(summary.documents, std::ssize(expected));
      EXPECT_EQ(byte_documents(dir / "out"), expected) << separator << " in parts: " << parts;
    }
  }
}

TEST(Tokenize, UnpacksWhatGzipHasMade) {
  const TemporaryDirectory dir;
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const std::string random = [] {  // so that it is packed in many blocks
    std::string bytes(std::size_t{3} << 20, 'a');
    std::uint32_t x = 1;
    for (char& c : bytes) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
    return bytes;
  }();
  test::write_file(dir / "a.jsonl.gz", gzipped({lines, lines.substr(0, 20), lines.substr(20)}));
  test::write_file(dir / "b.txt.gz", gzipped({random, "", "end"}));
  const std::string tape(10000, '\0');  // a block's rest
  test::write_file(dir / "c.txt", gzipped({"packed "}) + tape + gzipped({"all the same"}) + tape);
  auto bytes = io::Tokenizer::bytes();
  for (const std::int64_t parts : {1, 4}) {
    tokenize({dir / "a.jsonl.gz", dir / "b.txt.gz", dir / "c.txt"}, dir / "out", bytes, parts);
    EXPECT_EQ(byte_documents(dir / "out"),
              (std::vector<std::string>{"one", "two", "one", "two", random + "end",
                                        "packed all the same"}));
  }
  const std::string whole = gzipped({std::string(100000, 'x')});
  std::string flipped = whole;
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {whole.substr(0, whole.size() - 1), "truncated"},
      {whole.substr(0, 20), "truncated"},
      {flipped, "incorrect data check"},
      {whole + "more", "incorrect header check"},
      {"text", "does not start as gzip's files do"},
      {gzipped({""}), "empty"}};
  for (const auto& [content, expected] : bad) {
    test::write_file(dir / "bad.txt.gz", content);
    const auto message =
        message_of<DataError>([&] { tokenize({dir / "bad.txt.gz"}, dir / "out", bytes, 1); });
    EXPECT_NE(message.find("bad.txt.gz: "), std::string::npos) << message;
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  }
}

// What the quick reader takes is what the one that explains takes, and nothing else.
TEST(JsonLineReader, AgreesWithJsonDocument) {
  io::JsonLineReader quick;
  const std::string deep = std::string(255, '[') + std::string(255, ']');
  int taken = 0;
  for (const std::string& line :
       {std::string(R"({"text": "a\u00e9\ud83d\ude00\n\"", "n": [1, {"m": null}]})"),
        std::string(R"({"text": "", "x": 1e400})"), std::string(R"({"text": "a", "text": "b"})"),
        std::string(R"({"text": "a", "x": {"b": 1, "b": 2}})"), std::string(R"({"text": 1})"),
        std::string(R"({"text": null})"), std::string(R"({"body": "a"})"),
        std::string(R"(["text"])"), std::string(R"({"text": "\ud800"})"),
        std::string("{\"text\": \"\xff\"}"), std::string(R"({"text": "a"} {})"),
        std::string(R"({"text": "a")"), std::string("{}"),
        std::string(R"({"text": "a", "big": 123456789012345678901234567890})"),
        R"({"text": "a", "deep": )" + deep + "}", R"({"text": "a", "deep": [)" + deep + "]}",
        std::string(R"({"text": "\u0000 nul"})"), std::string("{\"text\": \"a\tb\"}")}) {
    std::optional<std::string> explained;
    try {
      const io::JsonDocument document(line, "line");
      explained = document.root()["text"].text();
    } catch (const DataError&) {
    }
    if (const auto text = quick.text(line, "text")) {
      EXPECT_EQ(*text, explained) << line;
      ++taken;
    }
  }
  EXPECT_EQ(taken, 3);
}

TEST(Tokenize, TakesTheTextFromTheFieldThatIsAskedFor) {
  const TemporaryDirectory dir;
  test::write_file(dir / "l.jsonl", R"({"text": "a", "content": "b"})");
  auto bytes = io::Tokenizer::bytes();
  tokenize({dir / "l.jsonl"}, dir / "out", bytes, 1, {.field = "content"});
  EXPECT_EQ(byte_documents(dir / "out"), std::vector<std::string>{"b"});
}

TEST(Tokenize, RefusesInputsWithoutDocuments) {
  const TemporaryDirectory dir;
  test::write_file(dir / "good.txt", "good");
  test::write_file(dir / "empty.txt", "");
  test::write_file(dir / "blank.jsonl", "\n{\"text\": \"\"}\n\n");
  auto bytes = io::Tokenizer::bytes();
  const auto refusal = [&](const std::vector<fs::path>& inputs) {
    return message_of<DataError>([&] { tokenize(inputs, dir / "out", bytes, 2); });
  };
  EXPECT_NE(refusal({dir / "good.txt", dir / "empty.txt"}).find("empty.txt: empty"),
            std::string::npos);
  EXPECT_NE(refusal({dir / "blank.jsonl"}).find("no document in the inputs"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 3) << "nothing is left";
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

io::LabelNames names_beside(const fs::path& prefix) {
  return io::read_label_names(io::label_names_file(prefix));
}

std::vector<std::int32_t> labels_beside(const fs::path& prefix) {
  const std::vector<std::string> entries{prefix.string()};
  return io::read_document_labels(io::TokenCorpus(entries, 1 << 20).files()[0],
                                  names_beside(prefix));
}

TEST(Tokenize, LabelsGoWithTheirDocuments) {
  const TemporaryDirectory dir;
  struct Case {
    std::vector<std::string> values, names;
  };
  for (const auto& [values, names] :
       {Case{{R"("pos")", R"("neg")", R"("pos")", R"("\u00e9t\u00e9")"},
             {"neg", "pos", "\u00e9t\u00e9"}},
        Case{{"10", "9", "-3", "9"}, {"-3", "9", "10"}},
        Case{{"true", "false"}, {"false", "true"}}}) {
    std::string lines;
    std::vector<std::int32_t> expected;
    for (int i = 0; i < 60; ++i) {
      const std::string& value = values[static_cast<std::size_t>(i) % values.size()];
      // An empty text is no document, and its label is nobody's.
      lines += fmt::format("{{\"text\": \"{}\", \"kind\": {}}}\n", std::string(i % 5, 'x'), value);
      const std::string name =
          value[0] == '"' ? nlohmann::json::parse(value).get<std::string>() : value;
      if (i % 5 > 0)
        expected.push_back(
            static_cast<std::int32_t>(std::ranges::find(names, name) - names.begin()));
    }
    test::write_file(dir / "l.jsonl", lines);
    for (const std::int64_t parts : {1, 2, 7, 300}) {
      auto bytes = io::Tokenizer::bytes();
      const auto summary = tokenize({dir / "l.jsonl"}, dir / "out", bytes, parts,
                                    {.labels = io::LabelSource::member, .label_key = "kind"});
      EXPECT_EQ(summary.labels->names, names);
      EXPECT_EQ(names_beside(dir / "out").key, "kind");
      EXPECT_EQ(names_beside(dir / "out").names, names);
      EXPECT_EQ(labels_beside(dir / "out"), expected) << parts;
    }
  }
  EXPECT_EQ(names_in(dir.path()),
            (std::vector<std::string>{"l.jsonl", "out.bin", "out.idx", "out.labels.bin",
                                      "out.labels.idx", "out.labels.json", "out.tokenizer.json",
                                      "out.tokenizer_config.json"}));
}

/// A tokenizer.json whose words are pieces, framed by 1 and 2.
io::Tokenizer framing_tokenizer() {
  const std::vector<std::string> pieces = {"[UNK]", "[CLS]", "[SEP]", "ab", "##c", "##d", "e"};
  nlohmann::json vocab;
  for (std::size_t i = 0; i < pieces.size(); ++i) vocab[pieces[i]] = i;
  return io::Tokenizer::parse(
      nlohmann::json{{"normalizer", nullptr},
                     {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                     {"post_processor",
                      {{"type", "BertProcessing"}, {"cls", {"[CLS]", 1}}, {"sep", {"[SEP]", 2}}}},
                     {"model",
                      {{"type", "WordPiece"},
                       {"vocab", vocab},
                       {"unk_token", "[UNK]"},
                       {"continuing_subword_prefix", "##"},
                       {"max_input_chars_per_word", 100}}}}
          .dump(),
      "framing");
}

TEST(Tokenize, LabelsOfWordsAreAtTheirFirstTokens) {
  const TemporaryDirectory dir;
  std::string lines;
  for (int i = 0; i < 9; ++i) {
    lines += R"({"w": ["abcd", "", "e", "ab e"], "t": ["B", "I", "O", "I"]})"
             "\n"
             R"({"w": [], "t": []})"
             "\n"
             R"({"w": ["e"], "t": ["O"]})"
             "\n";
  }
  test::write_file(dir / "l.jsonl", lines);
  for (const std::int64_t parts : {1, 2, 7, 60}) {
    auto tokenizer = framing_tokenizer();
    const auto summary = tokenize({dir / "l.jsonl"}, dir / "out", tokenizer, parts,
                                  {.words = "w",
                                   .labels = io::LabelSource::member,
                                   .label_key = "t",
                                   .special_tokens = true});
    EXPECT_EQ(summary.documents, 18) << "a list without words is no document";
    const io::LabelNames names = names_beside(dir / "out");
    EXPECT_EQ(std::tuple(names.key, names.of, names.closing),
              std::tuple("t", io::LabelsOf::words, 1));
    EXPECT_EQ(names.names, (std::vector<std::string>{"B", "I", "O"}));
    const std::vector<std::string> entries{(dir / "out").string()};
    const io::TokenCorpus corpus(entries, 7);
    const io::WordLabels labels(corpus.files(), names);
    std::vector<std::int32_t> ids(11), found(11);  // of two documents
    ASSERT_EQ(corpus.tokens(), 9 * 11);
    for (std::int64_t at = 0; at < corpus.tokens(); at += 11) {
      corpus.read(at, ids);
      labels.read(at, found);
      EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 4, 5, 6, 3, 6, 2, 1, 6, 2}));
      EXPECT_EQ(found, (std::vector<std::int32_t>{-1, 0, -1, -1, 2, 1, -1, -1, -1, 2, -1}));
    }
  }
}

// Whose tokens begin with the space before a word, as in running text.
TEST(Tokenize, WordsOfBytesAreThoseOfTheirText) {
  const std::vector<std::string> words = {"the", "quick", "brown"};
  std::vector<std::int32_t> ids, word_of;
  auto tokenizer = io::Tokenizer::bytes();
  io::encode_words(words, tokenizer, false, ids, word_of);
  EXPECT_EQ(ids, tokenizer.encode("the quick brown"));
  std::vector<std::int32_t> expected(ids.size(), -1);
  expected[0] = 0, expected[3] = 1, expected[9] = 2;
  EXPECT_EQ(word_of, expected);
}

TEST(Tokenize, DocumentsThatAreCutKeepWhatClosesThem) {
  auto tokenizer = framing_tokenizer();
  std::vector<std::int32_t> ids;
  io::encode_document("ab e ab", tokenizer, true, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 6, 3, 2}));
  EXPECT_EQ(io::closing_tokens(tokenizer, true), 1);
  EXPECT_EQ(io::closing_tokens(tokenizer, false), 0);
  io::cut_document(ids, 5, 1);
  EXPECT_EQ(ids.size(), 5U);
  io::cut_document(ids, 3, 1);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 2}));
  tokenizer.set_end_of_text(2);
  EXPECT_EQ(io::closing_tokens(tokenizer, true), 1) << "which ends it already";
  tokenizer.set_end_of_text(6);
  EXPECT_EQ(io::closing_tokens(tokenizer, true), 2);
  io::encode_document("ab", tokenizer, true, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 2, 6}));
}

TEST(Tokenize, IntegersAreNumbersOfKnownNamesThatAreWords) {
  const TemporaryDirectory dir;
  test::write_file(dir / "l.jsonl", R"({"text": "a", "t": 2})"
                                    "\n"
                                    R"({"text": "b", "t": 0})"
                                    "\n");
  const auto labels = [&](const std::vector<std::string>& names) {
    auto bytes = io::Tokenizer::bytes();
    test::tokenize_in_parts({dir / "l.jsonl"}, dir / "out", bytes, 1,
                            {.labels = io::LabelSource::member, .label_key = "t"}, {},
                            io::LabelNames{.key = "t", .names = names});
    return labels_beside(dir / "out");
  };
  EXPECT_EQ(labels({"x", "y", "z"}), (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(labels({"2", "y", "0"}), (std::vector<std::int32_t>{0, 2})) << "these are names";
  EXPECT_NE(message_of<DataError>([&] {
              labels({"x", "y"});
            }).find("line 1: the label 2 is not among those of --labels: x, y"),
            std::string::npos);
}

TEST(Tokenize, RefusesWordsThatAreNone) {
  const TemporaryDirectory dir;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"w": ["a", "b"], "t": ["x"]})",
       "line 3: $.t: 1 label for the 2 words of w: each word has one"},
      {R"({"w": ["a"], "t": ["x", "x"]})", "line 3: $.t: 2 labels for the 1 word of w"},
      {R"({"w": ["a", 5], "t": ["x", "x"]})", "line 3: $.w[1]: expected a string"},
      {R"({"w": "a b", "t": ["x", "x"]})", "line 3: $.w: expected"},
      {R"({"w": ["a"], "t": "x"})", "line 3: $.t: expected"},
      {R"({"w": ["a"], "t": [1.5]})", "line 3: $.t[0]: expected a label: a string"},
      {R"({"w": ["a"], "t": [null]})", "line 3: $.t[0]: expected a label: a string"},
      {R"({"w": ["a", "b"], "t": ["x", 3]})", "line 3: t is an integer, 3, but in"},
      {R"({"w": ["a"], "t": ["y"]})", "line 3: the label y is not among those of --labels: x"},
      {R"({"t": ["x"]})", "line 3: $: \"w\" is missing"}};
  for (const auto& [line, expected] : cases) {
    const std::string good = R"({"w": ["a"], "t": ["x"]})"
                             "\n";
    test::write_file(dir / "l.jsonl", good + good + line + "\n");
    const auto message = message_of<DataError>([&] {
      auto bytes = io::Tokenizer::bytes();
      test::tokenize_in_parts({dir / "l.jsonl"}, dir / "out", bytes, 2,
                              {.words = "w", .labels = io::LabelSource::member, .label_key = "t"},
                              {},
                              expected.find("among") == std::string::npos
                                  ? std::nullopt
                                  : std::optional(io::LabelNames{.key = "t", .names = {"x"}}));
    });
    EXPECT_NE(message.find("l.jsonl: " + expected), std::string::npos) << message;
    EXPECT_EQ(names_in(dir.path()).size(), 1U);
  }
}

TEST(Tokenize, NothingOfAnotherTextIsLeftBesideNewTokens) {
  const TemporaryDirectory dir;
  test::write_file(dir / "l.jsonl", R"({"text": "a", "kind": 1})");
  auto bytes = io::Tokenizer::bytes();
  const auto names = [&](const io::DocumentRules& rules) {
    tokenize({dir / "l.jsonl"}, dir / "out", bytes, 2, rules);
    return names_in(dir.path());
  };
  test::write_file(dir / "out.targets.bin", "x");
  test::write_file(dir / "out.targets.idx", "x");
  EXPECT_EQ(names({.labels = io::LabelSource::member, .label_key = "kind"}).size(), 8U);
  EXPECT_EQ(names({}),
            (std::vector<std::string>{"l.jsonl", "out.bin", "out.idx", "out.tokenizer.json",
                                      "out.tokenizer_config.json"}));
}

TEST(Tokenize, RefusesLabelsThatAreNone) {
  const TemporaryDirectory dir;
  const std::optional<io::LabelNames> known{{.key = "kind", .names = {"7", "a"}}};
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"text": "a"})", "line 5: $: \"kind\" is missing"},
      {R"({"text": "a", "kind": null})", "line 5: $: \"kind\" is missing"},
      {R"({"text": "a", "kind": 1.5})", "line 5: $.kind: expected a label: a string"},
      {R"({"text": "a", "kind": [1]})", "line 5: $.kind: expected a label: a string"},
      {R"({"text": "a", "kind": 7})", "line 5: kind is an integer, 7, but in"},
      {R"({"text": "a", "kind": true})", "line 5: kind is true or false, true, but in"},
      {R"({"text": "a", "kind": "b"})",
       "line 5: the label b is not among those of --labels: 7, a"}};
  for (const auto& [line, expected] : cases) {
    std::string lines;
    for (int i = 0; i < 4; ++i) lines += "{\"text\": \"a\", \"kind\": \"a\"}\n";
    test::write_file(dir / "l.jsonl", lines + line + "\n");
    for (const std::int64_t parts : {1, 5}) {
      auto bytes = io::Tokenizer::bytes();
      const auto message = message_of<DataError>([&] {
        test::tokenize_in_parts({dir / "l.jsonl"}, dir / "out", bytes, parts,
                                {.labels = io::LabelSource::member, .label_key = "kind"}, {},
                                known);
      });
      EXPECT_NE(message.find("l.jsonl: "), std::string::npos) << message;
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_EQ(names_in(dir.path()).size(), 1U);
    }
  }
}

TEST(Tokenize, FoldersAreLabelsOfTheirFiles) {
  const TemporaryDirectory dir;
  for (const char* folder : {"neg", "pos", ".git"}) fs::create_directory(dir / folder);
  for (const char* file : {"neg/2.txt", "neg/10.txt", "pos/1.txt", ".git/x", "pos/.hidden", "urls"})
    test::write_file(dir / file, file);
  const auto found = io::files_of_folders(dir.path() / "");
  EXPECT_EQ(found.left_out, 1);
  const std::vector<fs::path> files{dir / "neg/10.txt", dir / "neg/2.txt", dir / "pos/1.txt"};
  EXPECT_EQ(found.files, files);
  EXPECT_EQ(io::files_of_folders(dir / "neg").files, std::vector(files.begin(), files.begin() + 2));
  for (const std::int64_t parts : {1, 3}) {
    auto bytes = io::Tokenizer::bytes();
    tokenize(files, dir / "out", bytes, parts, {.labels = io::LabelSource::folder});
    EXPECT_EQ(names_beside(dir / "out").names, (std::vector<std::string>{"neg", "pos"}));
    EXPECT_EQ(labels_beside(dir / "out"), (std::vector<std::int32_t>{0, 0, 1}));
  }
  const auto refusal = [&] {
    return message_of<DataError>([&] { io::files_of_folders(dir / "pos"); });
  };
  fs::create_directories(dir / "pos/a/b");
  EXPECT_NE(refusal().find("pos/a/b: a folder within a folder"), std::string::npos);
  fs::remove_all(dir / "pos/a/b");
  EXPECT_NE(refusal().find("pos: no files in it, nor in its folders"), std::string::npos);
  fs::create_directory(dir / "pos/\xff");
  EXPECT_NE(refusal().find("no UTF-8"), std::string::npos);
}

TEST(Tokenize, KeepsTheTokenizerAndTheEndOfDocuments) {
  const TemporaryDirectory dir;
  test::write_file(dir / "t.txt", "the text");
  const std::string gpt2_json = (fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers/gpt2.json");
  const auto kept = [&](const std::string& name, const std::string& eos) {
    io::Tokenizer tokenizer = io::open_for_documents(name, eos);
    tokenize({dir / "t.txt"}, dir / "out", tokenizer, 1);
    const io::Tokenizer beside = io::open_kept_tokenizer(io::tokenizer_beside(dir / "out"));
    EXPECT_EQ(beside.difference(tokenizer), "");
    const std::string bin = test::read_file(dir / "out.bin");
    const int last = static_cast<unsigned char>(bin[bin.size() - 2]);
    EXPECT_EQ(last == beside.end_of_text(), beside.end_of_text().has_value());
    return io::document_end(beside);
  };
  EXPECT_EQ(kept(gpt2_json, ""), "each ended by id 0 <|endoftext|>");
  EXPECT_EQ(kept(gpt2_json, "!"), "each ended by id 1 !");
  EXPECT_EQ(kept(gpt2_json, "none"), "ended in .idx only, by no token");
  EXPECT_EQ(kept("bytes", ""), "ended in .idx only, by no token");
  EXPECT_EQ(kept("bytes", "\n"), "each ended by id 10 \\n");
  EXPECT_EQ(io::Tokenizer::open(gpt2_json).json(),
            io::open_for_documents(gpt2_json, "none").json());
  for (const char* eos : {"</s>", "\xff"}) {
    const auto message = message_of<DeckError>([&] { io::open_for_documents(gpt2_json, eos); });
    EXPECT_NE(message.find("its special tokens are <|endoftext|>"), std::string::npos) << message;
  }
}

TEST(Tokenize, AnUnknownEndOfDocumentsIsToBeChosen) {
  const TemporaryDirectory dir;
  using nlohmann::json;
  json content = json::parse(
      test::read_file(fs::path(TESSERA_SOURCE_DIR) / "tests/data/tokenizers/gpt2.json"));
  content["model"]["vocab"].erase("<|endoftext|>");
  const std::string path = dir / "tokenizer.json";
  const auto name_them = [&](const std::vector<std::string>& names) {
    content["added_tokens"] = json::array();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::int64_t id = i == 0 ? 0 : 500 + static_cast<std::int64_t>(i);
      content["added_tokens"].push_back({{"id", id}, {"content", names[i]}, {"special", true}});
    }
    test::write_file(path, content.dump());
  };
  const auto refusal = [&] {
    return message_of<DeckError>([&] { io::open_for_documents(path, ""); });
  };
  for (const char* name : {"[EOS]", "<|eos|>", "<end_of_text>", "<eod>", "<|END-OF-DOCUMENT|>",
                           "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"}) {
    name_them({"<pad>", name, "<|im_end|>"});
    EXPECT_EQ(io::open_for_documents(path, "").end_of_text(), 501) << name;
  }
  for (const auto& names : {std::vector<std::string>{"<pad>", "<|im_end|>"},
                            std::vector<std::string>{"[EOS]", "<eod>"}}) {
    name_them(names);
    const std::string message = refusal();
    EXPECT_NE(message.find("tokenizer.json does not say"), std::string::npos) << message;
    EXPECT_NE(message.find(names[0] + ", " + names[1]), std::string::npos) << message;
    EXPECT_NE(message.find("--eos none"), std::string::npos) << message;
    EXPECT_EQ(io::open_for_documents(path, names[1]).end_of_text(), 501);
    // Nor are names guessed at where Hugging Face's file beside says it.
    for (const json& stated : {json(names[1]), json{{"content", names[1]}}}) {
      test::write_file(dir / "tokenizer_config.json", json{{"eos_token", stated}}.dump());
      EXPECT_EQ(io::open_for_documents(path, "").end_of_text(), 501);
    }
    test::write_file(dir / "tokenizer_config.json", R"({"eos_token": "<nosuch>"})");
    EXPECT_NE(message_of<DataError>([&] { io::open_for_documents(path, ""); }).find("eos_token"),
              std::string::npos);
    fs::remove(dir / "tokenizer_config.json");
  }
}

}  // namespace
}  // namespace tessera
