// What a predicted step is made of: its operations by name, type and shape, what each takes, and
// how near it comes to what the machine can do.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/prediction/simulate.hpp"

namespace tessera::plan {

/// Operations that are alike, of a rank: the mean over the simulated ranks.
struct Item {
  std::string name;     // as in machine files; of what is no kernel, what it is for
  std::string shape;    // element type, and M x N x K of products, or heads of attention
  bool beside = false;  // on another stream than compute
  double calls = 0, bytes = 0, flop = 0;  // bytes that are moved, or sent
  double seconds = 0;
  double at_best = 0;  // seconds, as of KernelCost; 0: of what is no kernel of the device

  /// Share of the machine's best rate of products, or of its memory.
  std::optional<double> reached() const;
};

/// Those of the compute stream first, and within a stream what takes longest.
std::vector<Item> items_of(const Prediction& prediction, const deck::Machine& machine);

/// A table of at most 100 columns, with shares of a step of so many seconds.
std::string to_text(std::span<const Item> items, double step);

}  // namespace tessera::plan
