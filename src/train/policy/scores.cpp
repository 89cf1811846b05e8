#include "train/policy/scores.hpp"

#include <algorithm>
#include <utility>

#include "core/at.hpp"
#include "core/enums.hpp"
#include "core/math.hpp"
#include "train/guards/leave.hpp"

namespace tessera::train {
namespace {

/// Tokens of a sample, and where it ends; the rest is padding.
std::int64_t add_tokens(data::StepTokens& step, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> answer, const data::DocumentRule& rule) {
  const std::size_t first = step.tokens.size(),
                    length = static_cast<std::size_t>(step.share.sequence),
                    count = prompt.size() + answer.size();
  TESSERA_CHECK(count <= length, "a prompt of {} and an answer of {} tokens in {}", prompt.size(),
                answer.size(), length);
  step.tokens.insert(step.tokens.end(), prompt.begin(), prompt.end());
  step.tokens.insert(step.tokens.end(), answer.begin(), answer.end());
  step.tokens.resize(first + length);
  step.tallies.push_back(0);
  std::vector<std::int64_t> ends{static_cast<std::int64_t>(count)};
  rule.add_padding(ends, ends.front(), step.share.sequence);
  step.add_documents(ends, step.share.sequence);
  return static_cast<std::int64_t>(first);
}

/// As a document that has one output. One that fills its sequence loses its last token, which no
/// model that drew it has seen either.
void add_document(data::StepTokens& step, const Said& said, const data::DocumentRule& rule) {
  const auto room = static_cast<std::size_t>(step.share.sequence) - said.prompt.size();
  add_tokens(step, said.prompt, said.answer.first(std::min(room, said.answer.size())), rule);
  step.targets.push_back(0);
  step.counted.push_back(1);
}

/// Of answers, one after another, those that ranks have made.
class AllScores {
 public:
  /// `pooled`: an answer has one.
  AllScores(std::span<const Said> answers, bool pooled) : answers_(answers), pooled_(pooled) {
    std::size_t count = 0;
    for (const Said& said : answers)
      first_.push_back(std::exchange(count, count + (pooled ? 1 : said.answer.size())));
    scores_.resize(count);
  }

  void add_to(data::StepTokens& step, const Said& said, const data::DocumentRule& rule) const {
    if (pooled_) {
      add_document(step, said, rule);
    } else {
      add_sample(step, said, rule);
    }
  }
  /// Of tokens [start, start + length) of a sample, which is an answer if there are so many:
  /// returns how many scores these have.
  std::size_t take(std::int64_t answer, std::int64_t start, std::int64_t length,
                   std::span<const float> scores) {
    const std::size_t count = pooled_ ? 1 : static_cast<std::size_t>(length);
    if (answer >= std::ssize(answers_)) return count;
    const std::size_t first = at(first_, answer);
    if (pooled_) {
      scores_[first] = scores.front();
      return count;
    }
    const Said& said = answers_[static_cast<std::size_t>(answer)];
    const std::int64_t said_at = std::ssize(said.prompt) - 1;
    const Range there =
        intersect({start, start + length}, {said_at, said_at + std::ssize(said.answer)});
    for (std::int64_t t = there.begin; t < there.end; ++t)
      scores_[first + static_cast<std::size_t>(t - said_at)] =
          scores[static_cast<std::size_t>(t - start)];
    return count;
  }
  /// One rank has taken each.
  std::vector<std::vector<float>> on_all_ranks(const comm::Control& control) {
    control.unite(scores_);
    std::vector<std::vector<float>> of_each;
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      const auto from = scores_.begin() + static_cast<std::ptrdiff_t>(first_[i]);
      of_each.emplace_back(from, from + (pooled_ ? 1 : std::ssize(answers_[i].answer)));
    }
    return of_each;
  }

 private:
  std::span<const Said> answers_;
  bool pooled_;
  std::vector<std::size_t> first_;  // of each answer
  std::vector<float> scores_;
};

}  // namespace

std::size_t add_sample(data::StepTokens& step, const Said& said, const data::DocumentRule& rule) {
  const auto& [prompt, answer] = said;
  const std::int64_t first =
      add_tokens(step, prompt, answer.first(answer.size() - 1), rule);  // the last is a target only
  step.targets.resize(step.tokens.size(), -1);
  const std::size_t target = static_cast<std::size_t>(first) + prompt.size() - 1;
  std::ranges::copy(answer, step.targets.begin() + static_cast<std::ptrdiff_t>(target));
  step.counted.push_back(std::ssize(answer));
  return target;
}

/// Models of one tokenizer may know tokens of different numbers, beyond those that it has.
static void check_known(std::span<const Said> answers, std::int64_t vocab) {
  for (const Said& said : answers) {
    for (const std::int32_t id : said.answer) {
      if (id < vocab) continue;
      throw DataError(fmt::format(
          "the model has said token {}, but one that judges its answers (reward.model or "
          "task.critic) knows {} tokens: give one whose model.vocab is as large",
          id, vocab));
    }
  }
}

std::vector<std::vector<float>> scores_of(std::span<const Said> answers, const Scorer& by,
                                          const Run& run) {
  run.control.together([&] { check_known(answers, by.engine.inputs().model.config.vocab); });
  AllScores all(answers, by.engine.inputs().model.config.head.pooling != Pooling::none);
  const data::BatchShare share = by.engine.share(by.shape);
  const std::int64_t pass = share.data_ranks * share.micro_batches * share.micro;
  TESSERA_CHECK(pass > 0, "no answers at once");
  for (std::int64_t begin = 0; begin < std::ssize(answers); begin += pass) {
    data::StepTokens step{.first = begin, .share = share};
    std::vector<std::int64_t> which;  // answers
    for (std::int64_t k = 0; k < share.micro_batches; ++k) {
      for (std::int64_t b = 0; b < share.micro; ++b) {
        // Where there are no more answers the last one takes the place of others, for nobody.
        which.push_back(begin + share.first_sample(k) + b);
        const std::int64_t there = std::min(which.back(), std::ssize(answers) - 1);
        step.samples.push_back(there);
        all.add_to(step, answers[static_cast<std::size_t>(there)], by.documents);
      }
    }
    step.keep_chunks(by.documents.positions);
    std::span<const float> scores = or_leave_alone(run.job, run.directory, [&] {
      return by.engine.score(by.engine.prepared(by.shape), step);
    });
    if (scores.empty()) continue;
    share.each_row([&](std::int64_t sample, std::int64_t start, std::int64_t length) {
      scores = scores.subspan(all.take(at(which, sample), start, length, scores));
    });
  }
  return all.on_all_ranks(run.control);
}

}  // namespace tessera::train
