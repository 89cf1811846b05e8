#include "train/preferences.hpp"

#include <fmt/format.h>

namespace tessera::train {

std::string to_text(const Preferences& p, double beta) {
  return fmt::format(
      "accuracy {:.4f} | margin {:#.4g} | rewards {:#.4g} and {:#.4g} | log ratio {:#.4g}",
      p.accuracy, beta * p.margin(), beta * p.chosen, beta * p.rejected, p.log_ratio());
}

}  // namespace tessera::train
