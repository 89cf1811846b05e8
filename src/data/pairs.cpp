#include "data/pairs.hpp"

#include <algorithm>
#include <filesystem>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "data/samples.hpp"
#include "deck/schema.hpp"
#include "io/token_pairs.hpp"
#include "io/token_targets.hpp"

namespace tessera::data {
namespace {

constexpr const char* kRemedy = "make it with tessera evaluate DECK --reference";

/// Where documents of a range of tokens end.
std::vector<std::int64_t> ends_of(const io::TokenCorpus& corpus, Range tokens) {
  std::vector<std::int64_t> ends;
  for_each_document_end(corpus, tokens, [&](std::int64_t end) { ends.push_back(end); });
  return ends;
}

io::LogProbabilities read_reference(const deck::Deck& deck) {
  const std::filesystem::path file = *deck.task.reference;
  if (!std::filesystem::exists(file)) {
    throw DataError(fmt::format("task.reference: {} is not there: {}", file.string(), kRemedy));
  }
  return io::read_log_probabilities(file);
}

}  // namespace

References::References(const io::TokenCorpus& corpus, std::vector<double> log_p)
    : ends_(ends_of(corpus, {0, corpus.tokens()})), log_p_(std::move(log_p)) {
  if (ends_.size() == log_p_.size()) return;
  throw DataError(fmt::format(
      "{} for {}", count_text(std::ssize(log_p_), "log probability", "log probabilities"),
      count_text(std::ssize(ends_), "document")));
}

double References::at(std::int64_t token) const {
  const auto found = std::ranges::upper_bound(ends_, token);
  TESSERA_CHECK(found != ends_.end(), "token {} of documents with references", token);
  return log_p_[static_cast<std::size_t>(found - ends_.begin())];
}

void check_pairs(const deck::Deck& deck, const io::TokenCorpus& corpus, const std::string& name) {
  std::int64_t begin = 0;
  for (const io::TokenCorpus::TokenFile& file : corpus.files()) {
    const auto pairs = io::pairs_of(file);
    const std::vector<std::int64_t> ends = ends_of(corpus, {begin, begin + file.tokens});
    if (!pairs || 2 * *pairs != std::ssize(ends) || !io::targets_of(file)) {
      throw DataError(fmt::format(
          "{}: {}: its documents are no pairs of answers, which task.kind = \"{}\" compares: make "
          "it with tessera tokenize --pairs",
          name, file.file.path().string(), enum_word(deck.task.kind)));
    }
    begin += file.tokens;
  }
}

References open_references(const deck::Deck& deck, const io::TokenCorpus& corpus) {
  const std::vector<io::DataFile> files = io::identify(corpus);
  io::LogProbabilities all = read_reference(deck);
  std::string why = "it is of no data at all";
  for (io::LogProbabilities::Corpus& of : all.corpora) {
    const auto difference = io::find_difference(of.files, files);
    if (!difference) return {corpus, std::move(of.documents)};
    why = *difference;
  }
  throw DataError(fmt::format("task.reference: {} is of other data than {}: {}: {}",
                              *deck.task.reference, corpus.files().front().file.path().string(),
                              why, kRemedy));
}

std::uint64_t hash_reference_model(const deck::Deck& deck) {
  Hasher hash;
  hash.add(io::hash_model(*deck.model.init_from));
  const bool codes = deck.model.frozen.type != deck::FrozenType::none;
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    const bool of_codes = row.name == "frozen.type" || row.name == "frozen.block";
    if (row.name == "model.context" || row.name.starts_with("model.rope_") || (codes && of_codes))
      hash.add(row.name).add(std::string_view(deck::value_text(row.field.get(deck))));
  }
  return hash.value();
}

void check_reference_model(const deck::LoadedDeck& loaded) {
  const deck::Deck& deck = loaded.deck;
  const io::LogProbabilities all = read_reference(deck);
  const bool alone = all.format == 1;
  if (all.model == (alone ? io::hash_model(*deck.model.init_from) : hash_reference_model(deck)))
    return;
  throw DataError(fmt::format(
      "{}: task.reference: {} is of another model than model.init_from = {} is now, or of other "
      "positions (model.context, rope_*) in it or codes of it (frozen.type, block): {}",
      loaded.where("task.reference"), *deck.task.reference, *deck.model.init_from, kRemedy));
}

}  // namespace tessera::data
