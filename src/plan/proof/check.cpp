#include "plan/proof/check.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/range_map.hpp"
#include "plan/proof/codes.hpp"
#include "plan/proof/error_feedback.hpp"
#include "plan/proof/gathers.hpp"
#include "plan/proof/generation.hpp"
#include "plan/proof/gradient_blocks.hpp"
#include "plan/proof/homes.hpp"
#include "plan/proof/in_turn.hpp"
#include "plan/proof/losses.hpp"
#include "plan/proof/momentum.hpp"
#include "plan/proof/on_demand.hpp"
#include "plan/proof/reject.hpp"
#include "plan/proof/repeat.hpp"
#include "plan/proof/two_passes.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

constexpr PerStream<OpId> none() {
  PerStream<OpId> all{};
  all.fill(-1);
  return all;
}

/// Happens-before: reach[i] says which ops are complete when op i starts. A stream keeps its order,
/// so the latest such op of each stream stands for all before it.
std::vector<PerStream<OpId>> reachable(const Plan& plan) {
  std::vector<PerStream<OpId>> reach(plan.ops.size());
  PerStream<OpId> last = none();
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    auto& mine = reach[i] = none();
    const auto include = [&](OpId id) {
      const PerStream<OpId>& theirs = at(reach, id);
      std::ranges::transform(mine, theirs, mine.begin(), std::ranges::max);
      OpId& slot = mine[plan.op(id).stream];
      slot = std::max(slot, id);
    };
    if (const OpId previous = last[op.stream]; previous >= 0) include(previous);
    for (OpId wait : op.waits) {
      if (wait < 0 || static_cast<std::size_t>(wait) >= i)
        reject(plan, i, fmt::format("waits for op {}", wait));
      include(wait);
    }
    last[op.stream] = static_cast<OpId>(i);
  }
  return reach;
}

void check_ranges(const Plan& plan) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      if (use.buffer < 0 || static_cast<std::size_t>(use.buffer) >= plan.buffers.size())
        reject(plan, i, "unknown buffer");
      const Buffer& b = plan.buffer(use.buffer);
      const std::int64_t arena = plan.arena(arena_of(b));
      if (use.bytes.begin < 0 || use.bytes.end > b.bytes) {
        reject(plan, i,
               fmt::format("bytes {}..{} of {}, which has {}", use.bytes.begin, use.bytes.end,
                           b.name, b.bytes));
      }
      if (b.offset < 0 || b.offset + b.bytes > arena)
        reject(plan, i, fmt::format("{} lies outside its arena", b.name));
    }
  }
}

/// Conflicting accesses to the same physical bytes must be ordered, and a read must see bytes of
/// its own buffer.
void check_order(const Plan& plan) {
  const auto reach = reachable(plan);
  struct History {
    OpId writer = -1;
    BufferId buffer = -1;              // as which it was written
    PerStream<OpId> readers = none();  // since, the latest of each stream
  };
  PerArena<RangeMap<History>> arenas;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto uses = uses_of(plan.ops[i]);
    const auto physical = [&](const BufferUse& use) {
      const Buffer& b = plan.buffer(use.buffer);
      return Range{b.offset + use.bytes.begin, b.offset + use.bytes.end};
    };
    const auto arena = [&](const BufferUse& use) -> RangeMap<History>& {
      return arenas[arena_of(plan.buffer(use.buffer))];
    };
    for (const BufferUse& use : uses) {
      const Buffer& b = plan.buffer(use.buffer);
      const auto after = [&](OpId other) {
        if (other >= 0 && reach[i][plan.op(other).stream] < other)
          reject(plan, i, fmt::format("races with op {} on {}", other, b.name));
      };
      arena(use).each(physical(use), [&](const History& h) {
        after(h.writer);
        if (use.access != Access::read) std::for_each(h.readers.begin(), h.readers.end(), after);
        if (use.access == Access::write) return;
        if (h.writer < 0 && !b.persistent)
          reject(plan, i, fmt::format("reads {} before it is written", b.name));
        if (h.writer >= 0 && h.buffer != use.buffer) {
          reject(plan, i,
                 fmt::format("reads {}, whose bytes hold {}", b.name, plan.buffer(h.buffer).name));
        }
      });
    }
    const auto op = static_cast<OpId>(i);
    for (const BufferUse& use : uses) {
      if (use.access == Access::read)
        arena(use).each(physical(use), [&](History& h) { h.readers[plan.op(op).stream] = op; });
    }
    for (const BufferUse& use : uses) {
      if (use.access != Access::read)
        arena(use).assign(physical(use), {.writer = op, .buffer = use.buffer});
    }
  }
}

/// Follows every gradient from the operations that make it, through sums over micro-batches, ranks
/// and ends of the pipeline, to the norm and the update: none is lost on the way, none is counted
/// twice. Updates before the verdict are deferred ones: they are by the gradients, the verdict and
/// the scalars that the step before has left, and the plan leaves the same to the next step.
class GradientCheck {
 public:
  GradientCheck(const Plan& plan, const Homes& homes)
      : plan_(plan),
        homes_(homes),
        blocks_(plan),
        leaving_(plan),
        arriving_(plan),
        errors_(plan, homes),
        momentum_(plan, homes),
        two_passes_(plan, homes) {}

  void run() {
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      const Op& op = plan_.ops[i];
      at_ = i;
      two_passes_.between(i, op);
      if (const auto* call = std::get_if<comm::CollectiveCall>(&op.call)) collective(op, *call);
      if (const auto* call = std::get_if<kernels::KernelCall>(&op.call)) kernel(op, *call);
      if (const auto* copy = std::get_if<Copy>(&op.call)) follow_parameters(op, *copy);
      if (const auto* tile = std::get_if<SaveTile>(&op.call)) follow_tile(op, *tile);
      note_reads(op);
    }
    end_deferred();
    end_tiles();
    errors_.end();
    two_passes_.end();
    for (const auto& [id, made] : unsummed_)
      reject(plan_, made, "makes a gradient that is never used");
    blocks_.end();
    leaving_.end();
    arriving_.end();
    for (std::size_t u = 0; u < plan_.shares.size(); ++u) {
      const UnitShare& share = plan_.shares[u];
      const Unit& unit = units_[static_cast<std::int32_t>(u)];
      const std::int64_t whole = share.shard * share.parts;
      const std::int64_t counted = plan_.shape.purpose == PlanPurpose::flush ? 0 : share.counted;
      const bool all = unit.updated == share.shard || unit.updated == whole || is_empty_flush();
      const bool right =
          share.trained ? unit.normed == counted && all : unit.normed == 0 && unit.updated == 0;
      if (!right) {
        throw InternalError(
            fmt::format("broken plan: unit {} has a shard of {} elements, {} of them its own to "
                        "count{}; {} enter the norm, {} are updated",
                        u, share.shard, share.counted, share.trained ? "" : ", and is frozen",
                        unit.normed, unit.updated));
      }
      momentum_.end(static_cast<std::int32_t>(u), unit.updated == whole);
      if (!share.trained || unit.updated == whole) continue;
      if (unit.read_unpublished)
        reject(plan_, *unit.read_unpublished, "reads parameters that other ranks have updated");
      const auto parameters = parameters_.find(static_cast<std::int32_t>(u));
      if (parameters == parameters_.end()) continue;
      if (const auto read = read_unpublished_.find(parameters->second);
          read != read_unpublished_.end())
        reject(plan_, read->second, "reads parameters that other ranks have updated");
    }
  }

 private:
  struct Unit {
    std::int64_t normed = 0, updated = 0;
    bool published = false;  // where parameters live elsewhere than on the device
    std::optional<std::size_t> read_unpublished;  // the op
  };
  bool are_parameters_at_home(BufferId id) const {
    const Buffer& b = plan_.buffer(id);
    return b.persistent && b.purpose == BufferPurpose::parameters && b.location != Location::device;
  }
  /// What other ranks have updated of parameters that live elsewhere is gathered, and goes where
  /// they live, before they are read there.
  void follow_parameters(const Op& op, const Copy& copy) {
    if (op.unit < 0) return;  // of no unit's parameters
    const UnitShare& share = at(plan_.shares, op.unit);
    const bool whole = copy.from.elements() == share.shard * share.parts &&
                       copy.from.type != DType::u8 && are_parameters_at_home(buffer_of(copy.from));
    Unit& unit = units_[op.unit];
    if (op.kind == OpKind::fetch && whole && !unit.published && !unit.read_unpublished)
      unit.read_unpublished = at_;
  }
  void publish(const Op& op, const comm::AllGather& gather) {
    published_.insert(home_of(gather.full));
    if (are_parameters_at_home(home_of(gather.full))) units_[op.unit].published = true;
  }
  BufferId home_of(const View& v) const { return homes_.home_of(v).buffer; }
  bool is_gradient(const View& v) const {
    return plan_.buffer(home_of(v)).purpose == BufferPurpose::gradients;
  }
  static bool is_all_of(const View& v, const View& all) {
    return v.data == all.data && v.elements() == all.elements();
  }
  static bool is_state(const Buffer& b) {
    return b.purpose == BufferPurpose::parameters || b.purpose == BufferPurpose::master ||
           b.purpose == BufferPurpose::optimizer;
  }
  /// Whether there is a gradient, all of it.
  bool is_made(BufferId gradient) const {
    return unsummed_.contains(gradient) && !arriving_.partly(gradient);
  }
  void use(const View& v, const char* otherwise) {
    if (!is_made(home_of(v))) reject(plan_, at_, otherwise);
    unsummed_.erase(home_of(v));
  }

  /// A part of a gradient is added to another: of gradients that are made in several, one behind
  /// another.
  void fold(const kernels::Convert& add) {
    const BufferId id = home_of(add.out);
    const Range from = homes_.home_of(add.x).bytes, to = homes_.home_of(add.out).bytes;
    std::vector<Range>& folded = folded_[id];
    const auto gone = [&](const Range& part) {
      return std::ranges::any_of(folded,
                                 [&](const Range& r) { return !intersect(r, part).empty(); });
    };
    if (!is_made(id) || from.count() != to.count() || !intersect(from, to).empty() || gone(from) ||
        gone(to))
      reject(plan_, at_, "adds parts of a gradient twice, or to garbage");
    folded.push_back(from);
  }
  /// What is taken of such a gradient is what all others were added to.
  void all_folded(const Op& op, const View& v) {
    const BufferUse home = homes_.home_of(v);
    const UnitShare& share = at(plan_.shares, op.unit);
    const std::int64_t whole = share.shard * share.parts * size_of(v.type);
    std::int64_t left = plan_.buffer(home.buffer).bytes - whole;
    if (left <= 0) return;
    const auto folded = folded_.find(home.buffer);
    if (folded != folded_.end())
      for (const Range& r : folded->second) left -= r.count();
    if (left != 0 || home.bytes.end > whole)
      reject(plan_, at_, "takes a gradient of which parts are not added");
  }

  void collective(const Op& op, const comm::CollectiveCall& call) {
    if (op.kind == OpKind::experts) return exchange(op, call);
    if (op.kind == OpKind::tensor_sums || op.kind == OpKind::matrices || op.kind == OpKind::context)
      return;
    if (op.kind == OpKind::momentum) return momentum_.collective(at_, op, call);
    if (const auto* words = std::get_if<comm::AllReduceWords>(&call)) {
      const bool over_all =
          op.group == MeshGroup::world && words->of == comm::AllReduceWords::Of::sum;
      summed_words_ = summed_words_ || (over_all && is_all_of(words->words, plan_.words));
    }
    if (op.kind == OpKind::gather_gradients) {
      const auto& gather = std::get<comm::AllGather>(call);
      const auto hop = whole_.find(home_of(gather.shard));  // what came over other nodes
      whole_[home_of(gather.full)] = hop == whole_.end() ? home_of(gather.shard) : hop->second;
      return;
    }
    if (const auto* slots = std::get_if<comm::AllToAll>(&call)) {
      if (op.kind != OpKind::reduce_gradients)
        reject(plan_, at_, "an exchange that reduces no gradients");
      return blocks_.exchange(at_, *slots);
    }
    if (const auto* gather = std::get_if<comm::AllGather>(&call)) publish(op, *gather);
    const auto* reduce = std::get_if<comm::ReduceScatter>(&call);
    if (reduce != nullptr && op.kind == OpKind::errors) return errors_.sums(at_, op, *reduce);
    const bool ours = op.kind == OpKind::reduce_gradients || op.kind == OpKind::tie_gradients;
    if (reduce == nullptr || !ours) return;
    const std::int64_t size = plan_.group(op.group).size;
    if (op.kind == OpKind::tie_gradients) {
      if (reduce->full.elements() != reduce->shard.elements() * size)
        reject(plan_, at_, "shards do not make up the whole");
      use(reduce->full, "sums a gradient that nobody made");
      return made_sum(reduce->shard, reduce->write);
    }
    if (!blocks_.holds(reduce->full)) {
      all_folded(op, reduce->full);
      use(reduce->full, "sums a gradient that nobody made");
    }
    if (blocks_.reduce(at_, *reduce, size)) made_sum(reduce->shard, reduce->write);
  }
  /// What goes to ranks that divide experts has a slot for each of those that take part.
  void exchange(const Op& op, const comm::CollectiveCall& call) {
    const RankGroup ranks = ranks_of(among_of(call), plan_.group(op.group));
    const std::int64_t rank = plan_.place.data % plan_.group(op.group).size,
                       place = ranks.index(rank);
    if (place < 0 || place >= ranks.count || ranks.rank(place) != rank)
      reject(plan_, at_, "an exchange of others");
    const auto* rows = std::get_if<comm::ExchangeRows>(&call);
    const auto* slots = std::get_if<comm::AllToAll>(&call);
    const std::int64_t has = rows != nullptr    ? rows->send_begins.rows()
                             : slots != nullptr ? slots->send.rows()
                                                : 0;
    if (has != ranks.count) reject(plan_, at_, "slots that are not those of the ranks");
  }
  void made_sum(const View& shard, kernels::Write write) {
    if (arriving_.partly(home_of(shard))) reject(plan_, at_, "two sums in one place");
    made_sum(home_of(shard), write);
  }
  void made_sum(BufferId sum, kernels::Write write) {
    const bool adds = write == kernels::Write::add;
    if (adds != unsummed_.contains(sum)) reject(plan_, at_, "a sum is lost or starts from garbage");
    unsummed_[sum] = at_;
  }
  /// A chunk of a gradient leaves as blocks. After the last one it is used up.
  void leave(const Op& op, const kernels::Quantize& quantize) {
    const BufferId full = home_of(quantize.x);
    if (!is_made(full)) reject(plan_, at_, "sends a gradient that nobody made");
    all_folded(op, quantize.x);
    momentum_.leaves(at_, op, full, quantize);
    const Range chunk = blocks_.set_out(at_, quantize);
    errors_.rounds(at_, op, quantize, chunk);
    if (leaving_.take(at_, full, chunk, at(plan_.shares, op.unit).shard)) unsummed_.erase(full);
  }
  /// A chunk of a sum is there: as far from the sum's begin as from the shard's.
  void arrive(const Op& op, const kernels::SumQuantized& sum) {
    const Range chunk = blocks_.arrive(at_, sum);
    const BufferUse home = homes_.home_of(sum.out);
    const std::int64_t begin = home.bytes.begin - chunk.begin * size_of(sum.out.type);
    const std::pair how{begin, sum.write};
    if (chunk.begin == 0) sums_[home.buffer] = how;
    if (sums_[home.buffer] != how) reject(plan_, at_, "puts a sum where another belongs");
    if ((sum.write == kernels::Write::add) != unsummed_.contains(home.buffer))
      reject(plan_, at_, "a sum is lost or starts from garbage");
    if (arriving_.take(at_, home.buffer, chunk, at(plan_.shares, op.unit).shard))
      made_sum(home.buffer, sum.write);
  }

  /// Gradients that travel as blocks.
  void blocks(const Op& op, const kernels::KernelCall& call) {
    if (const auto* quantize = std::get_if<kernels::Quantize>(&call)) {
      leave(op, *quantize);
    } else if (const auto* requantize = std::get_if<kernels::RequantizeSum>(&call)) {
      blocks_.add(at_, *requantize);
      momentum_.adds(at_, op, *requantize);
    } else if (const auto* sum = std::get_if<kernels::SumQuantized>(&call)) {
      arrive(op, *sum);
    } else {
      reject(plan_, at_, "does not reduce gradients");
    }
  }

  /// Momentum that travels in place of gradients, and what it does with those.
  void momentum(const Op& op, const kernels::KernelCall& call) {
    if (const auto* blend = std::get_if<kernels::Blend>(&call)) {
      switch (momentum_.blends(at_, op, *blend, verdict_)) {
        case MomentumCheck::Blends::joins:
          if (!is_made(home_of(blend->out)) || leaving_.partly(home_of(blend->out)))
            reject(plan_, at_, "joins a gradient that nobody made, or that is on its way");
          return;
        case MomentumCheck::Blends::leads_back:
          return made_sum(blend->out, kernels::Write::overwrite);
        case MomentumCheck::Blends::keeps: {
          const BufferId mean = momentum_.gradient(op.unit);
          return use_gradient(op, mean >= 0 ? mean : home_of(blend->y));
        }
      }
    } else if (const auto* quantize = std::get_if<kernels::Quantize>(&call)) {
      use(quantize->x, "rounds a mean that nobody made");
      momentum_.rounds(at_, op, *quantize);
    } else if (const auto* sum = std::get_if<kernels::SumQuantized>(&call)) {
      momentum_.decodes(at_, op, *sum);
    } else if (const auto* moments = std::get_if<kernels::MomentRatio>(&call)) {
      if (!is_made(home_of(moments->gradient))) reject(plan_, at_, "moments of what nobody made");
      momentum_.moves_moments(at_, op, *moments, verdict_);
    } else if (const auto* ratio = std::get_if<kernels::FollowRatio>(&call)) {
      momentum_.follows(at_, op, *ratio, verdict_);
    } else if (const auto* fill = std::get_if<kernels::Fill>(&call)) {
      momentum_.clears(at_, op, *fill);
    } else if (const auto* convert = std::get_if<kernels::Convert>(&call)) {
      const bool of_moments =
          plan_.buffer(home_of(convert->out)).purpose == BufferPurpose::optimizer;
      of_moments ? momentum_.copies_moments(at_, op, *convert)
                 : momentum_.keeps_error(at_, op, *convert, verdict_);
    } else {
      reject(plan_, at_, "does nothing with momentum");
    }
  }

  /// The verdict is by the words of the step, after they are those of all ranks.
  void decides(const kernels::Verdict& verdict) {
    const auto is_at = [&](const View& v, std::int64_t first, std::int64_t count) {
      return is_all_of(v, plan_.words.range(first, count));
    };
    if (!summed_words_ || !is_at(verdict.squares, WordLayout::norm, kExactSumWords) ||
        !is_at(verdict.targets, WordLayout::targets, 1) || verdict.all_targets != targets_of(plan_))
      reject(plan_, at_, "decides by other words than those of the step over all ranks");
    verdict_ = true;
  }

  void kernel(const Op& op, const kernels::KernelCall& call) {
    if (op.kind == OpKind::reduce_gradients) {
      blocks(op, call);
    } else if (op.kind == OpKind::momentum) {
      momentum(op, call);
    } else if (op.kind == OpKind::errors) {
      errors_.keeps(at_, op, std::get<kernels::Convert>(call), verdict_);
    } else if (op.kind == OpKind::sum_gradients) {
      const auto& add = std::get<kernels::Convert>(call);
      if (home_of(add.x) == home_of(add.out)) return fold(add);
      if (add.write == kernels::Write::overwrite) {
        all_folded(op, add.x);
        use(add.x, "moves a gradient that nobody made");
        return made_sum(home_of(add.out), add.write);
      }
      use(add.x, "adds a gradient that nobody made");
      if (!is_made(home_of(add.out))) reject(plan_, at_, "adds to garbage");
    } else if (op.kind == OpKind::norm) {
      if (const auto* verdict = std::get_if<kernels::Verdict>(&call)) decides(*verdict);
      if (const auto* kept = std::get_if<kernels::Convert>(&call); kept != nullptr)
        keeps_scalars_ = keeps_scalars_ || (is_all_of(kept->x, plan_.scalars) &&
                                            is_all_of(kept->out, plan_.update_scalars));
      if (const auto* fill = std::get_if<kernels::Fill>(&call); fill != nullptr)
        nothing_left_ = nothing_left_ || is_all_of(fill->out, plan_.verdict);
      const auto* sum = std::get_if<kernels::ExactSum>(&call);
      if (sum == nullptr) return;
      if (!is_made(home_of(sum->x))) reject(plan_, at_, "the norm of what nobody made");
      all_folded(op, sum->x);
      units_[op.unit].normed += sum->x.elements();
    } else if (op.kind == OpKind::update ||
               std::holds_alternative<kernels::OptimizerUpdate>(call)) {
      if (keeps_scalars_ || nothing_left_) reject(plan_, at_, "updates by what is the next step's");
      kernels::visit_views(call, [&](const View& v, Access access) {
        const Buffer& home = plan_.buffer(home_of(v));
        if (access != Access::read && is_state(home) && !home.persistent) {
          reject(plan_, at_, fmt::format("{} is changed, but never where it lives", home.name));
        }
      });
      std::visit([&](const auto& args) { updated(op, args); }, call);
    } else if (op.kind == OpKind::kernel) {
      kernels::visit_views(call, [&](const View& v, Access access) {
        if (access == Access::read || !is_gradient(v)) return;
        if (leaving_.partly(home_of(v)) || arriving_.partly(home_of(v)))
          reject(plan_, at_, "changes a gradient that is on its way");
        unsummed_[home_of(v)] = at_;
      });
    }
  }

  /// Any optimizer's update of some elements.
  template <typename Update>
  void updated(const Op& op, const Update& update) {
    if constexpr (requires { update.gradient, update.master; }) {
      using kernels::UpdatePass;
      const UpdatePass pass = kernels::pass_of(update.rule);
      two_passes_.pass(at_, op, update);
      if (kernels::moves_weights(pass)) {
        units_[op.unit].updated += update.master.elements();
        once(update.master);
        if (update.parameter)
          same_elements(op, update.parameter, update.master, parameter_distances_);
        if (update.average) same_elements(op, update.average, update.master, average_distances_);
      }
      if (!homes_.is_at(update.scalars, plan_.update_scalars) ||
          !homes_.is_at(update.verdict, plan_.verdict))
        reject(plan_, at_, "updates by what is no step's");
      note_rows(op, update);
      if (verdict_) {
        if (has_deferred_) reject(plan_, at_, "updates by gradients of two steps");
        if (!homes_.is_at(update.scalars, plan_.scalars))
          reject(plan_, at_, "updates by what is no step's");
      } else {
        defer(update);
      }
      if (kernels::reads_gradient(pass)) use_gradient(op, home_of(update.gradient));
      if (pass == UpdatePass::by_state) {
        momentum_.updates(at_, op, update, !verdict_);
        same_elements(op, update.state[0], update.master, momentum_distances_);
      }
    } else {
      reject(plan_, at_, "updates nothing");
    }
  }

  /// No element is updated twice.
  void once(const View& master) {
    const BufferUse home = homes_.home_of(master);
    for (const Range& other : updated_[home.buffer]) {
      if (!intersect(other, home.bytes).empty()) reject(plan_, at_, "updates an element again");
    }
    updated_[home.buffer].push_back(home.bytes);
  }

  /// An update by what the step before has left: nothing has changed that or looked at what it
  /// updates, but to bring it there.
  template <typename Update>
  void defer(const Update& update) {
    has_deferred_ = true;
    if (!plan_.buffer(home_of(update.scalars)).persistent ||
        homes_.is_at(update.scalars, plan_.scalars))
      reject(plan_, at_, "updates before the norm is known");
    bool read = false;
    update.visit(update, [&](const View& v, Access access) {
      if (!v || access == Access::read) return;
      const BufferUse home = homes_.home_of(v);
      read_[home.buffer].each(home.bytes, [&](bool r) { read = read || r; });
    });
    if (read) reject(plan_, at_, "updates what the step has used");
  }
  /// An update is by this step's gradient, or by the one that the step before has left.
  void use_gradient(const Op& op, BufferId gradient) {
    if (verdict_) {
      unsummed_.erase(whole_.contains(gradient) ? whole_.at(gradient) : gradient);
      return;
    }
    if (!plan_.buffer(gradient).persistent) reject(plan_, at_, "updates before the norm is known");
    if (unsummed_.contains(gradient) || whole_.contains(gradient))
      reject(plan_, at_, "updates by a gradient without a norm");
    left_[gradient] = op.unit;
  }
  /// Where a unit's rows and parameters are, as its updates have it.
  template <typename Update>
  void note_rows(const Op& op, const Update& update) {
    auto& rows = rows_[op.unit];
    rows.of[0] = home_of(update.master);
    for (std::size_t s = 0; s < update.state.size(); ++s) {
      if (update.state[s]) rows.of[1 + s] = home_of(update.state[s]);
    }
    if (update.average) rows.average = home_of(update.average);
    if (!kernels::moves_weights(kernels::pass_of(update.rule))) return;
    parameters_[op.unit] = home_of(update.parameter ? update.parameter : update.master);
  }
  /// Tiles are of the rows that they say, and of elements that are as far apart there; or of codes,
  /// as many as the elements have.
  void follow_tile(const Op& op, const SaveTile& tile) {
    const BufferUse home = homes_.home_of(tile.from);
    const UnitShare& share = at(plan_.shares, op.unit);
    const auto& codes = share.codes;
    if (tile.from.elements() != (codes ? codes->bytes(tile.count) : tile.count))
      reject(plan_, at_, "saves more or less than it says");
    std::int64_t distance = home.bytes.begin - tile.first * size_of(tile.from.type);
    if (codes) {
      const std::int64_t slot = codes->bytes(share.shard);
      const bool all_shards = plan_.buffer(home.buffer).bytes >= share.parts * slot;
      distance = home.bytes.begin - (all_shards ? tile.first / share.shard * slot : 0);
      if (distance != 0) reject(plan_, at_, "saves codes of another shard");
    }
    const auto [found, added] =
        tiles_.try_emplace({op.unit, tile.row}, std::pair{home.buffer, distance});
    if (!added && found->second != std::pair{home.buffer, distance})
      reject(plan_, at_, "saves other elements than it says");
  }
  void end_tiles() {
    for (const auto& [row, home] : tiles_) {
      const auto rows = rows_.find(row.first);
      if (rows != rows_.end() && rows->second.home_of(row.second) != home.first)
        throw InternalError(fmt::format("broken plan: row {} of unit {} is saved as another",
                                        row.second, row.first));
    }
  }
  /// What of the state ops of the step have read, other than to bring it elsewhere.
  void note_reads(const Op& op) {
    if (op.kind == OpKind::update || op.kind == OpKind::fetch || op.kind == OpKind::evict) return;
    for (const BufferUse& use : uses_of(op)) {
      const BufferUse home = homes_.home_of(use);
      if (use.access == Access::write || !is_state(plan_.buffer(home.buffer))) continue;
      read_[home.buffer].assign(home.bytes, true);
      if (op.kind == OpKind::kernel && !published_.contains(home.buffer))
        read_unpublished_.try_emplace(home.buffer, at_);
    }
  }
  /// The step leaves to the next one what it has taken from the one before; a flush leaves nothing.
  void end_deferred() {
    const bool flushes = plan_.shape.purpose == PlanPurpose::flush;
    if (flushes && (verdict_ || (has_deferred_ && !nothing_left_)))
      throw InternalError("broken plan: a flush that leaves something to do");
    if (flushes || !has_deferred_) return;
    if (!keeps_scalars_ || !verdict_)
      throw InternalError("broken plan: the next step cannot do the update of this one");
    // The first compressed step does the last update by gradients, and leaves momentum instead.
    if (plan_.shape.compression == Compression::begins) return;
    for (const auto& [gradient, unit] : left_) {
      if (unsummed_.erase(whole_.contains(gradient) ? whole_.at(gradient) : gradient) == 0)
        throw InternalError(fmt::format("broken plan: unit {} leaves no gradient", unit));
    }
  }
  /// Where nothing is deferred there is nothing to flush.
  bool is_empty_flush() const {
    return plan_.shape.purpose == PlanPurpose::flush &&
           plan_.update_scalars.data == plan_.scalars.data && !has_deferred_;
  }

  /// The parameters of a unit, the averages of its weights, or its momentum, are all as far from
  /// their master weights: by no shard or by whole ones.
  void same_elements(const Op& op, const View& v, const View& master,
                     std::map<std::int32_t, std::int64_t>& distances) {
    const std::int64_t of_one = size_of(v.type), of_other = size_of(master.type),
                       distance = homes_.home_of(v).bytes.begin * of_other -
                                  homes_.home_of(master).bytes.begin * of_one,
                       shard = at(plan_.shares, op.unit).shard * of_one * of_other;
    if (distance % shard != 0 || distances.try_emplace(op.unit, distance).first->second != distance)
      reject(plan_, at_, "updates other elements' parameters or averages, or by their momentum");
  }

  const Plan& plan_;
  const Homes& homes_;
  GradientBlocks blocks_;
  InTurn leaving_, arriving_;  // gradients and sums whose chunks leave and arrive as blocks
  std::map<BufferId, std::pair<std::int64_t, kernels::Write>>
      sums_;  // byte, and how, of the latter
  ErrorFeedback errors_;
  MomentumCheck momentum_;
  std::size_t at_ = 0;
  std::map<BufferId, std::vector<Range>> folded_;  // parts of gradients that others have
  std::map<BufferId, std::size_t> unsummed_;       // gradient buffer -> op that made it
  std::map<BufferId, BufferId> whole_;             // gathered gradient -> this rank's slice of it
  std::map<std::int32_t, Unit> units_;
  TwoPasses two_passes_;
  std::map<BufferId, std::vector<Range>> updated_;  // bytes of master weights
  /// By unit, of parameters, averages and momentum from master weights.
  std::map<std::int32_t, std::int64_t> parameter_distances_, average_distances_,
      momentum_distances_;
  bool summed_words_ = false, verdict_ = false;
  // Of deferred updates.
  bool has_deferred_ = false, keeps_scalars_ = false, nothing_left_ = false;
  std::map<BufferId, std::int32_t> left_;  // gradients of the step before, and of which unit
  // Where rows (by unit) and tiles of them (by unit and row) are, and parameters; those of which
  // all is there, and the op that has read others first.
  struct Rows {
    std::map<std::size_t, BufferId> of;  // master weights, then state
    BufferId average = -1;               // the row behind these
    BufferId home_of(std::size_t row) const {
      const auto it = of.find(row);
      return it == of.end() ? average : it->second;
    }
  };
  std::map<std::int32_t, Rows> rows_;
  std::map<std::pair<std::int32_t, std::size_t>, std::pair<BufferId, std::int64_t>> tiles_;
  std::map<std::int32_t, BufferId> parameters_;
  std::set<BufferId> published_;
  std::map<BufferId, std::size_t> read_unpublished_;
  std::map<BufferId, RangeMap<bool>> read_;  // bytes of state
};

}  // namespace

namespace {

/// The host loads the step's tokens before anything else; what it computes is on its own stream.
/// All ops but copies find their buffers where they run; the device reads and fills caches of
/// generation also in the host's memory.
void check_locations(const Plan& plan) {
  bool loading = true;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const bool loads = std::holds_alternative<LoadBatch>(op.call);
    const bool saves = std::holds_alternative<SaveTile>(op.call);
    const bool by_host = loads || op.stream == Stream::host;
    if (saves ? op.location == Location::disk : by_host != (op.location == Location::host))
      reject(plan, i, "runs elsewhere than on the host what is the host's, or there what is not");
    if (op.stream == Stream::host && !std::holds_alternative<kernels::KernelCall>(op.call))
      reject(plan, i, "is on the stream of what the host computes, and computes nothing");
    if (loads && !loading) reject(plan, i, "loads tokens after the step has begun");
    loading = loads;
    if (loads || std::holds_alternative<Copy>(op.call)) continue;
    for (const BufferUse& use : uses_of(op)) {
      const Buffer& b = plan.buffer(use.buffer);
      const bool cache_on_host = b.purpose == BufferPurpose::cache &&
                                 b.location == Location::host && op.location == Location::device;
      if (b.location != op.location && !cache_on_host)
        reject(plan, i, fmt::format("uses {} on the {}", b.name, enum_word(b.location)));
    }
  }
}

/// Parameters that are gathered out of shards of a whole that persists are that whole from then on.
void check_published(const Plan& plan, const Homes& homes) {
  std::map<BufferId, BufferUse> on_the_way;  // what shards of other nodes are beside
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* call = std::get_if<comm::CollectiveCall>(&plan.ops[i].call);
    const auto* gather = call == nullptr ? nullptr : std::get_if<comm::AllGather>(call);
    if (gather == nullptr) continue;
    BufferUse shard = homes.home_of(gather->shard);
    const BufferUse full = homes.home_of(gather->full);
    if (const auto it = on_the_way.find(shard.buffer); it != on_the_way.end()) {
      shard = it->second;
    } else if (gather->among) {
      on_the_way[full.buffer] = shard;
      continue;
    }
    const Buffer& home = plan.buffer(shard.buffer);
    if (!home.persistent || home.purpose == BufferPurpose::gradients ||
        home.bytes == shard.bytes.count() ||
        (plan.logits && shard.buffer == buffer_of(plan.logits)))
      continue;
    if (full.buffer != shard.buffer || full.bytes != Range{0, home.bytes})
      reject(plan, i, fmt::format("{} is changed, but never where it lives", home.name));
  }
}

/// Of a row that is saved in tiles, each element of the shard is in one of them.
void check_tiles(const Plan& plan) {
  std::map<std::pair<std::int32_t, std::size_t>, std::vector<Range>> rows;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto* tile = std::get_if<SaveTile>(&plan.ops[i].call);
    if (tile == nullptr) continue;
    auto& ranges = rows[{plan.ops[i].unit, tile->row}];
    const Range elements{tile->first, tile->first + tile->count};
    for (const Range& other : ranges) {
      if (!intersect(other, elements).empty()) reject(plan, i, "saves an element again");
    }
    ranges.push_back(elements);
  }
  for (const auto& [row, ranges] : rows) {
    std::int64_t saved = 0;
    for (const Range& r : ranges) saved += r.count();
    const std::int64_t kept = at(plan.shares, row.first).kept.at(row.second);
    if (saved != kept)
      throw InternalError(
          fmt::format("broken plan: {} elements of unit {}, row {} are saved, of {}", saved,
                      row.first, row.second, kept));
  }
}

}  // namespace

void check(const Plan& plan) {
  check_ranges(plan);
  check_locations(plan);
  check_order(plan);
  const Homes homes(plan);
  homes.check_versions();
  GatherCheck(plan, homes).run();
  if (plan.shape.purpose == PlanPurpose::generate) {
    check_generation(plan);
  } else {
    check_losses(plan, homes);
  }
  check_published(plan, homes);
  check_codes(plan, homes);
  check_on_demand(plan);
  check_tiles(plan);
  check_repeat(plan);
  if (plan.shape.purpose > PlanPurpose::evaluate) GradientCheck(plan, homes).run();
}

void check_together(std::span<const std::uint64_t> plan_hashes) {
  for (std::size_t r = 1; r < plan_hashes.size(); ++r) {
    if (plan_hashes[r] != plan_hashes[0]) {
      throw InternalError(fmt::format(
          "broken plan: the first rank and number {} after it do not issue the same collectives",
          r));
    }
  }
}

}  // namespace tessera::plan
