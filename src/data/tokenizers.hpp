// The tokenizers that a run's data and its model were made with, as far as the files beside them
// say: whether they are one.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deck/load.hpp"
#include "io/tokenizer.hpp"

namespace tessera::data {

/// The tokenizer.json of something that a key of the deck names.
struct KnownTokenizer {
  std::string key;  // "data.train"
  std::filesystem::path path;
};

// Those that are there; who has none is not compared.
/// The tokenizer of a list of token files.
std::vector<KnownTokenizer> tokenizers_of_data(std::string_view key,
                                               std::span<const std::string> entries);
/// The tokenizer of the checkpoint that run.resume allows, or of its run, and of model.init_from.
std::vector<KnownTokenizer> tokenizers_of_model(const deck::Deck& deck);
/// The tokenizers of the training data, the model and the validation data, in this order.
std::vector<KnownTokenizer> tokenizers_of_run(const deck::Deck& deck);

/// The tokenizer.json in a directory.
std::optional<std::filesystem::path> tokenizer_of_directory(const std::filesystem::path& directory);
/// The tokenizer.json of a checkpoint directory, or of the run that it lies in.
std::optional<std::filesystem::path> tokenizer_of_checkpoint(
    const std::filesystem::path& checkpoint);

/// The first of all that training data or the model have; nothing if none is known. Throws
/// DataError, naming both, where two of all differ (a model's of a kind that is not read here is
/// not compared), and for data's that has more tokens than model.vocab, unless
/// data.accept_tokenizer is true.
std::optional<std::filesystem::path> common_tokenizer(const deck::LoadedDeck& loaded,
                                                      std::span<const KnownTokenizer> all);

/// Throws DataError where a tokenizer that a user gave is not the one that a model, of this name,
/// is known to be of; `otherwise`: how to take it all the same.
void check_given_tokenizer(const std::string& name, const KnownTokenizer& known,
                           const std::string& given, const io::Tokenizer& tokenizer,
                           std::string_view otherwise);

/// By token, how many bytes of text it stands for (io::Tokenizer::text_bytes), by the first
/// tokenizer that can be read: of data.validation, then of all others. Nothing if none is known.
std::optional<std::vector<std::int32_t>> text_bytes_of_validation(const deck::Deck& deck);

}  // namespace tessera::data
