// tessera tokenize: text files to token files; each rank makes one part, and rank 0 merges them.
#include "io/tokenize.hpp"
#include "core/bytes.hpp"
#include "core/progress.hpp"
#include "core/terminal.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

#include "io/file.hpp"
#include "io/tokenizer_files.hpp"
#include "verbs/bounds.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kLargestLearnedVocab = 16777216;  // of model.vocab

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path prefix;
  std::string tokenizer = "bytes", eos;
  std::int64_t learned_vocab = 0;  // 0: nothing is learned
  io::DocumentRules rules;
};

/// What rank 0's progress, which stands for all because parts are of equal size, is progress of.
std::string part_text(const std::string& what, const comm::Control& control) {
  if (control.size() == 1) return what;
  return fmt::format("{}, a part of {} on rank 0", what, control.size());
}

/// The text that C's escapes for white space and the backslash mean.
std::string unescape(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result += text[i];
      continue;
    }
    constexpr std::string_view kNames = "nrtf\\", kMeanings = "\n\r\t\f\\";
    const std::size_t which = i + 1 < text.size() ? kNames.find(text[++i]) : kNames.npos;
    if (which == kNames.npos) {
      throw DeckError(
          fmt::format("--separator {}: a backslash is followed by one of n, r, t, f and \\", text));
    }
    result += kMeanings[which];
  }
  return result;
}

io::Tokenizer open_learned(const std::string& json, const TokenizeOptions& o) {
  constexpr auto kName = "the learned tokenizer";
  return io::with_end(io::Tokenizer::parse(json, kName), kName, o.eos);
}

void check_options(const TokenizeOptions& o) {
  const auto lines = std::ranges::count_if(o.inputs, io::is_json_lines);
  if (!o.rules.separator.empty() && lines == std::ssize(o.inputs)) {
    throw DeckError("--separator is of text files, but all inputs are .jsonl files");
  }
  if (o.rules.field != io::DocumentRules().field && lines == 0) {
    throw DeckError("--field is of .jsonl files, but no input is one");
  }
  if (!o.prefix.has_filename()) {
    throw DeckError(fmt::format("--out {} is a directory: add a name, like {}train",
                                o.prefix.string(), o.prefix.string()));
  }
  // One that has learned nothing ends documents alike: --eos is refused before words are counted.
  if (o.learned_vocab > 0) open_learned(io::learn_tokenizer({}, io::kSmallestLearnedVocab), o);
}

/// Every rank counts the words of its part, and rank 0 learns from all of them; returns the
/// tokenizer.json on every rank.
std::string learn(const TokenizeOptions& o, const io::DocumentRules& rules,
                  const comm::Control& control) {
  constexpr std::size_t kMessage = std::size_t{64} << 20;
  io::WordCounts words;
  control.together([&] {
    ProgressLine progress(part_text("count words", control), ProgressLine::Unit::bytes,
                          Screen::terminal(control.rank()));
    words = io::count_words(
        o.inputs, {.index = control.rank(), .count = control.size()},
        [&](std::int64_t done, std::int64_t total) { progress.at(done, total); }, rules);
  });
  io::WordCounts all;
  for (std::int64_t more = 1; more > 0;) {
    const std::string mine = control.rank() == 0 ? "" : words.take_packed(kMessage);
    for (const std::string& part : control.gather(mine)) all.add_packed(part);
    more = control.max(static_cast<std::int64_t>(mine.size()));
  }
  std::string json;
  control.together([&] {
    if (control.rank() != 0) return;
    words.for_each([&](std::string_view word, std::int64_t count) { all.add(word, count); });
    ProgressLine progress("learn tokens from " + count_text(all.distinct(), "distinct word"),
                          ProgressLine::Unit::things);
    json = io::learn_tokenizer(all, o.learned_vocab, [&](std::int64_t tokens) {
      progress.at(tokens, o.learned_vocab - 1);
    });
    const std::int64_t got = io::Tokenizer::parse(json, "learned").vocab();
    if (got < o.learned_vocab)
      tell(fmt::format("no more pairs occur twice: {} tokens, not {}\n", got, o.learned_vocab));
  });
  return control.broadcast(json);
}

ExitCode run(const TokenizeOptions& o, const comm::Control& control) {
  io::DocumentRules rules = o.rules;
  control.together([&] {
    check_options(o);
    rules.separator = unescape(rules.separator);
    if (o.prefix.has_parent_path()) io::create_directories(o.prefix.parent_path());
  });
  const std::string learned = o.learned_vocab > 0 ? learn(o, rules, control) : "";
  const auto open = [&] {
    return learned.empty() ? io::open_for_documents(o.tokenizer, o.eos) : open_learned(learned, o);
  };
  control.together([&] {
    io::Tokenizer tokenizer = open();
    ProgressLine progress(part_text("tokenize", control), ProgressLine::Unit::bytes,
                          Screen::terminal(control.rank()));
    io::tokenize_part(
        o.inputs, o.prefix, tokenizer, {.index = control.rank(), .count = control.size()},
        [&](std::int64_t done, std::int64_t total) { progress.at(done, total); }, rules);
  });
  control.together([&] {
    if (control.rank() != 0) return;
    const io::Tokenizer tokenizer = open();
    const io::TokenizeSummary summary = io::merge_parts(o.prefix, control.size(), tokenizer);
    fmt::print("{}.bin: {} in {}, {}; vocabulary {}\n", printable(o.prefix.string()),
               count_text(summary.tokens, "token"), count_text(summary.documents, "document"),
               printable(io::document_end(tokenizer)), tokenizer.vocab());
  });
  return ExitCode::ok;
}

}  // namespace

Verb tokenize(CLI::App& app) {
  auto* verb =
      app.add_subcommand("tokenize", "make token files (.bin, .idx) from text or JSON lines");
  auto o = std::make_shared<TokenizeOptions>();
  verb->add_option("INPUT", o->inputs,
                   "text files (a document each) or .jsonl files (a document a line), also packed "
                   "by gzip")
      ->required();
  verb->add_option("--out", o->prefix, "prefix of the files to make; its directory is made too")
      ->required();
  auto* given =
      verb->add_option("--tokenizer", o->tokenizer, "\"bytes\" or a Hugging Face tokenizer.json")
          ->capture_default_str();
  verb->add_option(
          "--train-tokenizer", o->learned_vocab,
          "learn a byte-level BPE tokenizer of so many tokens from the inputs, with GPT-2's "
          "pattern and <|endoftext|>, and use it; it is kept as PREFIX.tokenizer.json, for "
          "--tokenizer")
      ->check(bounds(io::kSmallestLearnedVocab, std::optional(kLargestLearnedVocab)))
      ->excludes(given);
  verb->add_option(
      "--eos", o->eos,
      "token that ends each document, or \"none\": the ends are in .idx only; default: "
      "what the tokenizer's special tokens say, none for bytes");
  verb->add_option(
      "--separator", o->rules.separator,
      "text between the documents of a text file, like '\\n\\n' (\\n, \\r, \\t, \\f and "
      "\\\\ as in C); default: a file is a document");
  verb->add_option("--field", o->rules.field, "name of the text in each line of a .jsonl file")
      ->capture_default_str();
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [o](const train::Job& job) {
            return run(*o, job.control);
          }};
}

}  // namespace tessera::verbs
