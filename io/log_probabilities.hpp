// What a model says of the documents of token files, kept in a file of JSON: log p of each
// document, the sum over its tokens that count as targets. It says which model and which bytes of
// data that is of, so that whoever reads it later can tell whether it is of theirs.
//
//   {"format": 2, "model": "0123456789abcdef", "corpora": [
//     {"files": [{"path": "...", "bytes": 1234, "hash": "0123456789abcdef"}, ...],
//      "log_probabilities": [-12.5, ...]}]}
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/data_identity.hpp"

namespace tessera::io {

struct LogProbabilities {
  std::int64_t format = 2;  // of 1, `model` is of the model's directory alone
  std::uint64_t model = 0;  // a hash of it
  struct Corpus {
    std::vector<DataFile> files;  // identify()
    std::vector<double> documents;
  };
  std::vector<Corpus> corpora;
};

/// A hash of all that a Hugging Face directory says of its model: config.json and every byte of its
/// weights; of a directory of adapters, of these and of their base's. Reads all of it.
std::uint64_t hash_model(const std::filesystem::path& directory);

/// DataError, naming file and place, for what is no such file.
LogProbabilities read_log_probabilities(const std::filesystem::path& file);
/// Whole or not at all.
void write_log_probabilities(const std::filesystem::path& file, const LogProbabilities& all);

}  // namespace tessera::io
