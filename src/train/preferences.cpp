#include "train/preferences.hpp"

#include <fmt/format.h>

namespace tessera::train {

std::string to_text(const Preferences& p, std::optional<double> beta) {
  const double factor = beta.value_or(1);
  std::string text =
      fmt::format("accuracy {:.4f} | margin {:#.4g} | rewards {:#.4g} and {:#.4g}", p.accuracy,
                  factor * p.margin(), factor * p.chosen, factor * p.rejected);
  return beta ? fmt::format("{} | log ratio {:#.4g}", text, p.log_ratio()) : text;
}

}  // namespace tessera::train
