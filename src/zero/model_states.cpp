#include "zero/model_states.hpp"

#include "core/math.hpp"
#include "core/sharding.hpp"

namespace tessera::zero {

StateBytes model_states(std::int64_t elements, std::int64_t data, int stage,
                        const StateTypes& types) {
  const Sharding sharding = sharding_of(stage, data);
  const auto kept = [&](bool sharded) { return sharded ? ceil_div(elements, data) : elements; };
  const std::int64_t master = types.compute == DType::f32 ? 0 : size_of(DType::f32);
  return {.parameters = kept(sharding.parameters) * size_of(types.compute),
          .gradients = kept(sharding.gradients) * size_of(types.accumulate),
          .optimizer = kept(sharding.states) * (types.optimizer + master)};
}

}  // namespace tessera::zero
