// Text files into token files, in parts that run side by side. Each part keeps its tokens until it
// is known how many precede them, then all write into the files of the whole at once: the bytes do
// not depend on the number of parts. What belongs to the tokens, which of them are targets and what
// the documents' labels are, becomes files beside them (io/token_targets.hpp, io/token_labels.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/bpe_training.hpp"
#include "io/document_reader.hpp"
#include "io/megatron.hpp"
#include "io/token_labels.hpp"
#include "io/tokenizer.hpp"

namespace tessera::io {

/// ids = a document of text, between the tokens that the tokenizer's post-processor adds if it is
/// `framed`; it ends with the end-of-text token, if there is one and it does not end so already.
void encode_document(std::string_view text, Tokenizer& tokenizer, bool framed,
                     std::vector<std::int32_t>& ids);

/// `ids` becomes those of what a template has made, `marks`: of each whether it is learned.
void encode_pieces(std::span<const TemplatePiece> pieces, Tokenizer& tokenizer,
                   std::vector<std::int32_t>& ids, std::vector<std::int32_t>& marks);

/// How many tokens encode_document() puts behind a text.
std::int64_t closing_tokens(const Tokenizer& tokenizer, bool framed);
/// Leaves `longest` tokens of a document that has more: its first ones and its `closing` last.
void cut_document(std::vector<std::int32_t>& ids, std::int64_t longest, std::int64_t closing);

/// The same of a list of words, each of which is encoded by itself; a tokenizer whose words have
/// their spaces in them is given one before each but the first. `word_of`: of the first token of
/// each word its number, of others -1.
void encode_words(std::span<const std::string> words, Tokenizer& tokenizer, bool framed,
                  std::vector<std::int32_t>& ids, std::vector<std::int32_t>& word_of);

/// What a part found, for all others.
struct PartFindings {
  MegatronExtent tokens;
  std::int64_t targets = 0;  // tokens that a template has learned
  LabelsFound labels;

  /// As text, and again from it.
  std::string pack() const;
  static PartFindings unpack(const std::string& packed);
};

struct TokenizeSummary {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::optional<std::int64_t> targets;  // tokens that count, where there is a template
  std::optional<std::int64_t> pairs;    // of documents, where the rules make such
  std::optional<LabelNames> labels;
};

/// One part of the inputs in tokens. In order: all parts are made, each is told what all found,
/// each is placed, and the first publishes. What was not published is removed by the destructors.
class TokenizedPart {
 public:
  /// Tokenizes its part, as read_part() finds it, without empty documents; a document of text ends
  /// with the tokenizer's end-of-text token, if it has one and does not end so already. Of what a
  /// template makes, all text between two special tokens that counts alike is encoded at once, and
  /// special tokens that it spells are no such tokens: they come from the template alone.
  TokenizedPart(std::span<const std::filesystem::path> inputs, const std::filesystem::path& prefix,
                Tokenizer& tokenizer, TokenizePart part, const TokenizeProgress& progress,
                const DocumentRules& rules = {});

  PartFindings findings() const;

  /// Writes the part into the files of the whole, of which these are all parts, in order. DataError
  /// if there is no document in any of them, or nothing to learn, and for labels of several kinds
  /// or, where `known` lists names, of others. The same on every part.
  TokenizeSummary place(std::span<const PartFindings> all, const std::optional<LabelNames>& known);

  /// Gives PREFIX.bin and .idx and what belongs to them their names, the index last; keeps the
  /// tokenizer and the end of documents beside (io/tokenizer_files.hpp). What there was of that
  /// PREFIX is gone before, so that nothing of another text lies beside the new tokens.
  void publish(const Tokenizer& tokenizer, const TokenizeSummary& summary);

 private:
  struct Encoded;
  static void encode(const Document& document, Tokenizer& tokenizer, const DocumentRules& rules,
                     Encoded& out);
  void add(const Document& document, const Encoded& encoded);
  void add_labels(const Document& document, const Encoded& encoded);
  void place_labels(const MegatronExtent& before, const MegatronExtent& all,
                    const LabelNames& names);

  std::filesystem::path prefix_;
  std::int64_t index_;
  bool pairs_;
  LabelNames labels_as_;  // all but the names
  std::int64_t targets_found_ = 0;
  LabelsFound labels_found_;
  std::vector<std::int64_t> label_counts_;  // of each document
  MegatronShare tokens_;
  std::unique_ptr<MegatronShare> targets_;  // where there is a template
  std::unique_ptr<MegatronShare> labels_;   // where the rules ask for them
};

/// How often each word of a part of the inputs occurs, cut as GPT-2 does.
WordCounts count_words(std::span<const std::filesystem::path> inputs, TokenizePart part,
                       const TokenizeProgress& progress, const DocumentRules& rules = {});

/// The bytes and the token that ends a document.
inline constexpr std::int64_t kSmallestLearnedVocab = 257;

/// A tokenizer.json of `vocab` tokens, of GPT-2's form, learned from the words of all parts; of
/// fewer tokens if no more pairs occur twice.
std::string learn_tokenizer(const WordCounts& words, std::int64_t vocab,
                            const std::function<void(std::int64_t)>& progress = {});

}  // namespace tessera::io
