// The whole model run eagerly: unit functions one after another on a real device, without a plan.
// Plans are compared with what it computes.
#pragma once

#include "kernels/api/device.hpp"
#include "support/models.hpp"
#include "zero/unit_layout.hpp"

namespace tessera::test {

class EagerModel {
 public:
  EagerModel(const model::ModelConfig& config, DType compute, std::uint64_t dropout_seed,
             kernels::Device& device, const train::ParameterSource& parameters,
             std::int64_t inner_rows = 0);

  /// Master weights of all units, one after another, each in its flat layout for one rank; loss()
  /// and backward() read them, rounded to the compute type.
  std::vector<float> parameters;
  struct Tensor {
    std::string name;
    Range elements;  // in `parameters`, padding rows excluded
  };
  std::vector<Tensor> tensors() const;

  /// What is minimised of routers beside the losses.
  kernels::RouterTerms router_terms;
  /// Per-token losses, dropout as in training.
  std::vector<float> losses(const TokenBatch& batch);
  struct Gradients {
    std::vector<float> losses;
    std::vector<float> flat;     // layout of `parameters`
    std::vector<float> trained;  // of it, what is of units that are not frozen
  };
  /// Losses and gradients of `scale` times the sum of the losses.
  Gradients backward(const TokenBatch& batch, float scale);

 private:
  struct Pass;

  model::ModelConfig config_;
  DType compute_;
  std::uint64_t seed_;
  std::int64_t inner_rows_;  // UnitContext::inner_rows
  kernels::Device& device_;
  std::vector<model::UnitDesc> units_;
  std::vector<zero::UnitLayout> layouts_;
};

}  // namespace tessera::test
