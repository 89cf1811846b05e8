#include "setup/architecture.hpp"

#include <algorithm>

#include "io/hf_config.hpp"
#include "io/tokenizer_files.hpp"

namespace tessera::setup {

std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory) {
  std::vector<deck::ArchitectureKey> keys;
  const auto path = std::filesystem::path(directory) / "config.json";
  const io::HfConfig config = io::read_hf_config(path);
  for (const io::HfKey& k : config.keys) keys.push_back({io::deck_key(k.key), k.value, k.place});
  if (config.architecture.task != "mlm" || config.architecture.mask_token >= 0) return keys;
  const auto tokenizer = std::filesystem::path(directory) / "tokenizer.json";
  if (const auto mask = io::mask_token_of(tokenizer))
    keys.push_back({"task.mask_token", std::int64_t{*mask}, tokenizer.string()});
  return keys;
}

}  // namespace tessera::setup
