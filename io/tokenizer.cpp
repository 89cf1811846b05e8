#include "io/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "io/file.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::io {
namespace {

// The names that families give to the token that ends a document.
constexpr std::array kEndOfText = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
// What others' names say once their brackets, underscores and the like are left out.
constexpr std::array<std::string_view, 7> kEndOfTextWords = {
    "eos", "eod", "endoftext", "endofdocument", "endofsequence", "endofsentence", "enddocument"};

/// Finds added tokens in text: at each place the longest one wins.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
    std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
    for (const AddedToken& token : tokens_) {
      by_first_byte_[static_cast<unsigned char>(token.content[0])].push_back(&token);
    }
  }

  AddedTokenFinder(const AddedTokenFinder&) = delete;  // the table points into tokens_
  AddedTokenFinder& operator=(const AddedTokenFinder&) = delete;

  /// Calls `text_piece` for the text between tokens (none empty) and `found` for each token's id.
  /// Special tokens are found only if they are wanted.
  template <typename TextPiece, typename Found>
  void cut(std::string_view text, bool special, const TextPiece& text_piece,
           const Found& found) const {
    std::size_t done = 0;
    for (std::size_t i = 0; i < text.size() && !tokens_.empty();) {
      const AddedToken* token = token_at(text.substr(i), special);
      if (token == nullptr) {
        ++i;
        continue;
      }
      if (i > done) text_piece(text.substr(done, i - done));
      found(token->id);
      done = i += token->content.size();
    }
    if (done < text.size()) text_piece(text.substr(done));
  }

 private:
  const AddedToken* token_at(std::string_view text, bool special) const {
    for (const AddedToken* token : by_first_byte_[static_cast<unsigned char>(text[0])]) {
      if ((special || !token->special) && text.starts_with(token->content)) return token;
    }
    return nullptr;
  }

  std::vector<AddedToken> tokens_;
  std::array<std::vector<const AddedToken*>, 256> by_first_byte_;
};

std::vector<AddedToken> select(const std::vector<AddedToken>& all, bool normalized) {
  std::vector<AddedToken> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return chosen;
}

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

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerDefinition definition, std::string text)
      : json(std::move(text)),
        vocab(definition.vocab),
        end_of_text(find_end_of_text(definition.added)),
        prefix_space(definition.prefix_space),
        added(definition.added),
        bytes_of(std::move(definition.bytes_of)),
        verbatim(select(definition.added, false)),
        normalized(select(definition.added, true)),
        patterns(std::move(definition.patterns)),
        bpe(std::move(definition.model)) {}

  template <typename Word>
  void cut_words(std::string_view text, std::size_t pattern, const Word& word) {
    if (pattern == patterns.size()) return word(text);
    patterns[pattern].split(text,
                            [&](std::string_view piece) { cut_words(piece, pattern + 1, word); });
  }

  template <typename Word>
  void cut_text(std::string_view text, TextStart start, const Word& word) {
    if (prefix_space && start != TextStart::text && !text.starts_with(' ')) {
      cut_words(std::string(1, ' ').append(text), 0, word);
    } else {
      cut_words(text, 0, word);
    }
  }

  /// Calls `word` for each word between added tokens, and `found` for the id of each of those.
  template <typename Word, typename Found>
  void cut(std::string_view text, EncodeRules rules, const Word& word, const Found& found) {
    TextStart start = rules.start;
    const auto found_token = [&](std::int32_t id) {
      start = TextStart::token;
      found(id);
    };
    const auto plain_text = [&](std::string_view plain) {
      cut_text(plain, start, word);
      start = TextStart::text;
    };
    verbatim.cut(
        text, rules.special_tokens,
        [&](std::string_view between) {
          normalized.cut(between, rules.special_tokens, plain_text, found_token);
        },
        found_token);
  }

  std::string json;
  std::int64_t vocab;
  std::optional<std::int32_t> end_of_text;
  bool prefix_space;
  std::vector<AddedToken> added;
  std::unordered_map<std::int32_t, std::string> bytes_of;
  AddedTokenFinder verbatim, normalized;
  std::vector<SplitPattern> patterns;
  BpeEncoder bpe;
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
  for (const auto& [id, bytes] : impl_->bytes_of) {
    if (bytes == text && (!lowest || id < *lowest)) lowest = id;
  }
  return lowest;
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
      text, rules, [&](std::string_view word) { impl_->bpe.encode(word, ids); },
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

std::string_view Tokenizer::decode(std::int32_t id) const {
  const auto found = impl_->bytes_of.find(id);
  return found == impl_->bytes_of.end() ? std::string_view() : found->second;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += decode(id);
  return text;
}

}  // namespace tessera::io
