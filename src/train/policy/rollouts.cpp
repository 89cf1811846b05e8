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
      rewards_(run.deck.reward, run.control) {
  if (run.deck.reward.kind == deck::RewardKind::model) reward_model_.emplace(run);
  if (run.deck.task.critic) critic_.emplace(run);
}

const data::Prompts::Prompt& Rollouts::prompt_of(std::int64_t number) const {
  return at(prompts_.all, order_.sequence_of(number / run_.deck.rollout.samples));
}

std::string Rollouts::text_of(const Answer& answer) const {
  std::string text;
  for (const std::int32_t id : answer.tokens)
    if (std::ranges::count(prompts_.ends, id) == 0) text += prompts_.tokenizer.decode(id);
  return text;
}

std::optional<std::vector<Rollouts::Answer>> Rollouts::draw(std::int64_t first,
                                                            std::int64_t count) {
  const SamplingRule rule{.seed = static_cast<std::uint64_t>(run_.deck.run.seed)};
  StopRule stop{.most = *run_.deck.rollout.tokens,
                .ends = prompts_.ends,
                .texts = {},
                .text_of = [](std::int32_t) { return std::string_view(); }};
  std::vector<Answer> answers;
  EngineDecoder& decoder = actor_.decoder();
  Completions completions(decoder, rule, std::move(stop), true);
  completions.done = [&](Completion&& made) {
    Answer& answer = answers.emplace_back();
    answer.number = static_cast<std::int64_t>(made.number);
    answer.ending = made.ending;
    answer.tokens = std::move(made.tokens);
    for (const double log_p : made.log_p) answer.drawn.push_back(static_cast<float>(-log_p));
  };
  const comm::Control& control = run_.control;
  const std::int64_t ranks = run_.engine->inputs().layout.mesh.data;
  std::int64_t next = first + run_.engine->place().data;
  for (bool more = true; more;) {
    std::vector<Completions::Prompt> begun;
    std::vector<std::int64_t> lengths;
    for (Completions::Room room = completions.room(); next < first + count; next += ranks) {
      const std::span<const std::int32_t> tokens = prompt_of(next).tokens;
      if (!room.take(completions.pages_of(std::ssize(tokens)))) break;
      begun.push_back({.number = static_cast<std::uint64_t>(next), .tokens = tokens});
      lengths.push_back(std::ssize(tokens));
    }
    const std::int64_t passes = control.max(decoder.passes_of(lengths));
    std::int64_t diverged = 0;
    control.together([&] {
      try {
        go_on(decoder, completions, begun, passes);
      } catch (const NonFiniteError&) {
        diverged = 1;
      }
    });
    if (control.max(diverged) > 0) {
      for (std::int64_t slot = 0; slot < decoder.slots(); ++slot) decoder.forget(slot);
      return std::nullopt;
    }
    more = control.max(std::int64_t{next < first + count || !completions.idle() ? 1 : 0}) > 0;
  }
  // The ranks of one model have drawn the same.
  if (!run_.engine->counts_targets()) answers.clear();
  return answers;
}

std::vector<Said> Rollouts::said() const {
  std::vector<Said> all;
  for (const Answer& answer : answers_)
    all.push_back({.prompt = prompt_of(answer.number).tokens, .answer = answer.tokens});
  return all;
}

void Rollouts::set_reward(Answer& answer, double reward) const {
  answer.reward = reward;
  if (std::abs(reward) <= kLargestReward) return;
  throw DataError(
      fmt::format("reward.model: {} says {} of the answer \"{}\" to {}: a score is a number of at "
                  "most {}; if it was trained in a wider type than precision.compute, use that one",
                  *run_.deck.reward.model, reward, text_of(answer).substr(0, 200),
                  prompt_of(answer.number).line.substr(0, 500), kLargestReward));
}

void Rollouts::score() {
  const std::vector<Said> said = this->said();
  const auto set = [&](std::vector<float> Answer::*which, std::vector<std::vector<float>> scores) {
    for (std::size_t i = 0; i < answers_.size(); ++i) answers_[i].*which = std::move(scores[i]);
  };
  if (run_.deck.task.kl > 0) set(&Answer::reference, actor_.reference_losses(said));
  if (deck::has_values(run_.deck.task.kind))
    set(&Answer::values, critic_ ? critic_->values(said) : actor_.values(said));
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
  actor_.decoder().renew();
  std::optional<std::vector<Answer>> own = draw(first, count);
  const double drawing = seconds_since(begin);
  if (!own) {
    run_.job.whereabouts.begin("training", step);
    return spoil(first, count);
  }
  if (!reward_model_) control.together([&] { judge(*own); });
  answers_ = exchange(*own);
  if (reward_model_) {
    const std::vector<double> rewards = reward_model_->of(said());
    control.together([&] {
      for (std::size_t i = 0; i < rewards.size(); ++i) set_reward(answers_[i], rewards[i]);
    });
  }
  const double judging = seconds_since(begin) - drawing;
  score();
  const double scoring = seconds_since(begin) - drawing - judging;
  run_.job.whereabouts.begin("training", step);
  std::vector<double> rewards;
  for (const Answer& answer : answers_) rewards.push_back(answer.reward);
  compare(rewards);
  summary_ = {.drawing_s = control.max(drawing + scoring), .judging_s = control.max(judging)};
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
      add(static_cast<std::size_t>(of_round + which), at(weight, which));
    }
  }
  current_.keep_chunks(documents_.positions);
}

void Rollouts::add(std::size_t which, double weight) {
  const Answer& answer = answers_[which];
  current_.samples.push_back(answer.number);
  const std::size_t target = add_sample(
      current_, {.prompt = prompt_of(answer.number).tokens, .answer = answer.tokens}, documents_);
  const auto put = [&](std::vector<float>& into, const std::vector<float>& values) {
    into.resize(current_.tokens.size());
    std::ranges::copy(values, into.begin() + static_cast<std::ptrdiff_t>(target));
  };
  const std::vector<float> advantages(answer.advantages.begin(), answer.advantages.end()),
      weights(answer.tokens.size(), static_cast<float>(weight));
  const bool values = deck::has_values(run_.deck.task.kind), before = run_.deck.rollout.steps > 1;
  put(current_.advantages, advantages);
  if (run_.deck.task.mean == deck::AnswerMean::answers) put(current_.weights, weights);
  if (before) put(current_.drawn_losses, answer.drawn);
  if (run_.deck.task.kl > 0 && !values) put(current_.reference_losses, answer.reference);
  if (values) put(current_.returns, answer.returns);
  if (values && before) put(current_.drawn_values, answer.values);
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
