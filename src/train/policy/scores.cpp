#include "train/policy/scores.hpp"

#include <algorithm>
#include <utility>

#include "core/at.hpp"
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

std::vector<std::vector<float>> scores_of(std::span<const Said> answers, const Scorer& by,
                                          const Run& run) {
  const bool pooled = by.engine.inputs().model.config.head.pooling != Pooling::none;
  std::vector<std::size_t> first;  // of each answer's scores, among those of all
  std::size_t scores_in_all = 0;
  for (const Said& said : answers)
    first.push_back(
        std::exchange(scores_in_all, scores_in_all + (pooled ? 1 : said.answer.size())));
  std::vector<float> all(scores_in_all);
  const data::BatchShare share = by.engine.share(by.shape);
  const std::int64_t pass = share.data_ranks * share.micro_batches * share.micro;
  for (std::int64_t begin = 0; begin < std::ssize(answers); begin += pass) {
    data::StepTokens step{.first = begin, .share = share};
    for (std::int64_t k = 0; k < share.micro_batches; ++k) {
      for (std::int64_t b = 0; b < share.micro; ++b) {
        // Where there are no more answers the last one takes the place of others.
        const std::int64_t which =
            std::min(begin + share.first_sample(k) + b, std::ssize(answers) - 1);
        step.samples.push_back(which);
        const Said& said = answers[static_cast<std::size_t>(which)];
        if (pooled) {
          add_document(step, said, by.documents);
        } else {
          add_sample(step, said, by.documents);
        }
      }
    }
    const std::vector<std::int64_t> which = step.samples;
    step.keep_chunks(by.documents.positions);
    std::span<const float> scores = or_leave_alone(run.job, run.directory, [&] {
      return by.engine.score(by.engine.prepared(by.shape), step);
    });
    for (std::size_t i = 0; pooled && i < scores.size(); ++i)
      all[first[static_cast<std::size_t>(which[i])]] = scores[i];
    if (pooled || scores.empty()) continue;
    share.each_row([&](std::int64_t sample, std::int64_t start, std::int64_t length) {
      const auto answer = static_cast<std::size_t>(at(which, sample));
      const Said& said = answers[answer];
      const std::int64_t said_at = std::ssize(said.prompt) - 1;
      const Range there =
          intersect({start, start + length}, {said_at, said_at + std::ssize(said.answer)});
      for (std::int64_t t = there.begin; t < there.end; ++t) {
        all[first[answer] + static_cast<std::size_t>(t - said_at)] =
            scores[static_cast<std::size_t>(t - start)];
      }
      scores = scores.subspan(static_cast<std::size_t>(length));
    });
  }
  run.control.unite(all);
  std::vector<std::vector<float>> of_each;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(first[i]);
    of_each.emplace_back(from, from + (pooled ? 1 : std::ssize(answers[i].answer)));
  }
  return of_each;
}

}  // namespace tessera::train
