#include "plan/prediction/simulate.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "plan/ir/print.hpp"
#include "plan/ir/runs.hpp"
#include "plan/passes/layers.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/prediction/kernel_cost.hpp"
#include "plan/prediction/ledger.hpp"

namespace tessera::plan {
namespace {

// --- What an op takes alone ----------------------------------------------------------------------

void check_names(const deck::Machine& machine) {
  static const std::set<std::string_view> known = kernels::operation_names();
  for (const auto& [type, rates] : machine.kernel) {
    for (const auto& [name, rate] : rates) {
      if (!known.contains(name)) {
        throw DeckError(fmt::format("{}: kernel.{}.{} is no operation ({})", machine.file,
                                    to_string(type), name, fmt::join(known, ", ")));
      }
    }
  }
}

struct CostOf {
  const Plan& plan;
  const Op& op;
  const deck::Machine& machine;

  OpCost operator()(const LoadBatch&) const { return {}; }  // read ahead, during the step before
  /// The disk that checkpoints go to is not among what a machine file says.
  OpCost operator()(const SaveTile& save) const {
    return {kernels::bytes_of(save) / memory_rate(op.location)};
  }
  OpCost operator()(const Copy& copy) const {
    const Location from = where(copy.from), to = where(copy.to);
    const double bytes = copy.share * static_cast<double>(copy.from.span_bytes());
    if (from == Location::disk) return {bytes / disk_rate(machine.disk_read)};
    if (to == Location::disk) return {bytes / disk_rate(machine.disk_write)};
    if (from != to && machine.host) return {machine.host->latency + bytes / machine.host->rate};
    return {2 * bytes / memory_rate(from)};
  }
  OpCost operator()(const kernels::KernelCall& call) const {
    if (op.location == Location::host) return {bytes_of(call) / host_memory_rate()};
    return {std::max(kernel_cost(call, machine).seconds, seconds_of_bus(call))};
  }
  OpCost operator()(const comm::CollectiveCall& call) const {
    const comm::GroupShape& group = plan.group(op.group);
    if (group.size == 1) return {};
    if (std::holds_alternative<comm::Receive>(call)) return {};
    if (std::holds_alternative<comm::AllReduceWords>(call)) {
      const auto rounds =
          static_cast<double>(std::bit_width(static_cast<std::uint64_t>(group.size - 1)));
      const bool far = group.nodes > 1;
      return {.seconds = rounds * link(far).latency};
    }
    const comm::WireBytes bytes = wire_bytes_of(plan, op);
    if (std::holds_alternative<comm::Send>(call)) return transfer(bytes, {.intra = 1, .inter = 1});
    if (const comm::Hop among = among_of(call))
      return transfer(bytes,
                      {.intra = among.ranks.count - 1 - among.remote, .inter = among.remote});
    if (std::holds_alternative<comm::ExchangeRows>(call))
      return transfer(bytes, {.intra = group.local - 1, .inter = group.size - group.local});
    if (passes_on(call)) {  // a rank whose neighbour is on another node makes all wait
      const std::int64_t all = bytes.intra + bytes.inter;
      return group.nodes > 1 ? transfer({.inter = all}, {.inter = 1})
                             : transfer({.intra = all}, {.intra = 1});
    }
    if (machine.collectives == deck::Collectives::direct)
      return transfer(bytes, {.intra = group.local - 1, .inter = group.size - group.local});
    // Of the ring's hops, one a node leads to another node; each rank of a node begins one ring.
    const std::int64_t all = bytes.intra + bytes.inter;
    const std::int64_t far = group.nodes > 1 ? ceil_div(all, group.local) : 0;
    const std::int64_t hops = group.nodes > 1 ? group.nodes - 1 : 0;
    return transfer({.intra = all - far, .inter = far},
                    {.intra = group.size - 1 - hops, .inter = hops});
  }

 private:
  /// Whether each rank sends to one other.
  static bool passes_on(const comm::CollectiveCall& call) {
    const auto* all = std::get_if<comm::AllToAllV>(&call);
    return all != nullptr &&
           std::ranges::count_if(all->send_counts, [](std::int64_t n) { return n > 0; }) == 1;
  }
  Location where(const View& v) const { return plan.buffer(buffer_of(v)).location; }
  /// A rank's share of a node's disks, bytes/s.
  double disk_rate(double of_node) const {
    return share(of_node,
                 "disk.read and disk.write are not given, but the deck keeps things on disks: "
                 "measure them (tessera bench nvme)");
  }
  /// A rank's share of the host's memory, bytes/s.
  double host_memory_rate() const {
    return share(machine.host_memory_rate,
                 "host_memory_rate is not given, but the host computes updates: measure it "
                 "(tessera bench machine)");
  }
  /// Of copies within a location. Where no rate is given of the host, it is the device.
  double memory_rate(Location location) const {
    return location == Location::host && machine.host_memory_rate > 0 ? host_memory_rate()
                                                                      : machine.memory_rate;
  }
  double share(double of_node, std::string_view missing) const {
    if (of_node == 0) throw DeckError(fmt::format("{}: {}", machine.file, missing));
    return of_node / static_cast<double>(plan.group(MeshGroup::world).local);
  }
  /// Of what the device reads and writes in the host's memory: caches, beside which a call has few
  /// bytes. Each query head reads keys and values for itself, anew for every kPageTokens queries.
  double seconds_of_bus(const kernels::KernelCall& call) const {
    bool through = false;
    kernels::visit_views(call, [&](const View& v, kernels::Access) {
      through = through || where(v) == Location::host;
    });
    if (!through || !machine.host) return 0;
    double times = 1;
    if (const auto* a = std::get_if<kernels::Attention>(&call))
      times = static_cast<double>(a->shape.heads * kernels::pages_of(a->q.extent(1))) /
              static_cast<double>(a->shape.kv_heads);
    return machine.host->latency + times * bytes_of(call) / machine.host->rate;
  }
  /// `messages` of each class one after the other, classes side by side.
  OpCost transfer(const comm::WireBytes& bytes, const comm::WireBytes& messages) const {
    const auto seconds = [&](std::int64_t n, std::int64_t count, bool far) {
      if (n == 0) return 0.0;
      return link(far).latency * static_cast<double>(count) +
             static_cast<double>(n) / link(far).rate;
    };
    return {.seconds = std::max(seconds(bytes.intra, messages.intra, false),
                                seconds(bytes.inter, messages.inter, true)),
            .sent = bytes};
  }
  const deck::Link& link(bool far) const {
    const auto& link = far ? machine.inter : machine.intra;
    if (!link) {
      throw DeckError(fmt::format(
          "{}: link.{} is not given, but this layout has groups of ranks "
          "{}: add it, or choose another --nodes",
          machine.file, far ? "inter" : "intra", far ? "on several nodes" : "of one node"));
    }
    return *link;
  }
};

// --- The step
// --------------------------------------------------------------------------------------

/// Identifies the ops of several ranks that belong together: collectives of a group on a stream, or
/// messages between two ranks in one direction, with a running number.
using MeetingKey = std::tuple<MeshGroup, Stream, MeshPlace, std::int64_t, std::int64_t>;

class Player {
 public:
  Player(std::span<const Plan> plans, std::span<const std::vector<OpCost>> costs)
      : plans_(plans), costs_(costs), ranks_(plans.size()) {
    TESSERA_CHECK(plans.size() == costs.size(), "{} plans, {} costs", plans.size(), costs.size());
    for (std::size_t r = 0; r < plans.size(); ++r) {
      ranks_[r].done.resize(plans[r].ops.size());
      ranks_[r].out.ops.resize(plans[r].ops.size());
      ranks_[r].out.place = plans[r].place;
      rank_at_[plans[r].place] = r;
      changed_.push_back(r);
    }
  }

  Simulation play() {
    while (true) {
      while (!changed_.empty()) {
        const std::size_t r = changed_.front();
        changed_.pop_front();
        host(r);
        for (std::size_t s = 1; s < kStreams; ++s) stream(r, s);
      }
      if (!advance()) break;
    }
    Simulation result;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (!rank.finished) {
        const auto i = std::min(rank.next, plans_[r].ops.size() - 1);
        throw InternalError(
            fmt::format("plans that wait for each other: stage {} stays at op {}, {} {}",
                        rank.out.place.pipeline, i, enum_word(plans_[r].ops[i].kind),
                        call_name(plans_[r].ops[i].call)));
      }
      result.step = std::max(result.step, rank.out.end);
      result.ranks.push_back(rank.out);
    }
    return result;
  }

 private:
  struct Queue {
    std::vector<OpId> issued;
    std::size_t head = 0;
    bool under_way = false;  // the head has come to its meeting
  };
  struct Rank {
    std::size_t next = 0;     // op that the host is at
    std::size_t awaited = 0;  // how many of that op's waits are over
    double waits_since = -1;  // < 0: does not wait
    double kernel_ends = -1;  // < 0: no kernel runs
    std::array<Queue, kStreams> streams;
    std::vector<char> done;
    std::map<std::tuple<MeshGroup, Stream, std::int64_t>, std::int64_t> met;  // running numbers
    bool finished = false;
    SimulatedRank out;
  };
  struct Part {
    std::size_t rank = 0;
    OpId op = -1;
  };
  struct Transfer {
    std::vector<Part> parts;
    std::vector<std::size_t> links;
    double left = 0;  // seconds with its links to itself
    double ends = 0;
  };

  const Op& op(const Part& p) const { return plans_[p.rank].op(p.op); }
  OpTime& time(const Part& p) { return at(ranks_[p.rank].out.ops, p.op); }

  /// Returns `done`. Records that the host's wait for an op of `stream` ends, or that it begins if
  /// it has not yet.
  bool over(Rank& r, Stream stream, bool done) {
    if (done) {
      if (r.waits_since >= 0) at(r.out.exposed, stream) += now_ - r.waits_since;
      r.waits_since = -1;
    } else if (r.waits_since < 0) {
      r.waits_since = now_;
    }
    return done;
  }

  /// Issues ops until the host has to wait.
  void host(std::size_t r) {
    Rank& rank = ranks_[r];
    const auto& ops = plans_[r].ops;
    if (rank.kernel_ends >= 0) return;
    for (; rank.next < ops.size(); ++rank.next, rank.awaited = 0) {
      const Op& o = ops[rank.next];
      const auto id = static_cast<OpId>(rank.next);
      if (o.stream != Stream::compute) {
        at(rank.streams, o.stream).issued.push_back(id);
        continue;
      }
      for (; rank.awaited < o.waits.size(); ++rank.awaited) {
        const auto w = static_cast<std::size_t>(o.waits[rank.awaited]);
        if (!over(rank, ops[w].stream, rank.done[w] != 0)) return;
      }
      const double seconds = costs_[r][rank.next].seconds;
      rank.out.ops[rank.next] = {now_, now_ + seconds};
      rank.out.compute += seconds;
      rank.kernel_ends = now_ + seconds;
      return;
    }
    for (; rank.awaited + 1 < kStreams; ++rank.awaited) {
      const auto& queue = rank.streams[rank.awaited + 1];
      const auto stream = static_cast<Stream>(rank.awaited + 1);
      if (!over(rank, stream, queue.head == queue.issued.size())) return;
    }
    rank.finished = true;
    rank.out.end = now_;
  }

  /// Starts the first op of a stream once its waits are over.
  void stream(std::size_t r, std::size_t s) {
    Queue& queue = ranks_[r].streams[s];
    if (queue.under_way || queue.head == queue.issued.size()) return;
    const Part part{r, queue.issued[queue.head]};
    for (const OpId w : op(part).waits) {
      if (at(ranks_[r].done, w) == 0) return;
    }
    queue.under_way = true;
    const auto* call = std::get_if<comm::CollectiveCall>(&op(part).call);
    if (call == nullptr) {
      begin({part});
      return;
    }
    const MeetingKey where = meeting(part, *call);
    auto& met = meetings_[where];
    met.push_back(part);
    if (met.size() < members(part)) return;
    begin(met);
    meetings_.erase(where);
  }

  std::size_t peer_of(const Part& part, std::int64_t stage) const {
    MeshPlace place = plans_[part.rank].place;
    place.pipeline = stage;
    const auto it = rank_at_.find(place);
    TESSERA_CHECK(it != rank_at_.end(), "stage {} is not simulated", stage);
    return it->second;
  }

  MeetingKey meeting(const Part& part, const comm::CollectiveCall& call) {
    const Op& o = op(part);
    auto key = std::tuple{o.group, o.stream, std::int64_t{0}};
    MeetingKey where{o.group, o.stream, group_of(part), 0, 0};
    const auto message = [&](std::int64_t peer, bool sends) {
      const std::size_t other = peer_of(part, peer), from = sends ? part.rank : other,
                        to = sends ? other : part.rank;
      const bool down = row_of(o.stream).direction == Direction::down;
      where = {o.group, down ? Stream::send_forward : Stream::send_backward, plans_[from].place,
               static_cast<std::int64_t>(to), 0};
      std::get<2>(key) = static_cast<std::int64_t>(other);
    };
    if (const auto* send = std::get_if<comm::Send>(&call)) message(send->peer, true);
    if (const auto* receive = std::get_if<comm::Receive>(&call)) message(receive->peer, false);
    std::get<4>(where) = ranks_[part.rank].met[key]++;
    return where;
  }

  /// Identifies a group: equal for all of its ranks.
  MeshPlace group_of(const Part& part) const {
    const Plan& plan = plans_[part.rank];
    return first_of_group(plan.mesh, plan.place, op(part).group);
  }
  /// How many of the simulated ranks take part in an op's message or collective.
  std::size_t members(const Part& part) const {
    const MeshGroup group = op(part).group;
    if (group == MeshGroup::pipeline) return 2;  // who sends and who receives
    const MeshPlace own = group_of(part);
    const auto count =
        static_cast<std::size_t>(std::ranges::count_if(plans_, [&](const Plan& other) {
          return first_of_group(other.mesh, other.place, group) == own;
        }));
    return group == MeshGroup::ends ? std::min<std::size_t>(count, 2) : count;
  }

  void begin(const std::vector<Part>& parts) {
    Transfer t{.parts = parts, .links = {}};
    bool intra = false, inter = false;
    for (const Part& p : parts) {
      const OpCost& cost = at(costs_[p.rank], p.op);
      t.left = std::max(t.left, cost.seconds);
      intra |= cost.sent.intra > 0, inter |= cost.sent.inter > 0;
      time(p).begin = now_;
    }
    for (const Part& p : parts) {
      const auto* call = std::get_if<comm::CollectiveCall>(&op(p).call);
      const bool sends = call != nullptr && !std::holds_alternative<comm::Receive>(*call);
      const bool receives = call != nullptr && !std::holds_alternative<comm::Send>(*call);
      for (const auto& [used, far] : {std::pair{intra, 0}, std::pair{inter, 1}}) {
        const std::size_t first = p.rank * 4 + static_cast<std::size_t>(far) * 2;
        if (used && sends) t.links.push_back(first);
        if (used && receives) t.links.push_back(first + 1);
      }
    }
    transfers_.push_back(std::move(t));
  }

  void finish(const Part& p) {
    Rank& rank = ranks_[p.rank];
    time(p).end = now_;
    at(rank.done, p.op) = 1;
    Queue& queue = at(rank.streams, op(p).stream);
    ++queue.head;
    queue.under_way = false;
    changed_.push_back(p.rank);
  }

  /// Goes on to the next end of a kernel or a transfer; false when nothing is under way.
  bool advance() {
    std::vector<int> users(ranks_.size() * 4);
    for (const Transfer& t : transfers_) {
      for (std::size_t link : t.links) ++users[link];
    }
    const auto slowdown = [&](const Transfer& t) {
      int most = 1;
      for (std::size_t link : t.links) most = std::max(most, users[link]);
      return static_cast<double>(most);
    };
    double then = std::numeric_limits<double>::infinity();
    for (const Rank& r : ranks_) {
      if (r.kernel_ends >= 0) then = std::min(then, r.kernel_ends);
    }
    for (Transfer& t : transfers_) {
      t.ends = now_ + t.left * slowdown(t);
      then = std::min(then, t.ends);
    }
    if (then == std::numeric_limits<double>::infinity()) return false;
    for (Transfer& t : transfers_) t.left -= (then - now_) / slowdown(t);
    now_ = then;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      if (rank.kernel_ends < 0 || rank.kernel_ends > now_) continue;
      rank.kernel_ends = -1;
      rank.done[rank.next++] = 1;
      rank.awaited = 0;
      changed_.push_back(r);
    }
    for (const Transfer& t : transfers_) {
      if (t.ends > now_) continue;
      for (const Part& p : t.parts) finish(p);
    }
    std::erase_if(transfers_, [&](const Transfer& t) { return t.ends <= now_; });
    return true;
  }

  std::span<const Plan> plans_;
  std::span<const std::vector<OpCost>> costs_;
  std::vector<Rank> ranks_;
  std::map<MeshPlace, std::size_t> rank_at_;
  std::deque<std::size_t> changed_;  // ranks that may go on
  std::map<MeetingKey, std::vector<Part>> meetings_;
  std::vector<Transfer> transfers_;
  double now_ = 0;
};

}  // namespace

std::vector<OpCost> op_costs(const Plan& plan, const deck::Machine& machine) {
  check_names(machine);
  std::vector<OpCost> costs;
  costs.reserve(plan.ops.size());
  for (const Op& op : plan.ops) costs.push_back(std::visit(CostOf{plan, op, machine}, op.call));
  return costs;
}

Simulation simulate(std::span<const Plan> plans, std::span<const std::vector<OpCost>> costs) {
  return Player(plans, costs).play();
}

double idle_share(const Simulation& simulation) {
  double compute = 0;
  for (const SimulatedRank& r : simulation.ranks) compute += r.compute;
  const double all = simulation.step * static_cast<double>(simulation.ranks.size());
  return all == 0 ? 0 : 1 - compute / all;
}

std::vector<MeshPlace> simulated_places(const PlanInputs& in) {
  const auto alike = first_with_same_shares(in);
  const bool even = std::ranges::count(alike, 0) == in.layout.mesh.tensor;
  std::vector<MeshPlace> places;
  for (std::int64_t p = 0; p < in.layout.mesh.pipeline; ++p) {
    for (std::int64_t t = 0; t < (even ? 1 : in.layout.mesh.tensor); ++t)
      places.push_back({.tensor = t, .data = 0, .pipeline = p});
  }
  return places;
}

std::vector<Plan> simulated_plans(const PlanInputs& in, const PlanShape& shape) {
  std::vector<Plan> plans;
  for (const MeshPlace& place : simulated_places(in))
    plans.push_back(unrolled(make_plan(in, shape, place)));
  return plans;
}

std::int64_t Prediction::device_memory() const {
  std::int64_t most = 0;
  for (const Plan& plan : plans) most = std::max(most, device_bytes(plan.arena_bytes));
  return most;
}

std::int64_t Prediction::host_memory() const {
  std::int64_t most = 0;
  for (const Plan& plan : plans) most = std::max(most, host_bytes(plan.arena_bytes));
  return most;
}

Prediction predict(std::vector<Plan> plans, const PlanInputs& in, const deck::Machine& machine) {
  Prediction p;
  p.plans = std::move(plans);
  std::vector<std::vector<OpCost>> costs, free;
  for (const Plan& plan : p.plans) {
    costs.push_back(op_costs(plan, machine));
    free.push_back(costs.back());
    comm::WireBytes sent;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      sent.intra += costs.back()[i].sent.intra, sent.inter += costs.back()[i].sent.inter;
      if (plan.ops[i].stream != Stream::compute) free.back()[i] = {};
    }
    p.sent = {.intra = std::max(p.sent.intra, sent.intra),
              .inter = std::max(p.sent.inter, sent.inter)};
    p.flop += total_flop(plan);
  }
  p.flop *= static_cast<double>(in.layout.mesh.size()) / static_cast<double>(p.plans.size());
  p.simulation = simulate(p.plans, costs);
  p.bubble = idle_share(simulate(p.plans, free));
  return p;
}

}  // namespace tessera::plan
