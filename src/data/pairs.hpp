// Pairs of answers to one prompt: document 2 i of a corpus is the one that was chosen, document 2 i
// + 1 the one that was rejected. Where a task compares with a frozen reference model, what that
// says of them was computed once, and lies in the file that task.reference names.
#pragma once

#include <cstdint>
#include <vector>

#include "deck/load.hpp"
#include "io/log_probabilities.hpp"
#include "io/token_files.hpp"

namespace tessera::data {

/// log p of each document of a corpus under the reference model.
class References {
 public:
  /// `log_p`: by document. DataError where there are not as many of them as documents.
  References(const io::TokenCorpus& corpus, std::vector<double> log_p);

  /// Of the document that has this token of the corpus.
  double at(std::int64_t token) const;

 private:
  std::vector<std::int64_t> ends_;  // of documents, the token behind the last
  std::vector<double> log_p_;
};

/// DataError where documents of a corpus are no pairs: where a file was not made of such, or
/// does not say which tokens are of answers.
void check_pairs(const deck::Deck& deck, const io::TokenCorpus& corpus, const std::string& name);

/// Those of a corpus of the deck. DataError where task.reference names no such file, or one that is
/// of other data.
References open_references(const deck::Deck& deck, const io::TokenCorpus& corpus);

/// A hash of the model that a run begins with: of all that model.init_from has of it
/// (io::hash_model), of where the deck has its tokens, which may be elsewhere than where that says,
/// and of the codes that its matrices become, if they do. Reads all of the model's bytes.
std::uint64_t hash_reference_model(const deck::Deck& deck);

/// Refuses, with a DataError, a file that was made with another such model.
void check_reference_model(const deck::LoadedDeck& loaded);

}  // namespace tessera::data
