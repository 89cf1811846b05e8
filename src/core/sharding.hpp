// What each ZeRO stage keeps in shards (Rajbhandari et al. 2020, "ZeRO", section 5): the one table
// that plans, formulas and messages ask.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

/// What a data rank keeps a shard of only; everything else it keeps in full, as every other data
/// rank does.
struct Sharding {
  bool states = false;      // optimizer state and master weights: each rank updates its shard
  bool gradients = false;   // once they are summed
  bool parameters = false;  // gathered into a window before use

  /// Whether updated shards of the parameters must be sent to all data ranks before their first use
  /// in the next step.
  constexpr bool publishes() const { return states && !parameters; }
};

/// The table, by ZeRO stage.
inline constexpr std::array kShardings = {
    Sharding{}, Sharding{.states = true}, Sharding{.states = true, .gradients = true},
    Sharding{.states = true, .gradients = true, .parameters = true}};
inline constexpr std::int64_t kZeroStages = std::size(kShardings);

/// For `ranks` data ranks at ZeRO stage `stage`. A single data rank keeps everything in full.
constexpr Sharding sharding_of(std::int64_t stage, std::int64_t ranks) {
  return ranks > 1 ? kShardings[static_cast<std::size_t>(stage)] : Sharding{};
}

/// The first ZeRO stage that shards `what`.
constexpr std::int64_t first_stage(bool Sharding::*what) {
  std::int64_t stage = 0;
  while (!(kShardings[static_cast<std::size_t>(stage)].*what)) ++stage;
  return stage;
}

}  // namespace tessera
