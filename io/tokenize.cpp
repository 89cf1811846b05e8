#include "io/tokenize.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/file.hpp"
#include "io/token_targets.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

/// Of labels, which are one a document.
MegatronExtent documents_of(const MegatronExtent& tokens) {
  return {tokens.documents, tokens.documents, tokens.documents};
}

std::vector<LabelsFound> labels_of_parts(std::span<const PartFindings> all) {
  std::vector<LabelsFound> labels;
  for (const PartFindings& part : all) labels.push_back(part.labels);
  return labels;
}

/// Tokens of a document, and of one that a template has made whether each counts as target.
struct Encoded {
  std::vector<std::int32_t> ids, marks;
};

void encode_pieces(std::span<const TemplatePiece> pieces, Tokenizer& tokenizer, Encoded& out) {
  EncodeRules rules{.start = TextStart::document, .special_tokens = false};
  std::string text;  // of several pieces that count alike
  bool learned = false;
  const auto encode_waiting = [&] {
    if (text.empty()) return;
    tokenizer.encode(text, out.ids, rules);
    out.marks.resize(out.ids.size(), learned ? 1 : 0);
    rules.start = TextStart::text;
    text.clear();
  };
  for (const TemplatePiece& piece : pieces) {
    if (piece.token || piece.learned != learned) encode_waiting();
    learned = piece.learned;
    text += piece.text;
    if (!piece.token) continue;
    out.ids.push_back(*piece.token);
    out.marks.push_back(learned ? 1 : 0);
    rules.start = TextStart::token;
  }
  encode_waiting();
}

}  // namespace

void encode_document(std::string_view text, Tokenizer& tokenizer, bool framed,
                     std::vector<std::int32_t>& ids) {
  ids.clear();
  const SpecialFrame& frame = tokenizer.frame();
  if (framed) ids.assign(frame.before.begin(), frame.before.end());
  tokenizer.encode(text, ids);
  if (framed) ids.insert(ids.end(), frame.behind.begin(), frame.behind.end());
  const auto end = tokenizer.end_of_text();
  const bool ended = framed && !ids.empty() && end == ids.back();
  if (end && !ended) ids.push_back(*end);
}

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
      tokens_(prefix, token_type(tokenizer.vocab()), part.index) {
  if (rules.labels != LabelSource::none) {
    label_key_ = rules.labels == LabelSource::folder ? "folder" : rules.label_key;
    labels_ = std::make_unique<MegatronShare>(labels_prefix(prefix), DType::i32, index_);
  }
  if (rules.chat)
    targets_ = std::make_unique<MegatronShare>(targets_prefix(prefix), DType::u8, index_);
  Encoded encoded;
  read_part(inputs, part, rules, progress, [&](const Document& document) {
    if (document.text.empty() && document.pieces.empty()) return;
    encoded.ids.clear(), encoded.marks.clear();
    try {
      if (document.pieces.empty()) {
        encode_document(document.text, tokenizer, rules.special_tokens, encoded.ids);
      } else {
        encode_pieces(document.pieces, tokenizer, encoded);
      }
    } catch (Error& e) {
      e.add_context(place_text(document.place));
      throw;
    }
    if (!encoded.ids.empty()) add(document, encoded.ids, encoded.marks);
  });
}

void TokenizedPart::add(const Document& document, std::span<const std::int32_t> ids,
                        std::span<const std::int32_t> marks) {
  if (document.label) labels_found_.add(*document.label, document.place);
  tokens_.append(ids);
  tokens_.end_document();
  if (!targets_) return;
  targets_->append(marks);
  targets_->end_document();
  targets_found_ += std::count(marks.begin(), marks.end(), 1);
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
  if (targets_) {
    if (targets == 0)
      throw DataError("no document of the inputs has anything that the template learns");
    summary.targets = targets;
    targets_->place(before, whole);
  }
  if (labels_) {
    summary.labels = label_names(label_key_, labels_of_parts(all), known);
    place_labels(documents_of(before), documents_of(whole), *summary.labels);
  }
  tokens_.place(before, whole);
  return summary;
}

void TokenizedPart::place_labels(const MegatronExtent& before, const MegatronExtent& all,
                                 const LabelNames& names) {
  std::vector<std::int32_t> label_of(labels_found_.names().size());  // by number of the name
  for (const auto& [label, name] : labels_found_.names())
    label_of[static_cast<std::size_t>(name.number)] = *names.find(label.name);
  for (const std::int32_t number : labels_found_.documents()) {
    labels_->append({&label_of[static_cast<std::size_t>(number)], 1});
    labels_->end_document();
  }
  labels_->place(before, all);
}

void TokenizedPart::publish(const Tokenizer& tokenizer, const TokenizeSummary& summary) {
  // What was there ends with its index, before anything beside it changes.
  remove_durably(megatron_idx(prefix_));
  forget_tokenizer(tokenizer_beside(prefix_));
  forget_targets(prefix_);
  forget_labels(prefix_);
  if (targets_) targets_->publish();
  if (labels_) {
    labels_->publish();
    write_label_names(label_names_file(prefix_), *summary.labels);
  }
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
