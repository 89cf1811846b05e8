#include "io/log_probabilities.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/hash.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/file.hpp"
#include "io/hugging_face.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargest = std::int64_t{4} << 30;  // of a file, in bytes

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::uint64_t hash_of(const JsonCursor& value) {
  std::uint64_t hash = 0;
  const std::string& text = value.text();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    value.expected("16 hexadecimal digits");
  return hash;
}

/// What a directory's files say, by name.
void add_directory(const fs::path& directory, Hasher& hash) {
  std::vector<fs::path> files = files_in(directory);
  std::erase_if(files, [](const fs::path& path) {
    const std::string name = path.filename().string();
    return path.extension() != ".safetensors" && name != "config.json" &&
           name != "adapter_config.json";
  });
  std::ranges::sort(files);
  for (const fs::path& path : files) {
    const File file(path, OpenMode::read);
    hash.add(std::string_view(path.filename().native())).add(hash_range(file, {0, file.size()}));
  }
}

LogProbabilities::Corpus corpus_of(const JsonCursor& value) {
  LogProbabilities::Corpus corpus;
  value["files"].for_each_item([&](const JsonCursor& file) {
    corpus.files.push_back({.path = file["path"].text(),
                            .bytes = file["bytes"].integer(0),
                            .hash = hash_of(file["hash"])});
  });
  value["log_probabilities"].for_each_item([&](const JsonCursor& log_p) {
    corpus.documents.push_back(log_p.number());
    if (corpus.documents.back() > 0) log_p.expected("the logarithm of a probability");
  });
  return corpus;
}

}  // namespace

std::uint64_t hash_model(const fs::path& directory) {
  Hasher hash;
  add_directory(directory, hash);
  if (const fs::path base = base_directory(directory); base != directory) add_directory(base, hash);
  return hash.value();
}

LogProbabilities read_log_probabilities(const fs::path& file) {
  const JsonDocument document(read_text(file, kLargest), file.string());
  const JsonCursor root = document.root();
  LogProbabilities all{.format = root["format"].integer(1, LogProbabilities().format),
                       .model = hash_of(root["model"]),
                       .corpora = {}};
  root["corpora"].for_each_item(
      [&](const JsonCursor& corpus) { all.corpora.push_back(corpus_of(corpus)); });
  return all;
}

void write_log_probabilities(const fs::path& file, const LogProbabilities& all) {
  nlohmann::ordered_json corpora = nlohmann::ordered_json::array();
  for (const LogProbabilities::Corpus& corpus : all.corpora) {
    nlohmann::ordered_json files = nlohmann::ordered_json::array();
    for (const DataFile& of : corpus.files)
      files.push_back({{"path", of.path}, {"bytes", of.bytes}, {"hash", hex(of.hash)}});
    corpora.push_back({{"files", files}, {"log_probabilities", corpus.documents}});
  }
  const nlohmann::ordered_json json = {
      {"format", all.format}, {"model", hex(all.model)}, {"corpora", corpora}};
  write_text(file, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace tessera::io
