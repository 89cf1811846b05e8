// The proof of updates in two passes.
#pragma once

#include <map>
#include <optional>

#include "core/range_map.hpp"
#include "plan/proof/homes.hpp"

namespace tessera::plan {

/// Follows updates in two passes. Each element has both, in this order and with the same settings.
/// Between them the sums of its tensor, which begin at 0 and which this rank has added what it
/// counts to, are added up over all ranks; or whole matrices are made of directions. `at` is always
/// the op; its errors are InternalErrors.
class TwoPasses {
 public:
  TwoPasses(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes) {}

  /// What is between passes.
  void between(std::size_t at, const Op& op);
  /// A pass; those that are all of an update have no part in this.
  void pass(std::size_t at, const Op& op, const kernels::OptimizerUpdate& update);
  void end() const;

 private:
  struct Unit {
    std::int64_t first = 0, summed = 0, second = 0;  // elements of passes, and those in sums
    std::int64_t directed = 0, moved = 0;
    bool averaged = false;  // ratios of its tensors
  };
  struct Element {
    std::optional<kernels::UpdateSettings> settings;  // of its first pass
    std::int64_t sums = -1;                           // where they are; -1: another rank counts it
    std::int64_t exchanges = 0;  // ops of whole matrices before its direction was made
  };
  void averages(std::size_t at, const Op& op, const kernels::AverageTrust& call);
  void begin(std::size_t at, const kernels::OptimizerUpdate& update, const Element& element);
  void finish(std::size_t at, const kernels::OptimizerUpdate& update);
  BufferUse home_of(const View& v) const { return homes_.home_of(v); }

  const Plan& plan_;
  const Homes& homes_;
  std::map<std::int32_t, Unit> units_;
  std::map<BufferId, RangeMap<Element>> elements_;  // by bytes of master weights
  // The buffer of all sums: cleared, and summed over all ranks.
  std::optional<BufferUse> cleared_;
  bool whole_ = false;
  std::int64_t exchanges_ = 0;
};

}  // namespace tessera::plan
