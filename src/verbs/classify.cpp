// tessera classify: says which class documents are of, with a model that was trained for it.
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
#include "io/token_labels.hpp"
#include "io/tokenize.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/confusion.hpp"
#include "train/generator.hpp"
#include "verbs/model_source.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct ClassifyOptions {
  std::filesystem::path model;
  std::vector<std::filesystem::path> inputs;
  io::DocumentRules rules;
  std::string tokenizer;
  bool accept_tokenizer = false;
  bool json = false;
  std::optional<deck::Backend> backend;
  bool finite = true;  // the weights must be
  std::string weights;
};

/// Names of a model's classes: those of the run that it is of, or their numbers.
std::vector<std::string> class_names(const ModelSource& source) {
  if (source.labels) return source.labels->names;
  std::vector<std::string> numbers;
  for (std::int64_t i = 0; i < source.task.labels.value_or(0); ++i)
    numbers.push_back(fmt::format("{}", i));
  return numbers;
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

class Classifier {
 public:
  Classifier(const ClassifyOptions& options, const ModelSource& source, train::Generator& generator,
             io::Tokenizer& tokenizer)
      : o_(options),
        source_(source),
        generator_(generator),
        tokenizer_(tokenizer),
        names_(class_names(source)) {}

  void document(const io::Document& document) {
    io::encode_document(document.text, tokenizer_, o_.rules.special_tokens, ids_);
    if (ids_.empty()) return;
    if (std::ssize(ids_) > generator_.context()) {
      if (source_.task.overlong != deck::Overlong::cut) {
        throw DataError(
            fmt::format("{}: the document has {}, more than the model's context of {}: shorten it",
                        io::place_text(document.place), count_text(std::ssize(ids_), "token"),
                        generator_.context()));
      }
      ids_.resize(static_cast<std::size_t>(generator_.context()));
    }
    const std::vector<double> p = softmax(generator_.whole(ids_));
    const auto best = static_cast<std::size_t>(std::ranges::max_element(p) - p.begin());
    show(document, p, best);
    if (document.label == nullptr) return;
    const auto label = std::ranges::find(names_, document.label->name);
    if (label == names_.end()) {
      throw DataError(fmt::format("{}: the label \"{}\" is none of the model's: {}",
                                  io::place_text(document.place), document.label->name,
                                  fmt::join(names_, ", ")));
    }
    std::vector<std::int64_t> counts(names_.size() * names_.size());
    counts[static_cast<std::size_t>(label - names_.begin()) * names_.size() + best] = 1;
    confusion_.add(counts);
  }

  /// What labels say of all of them, where there are some.
  void conclude() const {
    if (confusion_.documents() == 0) return;
    tell(fmt::format("{} | accuracy {:.4f} | F1 {:.4f}\n",
                     count_text(confusion_.documents(), "document"), confusion_.accuracy(),
                     confusion_.f1()));
    for (const std::string& line : to_lines(confusion_, names_)) tell("  " + line + "\n");
  }

 private:
  void show(const io::Document& document, std::span<const double> p, std::size_t best) const {
    if (!o_.json) {
      fmt::print("{}\t{:.4f}\t{}\n", printable(names_[best]), p[best], excerpt(document.text));
      return;
    }
    nlohmann::ordered_json line{{"label", names_[best]}, {"probability", p[best]}};
    for (std::size_t i = 0; i < p.size(); ++i) line["probabilities"][names_[i]] = p[i];
    fmt::print("{}\n", line.dump());
  }

  const ClassifyOptions& o_;
  const ModelSource& source_;
  train::Generator& generator_;
  io::Tokenizer& tokenizer_;
  std::vector<std::string> names_;
  std::vector<std::int32_t> ids_;
  train::Confusion confusion_;
};

ExitCode run(ClassifyOptions& o) {
  comm::refuse_copies(comm::launch_of_process(), "but one alone classifies documents",
                      "start it once, as in srun --ntasks=1");
  const ModelSource source =
      open_model(o.model, o.finite ? std::optional(DType::f32) : std::nullopt, o.weights);
  if (source.task.kind != deck::TaskKind::classify) {
    throw DeckError(fmt::format(
        "{}: its task.kind is \"{}\": only models that were trained with \"classify\" know classes",
        source.name, enum_word(source.task.kind)));
  }
  if (!o.rules.label_key.empty()) o.rules.labels = io::LabelSource::member;
  io::Tokenizer tokenizer = choose_tokenizer(source, o.tokenizer, o.accept_tokenizer);
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend = backend::make_backend(
      {.kind = o.backend.value_or(deck::Backend::automatic), .threads = threads}, nullptr);
  std::optional<ProgressLine> progress(std::in_place, "loading", ProgressLine::Unit::bytes);
  train::Generator generator(setup::model_config(source.model, source.task), *backend.device,
                             *backend.device_tier, tell_progress(source, *progress));
  progress.reset();
  if (source.is_hugging_face && !o.rules.special_tokens) {
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
  auto* verb = app.add_subcommand("classify", "say which class documents are of");
  auto o = std::make_shared<ClassifyOptions>();
  verb->add_option("MODEL", o->model, "checkpoint or run directory of a classifier")->required();
  verb->add_option("FILE", o->inputs,
                   "text files (a document each) or .jsonl files (a document a line), also packed "
                   "by gzip")
      ->required();
  verb->add_option("--field", o->rules.field,
                   "name of the text in each line of a .jsonl file (text)");
  verb->add_option("--separator", o->rules.separator,
                   "text between the documents of a text file; default: a file is a document");
  verb->add_option("--label", o->rules.label_key,
                   "name of the label in each line of a .jsonl file, to say how many are right");
  verb->add_flag(
      "--special-tokens", o->rules.special_tokens,
      "put around each document what the tokenizer's post_processor does, as the model's "
      "training data was made");
  verb->add_flag("--json", o->json, "print a JSON object a document, with all probabilities");
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
