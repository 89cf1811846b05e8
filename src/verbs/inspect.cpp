// tessera inspect: what a checkpoint, a model directory or a token file holds, and whether it is
// damaged.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/progress.hpp"
#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "data/tokenizers.hpp"
#include "deck/load.hpp"
#include "deck/problems.hpp"
#include "deck/sources.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/hf_codes.hpp"
#include "io/megatron.hpp"
#include "io/token_files.hpp"
#include "io/token_labels.hpp"
#include "io/token_targets.hpp"
#include "io/tokenizer_files.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/inputs.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

std::string model_text(const deck::ModelSection& m, const deck::TaskSection& task) {
  const auto units = model::model_units(setup::model_config(m, task));
  return fmt::format("model      {}: {}, hidden {}, {}, vocabulary {}, context {}; {} parameters\n",
                     enum_word(m.family), count_text(m.layers, "layer"), m.hidden,
                     count_text(m.heads, "head"), m.vocab, m.context,
                     model::parameter_count(units));
}

std::string tokenizer_text(const std::optional<std::filesystem::path>& path) {
  if (!path) return "tokenizer  none beside it\n";
  const io::Tokenizer tokenizer = io::open_kept_tokenizer(*path);
  return fmt::format("tokenizer  {}: {} tokens; documents {}\n", printable(path->string()),
                     tokenizer.vocab(), printable(io::document_end(tokenizer)));
}

/// Of the deck that a checkpoint was made with: the model, and in a line the rest.
std::string deck_text(const std::string& toml, const std::string& name) {
  try {
    const deck::Deck d = deck::parse_deck(toml, name).deck;
    return fmt::format("{}deck       {}: {} of {} a step, {}, lr {}, {}; all of it in {}\n",
                       model_text(d.model, d.task), printable(d.run.name),
                       count_text(d.batch.global, "sequence"), d.batch.sequence,
                       enum_word(d.optimizer.name), d.optimizer.lr, enum_word(d.precision.compute),
                       io::kManifestFile);
  } catch (const DeckError& e) {  // of another version
    return fmt::format("deck       not read by this version: {}\n", e.what());
  }
}

std::chrono::system_clock::time_point modified(const std::filesystem::path& path) {
  return std::chrono::time_point_cast<std::chrono::system_clock::duration>(
      std::chrono::file_clock::to_sys(std::filesystem::last_write_time(path)));
}

/// When and by what it was written; of a checkpoint that does not say, when its file was.
std::string written_text(const std::filesystem::path& path, const io::CheckpointHeader& header) {
  const auto info = [&](const char* key) {
    const auto found = header.info.find(key);
    return found == header.info.end() ? std::string() : printable(found->second);
  };
  std::string when = info("written");
  if (when.empty()) when = utc_text(modified(path / io::kManifestFile));
  const std::string version = info("version");
  return fmt::format("written    {}{}\n", when,
                     version.empty() ? "" : fmt::format(" by tessera {}", version));
}

/// A Hugging Face directory.
ExitCode inspect_model(const std::filesystem::path& path) {
  const ModelSource source = open_model(path, std::nullopt);
  fmt::print("{}: a Hugging Face directory\n{}{}{}", printable(path.string()),
             model_text(source.model, source.task),
             source.codes ? fmt::format("matrices   {}\n", io::to_string(*source.codes)) : "",
             tokenizer_text(source.tokenizer));
  return ExitCode::ok;
}

ExitCode inspect_checkpoint(const std::filesystem::path& path, bool verify) {
  const io::CheckpointSummary s = io::describe_checkpoint(path);
  fmt::print("{}: step {}, {}, {}, {}\n", printable(path.string()), s.header.step,
             count_text(s.header.applied_updates, "update"), count_text(s.header.samples, "sample"),
             count_text(s.header.tokens, "token"));
  const io::CheckpointLayout& layout = s.header.layout;
  std::vector<std::string> axes;
  const Mesh& mesh = layout.mesh;
  for (const Axis& a : kAxes) {
    const bool data = a.size == &Mesh::data;
    axes.push_back(fmt::format("{} {}", a.name, data ? mesh.batch_ranks() : mesh.*a.size));
    if (data && mesh.context > 1) axes.back() += fmt::format(" x context {}", mesh.context);
    if (data && mesh.experts > 1) axes.back() += fmt::format(" ({} expert)", mesh.experts);
  }
  fmt::print("written by {}: {}, ZeRO-{}; {}, {}\n", count_text(layout.world, "rank"),
             fmt::join(axes, " x "), layout.zero_stage, count_text(s.files, "file"),
             human_bytes(s.bytes));
  fmt::print("{}{}", written_text(path, s.header), deck_text(s.header.deck, path.string()));
  if (!s.header.source.empty()) fmt::print("weights    from {}\n", printable(s.header.source));
  fmt::print("{}", tokenizer_text(data::tokenizer_of_checkpoint(path)));
  if (s.header.critic_updates > 0)
    fmt::print("critic     {}, its tensors are those called critic.*\n",
               count_text(s.header.critic_updates, "update"));
  for (const auto& state : s.states) {
    fmt::print("  {:<12}{:<6}{:>6} tensors {:>14} elements {:>12}\n", state.state,
               to_string(state.type), state.tensors, state.elements, human_bytes(state.bytes));
  }
  if (!verify) return ExitCode::ok;
  const auto bad = [&] {
    ProgressLine progress("verify", ProgressLine::Unit::bytes);
    return io::verify_checkpoint(
        path, [&](std::int64_t done, std::int64_t total) { progress.at(done, total); });
  }();
  for (const auto& b : bad)
    fmt::print("{}\n", printable(fmt::format("{}: {} at byte {} ({} bytes): {}", b.file, b.dataset,
                                             b.offset, b.bytes, b.problem)));
  fmt::print("{}\n", bad.empty() ? "every byte is as it was written"
                                 : count_text(std::ssize(bad), "damaged place"));
  return bad.empty() ? ExitCode::ok : ExitCode::data;
}

/// How many documents or words of a token file each label has.
std::vector<std::int64_t> count_labels(const io::TokenCorpus::TokenFile& file,
                                       const io::LabelNames& names) {
  std::vector<std::int64_t> counts(names.names.size());
  const auto add = [&](std::span<const std::int32_t> labels) {
    for (const std::int32_t label : labels)
      if (label >= 0) ++counts[static_cast<std::size_t>(label)];
  };
  if (names.of == io::LabelsOf::documents) {
    add(io::read_document_labels(file, names));
    return counts;
  }
  const io::WordLabels labels(std::span(&file, 1), names);
  std::vector<std::int32_t> some(std::size_t{1} << 20);
  for (std::int64_t at = 0; at < file.tokens; at += std::ssize(some)) {
    const auto part = std::span(some).first(
        static_cast<std::size_t>(std::min(file.tokens - at, std::ssize(some))));
    labels.read(at, part);
    add(part);
  }
  return counts;
}

/// Of token files: how many tokens count as targets, and how many documents or words each label
/// has.
std::string companions_text(const io::TokenCorpus& corpus) {
  std::string text;
  std::int64_t first = 0;
  for (const io::TokenCorpus::TokenFile& file : corpus.files()) {
    if (const auto prefix = io::targets_of(file)) {
      text += fmt::format("{}: {} of {} count as targets of the loss\n",
                          printable(io::megatron_bin(*prefix).string()),
                          io::count_targets(corpus, first, file.tokens),
                          count_text(file.tokens, "token"));
    }
    first += file.tokens;
    const auto names = io::label_names_of(file);
    if (!names) continue;
    const std::vector<std::int64_t> counts = count_labels(file, *names);
    text += fmt::format("{}: {} by \"{}\":", printable(io::labels_of(file)->string()),
                        enum_word(names->of), printable(names->key));
    for (std::size_t i = 0; i < counts.size(); ++i)
      text += fmt::format("{} {} {}", i == 0 ? "" : ",", printable(names->names[i]), counts[i]);
    text += '\n';
  }
  return text;
}

ExitCode inspect_tokens(const std::string& entry, bool verify) {
  constexpr std::int64_t kAnyVocab = std::int64_t{1} << 31;
  const io::TokenCorpus corpus(std::span(&entry, 1), kAnyVocab);
  for (const auto& file : corpus.files()) {
    fmt::print("{}: {} tokens of {}", printable(file.file.path().string()), file.tokens,
               to_string(file.type));
    fmt::print("{}\n", file.documents > 0 ? ", " + count_text(file.documents, "document") : "");
  }
  fmt::print("{} tokens\n{}", corpus.tokens(), companions_text(corpus));
  if (const auto beside = io::tokenizer_beside(entry); io::path_exists(beside)) {
    const io::Tokenizer tokenizer = io::open_kept_tokenizer(beside);
    fmt::print("tokenizer {}: {} tokens; documents {}\n", printable(beside.string()),
               tokenizer.vocab(), printable(io::document_end(tokenizer)));
  }
  if (!verify) return ExitCode::ok;
  std::vector<std::int32_t> tokens(std::size_t{1} << 20);
  std::int32_t largest = -1;
  for (std::int64_t at = 0; at < corpus.tokens(); at += static_cast<std::int64_t>(tokens.size())) {
    const auto n =
        std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), corpus.tokens() - at);
    const std::span part(tokens.data(), static_cast<std::size_t>(n));
    corpus.read(at, part);
    largest = std::max(largest, *std::max_element(part.begin(), part.end()));
  }
  fmt::print("largest token {}: model.vocab must be at least {}\n", largest, largest + 1);
  return ExitCode::ok;
}

/// Of a path that is neither a directory nor token files: what else it is.
[[noreturn]] void refuse(const std::string& path) {
  if (!io::path_exists(path)) {
    throw DataError(fmt::format(
        "{} is not here{}: give a checkpoint, a run or Hugging Face directory, a prefix "
        "of token files (it has .bin and .idx) or a .bin",
        path, full_path_text(path)));
  }
  deck::Sources sources;
  deck::Problems ignored;
  deck::add_file(path, sources, ignored);
  if (!sources.sections.empty()) {
    throw DeckError(
        fmt::format("{} is a deck: tessera check {} --ranks N says what a run of it does and needs",
                    path, path));
  }
  throw DataError(
      fmt::format("{} is no checkpoint, run or Hugging Face directory, prefix of token files or "
                  ".bin",
                  path));
}

bool is_model(const std::filesystem::path& path) { return io::is_model_directory(path); }

bool are_tokens(const std::string& path) {
  return path.ends_with(".bin") || io::path_exists(io::megatron_idx(path)) ||
         io::path_exists(io::megatron_bin(path));
}

}  // namespace

Verb inspect(CLI::App& app) {
  auto* verb = app.add_subcommand("inspect",
                                  "say what a checkpoint, a model directory or a token file holds");
  auto path = std::make_shared<std::string>();
  auto verify = std::make_shared<bool>(false);
  verb->add_option("PATH", *path,
                   "checkpoint, run directory, Hugging Face directory, token file prefix or .bin")
      ->required();
  verb->add_flag("--verify", *verify, "read and check every byte");
  return {.launch = Launch::single,
          .run =
              [path, verify] {
                if (std::filesystem::is_directory(*path)) {
                  const auto found = find_checkpoint(*path);
                  if (!found && is_model(*path)) return inspect_model(*path);
                  if (!found)
                    throw DataError(
                        fmt::format("{} is no checkpoint, holds none, and is no Hugging Face "
                                    "directory (config.json)",
                                    *path));
                  return inspect_checkpoint(found->path, *verify);
                }
                if (!are_tokens(*path)) refuse(*path);
                return inspect_tokens(*path, *verify);
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
