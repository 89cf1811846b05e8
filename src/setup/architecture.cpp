#include "setup/architecture.hpp"

#include "io/hf_config.hpp"

namespace tessera::setup {

std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory) {
  std::vector<deck::ArchitectureKey> keys;
  const auto path = std::filesystem::path(directory) / "config.json";
  for (const io::HfKey& k : io::read_hf_config(path).keys)
    keys.push_back({k.key, k.value, k.place});
  return keys;
}

}  // namespace tessera::setup
