#include "train/choices.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/terminal.hpp"
#include "data/tokenizers.hpp"
#include "deck/ranks.hpp"
#include "io/file.hpp"
#include "io/tokenizer_files.hpp"
#include "kernels/api/linear.hpp"
#include "setup/inputs.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"
#include "train/trained_engine.hpp"

namespace tessera::train {

std::optional<double> Accuracy::standard_error() const {
  if (questions < 2) return std::nullopt;
  return std::sqrt(share() * (1 - share()) / static_cast<double>(questions - 1));
}

namespace {

constexpr std::int64_t kLargestQuestions = std::int64_t{1} << 30;  // bytes

/// A file's questions, and all their choices in tokens, one after another.
struct Questions {
  std::string file;
  std::vector<data::Question> questions;
  std::vector<data::ChoiceTokens> choices;
};

/// The tokenizer that is given, which must be the first of the model's and the data's where one is
/// known, or else that.
io::Tokenizer open_tokenizer(const deck::LoadedDeck& loaded, const std::string& given) {
  auto known = data::tokenizers_of_model(loaded.deck);
  for (auto& of_data : data::tokenizers_of_run(loaded.deck)) known.push_back(std::move(of_data));
  if (given.empty()) {
    if (!known.empty()) return io::open_kept_tokenizer(known.front().path);
    throw DeckError(
        fmt::format("{} says nothing of its tokenizer: give --tokenizer bytes or a tokenizer.json",
                    loaded.name));
  }
  io::Tokenizer tokenizer =
      given == "bytes" ? io::Tokenizer::bytes() : io::open_kept_tokenizer(given);
  if (!known.empty() && !loaded.deck.data.accept_tokenizer) {
    data::check_given_tokenizer(loaded.name, known.front(), given, tokenizer,
                                "--set data.accept_tokenizer=true");
  }
  return tokenizer;
}

/// Rank 0 reads files, the others are told. Every rank has all choices.
Questions read_questions(const deck::LoadedDeck& loaded, const comm::Control& control,
                         const ChoicesOptions& options) {
  std::string text, tokenizer_json;
  std::int64_t end = -1;  // of documents
  control.together([&] {
    if (control.rank() != 0) return;
    text = io::read_text(options.questions, kLargestQuestions);
    const io::Tokenizer tokenizer = open_tokenizer(loaded, options.tokenizer);
    if (tokenizer.vocab() > loaded.deck.model.vocab) {
      throw DataError(fmt::format("the tokenizer has {} tokens, the model knows {}: give its own",
                                  tokenizer.vocab(), loaded.deck.model.vocab));
    }
    tokenizer_json = tokenizer.json();
    end = tokenizer.end_of_text().value_or(-1);
  });
  text = control.broadcast(text);
  tokenizer_json = control.broadcast(tokenizer_json);
  end = control.max(end);
  Questions all{.file = options.questions.string()};
  control.together([&] {
    io::Tokenizer tokenizer = io::Tokenizer::parse(tokenizer_json, "the tokenizer");
    if (end >= 0) tokenizer.set_end_of_text(static_cast<std::int32_t>(end));
    all.questions = data::parse_questions(text, all.file);
    for (const data::Question& question : all.questions) {
      for (auto& choice : data::encode_choices(question, tokenizer, options.begin, all.file))
        all.choices.push_back(std::move(choice));
    }
  });
  return all;
}

/// A step of as many tokens a sample as the longest choice needs, over no more samples than a step
/// of validation has, each with a tally. DataError for a choice that is longer than the model's
/// context.
plan::PlanShape choices_shape(const deck::LoadedDeck& loaded, const Questions& all,
                              std::int64_t data_ranks) {
  const deck::Deck& deck = loaded.deck;
  // What tensor ranks and chunks divide, and fp8 products.
  std::int64_t granule = std::lcm(deck.parallel.tensor, deck.run.reproducible_tensor);
  granule *= deck::context_chunks(deck);
  if (deck.precision.matmul == deck::Matmul::fp8)
    granule = std::lcm(granule, kernels::kFp8Granule * deck::context_shares(deck));
  // Frequencies that follow the length of a step would depend on other choices of the file.
  const bool dynamic = deck.model.rope_scaling == RopeScalingKind::dynamic;
  const std::int64_t context =
      dynamic ? std::min(deck.model.rope_original_context, deck.model.context) : deck.model.context;
  const std::int64_t most = context / granule * granule;
  std::int64_t longest = 0;
  std::size_t choice = 0;
  for (const data::Question& question : all.questions) {
    for (std::size_t i = 0; i < question.choices.size(); ++i, ++choice) {
      const std::int64_t tokens = std::ssize(all.choices[choice].tokens) - 1;
      longest = std::max(longest, tokens);
      if (tokens <= most) continue;
      throw DataError(fmt::format(
          "{}:{}: $.choices[{}]: with its context it is {} for the model to read, more than the {} "
          "of {}{}: shorten the context",
          all.file, question.line, i, count_text(tokens, "token"), most,
          context == deck.model.context ? "model.context" : "model.rope_original_context",
          most == context ? "" : fmt::format(" that {} divides", granule)));
    }
  }
  plan::PlanShape shape = setup::evaluation_shape(deck.batch, data_ranks);
  shape.sequence = ceil_div(longest, granule) * granule;
  const std::int64_t together = shape.micro * data_ranks,
                     needed = ceil_div(std::ssize(all.choices), together);
  while (shape.micro_batches % 2 == 0 && shape.micro_batches / 2 >= needed &&
         shape.micro_batches / 2 % deck.parallel.pipeline == 0)
    shape.micro_batches /= 2;
  shape.tallies = shape.micro_batches * together;
  shape.of_targets = true;
  return shape;
}

/// The log likelihood of each choice, given its context.
std::vector<double> log_likelihoods(Engine& engine, const plan::PlanShape& shape,
                                    std::span<const data::ChoiceTokens> choices) {
  const PreparedPlan& prepared = engine.prepared(shape);
  std::vector<double> all;
  for (std::int64_t first = 0; first < std::ssize(choices); first += shape.tallies) {
    const StepOutput output =
        engine.run(prepared, {}, data::choices_step(choices, first, engine.share(shape)));
    const std::int64_t samples = std::min(shape.tallies, std::ssize(choices) - first);
    for (std::int64_t i = 0; i < samples; ++i)
      all.push_back(-exact_value(output.losses_of(i).words));
  }
  return all;
}

/// What a model says of a question, and whether that is right.
struct Answer {
  std::span<const double> log_likelihoods;
  std::int64_t by_sum = 0, by_byte = 0;  // the choices that are likeliest
};
Answer answer_of(const data::Question& question, std::span<const double> log_likelihoods) {
  std::vector<double> a_byte;
  for (std::size_t i = 0; i < question.choices.size(); ++i)
    a_byte.push_back(log_likelihoods[i] / static_cast<double>(question.choices[i].size()));
  return {.log_likelihoods = log_likelihoods,
          .by_sum = std::ranges::max_element(log_likelihoods) - log_likelihoods.begin(),
          .by_byte = std::ranges::max_element(a_byte) - a_byte.begin()};
}

std::string to_line(const data::Question& question, const Answer& answer) {
  std::vector<std::size_t> bytes;
  for (const std::string& choice : question.choices) bytes.push_back(choice.size());
  return nlohmann::ordered_json{{"line", question.line},
                                {"answer", question.answer},
                                {"chosen", answer.by_sum},
                                {"chosen_norm", answer.by_byte},
                                {"log_likelihoods", answer.log_likelihoods},
                                {"bytes", bytes}}
             .dump() +
         "\n";
}

std::string to_text(const Accuracy& accuracy) {
  const auto error = accuracy.standard_error();
  return fmt::format("{:.4f}{}", accuracy.share(), error ? fmt::format(" +- {:.4f}", *error) : "");
}

}  // namespace

void answer_choices(const deck::LoadedDeck& loaded, const Job& job, const ChoicesOptions& options) {
  const comm::Control& control = job.control;
  const auto begin = SteadyClock::now();
  control.together([&] {
    setup::check_on_ranks(loaded, control.size());
    if (control.rank() == 0 && !options.out.empty()) io::check_out(options.out, "answers.jsonl");
    if (deck::has_own_head(loaded.deck.task.kind)) {
      throw DeckError(fmt::format(
          "{}: task.kind = \"{}\": the model's outputs are no tokens, of which --choices needs "
          "probabilities",
          loaded.where("task.kind"), enum_word(loaded.deck.task.kind)));
    }
    if (loaded.deck.model.attention == AttentionMask::causal) return;
    throw DeckError(
        fmt::format("{}: model.attention = \"{}\": the model was trained to fill in "
                    "masked tokens, not to continue a text, which --choices needs",
                    loaded.where("model.attention"), enum_word(loaded.deck.model.attention)));
  });
  const Questions all = read_questions(loaded, control, options);
  plan::PlanShape shape;
  control.together([&] {
    shape = choices_shape(loaded, all, setup::mesh_of(loaded.deck, control.size()).batch_ranks());
  });
  TrainedEngine trained(loaded, job, shape, options.weights);
  const auto scores = log_likelihoods(trained.engine(), shape, all.choices);
  trained.check_loss(std::accumulate(scores.begin(), scores.end(), 0.0));
  Accuracy by_sum, by_byte;
  std::string lines;
  std::span<const double> left = scores;
  for (const data::Question& question : all.questions) {
    const Answer answer = answer_of(question, left.first(question.choices.size()));
    left = left.subspan(question.choices.size());
    for (const auto& [accuracy, chosen] :
         {std::pair{&by_sum, answer.by_sum}, std::pair{&by_byte, answer.by_byte}}) {
      ++accuracy->questions;
      accuracy->right += chosen == question.answer ? 1 : 0;
    }
    lines += to_line(question, answer);
  }
  control.together([&] {
    if (control.rank() == 0 && !options.out.empty()) io::write_text(options.out, lines);
  });
  if (control.rank() != 0) return;
  fmt::print("evaluate {} | {} of {} | acc {} | acc_norm {} | {:.1f} s\n", trained.name(),
             count_text(by_sum.questions, "question"), printable(all.file), to_text(by_sum),
             to_text(by_byte), seconds_since(begin));
}

}  // namespace tessera::train
