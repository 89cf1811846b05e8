// tessera classify: says which class documents, or their words, are of, or how a reward model
// scores documents, with a model that was trained for it.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "backend/backend.hpp"
#include "comm/launcher.hpp"
#include "core/bytes.hpp"
#include "core/cores.hpp"
#include "core/terminal.hpp"
#include "io/file.hpp"
#include "io/hf_config.hpp"
#include "io/token_labels.hpp"
#include "io/tokenize.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/confusion.hpp"
#include "train/entities.hpp"
#include "train/generation/generator.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ClassifyOptions {
  std::filesystem::path model;
  std::vector<std::filesystem::path> inputs;
  io::DocumentRules rules;
  std::optional<std::string> chat;  // a template
  std::string tokenizer;
  bool accept_tokenizer = false;
  bool json = false;
  std::optional<deck::Backend> backend;
  bool finite = true;  // the weights must be
  std::string weights;
};

/// Names of a model's classes: those of the run or directory that it is of, or what transformers
/// calls classes without names.
io::LabelNames class_names(const ModelSource& source) {
  if (!deck::has_classes(source.task.kind)) return {};
  io::LabelNames labels = source.labels.value_or(io::LabelNames());
  const std::int64_t classes = source.task.labels.value_or(0);
  if (std::ssize(labels.names) > classes) {
    throw DataError(fmt::format("{}: its labels.json names {}, but it has {}", source.name,
                                count_text(std::ssize(labels.names), "class", "classes"), classes));
  }
  for (std::int64_t i = std::ssize(labels.names); i < classes; ++i)
    labels.names.push_back(io::unnamed_class(i));
  return labels;
}

/// Outputs of a model; NonFiniteError for those that are no numbers, of which nothing follows.
std::span<const float> finite(std::span<const float> outputs) {
  if (std::ranges::all_of(outputs, [](float x) { return std::isfinite(x); })) return outputs;
  throw NonFiniteError("the model's outputs are not finite: its activations overflow");
}

std::vector<double> softmax(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  std::vector<double> p;
  double sum = 0;
  for (const float x : logits) sum += p.emplace_back(std::exp(static_cast<double>(x) - most));
  for (double& x : p) x /= sum;
  return p;
}

/// The beginning of a text, in one line.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string line;
  for (const char c : text.substr(0, kMost)) line += c == '\n' || c == '\t' ? ' ' : c;
  return printable(line) + (text.size() > kMost ? "..." : "");
}

/// Words as white space divides them.
std::vector<std::string> split_words(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(kSpace); at != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpace, end);
  }
  return words;
}

/// How likely each class is, and the likeliest.
struct Guess {
  explicit Guess(std::span<const float> logits)
      : p(softmax(finite(logits))),
        best(static_cast<std::size_t>(std::ranges::max_element(p) - p.begin())) {}

  std::vector<double> p;
  std::size_t best;
};

class Classifier {
 public:
  Classifier(const ClassifyOptions& options, const ModelSource& source, train::Generator& generator,
             io::Tokenizer& tokenizer)
      : o_(options),
        source_(source),
        generator_(generator),
        tokenizer_(tokenizer),
        labels_(class_names(source)),
        closing_(io::closing_tokens(tokenizer, options.rules.special_tokens)) {
    if (source.task.kind == deck::TaskKind::tokens && train::name_entities(labels_.names))
      entities_.emplace();
  }

  void document(const io::Document& document) {
    if (source_.task.kind == deck::TaskKind::tokens) return words(document);
    std::string_view text = document.text;
    std::string of_pieces;
    if (document.pieces.empty()) {
      io::encode_document(text, tokenizer_, o_.rules.special_tokens, ids_);
    } else {
      io::encode_pieces(document.pieces, tokenizer_, ids_, marks_);
      for (const io::TemplatePiece& piece : document.pieces) of_pieces += piece.text;
      text = of_pieces;
    }
    if (ids_.empty()) return nothing(document);
    fit(document);
    if (source_.task.kind == deck::TaskKind::reward) return score(text);
    const Guess guess(generator_.whole(ids_));
    if (o_.json) {
      fmt::print("{}\n", to_json(guess).dump());
    } else {
      fmt::print("{}\n", to_text(guess, excerpt(text)));
    }
    if (!document.labels.empty()) count(document, document.labels[0], guess);
  }

  /// What labels say of all of them, where there are some.
  void conclude() const {
    if (confusion_.total() == 0) return;
    std::fflush(stdout);  // before what follows, where both go to one place
    const bool words = source_.task.kind == deck::TaskKind::tokens;
    tell(fmt::format("{} | accuracy {:.4f} | F1 {:.4f}\n",
                     count_text(confusion_.total(), words ? "word" : "document"),
                     confusion_.accuracy(), confusion_.f1()));
    for (const std::string& line : to_lines(confusion_, labels_.names)) tell("  " + line + "\n");
    if (!entities_) return;
    tell(fmt::format("{} | precision {:.4f} | recall {:.4f} | F1 {:.4f}\n",
                     count_text(entities_->labelled(), "entity", "entities"),
                     entities_->precision(), entities_->recall(), entities_->f1()));
  }

 private:
  /// A document without tokens has a line too, so that lines are those of the input.
  void nothing(const io::Document& document) const {
    if (!document.labels.empty()) {
      throw DataError(fmt::format("{}: the document has no tokens, so no class: leave it out",
                                  io::place_text(document.place)));
    }
    const bool scored = source_.task.kind == deck::TaskKind::reward;
    const nlohmann::json none{{scored ? "reward" : "label", nullptr}};
    fmt::print("{}\n", o_.json ? none.dump() : scored ? "\t" : "\t\t");
  }

  void score(std::string_view text) {
    const float reward = finite(generator_.whole(ids_))[0];
    if (o_.json) {
      fmt::print("{}\n", nlohmann::json{{"reward", reward}}.dump());
    } else {
      fmt::print("{:.6g}\t{}\n", reward, excerpt(text));
    }
  }

  /// Each word by its first token. One that has none, or that a document which is cut loses, is of
  /// no class.
  void words(const io::Document& document) {
    const std::vector<std::string> split =
        o_.rules.words.empty() ? split_words(document.text) : std::vector<std::string>();
    const std::span<const std::string> all = o_.rules.words.empty() ? split : document.words;
    io::encode_words(all, tokenizer_, o_.rules.special_tokens, ids_, word_of_);
    std::vector<std::optional<Guess>> guesses(all.size());
    std::span<const float> logits;
    if (!all.empty() && !ids_.empty()) {
      fit(document);
      logits = generator_.whole(ids_);
    }
    for (std::size_t t = 0; t < word_of_.size(); ++t) {
      if (word_of_[t] < 0) continue;
      const auto word = static_cast<std::size_t>(word_of_[t]);
      guesses[word].emplace(logits.subspan(t * labels_.names.size(), labels_.names.size()));
      if (!document.labels.empty()) count(document, document.labels[word], *guesses[word]);
    }
    if (!document.labels.empty() && entities_) count_entities(document, guesses);
    o_.json ? print_json(all, guesses) : print_text(all, guesses);
  }

  /// The document's tokens, as many as the model may see.
  void fit(const io::Document& document) {
    const std::int64_t most = generator_.context();
    if (std::ssize(ids_) > most && source_.task.overlong != deck::Overlong::cut) {
      throw DataError(
          fmt::format("{}: the document has {}, more than the model's context of {}: shorten it",
                      io::place_text(document.place), count_text(std::ssize(ids_), "token"), most));
    }
    io::cut_document(ids_, most, closing_);
    io::cut_document(word_of_, most, closing_);
  }

  std::size_t class_of(const io::Document& document, const io::LabelValue& value) const {
    if (const auto label = labels_.find(value)) return static_cast<std::size_t>(*label);
    throw DataError(fmt::format("{}: the label \"{}\" is none of the model's: {}",
                                io::place_text(document.place), value.name,
                                fmt::join(labels_.names, ", ")));
  }

  void count(const io::Document& document, const io::LabelValue& value, const Guess& guess) {
    const std::size_t classes = labels_.names.size();
    std::vector<std::int64_t> counts(classes * classes);
    counts[class_of(document, value) * classes + guess.best] = 1;
    confusion_.add(counts);
  }

  /// A word that is of no class is taken for one outside of all entities.
  void count_entities(const io::Document& document, std::span<const std::optional<Guess>> guesses) {
    std::vector<std::string_view> labels, taken_for;
    for (std::size_t word = 0; word < guesses.size(); ++word) {
      labels.emplace_back(labels_.names[class_of(document, document.labels[word])]);
      taken_for.emplace_back("O");
      if (guesses[word]) taken_for.back() = labels_.names[guesses[word]->best];
    }
    entities_->add(labels, taken_for);
  }

  std::string to_text(const Guess& guess, const std::string& of) const {
    return fmt::format("{}\t{:.4f}\t{}", printable(labels_.names[guess.best]), guess.p[guess.best],
                       of);
  }
  nlohmann::ordered_json to_json(const Guess& guess) const {
    nlohmann::ordered_json json{{"label", labels_.names[guess.best]},
                                {"probability", guess.p[guess.best]}};
    for (std::size_t i = 0; i < guess.p.size(); ++i)
      json["probabilities"][labels_.names[i]] = guess.p[i];
    return json;
  }

  /// A line for each word, and an empty one behind the document.
  void print_text(std::span<const std::string> words,
                  std::span<const std::optional<Guess>> guesses) const {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string word = printable(words[i]);
      fmt::print("{}\n", guesses[i] ? to_text(*guesses[i], word) : "\t\t" + word);
    }
    fmt::print("\n");
  }
  void print_json(std::span<const std::string> words,
                  std::span<const std::optional<Guess>> guesses) const {
    nlohmann::ordered_json all{{"words", nlohmann::ordered_json::array()}};
    for (std::size_t i = 0; i < words.size(); ++i) {
      nlohmann::ordered_json one{{"word", words[i]}, {"label", nullptr}};
      if (guesses[i]) one.update(to_json(*guesses[i]));
      all["words"].push_back(std::move(one));
    }
    fmt::print("{}\n", all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  const ClassifyOptions& o_;
  const ModelSource& source_;
  train::Generator& generator_;
  io::Tokenizer& tokenizer_;
  io::LabelNames labels_;
  std::int64_t closing_;
  std::vector<std::int32_t> ids_, word_of_, marks_;
  train::Confusion confusion_;
  std::optional<train::EntityCounts> entities_;  // where classes name such
};

void check_options(const ClassifyOptions& o, const ModelSource& source) {
  const deck::TaskKind kind = source.task.kind;
  if (!deck::has_own_head(kind)) {
    throw DeckError(fmt::format(
        "{}: its task.kind is \"{}\": only models that were trained with \"classify\" or "
        "\"tokens\" know classes, and those with \"reward\" scores",
        source.name, enum_word(kind)));
  }
  if (deck::pools(kind) && !o.rules.words.empty()) {
    throw DeckError(fmt::format("--words {}: {} says {} of documents, not of their words",
                                o.rules.words, source.name,
                                deck::has_classes(kind) ? "classes" : "scores"));
  }
  if (!deck::has_classes(kind) && !o.rules.label_key.empty()) {
    throw DeckError(fmt::format("--label {}: {} says scores of documents, which have no labels",
                                o.rules.label_key, source.name));
  }
  if (kind == deck::TaskKind::tokens && o.rules.words.empty() && !o.rules.label_key.empty()) {
    throw DeckError(fmt::format(
        "--label {}: {} says classes of words: --words names the list of them that has such labels",
        o.rules.label_key, source.name));
  }
  const bool lines = std::ranges::all_of(o.inputs, io::is_json_lines);
  for (const auto& [option, key] :
       {std::pair{"--words", o.rules.words}, std::pair{"--label", o.rules.label_key}}) {
    if (key.empty() || lines) continue;
    throw DeckError(fmt::format(
        "{} {} is a member of JSON lines, so all files must be .jsonl files", option, key));
  }
  if (o.chat && !lines) {
    throw DeckError(fmt::format(
        "--chat {} makes documents of JSON lines, so all files must be .jsonl files", *o.chat));
  }
  if (o.chat && kind == deck::TaskKind::tokens) {
    throw DeckError(
        fmt::format("--chat {}: {} says classes of words, which a template does not make", *o.chat,
                    source.name));
  }
  if (o.chat && o.rules.special_tokens)
    throw DeckError("--special-tokens: with --chat they are what the template says; leave it out");
  check_document_rules(o.inputs, o.rules);
}

ExitCode run(ClassifyOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone classifies documents",
                      "start it once, as in srun --ntasks=1");
  const ModelSource source =
      open_model(o.model, o.finite ? std::optional(DType::f32) : std::nullopt, o.weights);
  check_options(o, source);
  o.rules.separator = separator_of(o.rules.separator);
  if (!o.rules.label_key.empty()) o.rules.labels = io::LabelSource::member;
  io::Tokenizer tokenizer = choose_tokenizer(source, o.tokenizer, o.accept_tokenizer);
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend = backend::make_backend(
      {.kind = o.backend.value_or(deck::Backend::automatic), .threads = threads}, nullptr);
  std::optional<ProgressLine> progress(std::in_place, "loading", ProgressLine::Unit::bytes);
  train::Generator generator(setup::model_config(source.model, source.task), *backend.device,
                             *backend.device_tier, tell_progress(source, *progress),
                             {.most_head_dim = backend::most_head_dim(backend.kind)});
  progress.reset();
  std::optional<io::ChatTemplate> chat;
  if (o.chat) {
    chat = io::ChatTemplate::open(*o.chat);
    bind_template(*chat, *o.chat, o.rules.field, tokenizer);
    o.rules.chat = &*chat;
  }
  if (source.is_hugging_face && !o.rules.special_tokens && !o.chat) {
    tell(
        "note: models of Hugging Face directories were trained with their tokenizer's special "
        "tokens around a text: --special-tokens puts them there\n");
  }
  Classifier classifier(o, source, generator, tokenizer);
  io::read_part(
      o.inputs, {}, o.rules, [](std::int64_t, std::int64_t) {},
      [&](const io::Document& document) { classifier.document(document); });
  classifier.conclude();
  return ExitCode::ok;
}

}  // namespace

Verb classify(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "classify", "say which class documents, or their words, are of, or what score they get");
  auto o = std::make_shared<ClassifyOptions>();
  verb->add_option("MODEL", o->model,
                   "checkpoint or run directory of a classifier or reward model, or its directory "
                   "in Hugging Face's format")
      ->required();
  verb->add_option("FILE", o->inputs,
                   "text files (a document each) or .jsonl files (a document a line), also packed "
                   "by gzip")
      ->required();
  auto* field = verb->add_option("--field", o->rules.field,
                                 "name of the text in each line of a .jsonl file (text)");
  verb->add_option(
          "--words", o->rules.words,
          "where words have classes, name of the list of them in each line of a .jsonl file; "
          "default: white space divides the text into words")
      ->excludes(field);
  verb->add_option("--chat", o->chat,
                   "each line of a .jsonl file is a conversation, or fields of a prompt and its "
                   "answer, which this template makes a document, as tokenize --chat does");
  add_separator(*verb, o->rules.separator);
  verb->add_option("--label", o->rules.label_key,
                   "name of the label, or of words the list of theirs, in each line of a .jsonl "
                   "file, to say how many are right");
  verb->add_flag(
      "--special-tokens", o->rules.special_tokens,
      "put around each document what the tokenizer's post_processor does, as the model's "
      "training data was made");
  verb->add_flag("--json", o->json,
                 "print a JSON object a document, with all probabilities or its reward");
  verb->add_option("--tokenizer", o->tokenizer,
                   "\"bytes\" or a tokenizer.json; default: the model's");
  verb->add_flag("--accept-tokenizer", o->accept_tokenizer,
                 "take a --tokenizer that is not the one which the model was trained with");
  add_allow_non_finite(*verb, [o] { o->finite = false; });
  add_ema(*verb, o->weights);
  add_backend(*verb, o->backend, "where it runs, as run.backend (auto)");
  return {.launch = Launch::single, .run = [o] { return run(*o); }, .run_on_ranks = {}};
}

}  // namespace tessera::verbs
