// The proof of reductions in blocks, and in hops.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Follows gradients that travel as blocks: for the slots that this rank holds, which ranks'
/// contributions they contain, which ranks they are for, and which chunk of a shard they are. All
/// ranks of a group run the same calls, so the slots of another rank contain what this rank's do,
/// shifted by the distance between the two ranks. `at` is always the op; its errors are
/// InternalErrors.
class GradientBlocks {
 public:
  explicit GradientBlocks(const Plan& plan) : plan_(plan) {}

  /// Returns the chunk of each shard that sets out.
  Range set_out(std::size_t at, const kernels::Quantize& call);
  void exchange(std::size_t at, const comm::AllToAll& call);
  /// One hop of a reduction of gradients that are not quantised. True at the last, where the own
  /// slice has all contributions.
  bool reduce(std::size_t at, const comm::ReduceScatter& call, std::int64_t size);
  /// Whether these are sums of nodes that are on their way.
  bool holds(const View& v) const { return held_.contains(buffer_of(v)); }
  void add(std::size_t at, const kernels::RequantizeSum& call);
  /// Returns the chunk of the own slice that has all contributions.
  Range arrive(std::size_t at, const kernels::SumQuantized& call);
  void end() const;

 private:
  struct Slots {
    kernels::BlockFormat format;
    std::int64_t elements = 0;         // of a slot
    Range chunk;                       // of a shard: which these are
    std::vector<std::int64_t> owners;  // of each slot: the rank that it is for
    std::set<std::int64_t> of;         // ranks whose contributions are in each slot
    std::int64_t parts = 1;            // copies of each slot that wait to be added
    const std::byte* where = nullptr;  // symbolic
  };
  std::set<std::int64_t> shifted(std::size_t at, const std::set<std::int64_t>& of,
                                 const RankGroup& ranks) const;
  /// Of the ranks that share the unit of the op: their group, and this rank's place among them.
  const comm::GroupShape& group(std::size_t at) const {
    return plan_.group(tessera::at(plan_.ops, at).group);
  }
  std::int64_t own(std::size_t at) const { return plan_.rank_in(tessera::at(plan_.ops, at).group); }
  Slots take(std::size_t at, const View& v);
  void put(std::size_t at, const View& v, Slots slots);
  Slots added(std::size_t at, const View& code, const kernels::BlockFormat& format);

  const Plan& plan_;
  std::map<BufferId, Slots> held_;
};

/// Which chunk of each shard of `n` elements the rows of `v` are, one row for each of `size` shards
/// of a buffer's beginning.
Range chunk_of(const Plan& plan, std::size_t at, const View& v, std::int64_t size, std::int64_t n);

}  // namespace tessera::plan
