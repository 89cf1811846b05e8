#include "verbs/model_source.hpp"

#include "core/enums.hpp"
#include "deck/load.hpp"
#include "io/checkpoint_directory.hpp"
#include "train/setup.hpp"

namespace tessera::verbs {
namespace {

/// A [model] section from the keys of a config.json, through the deck's own schema and checks.
deck::ModelSection model_section(const std::filesystem::path& directory) {
  const std::string text = fmt::format(
      "[run]\nsteps = 1\n[model]\ninit_from = \"{}\"\n[data]\ntrain = [\"none\"]\n[batch]\nglobal "
      "= 1\n[optimizer]\nlr = 1.0\n",
      directory.string());
  return deck::parse_deck(text, directory.string(), {}, train::read_architecture).deck.model;
}

}  // namespace

std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / kManifestFile)) return path;
  for (const auto& candidate : {path, path / "checkpoints"}) {
    const auto entries = list_checkpoints(candidate);
    if (!entries.empty()) return entries.front().path;
  }
  return std::nullopt;
}

ModelSource open_model(const std::filesystem::path& path) {
  if (std::filesystem::exists(path / "config.json")) {
    auto model = std::make_shared<HfModel>(HfModel::open(path));
    return {.model = model_section(path),
            .name = path.string(),
            .parameters = [model](const model::ParamDesc& p, Range range, std::span<float> out) {
              model->read(p.name, range.begin, out);
            }};
  }
  const auto found = find_checkpoint(path);
  if (!found) {
    throw DataError(fmt::format(
        "{} is no checkpoint, holds none, and is no Hugging Face directory (config.json)",
        path.string()));
  }
  auto checkpoint = std::make_shared<Checkpoint>(Checkpoint::open(*found));
  return {.model = deck::parse_deck(checkpoint->header().deck, found->string()).deck.model,
          .name = found->string(),
          .parameters = [checkpoint](const model::ParamDesc& p, Range range, std::span<float> out) {
            checkpoint->read(p.name, "master", range, DType::f32, std::as_writable_bytes(out));
          }};
}

HfArchitecture hf_architecture(const deck::ModelSection& m) {
  return {.family = std::string(enum_word(m.family)),
          .layers = m.layers,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .hidden = m.hidden,
          .ffn_hidden = m.ffn_hidden,
          .vocab = m.vocab,
          .context = m.context,
          .norm_eps = m.norm_eps,
          .rope_theta = m.position == deck::Position::rope ? m.rope_theta : 0,
          .norm = std::string(enum_word(m.norm)),
          .position = std::string(enum_word(m.position)),
          .activation = std::string(enum_word(m.activation)),
          .tied_embeddings = m.tied_embeddings,
          .bias = m.bias};
}

}  // namespace tessera::verbs
