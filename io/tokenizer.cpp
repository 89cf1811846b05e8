#include "io/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "io/file.hpp"
#include "io/tokenizer_json.hpp"
#include "io/utf8.hpp"
#include "io/word_cache.hpp"

namespace tessera::io {
namespace {

// The names that families give to the token that ends a document.
constexpr std::array kEndOfText = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
// What others' names say once their brackets, underscores and the like are left out.
constexpr std::array<std::string_view, 7> kEndOfTextWords = {
    "eos", "eod", "endoftext", "endofdocument", "endofsequence", "endofsentence", "enddocument"};

/// Whether the letters of a name, whatever is around and between them, are words for an end.
bool sounds_like_end_of_text(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c >= 'a' && c <= 'z') letters += c;
    if (c >= 'A' && c <= 'Z') letters += static_cast<char>(c - 'A' + 'a');
  }
  return std::find(kEndOfTextWords.begin(), kEndOfTextWords.end(), letters) !=
         kEndOfTextWords.end();
}

std::optional<std::int32_t> find_end_of_text(const std::vector<AddedToken>& added) {
  for (const std::string_view name : kEndOfText) {
    for (const AddedToken& token : added) {
      if (token.special && token.content == name) return token.id;
    }
  }
  std::optional<std::int32_t> only;
  for (const AddedToken& token : added) {
    if (!token.special || !sounds_like_end_of_text(token.content)) continue;
    if (only) return std::nullopt;
    only = token.id;
  }
  return only;
}

struct WordPieceEncoder {
  WordPieceModel model;
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const {
    encode_word_pieces(model, word, ids);
  }
};

using Encoder = std::variant<BpeEncoder, WordPieceEncoder, UnigramEncoder>;

Encoder make_encoder(TokenModel& model) {
  if (auto* bpe = std::get_if<BpeModel>(&model)) return BpeEncoder(std::move(*bpe));
  if (auto* pieces = std::get_if<WordPieceModel>(&model))
    return WordPieceEncoder{std::move(*pieces)};
  return UnigramEncoder(std::move(std::get<UnigramModel>(model)));
}

std::string valid_utf8(std::string_view text) {
  if (valid_utf8_prefix(text) == text.size()) return std::string(text);
  Utf8Stream stream;
  std::string out = stream.push(text);
  return out + stream.finish();
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerDefinition definition, std::string text)
      : json(std::move(text)),
        vocab(definition.vocab),
        end_of_text(find_end_of_text(definition.added)),
        frame(std::move(definition.frame)),
        added(definition.added),
        names(std::move(definition.names)),
        texts(std::move(definition.texts)),
        normalizer(std::move(definition.normalizer)),
        verbatim(added, false, normalizer),
        normalized(added, true, normalizer),
        pre_tokenizer(std::move(definition.pre_tokenizer)),
        model(make_encoder(definition.model)) {}

  /// Text as the model takes it: of one that is made of characters, what is none is U+FFFD.
  std::string prepared(std::string_view text, bool begins) const {
    if (!pre_tokenizer.byte_level()) return normalizer.apply(valid_utf8(text), begins);
    std::string out;  // broken bytes stay what they are
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (valid > 0) out += normalizer.apply(std::string(text.substr(0, valid)), begins);
      if (valid == 0) out += text[0];
      text.remove_prefix(std::max<std::size_t>(valid, 1));
      begins = false;
    }
    return out;
  }

  /// Calls `word` for each word between added tokens, and `found` for the id of each of those.
  template <typename Word, typename Found>
  void cut(std::string_view text, EncodeRules rules, const Word& word, const Found& found) const {
    TextStart start = rules.start;
    const PreTokenizer::Word each_word = word;
    const auto found_token = [&](std::int32_t id) {
      start = TextStart::token;
      found(id);
    };
    const auto plain_text = [&](std::string_view plain) {
      pre_tokenizer.cut(plain, start, each_word);
      start = TextStart::text;
    };
    const auto cut_normalized = [&](std::string_view between) {
      normalized.cut(between, rules.special_tokens, plain_text, found_token);
    };
    const bool as_it_is = pre_tokenizer.byte_level() && normalizer.empty();
    verbatim.cut(
        text, rules.special_tokens,
        [&](std::string_view between) {
          if (as_it_is) return cut_normalized(between);
          cut_normalized(prepared(between, start != TextStart::text));
        },
        found_token);
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
    const auto encode = [&](std::string_view unknown, std::vector<std::int32_t>& out) {
      std::visit([&](auto& encoder) { encoder.encode(unknown, out); }, model);
    };
    if (const auto* bpe = std::get_if<BpeEncoder>(&model)) {
      bpe->for_each_part(word, [&](std::string_view part) { cache.append(part, ids, encode); });
    } else {
      cache.append(word, ids, encode);
    }
  }

  std::string json;
  std::int64_t vocab;
  std::optional<std::int32_t> end_of_text;
  SpecialFrame frame;
  std::vector<AddedToken> added;
  std::unordered_map<std::int32_t, std::string> names;
  TokenTexts texts;
  Normalizer normalizer;
  AddedTokenFinder verbatim, normalized;
  PreTokenizer pre_tokenizer;
  Encoder model;
  WordCache cache;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::bytes() { return parse(byte_tokenizer_json(), "bytes"); }

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  return parse(read_text(path, kLargestTokenizerFile), path.string());
}

Tokenizer Tokenizer::parse(std::string json, const std::string& name) {
  auto definition = parse_tokenizer_json(json, name);
  return Tokenizer(std::make_unique<Impl>(std::move(definition), std::move(json)));
}

std::int64_t Tokenizer::vocab() const { return impl_->vocab; }
std::optional<std::int32_t> Tokenizer::end_of_text() const { return impl_->end_of_text; }
void Tokenizer::set_end_of_text(std::optional<std::int32_t> id) { impl_->end_of_text = id; }
const std::string& Tokenizer::json() const { return impl_->json; }

std::optional<std::int32_t> Tokenizer::id_of(std::string_view text) const {
  for (const AddedToken& token : impl_->added) {
    if (token.content == text) return token.id;
  }
  std::optional<std::int32_t> lowest;
  for (const auto& [id, bytes] : impl_->names) {
    if (bytes == text && (!lowest || id < *lowest)) lowest = id;
  }
  return lowest;
}

std::string_view Tokenizer::name_of(std::int32_t id) const {
  for (const AddedToken& token : impl_->added) {
    if (token.id == id) return token.content;
  }
  const auto found = impl_->names.find(id);
  return found == impl_->names.end() ? std::string_view() : found->second;
}

std::vector<std::string> Tokenizer::special_tokens() const {
  std::map<std::int32_t, std::string> by_id;
  for (const AddedToken& token : impl_->added) {
    if (token.special) by_id[token.id] = token.content;
  }
  std::vector<std::string> names;
  for (const auto& [id, name] : by_id) names.push_back(name);
  return names;
}

std::string Tokenizer::difference(const Tokenizer& other) const {
  if (impl_->json == other.impl_->json) return "";
  return difference_of(parse_tokenizer_json(impl_->json, "one"),
                       parse_tokenizer_json(other.impl_->json, "the other"));
}

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, EncodeRules rules) {
  impl_->cut(
      text, rules, [&](std::string_view word) { impl_->encode_word(word, ids); },
      [&](std::int32_t id) { ids.push_back(id); });
}

void Tokenizer::for_each_word(std::string_view text,
                              const std::function<void(std::string_view)>& word) {
  impl_->cut(text, {}, word, [](std::int32_t) {});
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> ids;
  encode(text, ids);
  return ids;
}

bool Tokenizer::exact() const {
  return impl_->pre_tokenizer.byte_level() && !impl_->pre_tokenizer.drops_text() &&
         impl_->normalizer.empty() &&
         std::ranges::none_of(impl_->added, [](const AddedToken& token) {
           return token.takes_left || token.takes_right;
         });
}

bool Tokenizer::byte_level() const { return impl_->pre_tokenizer.byte_level(); }

const SpecialFrame& Tokenizer::frame() const { return impl_->frame; }

std::string_view Tokenizer::decode(std::int32_t id) const {
  const auto found = impl_->texts.behind.find(id);
  return found == impl_->texts.behind.end() ? std::string_view() : found->second;
}

std::vector<std::int32_t> Tokenizer::text_bytes() const {
  std::vector<std::int32_t> bytes(static_cast<std::size_t>(vocab()));
  for (const auto& [id, text] : impl_->texts.behind)
    bytes.at(static_cast<std::size_t>(id)) = static_cast<std::int32_t>(text.size());
  for (const AddedToken& token : impl_->added) {
    if (token.special) bytes.at(static_cast<std::size_t>(token.id)) = 0;
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  bool first = true;
  for (const std::int32_t id : ids) {
    const auto found = impl_->texts.first.find(id);
    text += first && found != impl_->texts.first.end() ? found->second : decode(id);
    first = false;
  }
  return text;
}

}  // namespace tessera::io
