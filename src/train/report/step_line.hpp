// The line that people see of a step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::train {

struct StepLine {
  std::int64_t step = 0, steps = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double seconds = 0, tokens_per_s = 0;
  double mfu = 0;         // 0: not known
  double gemm_share = 0;  // of the rate of matrix products that was measured; 0: not known
  struct Share {
    std::string_view what;
    double part = 0;  // of `seconds`
  };
  std::array<Share, 4> shares{};  // of what is not computing
  double elapsed = 0;             // seconds of this start
  std::optional<double> left;     // of the run
};

/// In at most 100 columns:
///   step 12/600 | loss 3.2146 norm 0.312 lr 5.8e-04 | 812 ms MFU 41% 78.9k tok/s | 9s, ETA 1h37m
/// The shares follow "tok/s", the largest first: those of 1 % and more for which there is room.
std::string to_text(const StepLine& line);

}  // namespace tessera::train
