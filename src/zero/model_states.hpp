// Bytes of a model's states (parameters, gradients, optimizer) on one rank, by formula (Rajbhandari
// et al. 2020, "ZeRO", section 3 and figure 1; 2021, "ZeRO-Infinity", section 3): for choices that
// have no plan yet, or cannot have one.
#pragma once

#include <cstdint>
#include <map>

#include "core/dtype.hpp"
#include "core/enums.hpp"
#include "model/parameters.hpp"

namespace tessera::zero {

enum class StateTier : std::uint8_t { device, host, disk };

struct StateChoice {
  int stage = 0;
  StateTier optimizer = StateTier::device;  // its state, and master weights if they are separate
  StateTier gradients = StateTier::device;
  StateTier parameters = StateTier::device;
};

/// Bytes of each state on one rank.
struct StateBytes {
  std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
  StateBytes& operator+=(const StateBytes& other) {
    parameters += other.parameters, gradients += other.gradients, optimizer += other.optimizer;
    return *this;
  }
  /// The bytes that lie in `tier`.
  std::int64_t in(StateTier tier, const StateChoice& choice) const {
    return (choice.parameters == tier ? parameters : 0) +
           (choice.gradients == tier ? gradients : 0) + (choice.optimizer == tier ? optimizer : 0);
  }
};

/// Elements of a rank's share of the model that equally many ranks share, before ZeRO divides them.
struct StateElements {
  std::int64_t trained = 0;
  std::map<model::Storage, std::int64_t> frozen;  // by how they are kept

  void add(bool is_trained, const model::Storage& stored, std::int64_t elements) {
    (is_trained ? trained : frozen[stored]) += elements;
  }
};

/// Types and sizes of the states of a model that trains.
struct StateTypes {
  DType compute = DType::f32;     // of parameters; master weights are f32, in f32 the same ones
  DType accumulate = DType::f32;  // of gradients
  std::int64_t optimizer = 0;     // bytes that it keeps for each element,
  std::int64_t whole = 0;         // and those of them that every such rank has for all elements
};

/// By the number of ranks that share them.
using SharedElements = std::map<std::int64_t, StateElements>;

/// The states of these elements, divided over the ranks that share them as the ZeRO stage says.
/// Shards are rounded up to whole elements. What is frozen has parameters only.
StateBytes model_states(const StateElements& elements, std::int64_t ranks, int stage,
                        const StateTypes& types);
StateBytes model_states(const SharedElements& elements, int stage, const StateTypes& types);

}  // namespace tessera::zero

template <>
struct tessera::EnumWords<tessera::zero::StateTier> {
  using T = tessera::zero::StateTier;
  static constexpr std::array table = {std::pair{T::device, "device"}, std::pair{T::host, "host"},
                                       std::pair{T::disk, "nvme"}};
};
