#include "zero/model_states.hpp"

#include "core/math.hpp"
#include "core/sharding.hpp"

namespace tessera::zero {

StateBytes model_states(const StateElements& elements, std::int64_t ranks, int stage,
                        const StateTypes& types) {
  const Sharding sharding = sharding_of(stage, ranks);
  const auto part = [&](std::int64_t n, bool sharded) { return sharded ? ceil_div(n, ranks) : n; };
  const auto kept = [&](bool sharded) { return part(elements.trained, sharded); };
  const std::int64_t master = types.compute == DType::f32 ? 0 : size_of(DType::f32);
  std::int64_t frozen = 0;
  for (const auto& [stored, n] : elements.frozen)
    frozen += stored.bytes(part(n, sharding.parameters));
  return {.parameters = kept(sharding.parameters) * size_of(types.compute) + frozen,
          .gradients = kept(sharding.gradients) * size_of(types.accumulate),
          .optimizer = kept(sharding.states) * (types.optimizer - types.whole + master) +
                       kept(false) * types.whole};
}

StateBytes model_states(const SharedElements& elements, int stage, const StateTypes& types) {
  StateBytes all;
  for (const auto& [ranks, shared] : elements) all += model_states(shared, ranks, stage, types);
  return all;
}

}  // namespace tessera::zero
