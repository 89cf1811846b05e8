#include "io/tokenize.hpp"
#include "core/terminal.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>

#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path prefix;
  std::string tokenizer = "bytes";
};

/// Rank 0's progress stands for all: parts are of equal size.
void draw_bar(std::int64_t done, std::int64_t total, std::int64_t ranks) {
  constexpr int kWidth = 40;
  const double part = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const int filled = static_cast<int>(part * kWidth);
  tell(fmt::format("\rtokenize [{:#<{}}{: <{}}] {:5.1f} %  {:.1f} MB on each of {} ranks{}", "",
                   filled, "", kWidth - filled, 100 * part, static_cast<double>(done) / 1e6, ranks,
                   done == total ? "\n" : ""));
}

ExitCode run(const TokenizeOptions& o, const comm::Control& control) {
  TokenizeSummary summary;
  control.together([&] {
    Tokenizer tokenizer =
        o.tokenizer == "bytes" ? Tokenizer::bytes() : Tokenizer::open(o.tokenizer);
    std::int64_t shown = -1;
    tokenize_part(o.inputs, o.prefix, tokenizer, {.index = control.rank(), .count = control.size()},
                  [&](std::int64_t done, std::int64_t total) {
                    const std::int64_t permille = total == 0 ? 1000 : 1000 * done / total;
                    if (control.rank() == 0 && permille != shown)
                      draw_bar(done, total, control.size()), shown = permille;
                  });
  });
  control.together([&] {
    if (control.rank() != 0) return;
    const Tokenizer tokenizer =
        o.tokenizer == "bytes" ? Tokenizer::bytes() : Tokenizer::open(o.tokenizer);
    summary = merge_parts(o.prefix, control.size(), tokenizer);
    fmt::print("{}.bin: {} tokens in {} documents, vocabulary {}\n", printable(o.prefix.string()),
               summary.tokens, summary.documents, tokenizer.vocab());
  });
  return ExitCode::ok;
}

}  // namespace

Verb tokenize(CLI::App& app) {
  auto* verb =
      app.add_subcommand("tokenize", "make token files (.bin, .idx) from text or JSON lines");
  auto o = std::make_shared<TokenizeOptions>();
  verb->add_option("INPUT", o->inputs,
                   "text files (a document each) or .jsonl files (\"text\" of each line)")
      ->required();
  verb->add_option("--out", o->prefix, "prefix of the files to make")->required();
  verb->add_option("--tokenizer", o->tokenizer, "\"bytes\" or a Hugging Face tokenizer.json")
      ->capture_default_str();
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [o](const train::Job& job) {
            return run(*o, job.control);
          }};
}

}  // namespace tessera::verbs
