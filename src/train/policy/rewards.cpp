#include "train/policy/rewards.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"

namespace tessera::train {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// A prompt's line with what the model has answered.
std::string line_of(const Rewards::Asked& asked) {
  auto line = nlohmann::ordered_json::parse(asked.prompt->line);
  line["completion"] = asked.answer;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A number, or the member "reward" of an object; NaN where it is neither.
double reward_of(const std::string& line) {
  auto said = nlohmann::json::parse(line, nullptr, false);
  if (said.is_object() && said.contains("reward")) said = nlohmann::json(said["reward"]);
  if (said.is_boolean()) return said.get<bool>() ? 1 : 0;
  return said.is_number() ? said.get<double>() : std::nan("");
}

}  // namespace

Rewards::Rewards(const deck::RewardSection& section, const comm::Control& control)
    : section_(section) {
  if (section.kind != deck::RewardKind::command) return;
  control.together([&] { program_ = std::make_unique<Program>(section.command); });
}

std::vector<double> Rewards::of(std::span<const Asked> answers) {
  if (program_) return ask(answers);
  std::vector<double> all;
  for (const Asked& asked : answers)
    all.push_back(trimmed(asked.answer) == trimmed(asked.prompt->answer) ? 1 : 0);
  return all;
}

std::vector<double> Rewards::ask(std::span<const Asked> answers) {
  std::vector<std::string> lines;
  for (const Asked& asked : answers) lines.push_back(line_of(asked));
  std::vector<double> all;
  for (const std::string& said : program_->ask(lines, section_.timeout)) {
    const double reward = reward_of(said);
    if (!(std::abs(reward) <= kLargestReward)) {
      throw DataError(fmt::format(
          "reward.command: {} has answered \"{}\" to {}: a line is a number of at most {}, or an "
          "object whose member \"reward\" is one",
          program_->name(), said.substr(0, 200), lines[all.size()].substr(0, 500), kLargestReward));
    }
    all.push_back(reward);
  }
  return all;
}

}  // namespace tessera::train
