#include "io/tokenizer.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "core/error.hpp"
#include "io/tokenize.hpp"
#include "io/tokenizer_json.hpp"
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

/// Tokens of characters, and bytes behind other steps: also with special tokens around a text, and
/// made into text again.
class TokenizerKind : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerKind, DoesAsTheReferenceDoes) {
  auto tokenizer = io::Tokenizer::open(data_path(std::string(GetParam()) + ".json"));
  const json cases =
      json::parse(test::read_file(data_path(std::string(GetParam()) + ".cases.json")));
  ASSERT_GT(cases.size(), 40U);
  const io::SpecialFrame& frame = tokenizer.frame();
  for (int round = 0; round < 2; ++round)  // the second time from the cache of words
    for (const json& c : cases) {
      const auto text = c["text"].get<std::string>();
      const Ids ids = tokenizer.encode(text);
      EXPECT_EQ(ids, c["ids"].get<Ids>()) << text;
      Ids framed = frame.before;
      framed.insert(framed.end(), ids.begin(), ids.end());
      framed.insert(framed.end(), frame.behind.begin(), frame.behind.end());
      EXPECT_EQ(framed, c["framed"].get<Ids>()) << text;
      EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>()) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerKind,
                         ::testing::Values("bert", "bert_cased", "word_piece_parts", "t5",
                                           "xlm_roberta", "unigram_bytes", "llama2", "mistral",
                                           "gemma", "bpe_unknown", "roberta", "qwen2",
                                           "starcoder"));

TEST(Tokenizer, EncodesWordsAsTheReferenceDoes) {
  const json cases = json::parse(test::read_file(data_path("words.cases.json")));
  ASSERT_GT(cases.size(), 100U);
  for (const json& c : cases) {
    auto tokenizer = io::Tokenizer::open(data_path(c["tokenizer"].get<std::string>() + ".json"));
    tokenizer.set_end_of_text(std::nullopt);
    Ids ids, first;
    io::encode_words(c["words"].get<std::vector<std::string>>(), tokenizer, true, ids, first);
    EXPECT_EQ(ids, c["ids"].get<Ids>()) << c;
    EXPECT_EQ(first, c["first"].get<Ids>()) << c;
  }
}

TEST(Tokenizer, TakesBrokenBytesForReplacementCharacters) {
  for (const char* name : {"bert.json", "t5.json", "llama2.json", "bpe_unknown.json"}) {
    auto tokenizer = io::Tokenizer::open(data_path(name));
    for (const auto& [broken, replaced] : {std::pair<std::string, std::string>{"a\xff", "a\uFFFD"},
                                           {"\xe6\x97 the", "\uFFFD\uFFFD the"},
                                           {"dog\xf0\x9f\x98", "dog\uFFFD\uFFFD\uFFFD"}}) {
      EXPECT_EQ(tokenizer.encode(broken), tokenizer.encode(replaced)) << name;
    }
  }
  // Normalizers before tokens of bytes leave broken ones alone.
  auto qwen = io::Tokenizer::open(data_path("qwen2.json"));
  EXPECT_EQ(qwen.decode(qwen.encode("e\u0301\xff\xc3.")), "\u00e9\xff\xc3.");
}

TEST(Tokenizer, TextThatGoesOnGetsNoSpaceBeforeIt) {
  struct Case {
    const char* name;
    bool behind_token;  // whether a text behind a special token gets one
  };
  for (const auto& [name, behind_token] : {Case{"llama2.json", true}, Case{"mistral.json", false},
                                           Case{"roberta.json", true}, Case{"t5.json", true}}) {
    auto tokenizer = io::Tokenizer::open(data_path(name));
    const auto encode = [&, &tokenizer = tokenizer](std::string_view text, io::TextStart start) {
      Ids ids;
      tokenizer.encode(text, ids, {.start = start});
      return ids;
    };
    const Ids bare = encode("the dog", io::TextStart::text);
    EXPECT_NE(encode("the dog", io::TextStart::document), bare) << name;
    EXPECT_EQ(encode("the dog", io::TextStart::token) != bare, behind_token) << name;
  }
}

TEST(Tokenizer, SpecialTokensOfATextAreTextWhereTheyAreNotWanted) {
  auto tokenizer = io::Tokenizer::open(data_path("gpt2.json"));
  Ids ids;
  tokenizer.encode("a<|endoftext|>b", ids, {.special_tokens = false});
  EXPECT_EQ(std::ranges::count(ids, 0), 0);
  EXPECT_EQ(tokenizer.decode(ids), "a<|endoftext|>b");
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

TEST(Tokenizer, KnowsTheBytesOfTextThatTokensStandFor) {
  EXPECT_EQ(io::Tokenizer::bytes().text_bytes(), std::vector<std::int32_t>(256, 1));
  const std::string text = "the dog\xf0\x9f\x8d\x80 in\n\nN\xc3\xbc\xff";
  for (const char* name : {"gpt2.json", "llama3.json"}) {
    auto tokenizer = io::Tokenizer::open(data_path(name));
    const auto bytes = tokenizer.text_bytes();
    ASSERT_EQ(std::ssize(bytes), tokenizer.vocab());
    std::int64_t sum = 0;
    for (const std::int32_t id : tokenizer.encode(text + "<|endoftext|>"))
      sum += bytes[static_cast<std::size_t>(id)];
    EXPECT_EQ(sum, std::ssize(text)) << name << ": a special token is no text";
  }
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
  for (const char* name : {"llama2.json", "mistral.json", "t5.json", "bert.json"}) {
    auto other = io::Tokenizer::open(data_path(name));
    for (const char* unit : {"a", " ", "the dog ", "\u65e5", "e\u0301"}) {
      std::string text;
      while (text.size() < (std::size_t{1} << 19)) text += unit;
      EXPECT_GE(other.encode(text).size(), *unit == ' ' ? 0U : 1U) << name;
    }
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
      {"/normalizer", {{"type", "Nmt"}}, "t.json: $.normalizer.type: the normalizer \"Nmt\""},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}},
       "$.normalizer.pattern.String: the empty text"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA*"}},
       "$.normalizer.precompiled_charsmap: expected base64"},
      {"/normalizer",
       {{"type", "Precompiled"}, {"precompiled_charsmap", "/wAAAA=="}},
       "$.normalizer.precompiled_charsmap: 4 bytes"},
      {"/pre_tokenizer/type", "UnicodeScripts", "$.pre_tokenizer.type: \"UnicodeScripts\""},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Doubled", "\"Doubled\" is not supported"},
      {"/pre_tokenizer/pretokenizers/0/type", "ByteLevel", "\"ByteLevel\" here is not supported"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"Strin", " "}}, "\"Regex\" is missing"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
       "$.pre_tokenizer.prepend_scheme: \"last\"; allowed"},
      {"/post_processor", {{"type", "Padding"}}, "the post-processor \"Padding\" is not supported"},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"cls", {"[CLS]", 9999}}, {"sep", {"[SEP]", 1}}},
       "$.post_processor.cls[1]: no token has the id 9999"},
      {"/post_processor",
       {{"type", "TemplateProcessing"}, {"single", json::array()}},
       "$.post_processor.single: the text (\"Sequence\") is not there"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "pattern, character 2: missing"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "true after another step"},
      {"/pre_tokenizer/pretokenizers", json::array(), "no steps"},
      {"/model/type", "Unigram", "$.model.type: \"Unigram\" is not supported behind"},
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
      {"/added_tokens/0/content", "", "cannot be empty"},
      {"/added_tokens/1/id", 7, "disagrees with the vocabulary"},
      {"/added_tokens/0/id", 700, "disagrees with the vocabulary"}};
  for (const Case& c : cases) {
    const auto message = refusal(c.pointer, c.value);
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.expected << " | " << message;
  }
}

TEST(Tokenizer, RefusesWhatOtherModelsDoNotSupportByName) {
  struct Case {
    const char* file;
    const char* pointer;
    json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"bert.json", "/model/type", "WordLevel", "$.model.type: \"WordLevel\" is not supported"},
      {"bert.json", "/model/unk_token", "[NONE]", "\"[NONE]\" is not in the vocabulary"},
      {"bert.json", "/model/max_input_chars_per_word", -1, "an integer from 0"},
      {"bert.json", "/decoder", {{"type", "CTC"}}, "the decoder \"CTC\" is not supported"},
      {"t5.json", "/model/unk_id", 100000, "$.model.unk_id: expected an integer from 0 to"},
      {"t5.json", "/model/vocab/0", {"a"}, "$.model.vocab[0]: expected an array of 2"},
      {"t5.json", "/model/vocab", json::array(), "$.model.vocab: expected from 1"},
      {"llama2.json", "/model/continuing_subword_prefix", "##", "\"##\" is not supported"},
      {"llama2.json", "/model/unk_token", "<none>", "is not in the vocabulary"},
      {"llama2.json", "/decoder/decoders/3/stop", 1, "decoders[3].stop: only 0"}};
  for (const Case& c : cases) {
    json changed = json::parse(test::read_file(data_path(c.file)));
    changed[json::json_pointer(c.pointer)] = c.value;
    const auto message =
        message_of<DataError>([&] { io::Tokenizer::parse(changed.dump(), "t.json"); });
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.expected << " | " << message;
  }
  json none = json::parse(test::read_file(data_path("t5.json")));
  none["model"]["unk_id"] = nullptr;
  auto tokenizer = io::Tokenizer::parse(none.dump(), "t.json");
  EXPECT_NE(message_of<DataError>([&] { tokenizer.encode("\u2603"); }).find("model.unk_id"),
            std::string::npos);
}

// The package's scores are not the nearest doubles to what the file says, and ties depend on it.
TEST(Tokenizer, ScoresAreThoseThatThePackageReads) {
  json content = json::parse(test::read_file(data_path("t5.json")));
  content["model"]["vocab"][5][1] = -11.542301210811697;
  content["model"]["vocab"][6][1] = -20.0;
  content["model"]["vocab"][7][1] = 1e-300;
  const auto definition = io::parse_tokenizer_json(content.dump(), "t.json");
  const auto& tokens = std::get<io::UnigramModel>(definition.model).tokens;
  EXPECT_EQ(tokens[5].second, -(11542301210811697.0 / 1e15));
  EXPECT_NE(tokens[5].second, -11.542301210811697);
  EXPECT_EQ(tokens[6].second, -20.0);
  EXPECT_EQ(tokens[7].second, 1e-300);
}

TEST(Tokenizer, DifferencesOfOtherModels) {
  struct Case {
    const char* file;
    const char* pointer;
    json value;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"bert.json", "/normalizer/lowercase", false, "cut text into words differently"},
      {"bert.json", "/model/max_input_chars_per_word", 7, "into pieces differently"},
      {"t5.json", "/model/vocab/9/1", -3.5, "other probabilities"},
      {"llama2.json", "/model/byte_fallback", false, "merge bytes differently"},
      {"mistral.json", "/pre_tokenizer/prepend_scheme", "always", "into words differently"}};
  for (const Case& c : cases) {
    json changed = json::parse(test::read_file(data_path(c.file)));
    const auto one = io::Tokenizer::parse(changed.dump(), "t.json");
    changed[json::json_pointer(c.pointer)] = c.value;
    const std::string difference = one.difference(io::Tokenizer::parse(changed.dump(), "t.json"));
    EXPECT_NE(difference.find(c.expected), std::string::npos) << c.file << ": " << difference;
  }
  EXPECT_FALSE(io::Tokenizer::open(data_path("bert.json"))
                   .difference(io::Tokenizer::open(data_path("bert_cased.json")))
                   .empty());
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
