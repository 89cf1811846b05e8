#include "io/tokenizer.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/error.hpp"
#include "io/utf8.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using nlohmann::json;
using test::message_of;
using Ids = std::vector<std::int32_t>;

std::string data_path(const std::string& name) {
  return std::string(TESSERA_SOURCE_DIR) + "/tests/data/tokenizers/" + name;
}

class TokenizerOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerOracle, EncodesLikeTheReferenceAndDecodesToTheSameText) {
  auto tokenizer = io::Tokenizer::open(data_path(std::string(GetParam()) + ".json"));
  const json cases =
      json::parse(test::read_file(data_path(std::string(GetParam()) + ".cases.json")));
  ASSERT_GT(cases.size(), 80U);
  for (int round = 0; round < 2; ++round)  // the second time from the cache of words
    for (const json& c : cases) {
      const auto text = c["text"].get<std::string>();
      const Ids ids = tokenizer.encode(text);
      EXPECT_EQ(ids, c["ids"].get<Ids>()) << text;
      if (std::string(GetParam()) != "prefix_space") {
        EXPECT_EQ(tokenizer.decode(ids), text);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerOracle,
                         ::testing::Values("gpt2", "llama3", "prefix_space"));

TEST(Tokenizer, KnowsItsVocabularyAndTheEndOfText) {
  const auto gpt2 = io::Tokenizer::open(data_path("gpt2.json"));
  EXPECT_EQ(gpt2.vocab(), 500);
  EXPECT_EQ(gpt2.end_of_text(), 0);
  const auto llama3 = io::Tokenizer::open(data_path("llama3.json"));
  EXPECT_EQ(llama3.vocab(), 503);  // tokens added after the 501 of the model included
  EXPECT_EQ(llama3.decode(502), "tool_call_long");
  EXPECT_EQ(llama3.decode(503), "");
  EXPECT_EQ(llama3.decode(0), "<|endoftext|>");
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  auto bytes = io::Tokenizer::bytes();
  EXPECT_EQ(bytes.vocab(), 256);
  EXPECT_FALSE(bytes.end_of_text());
  EXPECT_EQ(bytes.encode("a\xff\n"), (Ids{97, 255, 10}));
  EXPECT_EQ(bytes.decode(Ids{97, 255, 10}), "a\xff\n");
  EXPECT_EQ(io::Tokenizer::parse(bytes.json(), "t").encode("\x01z\xff"), (Ids{1, 122, 255}));
}

TEST(Tokenizer, AnyBytesSurviveTheRoundTrip) {
  std::mt19937 random(3);
  for (const char* name : {"gpt2.json", "llama3.json"}) {
    auto tokenizer = io::Tokenizer::open(data_path(name));
    for (int i = 0; i < 300; ++i) {
      std::string text(random() % 40, '\0');
      // Lead bytes, continuation bytes and spaces are frequent, so that broken characters are too.
      for (char& c : text)
        c = static_cast<char>(random() % 3 ? 0xC0 + random() % 64 : random() % 256);
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
  }
}

TEST(Tokenizer, TheStoredTextGivesTheSameTokenizer) {
  auto tokenizer = io::Tokenizer::open(data_path("gpt2.json"));
  auto again = io::Tokenizer::parse(tokenizer.json(), "stored");
  EXPECT_EQ(again.encode("The quick brown fox"), tokenizer.encode("The quick brown fox"));
}

TEST(Tokenizer, DifferencesAreOfMeaningNotOfForm) {
  const json good = json::parse(test::read_file(data_path("llama3.json")));
  const auto tokenizer = io::Tokenizer::parse(good.dump(), "t.json");
  const auto difference = [&](const char* pointer, json value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = std::move(value);
    const auto other = io::Tokenizer::parse(changed.dump(2), "t.json");
    EXPECT_EQ(other.difference(tokenizer).empty(), tokenizer.difference(other).empty());
    return tokenizer.difference(other);
  };
  EXPECT_EQ(difference("/version", "2.0"), "");
  EXPECT_EQ(difference("/post_processor", {{"type", "ByteLevel"}}), "");
  EXPECT_EQ(difference("/added_tokens/0/normalized", true), "");
  json merges = good["model"]["merges"];
  for (json& merge : merges) {  // as older files write it
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  EXPECT_EQ(difference("/model/merges", merges), "");

  EXPECT_EQ(tokenizer.difference(io::Tokenizer::open(data_path("gpt2.json"))).substr(0, 3), "id ");
  EXPECT_EQ(difference("/model/vocab/zer", 600),
            R"(id 383 is "zer" in the first and no token in the second)");
  EXPECT_NE(difference("/added_tokens/0/special", false).find("special"), std::string::npos);
  EXPECT_NE(difference("/model/ignore_merges", !good["model"]["ignore_merges"].get<bool>())
                .find("merge bytes"),
            std::string::npos);
  std::swap(merges[0], merges[1]);
  EXPECT_NE(difference("/model/merges", merges).find("merge bytes"), std::string::npos);
  EXPECT_NE(difference("/pre_tokenizer/pretokenizers/0/pattern/Regex", "a").find("words"),
            std::string::npos);
}

TEST(Tokenizer, LongWordsAndLongTextsTakeLinearTime) {
  // Quadratic merging or matching of a megabyte would take hours, not a second.
  auto tokenizer = io::Tokenizer::open(data_path("llama3.json"));
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\xf0\x9f\x98\x80"),
        std::string("the dog "), std::string("\xff")}) {
    std::string text;
    while (text.size() < (std::size_t{1} << 20)) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, RefusesWhatItDoesNotSupportByName) {
  const json good = json::parse(test::read_file(data_path("llama3.json")));
  const auto refusal = [&](const char* pointer, json value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = std::move(value);
    return message_of<DataError>([&] { io::Tokenizer::parse(changed.dump(), "t.json"); });
  };
  struct Case {
    const char* pointer;
    json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"/normalizer", {{"type", "NFC"}}, "t.json: $.normalizer.type: the normalizer \"NFC\""},
      {"/pre_tokenizer/type", "Whitespace", "$.pre_tokenizer.type: \"Whitespace\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "\"Removed\" is not supported"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "pretokenizers[0].invert: true"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "\"Regex\" is missing"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "pattern, character 2: missing"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "true after a Split"},
      {"/pre_tokenizer/pretokenizers", json::array(), "no steps"},
      {"/model/type", "Unigram", "$.model.type: \"Unigram\""},
      {"/model/dropout", 0.1, "merge dropout"},
      {"/model/byte_fallback", true, "$.model.byte_fallback: true"},
      {"/model/end_of_word_suffix", "</w>", "\"</w>\" is not supported"},
      {"/model/vocab/a", -1, "$.model.vocab.a: token id -1"},
      {"/model/vocab/a", 2147483647, "token id 2147483647"},
      {"/model/vocab/a", "x", "expected an integer, found \"x\""},
      {"/model/vocab/a", 1, "two tokens have the id 1"},
      {"/model/vocab", json::object(), "no token for the byte"},
      {"/model/merges/0", "a b c", "$.model.merges[0]: expected two tokens"},
      {"/model/merges/0", {"a", "qzq"}, "\"qzq\" is not in the vocabulary"},
      {"/model", nullptr, "$: \"model\" is missing"},
      {"/added_tokens/0/lstrip", true, "added_tokens[0].lstrip: true"},
      {"/added_tokens/0/content", "", "cannot be empty"},
      {"/added_tokens/1/id", 7, "disagrees with the vocabulary"},
      {"/added_tokens/0/id", 700, "disagrees with the vocabulary"}};
  for (const Case& c : cases) {
    const auto message = refusal(c.pointer, c.value);
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.expected << " | " << message;
  }
}

TEST(Tokenizer, RefusesPatternsThatNeverEnd) {
  json changed = json::parse(test::read_file(data_path("llama3.json")));
  changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+(a+)+(a+)+(a+)+[bc]";
  auto tokenizer = io::Tokenizer::parse(changed.dump(), "t.json");
  const auto message = message_of<DataError>([&] { tokenizer.encode(std::string(60, 'a')); });
  EXPECT_NE(message.find("match limit exceeded"), std::string::npos) << message;
}

TEST(Tokenizer, PatternsThatMatchNothingCutNothing) {
  json changed = json::parse(test::read_file(data_path("llama3.json")));
  for (const char* pattern : {"", "x*", "(?=a)", "a\\Kb?", "(?<=a)"}) {
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern;
    auto tokenizer = io::Tokenizer::parse(changed.dump(), "t.json");
    for (const std::string text : {"xxabaab\xf0\x9f\x98\x80 x", "", "a"}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << pattern;
    }
  }
}

TEST(Utf8Stream, HoldsBackIncompleteCharactersAndReplacesBrokenOnes) {
  const std::string text = "a\u00e9\u65e5\U0001F600z";
  io::Utf8Stream by_byte;
  std::string out;
  for (const char c : text) {
    const std::string piece = by_byte.push(std::string(1, c));
    EXPECT_EQ(io::valid_utf8_prefix(piece), piece.size());
    out += piece;
  }
  EXPECT_EQ(out + by_byte.finish(), text);

  const std::string bad = "\xEF\xBF\xBD";
  io::Utf8Stream broken;
  EXPECT_EQ(broken.push("a\xff"
                        "b\xe6\x97"),
            "a" + bad + "b");
  EXPECT_EQ(broken.push("c"), bad + bad + "c");
  EXPECT_EQ(broken.push("\xed\xa0"), bad + bad);  // a surrogate: no third byte can repair it
  EXPECT_EQ(broken.push("\xf0\x9f"), "");
  EXPECT_EQ(broken.finish(), bad + bad);
  EXPECT_EQ(broken.finish(), "");
}

TEST(Utf8, AcceptsExactlyTheValidForms) {
  for (const char32_t c :
       {0x0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF}) {
    std::string text;
    io::append_utf8(c, text);
    const auto character = io::first_utf8_char(text);
    ASSERT_TRUE(character) << std::hex << static_cast<std::uint32_t>(c);
    EXPECT_EQ(character->code_point, c);
    EXPECT_EQ(character->length, text.size());
    EXPECT_FALSE(text.size() > 1 && io::first_utf8_char(text.substr(0, text.size() - 1)));
  }
  for (const char* text :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3(", ""}) {
    EXPECT_FALSE(io::first_utf8_char(text));
  }
}

}  // namespace
}  // namespace tessera
