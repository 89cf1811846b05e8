#include "setup/architecture.hpp"

#include <algorithm>
#include <cmath>

#include "io/hf_config.hpp"
#include "io/hugging_face.hpp"
#include "io/tokenizer_files.hpp"

namespace tessera::setup {
namespace {

/// The head that a deck wants, where that says no tokens. What the user does not say of it is as in
/// the directory.
std::optional<io::HfWantedHead> wanted_head(const std::filesystem::path& config,
                                            const deck::LoadedDeck& said) {
  std::optional<HeadWeights> head;
  if (said.explicitly_set("model.init_head")) head = said.deck.model.init_head;
  if (said.explicitly_set("task.kind")) {
    const deck::TaskKind kind = said.deck.task.kind;
    if (!deck::has_own_head(kind)) return std::nullopt;
    return io::HfWantedHead{.task = std::string(enum_word(kind)), .head = head};
  }
  if (head != HeadWeights::fresh) return std::nullopt;
  const io::HfArchitecture own = io::read_hf_config(config).architecture;
  if (own.labels == 0 && own.task != "reward") return std::nullopt;
  return io::HfWantedHead{.task = own.task, .head = head};
}

/// A language model may also compare pairs of answers, or learn from its own.
bool is_said_otherwise(const io::HfKey& key, const deck::LoadedDeck& said) {
  const auto* word = std::get_if<std::string>(&key.value);
  const bool of_language = key.key == "task.kind" && word != nullptr && *word == "lm";
  return of_language && said.explicitly_set("task.kind") &&
         deck::is_of_language(said.deck.task.kind);
}

/// What a directory of adapters says of them.
void add_adapter_keys(std::vector<deck::ArchitectureKey>& keys, const std::string& directory,
                      const io::HfConfig& base) {
  const io::PeftAdapters adapters(directory, base.architecture);
  const std::string place = (std::filesystem::path(directory) / io::kPeftConfigFile).string();
  const io::PeftConfig& said = adapters.config();
  const deck::AdapterKind kind = said.magnitudes  ? deck::AdapterKind::dora
                                 : said.sqrt_rank ? deck::AdapterKind::rslora
                                                  : deck::AdapterKind::lora;
  // dora divides by the rank, whatever PEFT does.
  const double alpha = said.magnitudes && said.sqrt_rank
                           ? adapters.alpha() * std::sqrt(static_cast<double>(adapters.rank()))
                           : adapters.alpha();
  keys.push_back({"adapter.kind", std::string(enum_word(kind)), place});
  keys.push_back({"adapter.rank", adapters.rank(), place});
  keys.push_back({"adapter.alpha", alpha, place});
  keys.push_back({"adapter.dropout", adapters.config().dropout, place, false});
  keys.push_back({"adapter.targets", adapters.targets(), place});
}

}  // namespace

std::vector<deck::ArchitectureKey> read_architecture(const std::string& directory,
                                                     const deck::LoadedDeck& said) {
  std::vector<deck::ArchitectureKey> keys;
  const std::filesystem::path base = io::base_directory(directory), path = base / "config.json";
  const io::HfConfig config = io::read_hf_config(path, wanted_head(path, said));
  const bool no_dense_layer =
      said.explicitly_set("model.head_hidden") && said.deck.model.head_hidden == 0;
  for (const io::HfKey& k : config.keys) {
    if (!k.fixed && k.key == "head_activation" && no_dense_layer) continue;
    if (is_said_otherwise(k, said)) continue;
    deck::ArchitectureKey key{io::deck_key(k.key), false, k.place, k.fixed};
    std::visit([&](const auto& value) { key.value = value; }, k.value);
    keys.push_back(std::move(key));
  }
  if (config.head == HeadWeights::fresh)
    keys.push_back({"model.init_head", std::string(enum_word(config.head)), path.string()});
  if (directory != base) add_adapter_keys(keys, directory, config);
  if (config.architecture.task != "mlm" || config.architecture.mask_token >= 0) return keys;
  const auto tokenizer = base / "tokenizer.json";
  if (const auto mask = io::mask_token_of(tokenizer))
    keys.push_back({"task.mask_token", std::int64_t{*mask}, tokenizer.string()});
  return keys;
}

}  // namespace tessera::setup
