#include "plan/passes/grad_reduce.hpp"

#include <algorithm>
#include <map>

#include "plan/passes/blocks.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/layers.hpp"

namespace tessera::plan {
namespace {

/// The ranges of [0, bytes) that no operation overwrites: padding, gaps, and position rows beyond
/// the sequence.
std::vector<Range> complement(std::vector<Range> written, std::int64_t bytes) {
  std::sort(written.begin(), written.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> gaps;
  std::int64_t end = 0;
  for (const Range& r : written) {
    if (r.begin > end) gaps.push_back({end, r.begin});
    end = std::max(end, r.end);
  }
  if (end < bytes) gaps.push_back({end, bytes});
  return gaps;
}

/// A gradient buffer, and when and where it is written.
struct Instance {
  GradientBuffer what;
  std::size_t first_op = 0, last_op = 0;
  std::vector<Range> written;
};

/// One use of a unit and the sum of its gradients so far. A tied matrix whose uses are summed
/// separately has two.
struct Use {
  std::size_t left = 0;  // instances to come
  bool begun = false;
  View sum;                                            // (shard) this rank's slice
  View full;                                           // the last instance, whole
  std::vector<std::pair<std::int64_t, View>> partial;  // of 2^level instances each, levels falling
  std::size_t last_op = 0;
};

class Reducer {
 public:
  Reducer(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
          const Scheduled& scheduled)
      : plan_(plan),
        in_(in),
        states_(states),
        scheduled_(scheduled),
        routes_(in, plan.place),
        momentum_(plan, in, states) {}

  std::vector<SummedGradient> run() {
    for (const GradientBuffer& g : scheduled_.gradients) ++use_of(g).left;
    for (Instance& instance : in_order_of_completion()) {
      at_ = &plan_.ops[instance.last_op];
      position_ = instance.last_op + 1;
      unit_ = instance.what.unit;
      head_use_ = instance.what.head_use;
      fill_gaps(instance);
      Use& use = use_of(instance.what);
      --use.left;
      use.last_op = instance.last_op;
      use.full =
          buffer_view(instance.what.buffer, in_.numerics.accumulate,
                      plan_.buffer(instance.what.buffer).bytes / size_of(in_.numerics.accumulate));
      in_.numerics.layout_mode ? add_in_tree(use) : add_in_turn(use);
      if (use.left == 0 && !tied(unit_) && !compresses()) gather(use);
    }
    std::vector<SummedGradient> sums(states_.size());
    for (std::size_t u = 0; u < states_.size(); ++u) {
      if (!states_[u].trained) continue;
      sums[u] = finish(u);
      sums[u].lost = lost_[u];
      sums[u].momentum = means_[u];
    }
    insertions_.apply(plan_.ops);
    if (plan_.shape.compression == Compression::none) keep(sums);  // others are not updated by
    // Those of one micro-batch that are added to no other are never brought there (tiers).
    for (Buffer& b : plan_.buffers) {
      if (b.purpose == BufferPurpose::gradients) b.location = in_.offload.gradients;
    }
    return sums;
  }

 private:
  const UnitState& state() const { return states_[unit_]; }
  /// The ranks over which the unit's gradients are summed.
  MeshGroup sharers() const { return in_.model.units[unit_].traits.shared_by; }
  const Routes& routes() { return routes_.of(unit_); }
  bool alone() const { return plan_.group(sharers()).size == 1; }
  bool in_blocks() const { return gradient_in_blocks(in_, in_.model.units[unit_], plan_.shape); }
  /// Whether momentum travels in place of the unit's gradient.
  bool compresses() const { return plan_.shares[unit_].momentum; }
  bool tied(std::size_t unit) const {
    return tied_uses_separate(in_) && in_.model.units[unit].kind == model::UnitKind::vocabulary;
  }
  Use& use_of(const GradientBuffer& g) { return uses_[{g.unit, g.head_use}]; }

  std::vector<Instance> in_order_of_completion() const {
    std::map<BufferId, Instance> instances;
    for (const GradientBuffer& g : scheduled_.gradients)
      instances.emplace(g.buffer, Instance{.what = g, .written = {}});
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      for (const BufferUse& use : uses_of(plan_.ops[i])) {
        const auto it = instances.find(use.buffer);
        if (it == instances.end()) continue;
        Instance& instance = it->second;
        if (instance.written.empty()) instance.first_op = i;
        instance.last_op = i;
        if (use.access == kernels::Access::write) instance.written.push_back(use.bytes);
      }
    }
    std::vector<Instance> all;
    for (auto& [id, instance] : instances) all.push_back(std::move(instance));
    std::sort(all.begin(), all.end(), [](const Instance& a, const Instance& b) {
      return std::tie(a.last_op, a.what.buffer) < std::tie(b.last_op, b.what.buffer);
    });
    return all;
  }

  void fill_gaps(const Instance& instance) {
    const BufferId id = instance.what.buffer;
    const std::int64_t bytes = plan_.buffer(id).bytes;
    for (const Range& gap : complement(instance.written, bytes)) {
      insertions_.before(instance.first_op,
                         {.kind = OpKind::kernel,
                          .unit = static_cast<std::int32_t>(unit_),
                          .visit = plan_.ops[instance.first_op].visit,
                          .call = kernels::KernelCall{kernels::Fill{
                              .out = View(symbolic(id, gap.begin), DType::u8, {gap.count()})}},
                          .waits = {}});
    }
  }

  /// Adds this instance to the sum of those before it.
  void add_in_turn(Use& use) {
    if (alone()) {
      use.sum = use.full;
    } else {
      if (!use.begun) use.sum = slice_for(use);
      reduce(use.full, use.sum, use.begun ? kernels::Write::add : kernels::Write::overwrite);
    }
    use.begun = true;
  }

  /// Layout mode: micro-batches are the leaves of an aligned binary tree, whichever rank has them.
  /// Under zero.reduce "step" a rank's own are added first, under "micro" those of all ranks.
  void add_in_tree(Use& use) {
    const bool each = in_.sharding.reduce == ReduceWhen::micro, reduce_each = each && !alone();
    View sum = each ? sum_of_sources(use.full) : use.full;
    if (reduce_each) {
      use.full = sum;
      sum = slice_for(use);
      reduce(use.full, sum, kernels::Write::overwrite);
    }
    std::int64_t level = 0;
    for (; !use.partial.empty() && use.partial.back().first == level; ++level) {
      add_to(use.partial.back().second, sum);
      sum = use.partial.back().second;
      use.partial.pop_back();
    }
    use.partial.emplace_back(level, sum);
    if (use.left > 0) return;
    TESSERA_CHECK(use.partial.size() == 1, "micro-batches that are not a power of two");
    if (!each) sum = sum_of_sources(sum);
    use.sum = sum;
    if (alone() || reduce_each) return;
    use.full = sum;
    use.sum = slice_for(use);
    reduce(use.full, use.sum, kernels::Write::overwrite);
  }

  /// Layout mode keeps apart what the tokens of each expert rank add to a gradient (schedule): here
  /// it becomes one, in the tree in which the ranks that have these tokens would have been added.
  View sum_of_sources(const View& all) {
    const std::int64_t n = state().layout.padded, sources = all.elements() / n;
    for (std::int64_t step = 1; step < sources; step *= 2) {
      for (std::int64_t s = 0; s + step < sources; s += 2 * step)
        add_to(all.range(s * n, n), all.range((s + step) * n, n));
    }
    const View sum = all.range(0, n);
    if (sources == 1 || !state().gradient) return sum;
    // What outlives the step has no room for sources: the sum has a buffer of its own, which may.
    const DType type = in_.numerics.accumulate;
    const View apart =
        buffer_view(add_buffer(plan_, in_.model.units[unit_].name + " gradient of all sources",
                               BufferPurpose::gradients, n * size_of(type)),
                    type, n);
    insert(OpKind::sum_gradients, Stream::compute, sharers(),
           kernels::KernelCall{kernels::Convert{.x = sum, .out = apart}});
    return apart;
  }

  /// Where the sum goes. At ZeRO stage 0 a gradient that is reduced once stays where it is;
  /// otherwise the slice must outlive the full buffer, so it has a buffer of its own. So it has
  /// where some chunks arrive before others leave.
  View slice_for(const Use& use) {
    const Range slice = state().slice;
    const bool once = use.left == 0 && !use.begun;
    const bool in_place =
        !state().sharding.states && !in_blocks() &&
        (in_.numerics.layout_mode ? in_.sharding.reduce == ReduceWhen::step : once);
    if (in_place) return use.full.range(slice.begin, slice.count());
    const BufferId id =
        add_buffer(plan_, in_.model.units[unit_].name + " gradient shard", BufferPurpose::gradients,
                   slice.count() * size_of(in_.numerics.accumulate));
    return buffer_view(id, in_.numerics.accumulate, slice.count());
  }

  void reduce(const View& full, const View& shard, kernels::Write write) {
    comm::ReduceScatter call{
        .full = full, .shard = shard, .wire = in_.numerics.wire, .write = write};
    const auto add = [&](OpKind kind, Calls calls) {
      for (LegCall& c : calls)
        insert(kind, row_of(c.leg).of_reductions, sharers(), std::move(c.call));
    };
    if (!in_blocks()) {
      const comm::Route& route = routes().sums;
      View sums;
      if (const std::int64_t n = shards_between(route) * shard.elements(); n > 0)
        sums = View(sums_.next(plan_, n * size_of(DType::f32)).data, DType::f32, {n});
      const auto staging =
          sum_staging(route, plan_.group(sharers()), in_.numerics.wire, in_.numerics.accumulate);
      call.staging = staging_.view(plan_, staging.front());
      return add(
          OpKind::reduce_gradients,
          reduce_over(route, call, sums,
                      staging.size() > 1 ? staging_across_.view(plan_, staging.back()) : View{}));
    }
    const auto& format = *in_.numerics.gradient_blocks;
    const BlockRounding rounding = this->rounding();
    const comm::Route& route = routes().blocks;
    if (compresses()) add(OpKind::momentum, momentum_.join(unit_, full));
    for (const Range& chunk :
         chunks_of(shard.elements(), full.type, format, in_.numerics.chunk_bytes)) {
      std::vector<HopStaging> staging;
      for (const std::int64_t bytes : hop_staging(route, format, chunk.count())) {
        const auto hop = staging.size();
        staging.push_back(
            {leaving_.at(hop).next(plan_, bytes), arriving_.at(hop).next(plan_, bytes)});
      }
      add(OpKind::reduce_gradients,
          reduce_in_blocks(call, route, format, chunk, staging, rounding));
    }
    if (compresses()) add(OpKind::momentum, momentum_.send(unit_, shard, means_[unit_]));
  }
  /// How the unit's gradient is rounded to blocks.
  BlockRounding rounding() {
    BlockRounding rounding{.rank = plan_.rank_in(sharers())};
    if (in_.numerics.stochastic) {
      const auto tensor = static_cast<std::uint64_t>(in_.layout.mesh.tensor),
                 of = static_cast<std::uint64_t>(plan_.place.tensor);
      rounding.chance = {.seed = in_.seed,
                         .site = 2 * (unit_ * tensor + of) + (head_use_ ? 1 : 0),
                         .samples = samples_of(*at_)};
    }
    if (!state().errors) return rounding;
    View& lost = lost_[unit_];
    if (!lost) {
      const std::int64_t n = state().layout.padded;
      lost = lost_buffer(plan_, in_, unit_, "errors of the step", n);
      rounding.error = state().errors;
    }
    rounding.lost = lost;
    if (const View& kept = state().node_error; kept && compresses()) {
      rounding.node_error = kept;
      rounding.node_lost = means_[unit_].lost_of_node =
          lost_buffer(plan_, in_, unit_, "errors of the node", kept.elements());
    }
    rounding.scalars = plan_.scalars;
    return rounding;
  }
  /// The samples of the micro-batch that an op is of.
  View samples_of(const Op& op) const {
    return at(scheduled_.batches, std::max(0, op.micro_batch)).samples;
  }
  void add_to(const View& sum, const View& part) {
    insert(
        OpKind::sum_gradients, Stream::compute, sharers(),
        kernels::KernelCall{kernels::Convert{.x = part, .out = sum, .write = kernels::Write::add}});
  }
  void insert(OpKind kind, Stream stream, MeshGroup group, Call call) {
    insertions_.before(position_, {.kind = kind,
                                   .stream = stream,
                                   .group = group,
                                   .unit = static_cast<std::int32_t>(unit_),
                                   .micro_batch = at_->micro_batch,
                                   .visit = at_->visit,
                                   .call = std::move(call),
                                   .waits = {}});
  }
  /// ZeRO stage 0: every rank's slice of the sum goes to all ranks.
  void gather(const Use& use) {
    if (alone() || state().sharding.states) return;
    for (LegCall& c :
         gather_over(plan_, routes().gathers, {.shard = use.sum, .full = use.full}, gathered_))
      insert(OpKind::gather_gradients, row_of(c.leg).of_reductions, sharers(), std::move(c.call));
  }

  /// What the norm and the update read. For a tied matrix the sums of its two uses are added here.
  SummedGradient finish(std::size_t unit) {
    unit_ = unit;
    const auto use_at = [&](bool head) {
      const auto it = uses_.find({unit, head});
      return it == uses_.end() ? nullptr : &it->second;
    };
    Use *embed = use_at(false), *head = use_at(true);
    Use& use = embed != nullptr ? *embed : *head;
    const bool whole = !state().sharding.states && !alone() && !compresses();
    const SummedGradient sum{.slice = use.sum, .owned = whole ? use.full : use.sum};
    if (!tied(unit)) return sum;
    at_ = &plan_.ops[use.last_op];
    position_ = use.last_op + 1;
    if (embed != nullptr && head != nullptr) {
      add_to(embed->sum, head->sum);
    } else {
      position_ = plan_.ops.size();  // after all that does not wait for the other end
      const std::int64_t end = plan_.place.pipeline == 0 ? 0 : 1, half = use.sum.elements() / 2;
      const View own = use.sum.range(end * half, half);
      const DType type = in_.numerics.accumulate;
      const std::int64_t bytes =
          comm::reduce_scatter_staging(plan_.group(MeshGroup::ends), type, type);
      insert(OpKind::tie_gradients, Stream::reduce, MeshGroup::ends,
             comm::CollectiveCall{comm::ReduceScatter{.full = use.sum,
                                                      .shard = own,
                                                      .staging = staging_ends_.view(plan_, bytes),
                                                      .wire = in_.numerics.accumulate}});
      insert(OpKind::tie_gradients, Stream::reduce, MeshGroup::ends,
             comm::CollectiveCall{comm::AllGather{.shard = own, .full = use.sum}});
    }
    gather(use);
    return sum;
  }

  /// Sums that outlive the step are where its state is.
  void keep(std::vector<SummedGradient>& sums) {
    std::map<BufferId, BufferId> kept;
    for (std::size_t u = 0; u < sums.size(); ++u) {
      const View& to = states_[u].gradient;
      if (!to) continue;
      TESSERA_CHECK(sums[u].owned.span_bytes() == plan_.buffer(buffer_of(to)).bytes &&
                        offset_of(sums[u].owned) == 0,
                    "a gradient is only a part of a buffer");
      kept.emplace(buffer_of(sums[u].owned), buffer_of(to));
    }
    if (kept.empty()) return;
    const auto move = [&](View& v, kernels::Access = kernels::Access::read) {
      const auto it = kept.find(buffer_of(v));
      if (it != kept.end()) v.data = symbolic(it->second, offset_of(v));
    };
    for (Op& op : plan_.ops) each_view(op.call, move);
    for (SummedGradient& sum : sums) move(sum.slice), move(sum.owned);
  }

  Plan& plan_;
  const PlanInputs& in_;
  const std::vector<UnitState>& states_;
  const Scheduled& scheduled_;
  Insertions insertions_;
  std::map<std::pair<std::size_t, bool>, Use> uses_;
  RoutesOfUnits routes_;
  MomentumExchange momentum_;
  std::map<std::size_t, View> lost_;           // by unit, with error feedback
  std::map<std::size_t, MeanOnItsWay> means_;  // of momentum, by unit
  // All reductions over a group run on one stream, one after another, so one staging buffer serves
  // them; those across nodes on another.
  Staging staging_{"staging"}, staging_across_{"staging between nodes"}, staging_ends_{"staging"};
  // Of both hops.
  std::array<TurnStaging, 2> leaving_{TurnStaging{"gradients that leave"},
                                      TurnStaging{"sums of nodes that leave"}},
      arriving_{TurnStaging{"gradients that arrive"}, TurnStaging{"sums of nodes that arrive"}};
  TurnStaging sums_{"sums of nodes"}, gathered_{"gradients between nodes"};
  // The unit in hand, the op that completed its gradient, and where in the plan new ops go.
  std::size_t unit_ = 0;
  bool head_use_ = false;
  const Op* at_ = nullptr;
  std::size_t position_ = 0;
};

}  // namespace

std::vector<SummedGradient> grad_reduce(Plan& plan, const PlanInputs& in,
                                        const std::vector<UnitState>& states,
                                        const Scheduled& scheduled) {
  return Reducer(plan, in, states, scheduled).run();
}

}  // namespace tessera::plan
