// The proof of gathers.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "plan/proof/homes.hpp"
#include "plan/proof/in_turn.hpp"

namespace tessera::plan {

/// Follows what is gathered over the ranks that share a unit, as it is or in blocks, in chunks of
/// these, and perhaps in several hops: whose shards a buffer has, and in which order. A whole has
/// all of them in the order of ranks, in one format, and all chunks. What is kept as codes travels
/// as they are. All ranks run the same calls,
/// so those of another rank are this one's, shifted by the distance between the two.
class GatherCheck {
 public:
  GatherCheck(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes), arriving_(plan) {}

  /// Throws InternalError.
  void run();

 private:
  struct Shards {
    std::int32_t unit = -1;
    std::optional<kernels::BlockFormat> format;
    Range chunk;  // elements of each shard
    std::vector<std::int64_t> owners;
    bool used = false;
    View where;
    Range bytes() const { return use_of(where).bytes; }
  };
  void check_arrived(const Op& op) const;
  void check_kept(const Op& op) const;
  void check_left(std::int32_t unit) const;
  void forget_written(const Op& op);
  Range chunk_of_own_shard(const Op& op, const View& v) const;
  std::optional<Shards> kept_codes(const Op& op, const View& v) const;
  void follow(const Op& op, const comm::AllGather& gather);
  void arrive(const Op& op, const kernels::SumQuantized& all);
  bool whole(const Op& op, const Shards& shards) const;
  const Shards* taken(const Op& op, const View& v);
  std::optional<Shards> kept_of_node(std::int32_t unit, const View& v) const;
  void put(const Op& op, const View& v, Shards shards, bool used = false);

  const Plan& plan_;
  const Homes& homes_;
  std::size_t at_ = 0;
  std::map<BufferId, std::vector<Shards>> held_;
  InTurn arriving_;
};

}  // namespace tessera::plan
