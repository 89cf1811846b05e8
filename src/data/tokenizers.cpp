#include "data/tokenizers.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/error.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/file.hpp"
#include "io/hugging_face.hpp"
#include "io/json.hpp"
#include "io/tokenizer_files.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kValidation = "data.validation";

void append(std::vector<KnownTokenizer>& all, const std::vector<KnownTokenizer>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::string shown(const KnownTokenizer& known, const io::Tokenizer& tokenizer) {
  return fmt::format("that of {}, {} ({} tokens)", known.key, known.path.string(),
                     tokenizer.vocab());
}

void check_vocabulary(const deck::LoadedDeck& loaded, const KnownTokenizer& known,
                      const io::Tokenizer& tokenizer) {
  const std::int64_t vocab = loaded.deck.model.vocab;
  if (!known.key.starts_with("data.") || tokenizer.vocab() <= vocab) return;
  throw DataError(fmt::format(
      "{}: model.vocab = {}, but {} was made with {}, which has {} tokens: set model.vocab = {} or "
      "more, or data.accept_tokenizer = true if its higher tokens are not used",
      loaded.where("model.vocab"), vocab, known.key, known.path.string(), tokenizer.vocab(),
      tokenizer.vocab()));
}

/// Nothing for a model's tokenizer of a kind that is not read here: what is unknown is not
/// compared.
std::optional<io::Tokenizer> open_known(const KnownTokenizer& known) {
  try {
    return io::Tokenizer::open(known.path);
  } catch (const io::UnsupportedError&) {
    if (known.key.starts_with("data.")) throw;
    return std::nullopt;
  }
}

}  // namespace

std::vector<KnownTokenizer> tokenizers_of_data(std::string_view key,
                                               std::span<const std::string> entries) {
  std::vector<KnownTokenizer> all;
  for (const std::string& entry : entries) {
    const fs::path path = io::tokenizer_beside(entry);
    if (io::path_exists(path)) all.push_back({std::string(key), path});
  }
  return all;
}

std::optional<fs::path> tokenizer_of_directory(const fs::path& directory) {
  fs::path path = directory / "tokenizer.json";
  if (io::path_exists(path)) return path;
  if (!io::path_exists(directory / io::kPeftConfigFile)) return std::nullopt;
  return tokenizer_of_directory(io::base_directory(directory));
}

std::optional<fs::path> tokenizer_of_checkpoint(const fs::path& checkpoint) {
  if (const auto own = tokenizer_of_directory(checkpoint)) return own;
  // run/checkpoints/step_00000100
  return tokenizer_of_directory(fs::absolute(checkpoint).parent_path().parent_path());
}

std::vector<KnownTokenizer> tokenizers_of_model(const deck::Deck& deck) {
  std::vector<KnownTokenizer> all;
  fs::path checkpoint;
  if (const auto* given = std::get_if<std::string>(&deck.run.resume)) {
    checkpoint = *given;
  } else if (std::get<deck::Resume>(deck.run.resume) != deck::Resume::never) {
    const auto there = io::list_checkpoints(fs::path(deck::run_directory(deck)) / "checkpoints");
    if (!there.empty()) checkpoint = there.front().path;
  }
  if (const auto path = checkpoint.empty() ? std::nullopt : tokenizer_of_checkpoint(checkpoint))
    all.push_back({"the run to go on from", *path});
  if (!deck.model.init_from) return all;
  if (const auto path = tokenizer_of_directory(*deck.model.init_from))
    all.push_back({"model.init_from", *path});
  return all;
}

std::vector<KnownTokenizer> tokenizers_of_run(const deck::Deck& deck) {
  std::vector<KnownTokenizer> all =
      tokenizers_of_data("data.train", deck::paths_of(deck.data.train));
  append(all, tokenizers_of_model(deck));
  append(all, tokenizers_of_data(kValidation, deck.data.validation));
  return all;
}

std::optional<fs::path> common_tokenizer(const deck::LoadedDeck& loaded,
                                         std::span<const KnownTokenizer> all) {
  const KnownTokenizer* reference = nullptr;
  std::optional<io::Tokenizer> first;
  for (const KnownTokenizer& known : all) {
    if (loaded.deck.data.accept_tokenizer) break;
    auto other = open_known(known);
    if (!other) continue;
    check_vocabulary(loaded, known, *other);
    if (!first) {
      reference = &known, first = std::move(other);
      continue;
    }
    const std::string difference = first->difference(*other);
    if (difference.empty()) continue;
    throw DataError(fmt::format(
        "{}: two tokenizers in one run: {} and {}: {}. Make all with one of them, or set "
        "data.accept_tokenizer = true",
        loaded.where(known.key), shown(*reference, *first), shown(known, *other), difference));
  }
  // Validation data say nothing of what the model knows.
  if (all.empty() || all.front().key == kValidation) return std::nullopt;
  return all.front().path;
}

void check_given_tokenizer(const std::string& name, const KnownTokenizer& known,
                           const std::string& given, const io::Tokenizer& tokenizer,
                           std::string_view otherwise) {
  const auto own = open_known(known);
  if (!own) return;
  const std::string difference = own->difference(tokenizer);
  if (difference.empty()) return;
  throw DataError(fmt::format(
      "{} was trained with {} ({} tokens), not with --tokenizer {} ({} tokens): {}. Leave it out, "
      "or add {}",
      name, known.path.string(), own->vocab(), given, tokenizer.vocab(), difference, otherwise));
}

std::optional<std::vector<std::int32_t>> text_bytes_of_validation(const deck::Deck& deck) {
  auto all = tokenizers_of_data(kValidation, deck.data.validation);
  append(all, tokenizers_of_run(deck));
  for (const KnownTokenizer& known : all) {
    try {
      return io::Tokenizer::open(known.path).text_bytes();
    } catch (const DataError&) {  // common_tokenizer() says what is wrong where that matters
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::data
