// tessera inspect: what a checkpoint or a token file holds, and whether it is damaged.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "core/bytes.hpp"
#include "core/progress.hpp"
#include "core/terminal.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/token_files.hpp"
#include "io/tokenizer_files.hpp"
#include "plan/prediction/ledger.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

ExitCode inspect_checkpoint(const std::filesystem::path& path, bool verify) {
  const io::CheckpointSummary s = io::describe_checkpoint(path);
  fmt::print("{}: step {}, {} updates, {} samples, {} tokens\n", printable(path.string()),
             s.header.step, s.header.applied_updates, s.header.samples, s.header.tokens);
  const io::CheckpointLayout& layout = s.header.layout;
  std::vector<std::string> axes;
  for (const Axis& a : kAxes) axes.push_back(fmt::format("{} {}", a.name, layout.mesh.*a.size));
  fmt::print("written by {} ranks: {}, ZeRO-{}; {} files, {}\n", layout.world,
             fmt::join(axes, " x "), layout.zero_stage, s.files, human_bytes(s.bytes));
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
                                 : fmt::format("{} damaged places", bad.size()));
  return bad.empty() ? ExitCode::ok : ExitCode::data;
}

ExitCode inspect_tokens(const std::string& entry, bool verify) {
  constexpr std::int64_t kAnyVocab = std::int64_t{1} << 31;
  const io::TokenCorpus corpus(std::span(&entry, 1), kAnyVocab);
  for (const auto& file : corpus.files()) {
    fmt::print("{}: {} tokens of {}", printable(file.file.path().string()), file.tokens,
               to_string(file.type));
    fmt::print("{}\n", file.documents > 0 ? fmt::format(", {} documents", file.documents) : "");
  }
  fmt::print("{} tokens\n", corpus.tokens());
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

}  // namespace

Verb inspect(CLI::App& app) {
  auto* verb = app.add_subcommand("inspect", "say what a checkpoint or a token file holds");
  auto path = std::make_shared<std::string>();
  auto verify = std::make_shared<bool>(false);
  verb->add_option("PATH", *path, "checkpoint, run directory, token file prefix or .bin")
      ->required();
  verb->add_flag("--verify", *verify, "read and check every byte");
  return {.launch = Launch::single,
          .run =
              [path, verify] {
                if (std::filesystem::is_directory(*path)) {
                  const auto found = find_checkpoint(*path);
                  if (!found)
                    throw DataError(fmt::format("{} is no checkpoint and holds none", *path));
                  return inspect_checkpoint(found->path, *verify);
                }
                return inspect_tokens(*path, *verify);
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
