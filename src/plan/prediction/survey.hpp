// What the ranks of a job hold, send and compute, from one plan for each kind of rank: so that
// thousands of ranks are known in seconds.
#pragma once

#include <map>
#include <span>

#include "plan/ir/inputs.hpp"
#include "plan/prediction/ledger.hpp"

namespace tessera::plan {

struct RankFigures {
  MeshPlace place;
  Ledger ledger;                           // of all shapes
  std::vector<ArenaBytes> arenas;          // of each shape
  double flop = 0;                         // of a step of the first shape
  std::map<OpKind, comm::WireBytes> wire;  // likewise, by what is sent
  zero::SharedElements elements;           // of the units that the rank's stage holds, its share
  comm::WireBytes sent() const;
};

/// Of each pipeline stage, the tensor rank with the largest share: uneven shares make it hold, send
/// and compute most. Data ranks differ in what their shards begin and end with only.
std::vector<MeshPlace> largest_places(const PlanInputs& inputs);

/// These, the first, middle and last data rank of the first stage and a whole pipeline, which must
/// fit together, and one rank of each kind beside: on each stage, of each size of tensor share, the
/// tensor rank that sums the losses and another, in each situation on the nodes.
std::vector<MeshPlace> distinct_places(const PlanInputs& inputs);

struct Survey {
  std::vector<RankFigures> ranks;  // as the places
  /// How many meetings stages have in a step of the first shape; all are proved to fit.
  std::int64_t meetings = 0;
};
/// Plans for `places`, made in turn on as many threads as there are devices and measured. Throws
/// InternalError if data ranks of one stage would not issue the same collectives, or the stages of
/// a pipeline, of which all are among the places, would not find each other.
Survey survey(const PlanInputs& inputs, std::span<const PlanShape> shapes,
              std::span<const MeshPlace> places,
              std::span<const std::unique_ptr<kernels::Device>> devices);

/// Of each pipeline stage, the figures of the rank that holds most memory.
std::vector<const RankFigures*> largest_of_stages(std::span<const RankFigures> figures);

}  // namespace tessera::plan
