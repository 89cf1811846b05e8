// What each ZeRO stage keeps in shards (Rajbhandari et al. 2020, "ZeRO", section 5): the one table
// that plans, formulas and messages ask.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// What a data rank keeps only a shard of; the rest it keeps whole, as every other does.
struct Sharding {
  bool states = false;     // of the optimizer, master weights among them: each rank updates a shard
  bool gradients = false;  // once they are summed
  bool parameters = false;  // gathered into a window before use

  /// Updated shards of the parameters go to everybody before their first use in the next step.
  constexpr bool publishes() const { return states && !parameters; }
};

/// By stage.
inline constexpr std::array kShardings = {
    Sharding{}, Sharding{.states = true}, Sharding{.states = true, .gradients = true},
    Sharding{.states = true, .gradients = true, .parameters = true}};
inline constexpr std::int64_t kZeroStages = std::size(kShardings);

/// Of `ranks` data ranks at ZeRO stage `stage`; one alone keeps everything whole.
constexpr Sharding sharding_of(std::int64_t stage, std::int64_t ranks) {
  return ranks > 1 ? kShardings[static_cast<std::size_t>(stage)] : Sharding{};
}

/// The first stage that shards what `what` says.
constexpr std::int64_t first_stage(bool Sharding::*what) {
  std::int64_t stage = 0;
  while (!(kShardings[static_cast<std::size_t>(stage)].*what)) ++stage;
  return stage;
}

}  // namespace tessera
