#include "zero/model_states.hpp"

#include "core/math.hpp"

namespace tessera::zero {

StateBytes model_states(std::int64_t elements, std::int64_t data, int stage, DType compute,
                        DType accumulate) {
  const auto from_stage = [&](int first) {
    return stage >= first ? ceil_div(elements, data) : elements;
  };
  const std::int64_t moments = 2 * size_of(DType::f32);
  const std::int64_t master = compute == DType::f32 ? 0 : size_of(DType::f32);
  return {.parameters = from_stage(3) * size_of(compute),
          .gradients = from_stage(2) * size_of(accumulate),
          .optimizer = from_stage(1) * (moments + master)};
}

}  // namespace tessera::zero
