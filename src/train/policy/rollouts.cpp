#include "train/policy/rollouts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/at.hpp"
#include "core/clock.hpp"
#include "train/policy/advantages.hpp"

namespace tessera::train {
namespace {

/// Answers as the bytes that ranks exchange.
class Packed {
 public:
  template <typename T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    put(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacked {
 public:
  explicit Unpacked(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <typename T>
  T get() {
    T value;
    copy(&value, sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> get_all() {
    const auto count = get<std::size_t>();
    TESSERA_CHECK(count <= bytes_.size(), "{} values in {} bytes", count, bytes_.size());
    std::vector<T> values(count);
    copy(values.data(), count * sizeof(T));
    return values;
  }

 private:
  void copy(void* to, std::size_t count) {
    TESSERA_CHECK(count <= bytes_.size(), "{} bytes of {}", count, bytes_.size());
    bytes_.copy(static_cast<char*>(to), count);
    bytes_.remove_prefix(count);
  }
  std::string_view bytes_;
};

}  // namespace

Rollouts::Rollouts(Run& run)
    : run_(run),
      prompts_(*run.prompts),
      order_(std::ssize(prompts_.all), static_cast<std::uint64_t>(run.deck.run.seed),
             run.deck.data.shuffle ? io::Shuffle::yes : io::Shuffle::no),
      documents_(data::document_rule(run.deck)),
      actor_(run),
      rewards_(run.deck.reward, run.control) {}

const data::Prompts::Prompt& Rollouts::prompt_of(std::int64_t number) const {
  return at(prompts_.all, order_.sequence_of(number / run_.deck.rollout.samples));
}

std::string Rollouts::text_of(const Answer& answer) const {
  std::string text;
  for (const std::int32_t id : answer.tokens)
    if (std::ranges::count(prompts_.ends, id) == 0) text += prompts_.tokenizer.decode(id);
  return text;
}

std::vector<Rollouts::Answer> Rollouts::draw(std::int64_t first, std::int64_t count) {
  const SamplingRule rule{.seed = static_cast<std::uint64_t>(run_.deck.run.seed)};
  StopRule stop{.most = *run_.deck.rollout.tokens,
                .ends = prompts_.ends,
                .texts = {},
                .text_of = [](std::int32_t) { return std::string_view(); }};
  std::vector<Answer> answers;
  Completions completions(actor_.generator(), rule, std::move(stop), true);
  completions.done = [&](Completion&& made) {
    Answer& answer = answers.emplace_back();
    answer.number = static_cast<std::int64_t>(made.number);
    answer.ending = made.ending;
    answer.tokens = std::move(made.tokens);
    for (const double log_p : made.log_p) answer.drawn.push_back(static_cast<float>(-log_p));
  };
  const std::int64_t ranks = run_.control.size();
  std::int64_t next = first + run_.control.rank();
  while (next < first + count || !completions.idle()) {
    for (; next < first + count && completions.free() > 0; next += ranks) {
      const Completions::Prompt prompt{.number = static_cast<std::uint64_t>(next),
                                       .tokens = prompt_of(next).tokens};
      completions.add(std::span(&prompt, 1));
    }
    if (!completions.idle()) completions.step();
  }
  std::ranges::sort(answers, {}, &Answer::number);
  for (Answer& answer : answers) {
    const std::vector<std::int32_t>& prompt = prompt_of(answer.number).tokens;
    const std::int64_t begin = std::ssize(prompt);
    std::vector<std::int32_t> all = prompt;
    all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
    if (run_.deck.task.kl > 0) answer.reference = actor_.reference_losses(all, begin);
    if (deck::has_values(run_.deck.task.kind))
      answer.values = actor_.generator().values(all, begin);
  }
  return answers;
}

void Rollouts::judge(std::vector<Answer>& answers) {
  std::vector<std::string> texts;
  std::vector<Rewards::Asked> asked;
  for (const Answer& answer : answers) texts.push_back(text_of(answer));
  for (std::size_t i = 0; i < answers.size(); ++i)
    asked.push_back({.prompt = &prompt_of(answers[i].number), .answer = texts[i]});
  const std::vector<double> rewards = rewards_.of(asked);
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i].reward = rewards[i];
}

std::vector<Rollouts::Answer> Rollouts::exchange(const std::vector<Answer>& own) const {
  Packed packed;
  for (const Answer& answer : own) {
    packed.put(answer.number);
    packed.put(answer.reward);
    packed.put(answer.ending);
    packed.put_all(answer.tokens);
    packed.put_all(answer.drawn);
    packed.put_all(answer.reference);
    packed.put_all(answer.values);
  }
  const std::string mine = packed.take();
  std::string all;
  for (int rank = 0; rank < run_.control.size(); ++rank) all += run_.control.broadcast(mine, rank);
  std::vector<Answer> answers;
  for (Unpacked bytes(all); !bytes.empty();) {
    Answer& answer = answers.emplace_back();
    answer.number = bytes.get<std::int64_t>();
    answer.reward = bytes.get<double>();
    answer.ending = bytes.get<Ending>();
    answer.tokens = bytes.get_all<std::int32_t>();
    answer.drawn = bytes.get_all<float>();
    answer.reference = bytes.get_all<float>();
    answer.values = bytes.get_all<float>();
  }
  std::ranges::sort(answers, {}, &Answer::number);
  return answers;
}

std::vector<double> Rollouts::weights(std::size_t begin, std::size_t count) const {
  double tokens = 0;
  for (std::size_t i = 0; i < count; ++i)
    tokens += static_cast<double>(answers_[begin + i].tokens.size());
  std::vector<double> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(tokens / static_cast<double>(count) /
                  static_cast<double>(answers_[begin + i].tokens.size()));
  }
  return all;
}

void Rollouts::compare(std::span<const double> rewards) {
  const deck::TaskSection& task = run_.deck.task;
  if (deck::has_values(task.kind)) return compare_with_values();
  const auto all = group_advantages(rewards, run_.deck.rollout.samples, task.scale_rewards);
  for (std::size_t i = 0; i < answers_.size(); ++i)
    answers_[i].advantages.assign(answers_[i].tokens.size(), all[i]);
}

/// What an answer is rewarded with comes with its last token; with each, what it costs that log p
/// is larger than under the reference model.
void Rollouts::compare_with_values() {
  const deck::TaskSection& task = run_.deck.task;
  std::vector<double> all;
  for (Answer& answer : answers_) {
    std::vector<double> rewards(answer.tokens.size());
    for (std::size_t t = 0; t < answer.reference.size(); ++t) {
      rewards[t] = -task.kl * (static_cast<double>(answer.reference[t]) -
                               static_cast<double>(answer.drawn[t]));
    }
    rewards.back() += answer.reward;
    answer.advantages = generalised_advantages(rewards, answer.values, task.gamma, task.lambda);
    for (std::size_t t = 0; t < rewards.size(); ++t) {
      answer.returns.push_back(
          static_cast<float>(answer.advantages[t] + static_cast<double>(answer.values[t])));
      all.push_back(answer.advantages[t]);
    }
  }
  if (!task.scale_rewards || all.size() < 2) return;
  const auto [mean, deviation] = group_statistics(all);
  for (Answer& answer : answers_)
    for (double& x : answer.advantages) x = (x - mean) / (deviation + 1e-4);
}

void Rollouts::summarise(std::span<const double> rewards) {
  const auto answers = static_cast<double>(rewards.size());
  RolloutSummary& s = summary_;
  s.answers = std::ssize(rewards);
  s.reward = std::accumulate(rewards.begin(), rewards.end(), 0.0) / answers;
  const auto samples = static_cast<std::size_t>(run_.deck.rollout.samples);
  double groups = 0;
  for (std::size_t first = 0; first < rewards.size(); first += samples, ++groups) {
    const auto group = rewards.subspan(first, samples);
    const auto [least, most] = std::ranges::minmax(group);
    if (least == most) {
      s.alike += 1;
      continue;
    }
    s.deviation += group_statistics(group).deviation;
  }
  s.alike /= groups, s.deviation /= groups;
  for (const Answer& answer : answers_) {
    s.tokens += static_cast<double>(answer.tokens.size());
    s.cut += answer.ending == Ending::length ? 1 : 0;
    for (const float loss : answer.drawn) s.entropy += loss;
    for (std::size_t i = 0; i < answer.reference.size(); ++i)
      s.kl += answer.reference[i] - answer.drawn[i];
  }
  if (deck::has_values(run_.deck.task.kind)) s.explained = explained();
  s.entropy /= s.tokens, s.kl /= s.tokens;
  s.tokens /= answers, s.cut /= answers;
}

/// Of the variance of returns, the share that values have foreseen.
double Rollouts::explained() const {
  std::vector<double> returns, left;
  for (const Answer& answer : answers_) {
    for (std::size_t t = 0; t < answer.returns.size(); ++t) {
      returns.push_back(answer.returns[t]);
      left.push_back(returns.back() - static_cast<double>(answer.values[t]));
    }
  }
  if (returns.size() < 2) return 0;
  const double all = group_statistics(returns).deviation;
  const double unseen = group_statistics(left).deviation / all;
  return all > 0 ? 1 - unseen * unseen : 0;
}

std::int64_t Rollouts::left_of_round() const {
  const std::int64_t steps = run_.deck.rollout.steps, next = run_.course.progress.step + 1,
                     last = std::min(ceil_div(next, steps) * steps, run_.course.steps());
  std::int64_t count = 0;
  for (std::int64_t step = next; step <= last; ++step) count += run_.course.sequences(step);
  return count;
}

bool Rollouts::round_over() const {
  return run_.course.progress.step % run_.deck.rollout.steps == 0;
}

void Rollouts::begin_round(std::int64_t first, std::int64_t count) {
  const std::int64_t step = run_.course.progress.step + 1;
  run_.job.whereabouts.begin("drawing answers for", step);
  const comm::Control& control = run_.control;
  const auto begin = SteadyClock::now();
  actor_.refresh();
  std::vector<Answer> own;
  double drawing = 0, judging = 0;
  bool diverged = false;
  control.together([&] {
    try {
      own = draw(first, count);
    } catch (const NonFiniteError&) {
      diverged = true;
      return;
    }
    drawing = seconds_since(begin);
    judge(own);
    judging = seconds_since(begin) - drawing;
  });
  run_.job.whereabouts.begin("training", step);
  if (control.max(std::int64_t{diverged ? 1 : 0}) > 0) return spoil(first, count);
  answers_ = exchange(own);
  std::vector<double> rewards;
  for (const Answer& answer : answers_) rewards.push_back(answer.reward);
  compare(rewards);
  summary_ = {.drawing_s = control.max(drawing), .judging_s = control.max(judging)};
  summarise(rewards);
}

void Rollouts::spoil(std::int64_t first, std::int64_t count) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  answers_.assign(static_cast<std::size_t>(count), {.tokens = {0},
                                                    .drawn = {kNone},
                                                    .reference = {kNone},
                                                    .values = {kNone},
                                                    .advantages = {static_cast<double>(kNone)},
                                                    .returns = {kNone}});
  for (Answer& answer : answers_) answer.number = first++;
  summary_ = {};
}

void Rollouts::begin(std::int64_t first, const data::BatchShare& share) {
  const std::int64_t count = share.data_ranks * share.micro_batches * share.micro;
  const bool left = !answers_.empty() && answers_.front().number <= first &&
                    first + count <= answers_.back().number + 1;
  if (!left) begin_round(first, left_of_round());
  const std::int64_t of_round = first - answers_.front().number;
  const std::vector<double> weight =
      weights(static_cast<std::size_t>(of_round), static_cast<std::size_t>(count));
  current_ = {.first = first, .share = share};
  for (std::int64_t k = 0; k < share.micro_batches; ++k) {
    for (std::int64_t b = 0; b < share.micro; ++b) {
      const std::int64_t which = share.first_sample(k) + b;
      add(static_cast<std::size_t>(of_round + which), at(weight, which), share);
    }
  }
  current_.keep_chunks(documents_.positions);
}

/// A sample is a prompt with its answer, whose tokens are the targets that count, and padding.
void Rollouts::add(std::size_t which, double weight, const data::BatchShare& share) {
  const Answer& answer = answers_[which];
  const std::vector<std::int32_t>& prompt = prompt_of(answer.number).tokens;
  const std::size_t first = current_.tokens.size(),
                    length = static_cast<std::size_t>(share.sequence),
                    count = prompt.size() + answer.tokens.size() - 1,
                    target = first + prompt.size() - 1;
  TESSERA_CHECK(count <= length, "a prompt of {} and an answer of {} tokens in {}", prompt.size(),
                answer.tokens.size(), length);
  current_.tokens.insert(current_.tokens.end(), prompt.begin(), prompt.end());
  current_.tokens.insert(current_.tokens.end(), answer.tokens.begin(), answer.tokens.end() - 1);
  current_.tokens.resize(first + length);
  const auto put = [&](auto& into, auto padding, const auto& values) {
    into.resize(first + length, padding);
    std::ranges::copy(values, into.begin() + static_cast<std::ptrdiff_t>(target));
  };
  put(current_.targets, -1, answer.tokens);
  const std::vector<float> advantages(answer.advantages.begin(), answer.advantages.end()),
      weights(answer.tokens.size(), static_cast<float>(weight));
  const bool values = deck::has_values(run_.deck.task.kind), before = run_.deck.rollout.steps > 1;
  put(current_.advantages, 0.0F, advantages);
  if (run_.deck.task.mean == deck::AnswerMean::answers) put(current_.weights, 0.0F, weights);
  if (before) put(current_.drawn_losses, 0.0F, answer.drawn);
  if (run_.deck.task.kl > 0 && !values) put(current_.reference_losses, 0.0F, answer.reference);
  if (values) put(current_.returns, 0.0F, answer.returns);
  if (values && before) put(current_.drawn_values, 0.0F, answer.values);
  current_.samples.push_back(answer.number);
  current_.counted.push_back(std::ssize(answer.tokens));
  current_.tallies.push_back(0);
  std::vector<std::int64_t> ends{static_cast<std::int64_t>(count)};
  documents_.add_padding(ends, ends.front(), share.sequence);
  current_.add_documents(ends, share.sequence);
}

std::string Rollouts::to_lines() const {
  std::string lines;
  const std::int64_t first = current_.first - answers_.front().number,
                     count = current_.share.data_ranks * current_.share.micro_batches *
                             current_.share.micro;
  for (std::int64_t i = first; i < first + count; ++i) {
    const Answer& answer = at(answers_, i);
    nlohmann::ordered_json line{
        {"sample", answer.number},
        {"line", nlohmann::ordered_json::parse(prompt_of(answer.number).line)}};
    line["completion"] = text_of(answer);
    line["finish"] = enum_word(answer.ending);
    line["token_ids"] = answer.tokens;
    line["reward"] = answer.reward;
    if (deck::has_values(run_.deck.task.kind)) {
      line["advantages"] = answer.advantages;
      line["values"] = answer.values;
    } else {
      line["advantage"] = answer.advantages.front();
    }
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return lines;
}

}  // namespace tessera::train
