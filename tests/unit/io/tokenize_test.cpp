#include "io/tokenize.hpp"

#include <gtest/gtest.h>

#include <zlib.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/token_files.hpp"
#include "io/tokenizer_files.hpp"
#include "support/temporary_directory.hpp"

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
  for (std::int64_t i = 0; i < parts; ++i) {
    std::int64_t last = 0, total = -1;
    io::tokenize_part(
        inputs, prefix, tokenizer, {.index = i, .count = parts},
        [&](std::int64_t done, std::int64_t all) {
          EXPECT_LE(last, done);
          last = done, total = all;
        },
        rules);
    EXPECT_EQ(last, total);
  }
  return io::merge_parts(prefix, parts, tokenizer);
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
    EXPECT_FALSE(fs::exists(dir / "out.part00000.bin"));
    EXPECT_FALSE(fs::exists(dir / "out.part00000.idx"));
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
        EXPECT_FALSE(fs::exists(dir / "out.part00000.bin.tmp"));
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
