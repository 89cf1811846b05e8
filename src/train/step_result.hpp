// What a step of training showed.
#pragma once

#include "train/execution/executor.hpp"

namespace tessera::train {

struct StepResult {
  double loss = 0;       // mean over the global batch's target tokens, before the update
  double grad_norm = 0;  // global, before clipping
  bool applied = true;
  StepTimes times;
  StepInput input;  // what the step ran with
};

}  // namespace tessera::train
