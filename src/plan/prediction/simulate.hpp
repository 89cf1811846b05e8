// What a step will take on a machine that is not at hand: a discrete-event model over the very
// plans that run. The host issues ops in plan order and computes itself, as
// train/execution/executor does; other streams are FIFO queues; messages and collectives begin when
// all who take part have come to them.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "deck/machine.hpp"
#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// What an op takes when it has its links to itself.
struct OpCost {
  double seconds = 0;
  comm::WireBytes sent;  // those who send over the same links at once share their rate
};

/// The cost of every op of a plan. Kernels take what kernel_cost says, copies the time of their
/// bytes at the rate of memory. Collectives take the latencies of their peers, or of a ring's hops,
/// and the time of the bytes that a rank sends, on links of both classes at once. A receive costs
/// nothing beyond its send. Throws DeckError where the machine file does not say what the plan
/// needs.
std::vector<OpCost> op_costs(const Plan& plan, const deck::Machine& machine);

/// Seconds since the step began.
struct OpTime {
  double begin = 0, end = 0;
  bool operator==(const OpTime&) const = default;
};

/// One rank's step.
struct SimulatedRank {
  MeshPlace place;
  std::vector<OpTime> ops;                 // as in its plan
  double compute = 0;                      // of kernels
  std::array<double, kStreams> exposed{};  // that kernels waited, by the stream waited for
  double end = 0;
};
struct Simulation {
  std::vector<SimulatedRank> ranks;
  double step = 0;  // until the last rank is done
};

/// Plays the plans of ranks that represent all others: every pipeline stage once, and either one or
/// all tensor ranks. A collective whose other members are not among them needs only those that are.
/// costs[r] are plan r's. Deterministic. Throws InternalError where the plans wait for each other
/// for ever.
Simulation simulate(std::span<const Plan> plans, std::span<const std::vector<OpCost>> costs);

/// Share of the step that kernels stand still, over all ranks: with free links, the bubble.
double idle_share(const Simulation& simulation);

/// Places whose plans represent those of all ranks: the first data rank; of tensor ranks the first
/// if they have equal shares, all of them otherwise.
std::vector<MeshPlace> simulated_places(const PlanInputs& inputs);

/// A step of a layout on a machine.
struct Prediction {
  std::vector<Plan> plans;  // of the distinct places
  Simulation simulation;
  double bubble = 0;     // idle_share with links that take no time
  double flop = 0;       // of matrix work, recomputation included, of all ranks
  comm::WireBytes sent;  // the most that a rank sends, each class by itself
  /// Bytes of arenas on the device and on the host, the most of any rank.
  std::int64_t device_memory() const;
  std::int64_t host_memory() const;
};
/// Plans of simulated_places, made in turn.
std::vector<Plan> simulated_plans(const PlanInputs& inputs, const PlanShape& shape);
Prediction predict(std::vector<Plan> plans, const PlanInputs& inputs, const deck::Machine& machine);

}  // namespace tessera::plan
