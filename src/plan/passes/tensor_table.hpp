// Words of each parameter tensor, whichever units and ranks have parts of it: what updates that
// need something of whole tensors add up, or compare, over all ranks.
#pragma once

#include <map>
#include <string>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

class TensorTable {
 public:
  /// Of `words` 64-bit integers for each tensor; 0: there is no table.
  TensorTable(Plan& plan, const PlanInputs& inputs, const char* name, std::int64_t words);

  explicit operator bool() const { return words_ > 0; }
  const View& all() const { return all_; }
  /// A parameter's words, and those of all parameters of a unit in their order; absent without a
  /// table.
  View of(std::size_t unit, std::size_t parameter) const;
  View of_unit(std::size_t unit) const;

 private:
  const PlanInputs& in_;
  std::int64_t words_;
  std::map<std::string, std::int64_t> places_;  // by name: tiles of a tensor are in several units
  View all_;
};

}  // namespace tessera::plan
