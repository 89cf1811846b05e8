#include "io/tokenize.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/file.hpp"
#include "io/token_pairs.hpp"
#include "io/token_targets.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

/// Of labels: one a document, or one a token.
MegatronExtent extent_of_labels(const MegatronExtent& tokens, LabelsOf of) {
  if (of == LabelsOf::words) return tokens;
  return {tokens.documents, tokens.documents, tokens.documents};
}

std::vector<LabelsFound> labels_of_parts(std::span<const PartFindings> all) {
  std::vector<LabelsFound> labels;
  for (const PartFindings& part : all) labels.push_back(part.labels);
  return labels;
}

}  // namespace

void encode_pieces(std::span<const TemplatePiece> pieces, Tokenizer& tokenizer,
                   std::vector<std::int32_t>& ids, std::vector<std::int32_t>& marks) {
  ids.clear(), marks.clear();
  EncodeRules rules{.start = TextStart::document, .special_tokens = false};
  std::string text;  // of several pieces that count alike
  bool learned = false;
  const auto encode_waiting = [&] {
    if (text.empty()) return;
    tokenizer.encode(text, ids, rules);
    marks.resize(ids.size(), learned ? 1 : 0);
    rules.start = TextStart::text;
    text.clear();
  };
  for (const TemplatePiece& piece : pieces) {
    if (piece.token || piece.learned != learned) encode_waiting();
    learned = piece.learned;
    text += piece.text;
    if (!piece.token) continue;
    ids.push_back(*piece.token);
    marks.push_back(learned ? 1 : 0);
    rules.start = TextStart::token;
  }
  encode_waiting();
}

namespace {

/// ids = what `text` appends, between what belongs around it.
template <typename Text>
void encode_between(const Tokenizer& tokenizer, bool framed, std::vector<std::int32_t>& ids,
                    const Text& text) {
  ids.clear();
  const SpecialFrame& frame = tokenizer.frame();
  if (framed) ids.assign(frame.before.begin(), frame.before.end());
  text();
  if (framed) ids.insert(ids.end(), frame.behind.begin(), frame.behind.end());
  const auto end = tokenizer.end_of_text();
  const bool ended = framed && !ids.empty() && end == ids.back();
  if (end && !ended) ids.push_back(*end);
}

}  // namespace

void encode_document(std::string_view text, Tokenizer& tokenizer, bool framed,
                     std::vector<std::int32_t>& ids) {
  encode_between(tokenizer, framed, ids, [&] { tokenizer.encode(text, ids); });
}

std::int64_t closing_tokens(const Tokenizer& tokenizer, bool framed) {
  const auto behind =
      framed ? std::span<const std::int32_t>(tokenizer.frame().behind) : std::span<const int>();
  const auto end = tokenizer.end_of_text();
  const bool ended = !behind.empty() && end == behind.back();
  return std::ssize(behind) + (end && !ended ? 1 : 0);
}

void cut_document(std::vector<std::int32_t>& ids, std::int64_t longest, std::int64_t closing) {
  if (std::ssize(ids) <= longest) return;
  const std::int64_t kept = std::min(closing, longest);
  std::copy(ids.end() - kept, ids.end(), ids.begin() + longest - kept);
  ids.resize(static_cast<std::size_t>(longest));
}

void encode_words(std::span<const std::string> words, Tokenizer& tokenizer, bool framed,
                  std::vector<std::int32_t>& ids, std::vector<std::int32_t>& word_of) {
  const bool spaced = tokenizer.byte_level();
  word_of.clear();
  encode_between(tokenizer, framed, ids, [&] {
    for (std::size_t i = 0; i < words.size(); ++i) {
      word_of.resize(ids.size(), -1);
      tokenizer.encode(spaced && i > 0 ? " " + words[i] : words[i], ids);
      if (ids.size() > word_of.size()) word_of.push_back(static_cast<std::int32_t>(i));
    }
  });
  word_of.resize(ids.size(), -1);
}

/// Tokens of a document; of one that a template has made whether each counts as target, and of
/// words the word that each begins.
struct TokenizedPart::Encoded {
  std::vector<std::int32_t> ids, marks, word_of;
};

std::string PartFindings::pack() const {
  return nlohmann::json{tokens.elements, tokens.sequences, tokens.documents, targets, labels.pack()}
      .dump();
}

PartFindings PartFindings::unpack(const std::string& packed) {
  const nlohmann::json json = nlohmann::json::parse(packed);
  return {.tokens = {json[0], json[1], json[2]},
          .targets = json[3],
          .labels = LabelsFound::unpack(json[4])};
}

TokenizedPart::TokenizedPart(std::span<const fs::path> inputs, const fs::path& prefix,
                             Tokenizer& tokenizer, TokenizePart part,
                             const TokenizeProgress& progress, const DocumentRules& rules)
    : prefix_(prefix),
      index_(part.index),
      pairs_(rules.pairs),
      tokens_(prefix, token_type(tokenizer.vocab()), part.index) {
  if (rules.labels != LabelSource::none) {
    labels_as_ = {.key = rules.labels == LabelSource::folder ? "folder" : rules.label_key,
                  .names = {},
                  .of = rules.words.empty() ? LabelsOf::documents : LabelsOf::words,
                  .closing = closing_tokens(tokenizer, rules.special_tokens)};
    labels_ = std::make_unique<MegatronShare>(labels_prefix(prefix), DType::i32, index_);
  }
  if (rules.chat)
    targets_ = std::make_unique<MegatronShare>(targets_prefix(prefix), DType::u8, index_);
  Encoded encoded;
  read_part(inputs, part, rules, progress, [&](const Document& document) {
    if (document.text.empty() && document.pieces.empty()) return;
    try {
      encode(document, tokenizer, rules, encoded);
    } catch (Error& e) {
      e.add_context(place_text(document.place));
      throw;
    }
    if (!encoded.ids.empty()) add(document, encoded);
  });
}

void TokenizedPart::encode(const Document& document, Tokenizer& tokenizer,
                           const DocumentRules& rules, Encoded& out) {
  out.ids.clear(), out.marks.clear(), out.word_of.clear();
  if (!document.pieces.empty()) {
    encode_pieces(document.pieces, tokenizer, out.ids, out.marks);
    if (rules.pairs && std::ranges::find(out.marks, 1) == out.marks.end())
      throw DataError("an answer has no tokens, so there is nothing to compare");
  } else if (!document.words.empty()) {
    encode_words(document.words, tokenizer, rules.special_tokens, out.ids, out.word_of);
  } else {
    encode_document(document.text, tokenizer, rules.special_tokens, out.ids);
  }
}

void TokenizedPart::add(const Document& document, const Encoded& encoded) {
  if (labels_) add_labels(document, encoded);
  tokens_.append(encoded.ids);
  tokens_.end_document();
  if (!targets_) return;
  targets_->append(encoded.marks);
  targets_->end_document();
  targets_found_ += std::count(encoded.marks.begin(), encoded.marks.end(), 1);
}

/// A document's own label, or of each token that of the word which begins with it.
void TokenizedPart::add_labels(const Document& document, const Encoded& encoded) {
  const auto before = std::ssize(labels_found_.numbers());
  if (labels_as_.of == LabelsOf::documents) labels_found_.add(document.labels[0], document.place);
  for (const std::int32_t word : encoded.word_of) {
    if (word < 0) {
      labels_found_.add_none();
    } else {
      labels_found_.add(document.labels[static_cast<std::size_t>(word)], document.place);
    }
  }
  label_counts_.push_back(std::ssize(labels_found_.numbers()) - before);
}

PartFindings TokenizedPart::findings() const {
  return {.tokens = tokens_.extent(), .targets = targets_found_, .labels = labels_found_};
}

TokenizeSummary TokenizedPart::place(std::span<const PartFindings> all,
                                     const std::optional<LabelNames>& known) {
  MegatronExtent before, whole;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < std::ssize(all); ++i) {
    const PartFindings& part = all[static_cast<std::size_t>(i)];
    if (i < index_) before += part.tokens;
    whole += part.tokens;
    targets += part.targets;
  }
  if (whole.documents == 0) {
    throw DataError(fmt::format("no document in the inputs, {} is not made: all of them are empty",
                                megatron_bin(prefix_).string()));
  }
  TokenizeSummary summary{.documents = whole.documents, .tokens = whole.elements};
  if (pairs_) summary.pairs = whole.documents / 2;
  if (targets_) {
    if (targets == 0)
      throw DataError("no document of the inputs has anything that the template learns");
    summary.targets = targets;
    targets_->place(before, whole);
  }
  if (labels_) {
    summary.labels = labels_as_;
    summary.labels->names = label_names(labels_as_.key, labels_of_parts(all), known);
    if (summary.labels->names.empty())
      throw DataError(fmt::format(
          "no word of the inputs has a token, so no label counts, and {} is not made: do "
          "the lists that --words names hold words?",
          megatron_bin(prefix_).string()));
    place_labels(extent_of_labels(before, labels_as_.of), extent_of_labels(whole, labels_as_.of),
                 *summary.labels);
  }
  tokens_.place(before, whole);
  return summary;
}

void TokenizedPart::place_labels(const MegatronExtent& before, const MegatronExtent& all,
                                 const LabelNames& names) {
  const std::int32_t none = names.of == LabelsOf::words ? 1 : 0;       // elements for it
  std::vector<std::int32_t> element_of(labels_found_.names().size());  // by number of the name
  for (const auto& [label, name] : labels_found_.names())
    element_of[static_cast<std::size_t>(name.number)] = none + *names.find(label);
  std::span<const std::int32_t> rest = labels_found_.numbers();
  std::vector<std::int32_t> elements;  // of a document
  for (const std::int64_t count : label_counts_) {
    elements.clear();
    for (const std::int32_t number : rest.first(static_cast<std::size_t>(count)))
      elements.push_back(number < 0 ? 0 : element_of[static_cast<std::size_t>(number)]);
    labels_->append(elements);
    labels_->end_document();
    rest = rest.subspan(static_cast<std::size_t>(count));
  }
  labels_->place(before, all);
}

void TokenizedPart::publish(const Tokenizer& tokenizer, const TokenizeSummary& summary) {
  // What was there ends with its index, before anything beside it changes.
  remove_durably(megatron_idx(prefix_));
  forget_tokenizer(tokenizer_beside(prefix_));
  forget_targets(prefix_);
  forget_labels(prefix_);
  forget_pairs(prefix_);
  if (targets_) targets_->publish();
  if (labels_) {
    labels_->publish();
    write_label_names(label_names_file(prefix_), *summary.labels);
  }
  if (summary.pairs) write_pairs(prefix_, *summary.pairs);
  keep_tokenizer(tokenizer_beside(prefix_), tokenizer);
  tokens_.publish();
}

WordCounts count_words(std::span<const fs::path> inputs, TokenizePart part,
                       const TokenizeProgress& progress, const DocumentRules& rules) {
  Tokenizer words = Tokenizer::parse(gpt2_tokenizer_json({}), "GPT-2's pattern");
  WordCounts counts;
  const std::function<void(std::string_view)> count = [&](std::string_view word) {
    counts.add(word);
  };
  read_part(inputs, part, rules, progress,
            [&](const Document& document) { words.for_each_word(document.text, count); });
  return counts;
}

std::string learn_tokenizer(const WordCounts& words, std::int64_t vocab,
                            const std::function<void(std::int64_t)>& progress) {
  TESSERA_CHECK(vocab >= kSmallestLearnedVocab, "a vocabulary of {}", vocab);
  const auto untrained = parse_tokenizer_json(gpt2_tokenizer_json({}), "GPT-2's bytes");
  const auto& bytes = std::get<BpeModel>(untrained.model).byte_ids;
  return gpt2_tokenizer_json(learn_merges(words, bytes, vocab - 1, progress));
}

}  // namespace tessera::io
