#include "verbs/model_source.hpp"

#include <nlohmann/json.hpp>

#include "core/regular_file.hpp"
#include "data/labels.hpp"
#include "data/tokenizers.hpp"
#include "deck/load.hpp"
#include "deck/schema.hpp"
#include "io/finite.hpp"
#include "io/tokenizer_files.hpp"
#include "io/utf8.hpp"
#include "optim/optimizer.hpp"
#include "setup/architecture.hpp"
#include "setup/inputs.hpp"

namespace tessera::verbs {
namespace fs = std::filesystem;
namespace {

/// A deck for a model directory, through the deck's own schema and checks.
deck::Deck deck_of(const fs::path& directory) {
  if (io::valid_utf8_prefix(directory.string()) != directory.string().size()) {
    throw DataError(
        fmt::format("{}: a deck, which is UTF-8, cannot name this path: rename it, or link to it",
                    directory.string()));
  }
  const std::string quoted =
      nlohmann::json(directory.string()).dump();  // JSON's escapes are TOML's too
  const std::string text = fmt::format(
      "run.steps = 1\nmodel.init_from = {}\ndata.train = [\"none\"]\nbatch.micro = 2\n"
      "batch.global = 2\noptimizer.lr = 1.0\n",
      quoted);
  return deck::parse_deck(text, directory.string(), {}, setup::read_architecture).deck;
}

}  // namespace

train::ParameterSource checked(const train::ParameterSource& source, std::optional<DType> finite_as,
                               const PlaceOf& place_of) {
  if (!finite_as) return source;
  return [=, type = *finite_as](const model::ParamDesc& p, Range range, std::span<float> out) {
    source(p, range, out);
    const auto bad = io::find_non_finite(out, type);
    if (!bad) return;
    throw io::non_finite_error(place_of(p, range.begin + *bad), out[static_cast<std::size_t>(*bad)],
                               type, "--allow-non-finite");
  };
}

std::optional<io::HeldCheckpoint> find_checkpoint(const fs::path& path) {
  if (fs::exists(path / io::kManifestFile))
    return io::HeldCheckpoint{path, io::CheckpointHold(path)};
  for (const auto& candidate : {path, path / "checkpoints"}) {
    if (auto newest = io::hold_newest(candidate)) return newest;
  }
  return std::nullopt;
}

/// The model of a Hugging Face directory.
static ModelSource open_directory(const fs::path& path, std::optional<DType> finite_as,
                                  const std::string& weights) {
  if (weights == optim::kEma) {
    throw DataError(fmt::format("{} is a Hugging Face directory, which has no averaged weights",
                                path.string()));
  }
  auto model = std::make_shared<io::HfModel>(io::HfModel::open(path));
  const deck::Deck deck = deck_of(path);
  const auto read = [model](const model::ParamDesc& p, Range range, std::span<float> out) {
    model->read(p.name, range.begin, out);
  };
  const auto place_of = [model](const model::ParamDesc& p, std::int64_t element) {
    return model->place(p.name, element);
  };
  return {.deck = to_toml(deck),
          .model = deck.model,
          .task = deck.task,
          .name = path.string(),
          .parameters = checked(read, finite_as, place_of),
          .tokenizer = data::tokenizer_of_directory(path),
          .labels = data::labels_of_directory(*model),
          .left_out = model->left_out(path.string()),
          .is_hugging_face = true,
          .codes = model->codes(),
          .stored_type = model->stored_dtype()};
}

static ModelSource open_checkpoint(const fs::path& path, std::optional<DType> finite_as,
                                   const std::string& weights) {
  auto checkpoint = std::make_shared<io::Checkpoint>(io::Checkpoint::open(path));
  const std::string& text = checkpoint->header().deck;
  const deck::Deck deck = deck::parse_deck(text, path.string()).deck;
  const auto units = model::model_units(setup::model_config(deck.model, deck.task));
  if (weights == optim::kEma && !train::has_state(*checkpoint, units, weights))
    throw train::no_averaged_weights(path);
  const auto names = data::labels_of_checkpoint(path);
  const auto read = [=](const model::ParamDesc& p, Range range, std::span<float> out) {
    checkpoint->read(p.name, train::weights_in(*checkpoint, p.name, weights), range, DType::f32,
                     std::as_writable_bytes(out));
  };
  const auto place_of = [path](const model::ParamDesc& p, std::int64_t element) {
    return fmt::format("{}: {}{}", path.string(), p.name, io::index_text(p.shape, element));
  };
  return {.deck = text,
          .model = deck.model,
          .task = deck.task,
          .name = path.string(),
          .parameters = checked(read, finite_as, place_of),
          .tokenizer = data::tokenizer_of_checkpoint(path),
          .labels = names ? std::optional(io::read_label_names(*names)) : std::nullopt,
          .left_out = {},
          .is_hugging_face = false};
}

ModelSource open_model(const fs::path& path, std::optional<DType> finite_as,
                       const std::string& weights) {
  if (io::is_model_directory(path)) return open_directory(path, finite_as, weights);
  const auto found = find_checkpoint(path);
  if (!found && !fs::exists(path)) {
    throw DataError(fmt::format(
        "{} is not here{}: give a run directory, a checkpoint or a Hugging Face directory",
        path.string(), full_path_text(path)));
  }
  if (!found) {
    throw DataError(fmt::format(
        "{} is no checkpoint, holds none, and is no Hugging Face directory (config.json)",
        path.string()));
  }
  return open_checkpoint(found->path, finite_as, weights);
}

train::ParameterSource tell_progress(const ModelSource& source, ProgressLine& progress) {
  const auto units = model::model_units(setup::model_config(source.model, source.task));
  const std::int64_t total = model::parameter_count(units) * size_of(DType::f32);
  return [read = source.parameters, &progress, total, done = std::int64_t{0}](
             const model::ParamDesc& p, Range range, std::span<float> out) mutable {
    read(p, range, out);
    progress.at(done += static_cast<std::int64_t>(out.size_bytes()), total);
  };
}

void check_tokenizer(const io::Tokenizer& tokenizer, const ModelSource& source) {
  if (tokenizer.vocab() > source.model.vocab) {
    throw DataError(fmt::format("the tokenizer has {} tokens, {} {}: it is another model's",
                                tokenizer.vocab(), source.name, source.model.vocab));
  }
}

io::Tokenizer choose_tokenizer(const ModelSource& source, const std::string& given,
                               bool accept_other) {
  std::optional<io::Tokenizer> own;
  if (source.tokenizer) own = io::open_kept_tokenizer(*source.tokenizer);
  if (given.empty() && !own && source.model.vocab != 256) {
    throw DeckError(
        fmt::format("{} says nothing of its tokenizer: give --tokenizer bytes or a tokenizer.json",
                    source.name));
  }
  if (given.empty() && own) {
    check_tokenizer(*own, source);
    return *std::move(own);
  }
  io::Tokenizer tokenizer =
      given.empty() || given == "bytes" ? io::Tokenizer::bytes() : io::open_kept_tokenizer(given);
  if (own && !accept_other) {
    data::check_given_tokenizer(source.name, {.key = "the model", .path = *source.tokenizer}, given,
                                tokenizer, "--accept-tokenizer");
  }
  check_tokenizer(tokenizer, source);
  return tokenizer;
}

io::HfArchitecture hf_architecture(const ModelSource& source) {
  deck::Deck deck;
  deck.model = source.model, deck.task = source.task;
  if (deck::is_of_language(deck.task.kind)) deck.task.kind = deck::TaskKind::lm;
  io::HfArchitecture architecture;
  for (const io::HfField& field : io::kHfFields) {
    const deck::Value value = deck::find_row(io::deck_key(field.key))->field.get(deck);
    if (value.unset()) continue;
    std::visit(
        [&](auto member) {
          using T = std::remove_cvref_t<decltype(architecture.*member)>;
          architecture.*member = std::get<T>(value.data);
        },
        field.member);
  }
  return architecture;
}

}  // namespace tessera::verbs
