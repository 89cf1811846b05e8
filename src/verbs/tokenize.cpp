// tessera tokenize: text files to token files; each rank makes one part, and all write into
// the files of the whole at once.
#include "io/tokenize.hpp"
#include "core/bytes.hpp"
#include "core/progress.hpp"
#include "core/terminal.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/file.hpp"
#include "io/token_labels.hpp"
#include "io/tokenizer_files.hpp"
#include "io/tokenizer_json.hpp"
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
  std::filesystem::path known_labels;
  std::optional<std::string> chat;  // a template
};

constexpr auto kFolder = "folder";  // of --label, where inputs are directories

/// What rank 0's progress, which stands for all because parts are of equal size, is progress of.
std::string part_text(const std::string& what, const comm::Control& control) {
  if (control.size() == 1) return what;
  return fmt::format("{}, a part of {} on rank 0", what, control.size());
}

io::Tokenizer open_learned(const std::string& json, const TokenizeOptions& o) {
  constexpr auto kName = "the learned tokenizer";
  return io::with_end(io::Tokenizer::parse(json, kName), kName, o.eos);
}

/// Answers end by what their template ends them by, so that this also ends what a model generates.
io::Tokenizer open_tokenizer(const TokenizeOptions& o,
                             const std::optional<io::ChatTemplate>& chat) {
  const auto end = chat && o.eos.empty() ? chat->learned_end() : std::nullopt;
  if (!end) return io::open_for_documents(o.tokenizer, o.eos);
  io::Tokenizer tokenizer = io::open_for_documents(o.tokenizer, "none");
  tokenizer.set_end_of_text(tokenizer.id_of(*end));
  return tokenizer;
}

void check_options(const TokenizeOptions& o) {
  const auto lines = std::ranges::count_if(o.inputs, io::is_json_lines);
  check_document_rules(o.inputs, o.rules);
  if (o.chat && lines < std::ssize(o.inputs)) {
    throw DeckError(
        fmt::format("--chat {} makes documents of JSON lines, so all inputs must be .jsonl files; "
                    "of inputs and templates put the template last, or write --chat=TEMPLATE",
                    *o.chat));
  }
  if (o.rules.pairs && !o.rules.field.empty()) {
    throw DeckError(
        "--field has no effect with --pairs, which reads prompt, chosen and rejected: leave it "
        "out");
  }
  if (o.rules.pairs && !o.rules.label_key.empty())
    throw DeckError("--label is of documents, not of --pairs: leave one out");
  if (o.chat && o.rules.special_tokens)
    throw DeckError("--special-tokens: with --chat they are what the template says; leave it out");
  if (o.chat && o.learned_vocab > 0)
    throw DeckError(
        "--train-tokenizer learns from text: first make the tokenizer, then use --chat");
  if (!o.known_labels.empty() && o.rules.label_key.empty())
    throw DeckError("--labels is of --label, which says where labels are");
  if (!o.rules.words.empty() && o.rules.label_key.empty())
    throw DeckError(fmt::format("--words {} is of --label, which says where the words' labels are",
                                o.rules.words));
  if (!o.rules.words.empty() && lines < std::ssize(o.inputs)) {
    throw DeckError(fmt::format(
        "--words {} is a member of JSON lines, so all inputs must be .jsonl files", o.rules.words));
  }
  if (const auto end = o.prefix.extension(); end == ".bin" || end == ".idx") {
    throw DeckError(
        fmt::format("--out {}: give the files' name without {}", o.prefix.string(), end.string()));
  }
  if (const auto end = o.prefix.extension(); end == ".targets" || end == ".labels") {
    throw DeckError(fmt::format("--out {}: names that end in {} are those of files beside tokens",
                                o.prefix.string(), end.string()));
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
std::string learn(const TokenizeOptions& o, const comm::Control& control) {
  constexpr std::size_t kMessage = std::size_t{64} << 20;
  io::WordCounts words;
  control.together([&] {
    ProgressLine progress(part_text("count words", control), ProgressLine::Unit::bytes,
                          Screen::terminal(control.rank()));
    words = io::count_words(
        o.inputs, {.index = control.rank(), .count = control.size()},
        [&](std::int64_t done, std::int64_t total) { progress.at(done, total); }, o.rules);
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

/// Whether labels are the names of folders, which then are all inputs.
bool labels_are_folders(const TokenizeOptions& o) {
  const auto directories = std::ranges::count_if(
      o.inputs, [](const auto& path) { return std::filesystem::is_directory(path); });
  if (directories == 0 || o.rules.label_key != kFolder) return false;
  if (directories == std::ssize(o.inputs)) return true;
  throw DeckError(
      "--label folder takes the names of folders, so all inputs must be directories; other files "
      "go into token files of their own");
}

/// In place of directories whose folders' names are labels, the files in them.
void replace_folders(TokenizeOptions& o, int rank) {
  std::vector<std::filesystem::path> files;
  for (const auto& directory : o.inputs) {
    const io::FolderFiles found = io::files_of_folders(directory);
    std::ranges::copy(found.files, std::back_inserter(files));
    if (found.left_out > 0 && rank == 0) {
      tell(fmt::format("{}: {} beside its folders left out\n", printable(directory.string()),
                       count_text(found.left_out, "file")));
    }
  }
  o.inputs = std::move(files);
}

/// What the options say, checked: the rules by which documents are found, and the inputs' files.
void prepare(TokenizeOptions& o, int rank) {
  if (o.chat && o.chat->empty()) o.chat = "chatml";
  if (o.rules.pairs && !o.chat) o.chat = "completion";
  if (o.chat == io::kRecognisedTemplate) {
    o.chat = io::recognised_template(o.tokenizer, "--chat");
    if (rank == 0) tell(fmt::format("--chat auto: the tokenizer's chat_template is {}\n", *o.chat));
  }
  const bool folders = labels_are_folders(o);
  if (folders) replace_folders(o, rank);
  check_options(o);
  o.rules.separator = separator_of(o.rules.separator);
  if (!o.rules.label_key.empty() && !folders && !std::ranges::all_of(o.inputs, io::is_json_lines)) {
    throw DeckError(fmt::format(
        "--label {} is a member of JSON lines, so all inputs must be .jsonl files; for folders of "
        "text files give directories and --label folder",
        o.rules.label_key));
  }
  if (!o.rules.label_key.empty())
    o.rules.labels = folders ? io::LabelSource::folder : io::LabelSource::member;
  if (o.prefix.has_parent_path()) io::create_directories(o.prefix.parent_path());
}

/// What every rank found, on every rank.
std::vector<io::PartFindings> share_findings(const io::PartFindings& mine,
                                             const comm::Control& control) {
  nlohmann::json all = control.gather(mine.pack());
  all = nlohmann::json::parse(control.broadcast(all.dump()));
  std::vector<io::PartFindings> findings;
  for (const nlohmann::json& part : all) findings.push_back(io::PartFindings::unpack(part));
  return findings;
}

void report(const TokenizeOptions& o, const io::TokenizeSummary& summary,
            const io::Tokenizer& tokenizer) {
  fmt::print(
      "{}.bin: {} in {}, {}; vocabulary {}\n", printable(o.prefix.string()),
      count_text(summary.tokens, "token"), count_text(summary.documents, "document"),
      summary.targets ? "each ended by its template" : printable(io::document_end(tokenizer)),
      tokenizer.vocab());
  if (summary.targets) {
    fmt::print("{}.targets.bin: {} of them count as targets of the loss\n",
               printable(o.prefix.string()), *summary.targets);
  }
  if (summary.pairs)
    fmt::print("{}.pairs.json: {} of answers\n", printable(o.prefix.string()),
               count_text(*summary.pairs, "pair"));
  if (!summary.labels) return;
  fmt::print("{}.labels.json: {} of {} by \"{}\": {}\n", printable(o.prefix.string()),
             count_text(std::ssize(summary.labels->names), "label"), enum_word(summary.labels->of),
             printable(summary.labels->key),
             printable(fmt::format("{}", fmt::join(summary.labels->names, ", "))));
}

/// What turns documents into tokens.
struct Tokenizing {
  io::Tokenizer tokenizer;
  std::optional<io::ChatTemplate> chat;
};

Tokenizing open_tokenizing(const TokenizeOptions& o, const std::string& learned) {
  std::optional<io::ChatTemplate> chat;
  if (o.chat) chat = io::ChatTemplate::open(*o.chat);
  io::Tokenizer tokenizer = learned.empty() ? open_tokenizer(o, chat) : open_learned(learned, o);
  if (chat) bind_template(*chat, *o.chat, o.rules.field, tokenizer);
  const io::SpecialFrame& frame = tokenizer.frame();
  if (o.rules.special_tokens && frame.before.empty() && frame.behind.empty()) {
    throw DeckError(
        "--special-tokens: the tokenizer's post_processor puts none around a text; leave it out");
  }
  return {std::move(tokenizer), std::move(chat)};
}

ExitCode run(TokenizeOptions o, const comm::Control& control) {
  std::optional<io::LabelNames> known;
  control.together([&] {
    prepare(o, control.rank());
    if (!o.known_labels.empty()) known = io::read_label_names(o.known_labels);
  });
  const std::string learned = o.learned_vocab > 0 ? learn(o, control) : "";
  std::optional<Tokenizing> with;
  std::optional<io::TokenizedPart> part;
  control.together([&] {
    with = open_tokenizing(o, learned);
    if (with->chat) o.rules.chat = &*with->chat;
    ProgressLine progress(part_text("tokenize", control), ProgressLine::Unit::bytes,
                          Screen::terminal(control.rank()));
    part.emplace(
        o.inputs, o.prefix, with->tokenizer,
        io::TokenizePart{.index = control.rank(), .count = control.size()},
        [&](std::int64_t done, std::int64_t total) { progress.at(done, total); }, o.rules);
  });
  const std::vector<io::PartFindings> all = share_findings(part->findings(), control);
  io::TokenizeSummary summary;
  control.together([&] { summary = part->place(all, known); });
  control.together([&] {
    if (control.rank() != 0) return;
    part->publish(with->tokenizer, summary);
    report(o, summary, with->tokenizer);
  });
  return ExitCode::ok;
}

void add_tokenizer(CLI::App& verb, TokenizeOptions& o) {
  auto* given =
      verb.add_option("--tokenizer", o.tokenizer, "\"bytes\" or a Hugging Face tokenizer.json")
          ->capture_default_str();
  verb.add_option(
          "--train-tokenizer", o.learned_vocab,
          "learn a byte-level BPE tokenizer of so many tokens from the inputs, with GPT-2's "
          "pattern and <|endoftext|>, and use it; it is kept as PREFIX.tokenizer.json, for "
          "--tokenizer")
      ->check(bounds(io::kSmallestLearnedVocab, std::optional(kLargestLearnedVocab)))
      ->excludes(given);
}

}  // namespace

void check_document_rules(std::span<const std::filesystem::path> inputs,
                          const io::DocumentRules& rules) {
  const auto lines = std::ranges::count_if(inputs, io::is_json_lines);
  if (!rules.separator.empty() && lines == std::ssize(inputs))
    throw DeckError("--separator is of text files, but all inputs are .jsonl files");
  if (rules.field != io::DocumentRules().field && lines == 0)
    throw DeckError("--field is of .jsonl files, but no input is one");
}

void bind_template(io::ChatTemplate& chat, const std::string& name, const std::string& field,
                   const io::Tokenizer& tokenizer) {
  if (!chat.has_turns() && !field.empty()) {
    throw DeckError(fmt::format(
        "--field {} has no effect with --chat {}, which names the fields that it reads: leave it "
        "out, or write a template of your own",
        field, name));
  }
  chat.bind(tokenizer);
}

void add_separator(CLI::App& app, std::string& separator) {
  app.add_option("--separator", separator,
                 "text between the documents of a text file, like '\\n\\n' (\\n, \\r, \\t, \\f and "
                 "\\\\ as in C); default: a file is a document");
}

std::string separator_of(const std::string& written) {
  std::string text;
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i] != '\\') {
      text += written[i];
      continue;
    }
    constexpr std::string_view kNames = "nrtf\\", kMeanings = "\n\r\t\f\\";
    const std::size_t which = i + 1 < written.size() ? kNames.find(written[++i]) : kNames.npos;
    if (which == kNames.npos) {
      throw DeckError(fmt::format(
          "--separator {}: a backslash is followed by one of n, r, t, f and \\", written));
    }
    text += kMeanings[which];
  }
  return text;
}

Verb tokenize(CLI::App& app) {
  auto* verb =
      app.add_subcommand("tokenize", "make token files (.bin, .idx) from text or JSON lines");
  auto o = std::make_shared<TokenizeOptions>();
  verb->add_option("INPUT", o->inputs,
                   "text files (a document each) or .jsonl files (a document a line), also packed "
                   "by gzip; with --label folder, directories")
      ->required();
  verb->add_option("--out", o->prefix, "prefix of the files to make; its directory is made too")
      ->required();
  add_tokenizer(*verb, *o);
  verb->add_option(
      "--eos", o->eos,
      "token that ends each document, or \"none\": the ends are in .idx only; default: "
      "what the tokenizer's special tokens say, none for bytes");
  verb->add_flag("--special-tokens", o->rules.special_tokens,
                 "put around each document what the tokenizer's post_processor does, such as [CLS] "
                 "and [SEP]; one that then ends as documents do gets no second --eos");
  add_separator(*verb, o->rules.separator);
  auto* field =
      verb->add_option("--field", o->rules.field,
                       "name of the text in each line of a .jsonl file (text), or with --chat of "
                       "the conversation (messages, else conversations)");
  auto* words = verb->add_option(
      "--words", o->rules.words,
      "name of a list of words in each line of a .jsonl file, which is the document in place of a "
      "text; --label then names the list of their labels. A word's label is that of its first "
      "token; other tokens have none");
  words->excludes(field);
  verb->add_flag("--pairs", o->rules.pairs,
                 "each line of the .jsonl files has a \"prompt\" and two answers to it, "
                 "\"chosen\" and \"rejected\", texts or messages, of which the template of --chat "
                 "(completion) makes two documents, for task.kind dpo, ipo and reward");
  verb->add_option(
          "--chat", o->chat,
          fmt::format("each line of the .jsonl files is a conversation, or an instruction with its "
                      "answer, which this template makes a document: chatml (if none is named), "
                      "another of {}, a JSON file, or \"auto\" for the one that the "
                      "tokenizer's tokenizer_config.json has, where that is known. Only what is "
                      "answered counts in the loss: "
                      "PREFIX.targets says which tokens do",
                      fmt::join(io::ChatTemplate::names(), ", ")))
      ->expected(0, 1)
      ->excludes(words);
  verb->add_option(
      "--label", o->rules.label_key,
      "name of the label (a string, integer or boolean) in each line of a .jsonl file: "
      "documents get PREFIX.labels; or \"folder\", where inputs are directories: the "
      "name of the folder in which a text file lies; with --words, of the list of labels");
  verb->add_option("--labels", o->known_labels,
                   "PREFIX.labels.json of other token files, such as those that the model is "
                   "trained on: labels are numbered as there, and no others are taken; where all "
                   "its names are words, integers in the lines are such numbers");
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [o](const train::Job& job) {
            return run(*o, job.control);
          }};
}

}  // namespace tessera::verbs
