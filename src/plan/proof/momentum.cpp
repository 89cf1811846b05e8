#include "plan/proof/momentum.hpp"

#include <cmath>
#include <utility>

#include "plan/proof/reject.hpp"

namespace tessera::plan {
namespace {

/// Weights of an average, to the rounding of a few products.
bool add_up(float a, float b) { return std::abs(a + b - 1) < 1e-5F * (1 + std::abs(a)); }

}  // namespace

const UnitShare& MomentumCheck::share(const Op& op) const {
  return tessera::at(plan_.shares, op.unit);
}

void MomentumCheck::is_momentum(std::size_t at, Unit& unit, const BufferUse& home) const {
  const Buffer& buffer = plan_.buffer(home.buffer);
  if (!buffer.persistent || buffer.purpose != BufferPurpose::optimizer ||
      home.bytes != Range{0, buffer.bytes})
    reject(plan_, at, "takes for momentum what is none, or a part of it");
  if (unit.momentum.buffer < 0) unit.momentum = home;
  if (!same_bytes(unit.momentum, home)) reject(plan_, at, "takes the momentum of others");
}

MomentumCheck::Blends MomentumCheck::blends(std::size_t at, const Op& op,
                                            const kernels::Blend& call, bool verdict) {
  Unit& unit = units_[op.unit];
  const std::int64_t shard = share(op).shard, parts = share(op).parts;
  if (call.verdict) {
    if (!verdict || !homes_.is_at(call.verdict, plan_.verdict) || call.scalars)
      reject(plan_, at, "keeps momentum of a step that may not be applied");
    if (unit.kept) reject(plan_, at, "keeps momentum again");
    is_momentum(at, unit, homes_.home_of(call.out));
    const bool came = unit.stage == Stage::arrived &&
                      homes_.home_of(call.y).buffer == unit.arrived && call.keep == 0 &&
                      call.add == 1;
    if (share(op).momentum ? !came : !add_up(call.keep, call.add))
      reject(plan_, at, "keeps other momentum than the step's");
    unit.kept = true;
    return Blends::keeps;
  }
  if (!share(op).momentum || !homes_.is_at(call.scalars, plan_.scalars))
    reject(plan_, at, "blends what does not travel as momentum");
  if (unit.stage == Stage::none) {
    is_momentum(at, unit, homes_.home_of(call.y));
    if (call.out.elements() != shard * parts ||
        !add_up(call.keep, call.add * static_cast<float>(parts)))
      reject(plan_, at, "momentum joins another gradient");
    if (unit.gathered && !same_bytes(unit.gathered_to, unit.momentum))
      reject(plan_, at, "joins other momentum than was gathered");
    unit.gradient = homes_.home_of(call.out).buffer;
    unit.join = call.keep;
    unit.stage = Stage::joined;
    return Blends::joins;
  }
  const BufferUse own = homes_.home_of(call.y);
  const std::int64_t bytes = shard * size_of(DType::f32), first = plan_.place.data * bytes;
  if (unit.stage != Stage::decoded || homes_.home_of(call.out).buffer != unit.gradient ||
      call.out.elements() != shard || own.buffer != unit.momentum.buffer ||
      own.bytes != Range{first, first + bytes} || !add_up(call.keep, call.add) ||
      std::abs(unit.join * call.keep - 1) > 1e-4F)
    reject(plan_, at, "leads back to no gradient");
  unit.stage = Stage::led_back;
  return Blends::leads_back;
}

/// Whether these are errors that one step leaves to the next, all of a buffer.
bool MomentumCheck::is_kept_error(const BufferUse& home) const {
  const Buffer& kept = plan_.buffer(home.buffer);
  return kept.persistent && kept.purpose == BufferPurpose::errors &&
         home.bytes == Range{0, kept.bytes};
}

void MomentumCheck::collective(std::size_t at, const Op& op, const comm::CollectiveCall& call) {
  if (const auto* words = std::get_if<comm::AllReduceWords>(&call)) {
    if (words->of != comm::AllReduceWords::Of::largest || op.group != MeshGroup::world ||
        compared_ || buffer_of(words->words) != table_ ||
        words->words.span_bytes() != plan_.buffer(table_).bytes)
      reject(plan_, at, "does not compare all ratios over all ranks");
    compared_ = true;
    return;
  }
  Unit& unit = units_[op.unit];
  if (const auto* gather = std::get_if<comm::AllGather>(&call)) {
    if (gather->full.type != DType::u8 && unit.stage == Stage::none) {
      unit.gathered = true;
      unit.gathered_to = homes_.home_of(gather->full);
    }
    return;
  }
  const auto* sum = std::get_if<comm::ReduceScatter>(&call);
  if (sum == nullptr || unit.stage != Stage::none || sum->write != kernels::Write::add ||
      buffer_of(sum->full) != unit.node_errors_leaving || !sum->among ||
      sum->shard.elements() != share(op).shard || !is_kept_error(homes_.home_of(sum->shard)))
    reject(plan_, at, "sums what is no error of the step before");
  unit.node_errors_leaving = -1;
  unit.summed_node_error = true;
}

void MomentumCheck::adds(std::size_t at, const Op& op, const kernels::RequantizeSum& call) {
  if (!share(op).momentum) return;
  Unit& unit = units_[op.unit];
  if (!call.lost || !call.error || !homes_.is_at(call.scalars, plan_.scalars))
    reject(plan_, at, "rounds sums of nodes without the errors of the step before");
  const BufferUse error = homes_.home_of(call.error), lost = homes_.home_of(call.lost);
  const auto all = [&](const BufferUse& use) {
    return BufferUse{use.buffer, {0, plan_.buffer(use.buffer).bytes}};
  };
  if (unit.of_nodes == 0) unit.node_error = all(error), unit.node_lost = all(lost);
  if (error.bytes != lost.bytes || error.buffer != unit.node_error.buffer ||
      lost.buffer != unit.node_lost.buffer || !is_kept_error(unit.node_error) ||
      unit.node_lost.buffer == unit.node_error.buffer)
    reject(plan_, at, "takes errors from elsewhere");
  unit.of_nodes += call.lost.elements();
}

void MomentumCheck::rounds(std::size_t at, const Op& op, const kernels::Quantize& call) {
  Unit& unit = units_[op.unit];
  if (unit.stage != Stage::joined || call.x.elements() != share(op).shard ||
      call.lost.elements() != share(op).shard || !homes_.is_at(call.scalars, plan_.scalars))
    reject(plan_, at, "rounds what is no mean of momentum");
  unit.error = homes_.home_of(call.error ? call.error : call.lost);
  unit.lost = homes_.home_of(call.lost);
  if (!is_kept_error(unit.error) || unit.lost.buffer == unit.error.buffer)
    reject(plan_, at, "takes errors from elsewhere");
  unit.codes = call.code.data;
  unit.stage = Stage::rounded;
}

void MomentumCheck::decodes(std::size_t at, const Op& op, const kernels::SumQuantized& call) {
  Unit& unit = units_[op.unit];
  const bool own = call.code.data == unit.codes;
  const std::int64_t elements = share(op).shard * (own ? 1 : share(op).parts);
  if (unit.stage != (own ? Stage::rounded : Stage::led_back) || call.out.elements() != elements ||
      call.write != kernels::Write::overwrite)
    reject(plan_, at, "decodes what is no mean of momentum");
  (own ? unit.gradient : unit.arrived) = homes_.home_of(call.out).buffer;
  unit.stage = own ? Stage::decoded : Stage::arrived;
}

void MomentumCheck::keeps_error(std::size_t at, const Op& op, const kernels::Convert& call,
                                bool verdict) {
  Unit& unit = units_[op.unit];
  if (!call.verdict) {  // it joins what a checkpoint has, as the step before has left it
    const bool of_mean = call.write == kernels::Write::add;
    if (unit.stage != Stage::none || !is_kept_error(homes_.home_of(call.x)) ||
        (of_mean && call.x.elements() != share(op).shard))
      reject(plan_, at, "sums what is no error of the step before");
    if (of_mean ? std::exchange(unit.summed_error, true) : unit.node_errors_leaving >= 0)
      reject(plan_, at, "sums errors twice");
    if (!of_mean) unit.node_errors_leaving = buffer_of(call.out);
    return;
  }
  if (!verdict || !homes_.is_at(call.verdict, plan_.verdict))
    reject(plan_, at, "keeps errors of a step that may not be applied");
  const BufferUse from = homes_.home_of(call.x), to = homes_.home_of(call.out);
  const bool of_mean = same_bytes(from, unit.lost) && same_bytes(to, unit.error),
             of_nodes = same_bytes(from, unit.node_lost) && same_bytes(to, unit.node_error) &&
                        unit.of_nodes == call.x.elements();
  bool& kept = of_mean ? unit.kept_error : unit.kept_node_error;
  if (unit.stage != Stage::arrived || kept || !(of_mean || of_nodes) ||
      call.write != kernels::Write::overwrite)
    reject(plan_, at, "keeps other errors than the step's");
  kept = true;
}

/// Whether a buffer of state has so many values, one for each tensor of a unit.
bool MomentumCheck::is_of_tensors(const BufferUse& home, std::int64_t tensors) const {
  const Buffer& buffer = plan_.buffer(home.buffer);
  return buffer.persistent && buffer.purpose == BufferPurpose::optimizer &&
         home.bytes == Range{0, buffer.bytes} && buffer.bytes == 4 * tensors;
}

void MomentumCheck::copies_moments(std::size_t at, const Op& op, const kernels::Convert& call) {
  Unit& unit = units_[op.unit];
  unit.running = homes_.home_of(call.out);
  const BufferUse from = homes_.home_of(call.x);
  if (plan_.shape.compression != Compression::begins || unit.copied || unit.moved > 0 ||
      plan_.buffer(from.buffer).purpose != BufferPurpose::optimizer ||
      from.buffer == unit.running.buffer || call.x.elements() != share(op).shard || call.verdict ||
      call.write != kernels::Write::overwrite)
    reject(plan_, at, "second moments go on from elsewhere");
  unit.copied = true;
}

void MomentumCheck::moves_moments(std::size_t at, const Op& op, const kernels::MomentRatio& call,
                                  bool verdict) {
  Unit& unit = units_[op.unit];
  if (!verdict || !homes_.is_at(call.verdict, plan_.verdict))
    reject(plan_, at, "moves moments of a step that may not be applied");
  const BufferUse running = homes_.home_of(call.moment), frozen = homes_.home_of(call.frozen);
  const Buffer &from = plan_.buffer(frozen.buffer), &to = plan_.buffer(running.buffer);
  // One has the shard, the other that or all that the rank updates.
  const std::int64_t shard = share(op).shard * size_of(DType::f32),
                     first = from.bytes > shard ? plan_.place.data * shard : 0;
  if (!from.persistent || !to.persistent || from.purpose != BufferPurpose::optimizer ||
      to.purpose != BufferPurpose::optimizer || running.buffer == frozen.buffer ||
      running.bytes.begin + first != frozen.bytes.begin || running.bytes.begin != 4 * unit.moved)
    reject(plan_, at, "compares second moments of other elements");
  if (unit.copied && running.buffer != unit.running.buffer)
    reject(plan_, at, "moves other second moments than go on");
  if (unit.kept || unit.followed) reject(plan_, at, "moves second moments too late");
  if (unit.frozen >= 0 && frozen.buffer != unit.frozen)
    reject(plan_, at, "compares other second moments than updates are by");
  unit.frozen = frozen.buffer;
  unit.moved += call.moment.elements();
  if (!call.largest) return;
  unit.words.emplace_back(frozen.bytes, offset_of(call.largest));
  if (buffer_of(call.largest) != table_ || compared_)
    reject(plan_, at, "compares with what has been compared over ranks");
  unit.compared += call.moment.elements();
}

void MomentumCheck::follows(std::size_t at, const Op& op, const kernels::FollowRatio& call,
                            bool verdict) {
  Unit& unit = units_[op.unit];
  unit.ratio = homes_.home_of(call.ratio);
  if (!verdict || !homes_.is_at(call.verdict, plan_.verdict) || !compared_ || unit.followed ||
      buffer_of(call.largest) != table_ || !is_of_tensors(unit.ratio, call.ratio.elements()))
    reject(plan_, at, "follows other ratios than the step's, of all ranks");
  unit.first_word = offset_of(call.largest);
  unit.followed = true;
}

void MomentumCheck::clears(std::size_t at, const Op& op, const kernels::Fill& call) {
  if (op.unit < 0) {
    if (table_ >= 0) reject(plan_, at, "clears ratios again");
    table_ = buffer_of(call.out);
    return;
  }
  const auto unit = units_.find(op.unit);
  if (unit == units_.end() || call.out.elements() >= unit->second.block)
    reject(plan_, at, "clears more than padding");
}

void MomentumCheck::leaves(std::size_t at, const Op& op, BufferId gradient,
                           const kernels::Quantize& call) {
  if (!share(op).momentum) return;
  const auto unit = units_.find(op.unit);
  if (unit == units_.end() || unit->second.stage != Stage::joined ||
      unit->second.gradient != gradient)
    reject(plan_, at, "sends a gradient that no momentum has joined");
  unit->second.block = call.format.block;
}

void MomentumCheck::updates(std::size_t at, const Op& op, const kernels::OptimizerUpdate& update,
                            bool deferred) {
  Unit& unit = units_[op.unit];
  const bool done = unit.kept && (unit.followed || !share(op).factors);
  const bool begun = unit.kept || unit.followed || unit.stage != Stage::none;
  if (deferred ? begun : !done) reject(plan_, at, "updates by momentum of another step");
  if (share(op).factors) {
    if (!update.factors[0] || !update.factors[1]) reject(plan_, at, "updates without factors");
    const BufferUse average = homes_.home_of(update.factors[0]),
                    ratio = homes_.home_of(update.factors[1]);
    const BufferUse frozen = homes_.home_of(update.state[1]);
    if ((unit.followed && ratio.buffer != unit.ratio.buffer) || average.buffer == ratio.buffer ||
        average.bytes != ratio.bytes || (unit.average >= 0 && average.buffer != unit.average) ||
        (unit.frozen >= 0 && frozen.buffer != unit.frozen))
      reject(plan_, at, "updates by the factors of others");
    unit.average = average.buffer;
    unit.frozen = frozen.buffer;
    unit.factors.emplace_back(frozen.bytes, average.bytes.begin / size_of(DType::f32));
  }
  const BufferUse home = homes_.home_of(update.state[0]);
  if (unit.momentum.buffer >= 0 ? home.buffer != unit.momentum.buffer
                                : !plan_.buffer(home.buffer).persistent)
    reject(plan_, at, "updates by what is no momentum");
  if (unit.momentum.buffer < 0) unit.momentum = {home.buffer, {0, plan_.buffer(home.buffer).bytes}};
}

BufferId MomentumCheck::gradient(std::int32_t unit) const {
  const auto it = units_.find(unit);
  return it == units_.end() || it->second.stage < Stage::led_back ? -1 : it->second.gradient;
}

void MomentumCheck::end(std::int32_t unit, bool whole) const {
  const bool wanted =
      plan_.shape.compression != Compression::none && plan_.shape.purpose >= PlanPurpose::train;
  const UnitShare& share = tessera::at(plan_.shares, unit);
  const auto it = units_.find(unit);
  const Unit found = it == units_.end() ? Unit{} : it->second;
  const bool travels = wanted && share.momentum;
  if (found.kept != (wanted && share.trained) || found.kept_error != travels ||
      found.kept_node_error != (travels && share.by_nodes) || found.node_errors_leaving >= 0)
    throw InternalError(fmt::format("broken plan: unit {} loses momentum, or its errors", unit));
  const bool moves = wanted && share.factors;
  if (found.followed != moves || found.moved != (moves ? share.shard : 0) ||
      found.compared != (moves ? share.counted : 0) ||
      found.copied != (moves && plan_.shape.compression == Compression::begins))
    throw InternalError(fmt::format("broken plan: factors of unit {} do not follow", unit));
  for (const auto& [compared, word] : found.words) {
    for (const auto& [updated, place] : found.factors) {
      if (!intersect(compared, updated).empty() &&
          (word - found.first_word) / size_of(DType::i64) != place)
        throw InternalError(fmt::format("broken plan: unit {} has factors of other tensors", unit));
    }
  }
  const bool saves = plan_.shape.purpose == PlanPurpose::train_snapshot ||
                     plan_.shape.purpose == PlanPurpose::flush;
  if (found.summed_error != (saves && share.momentum) ||
      found.summed_node_error != (saves && share.by_nodes))
    throw InternalError(fmt::format("broken plan: checkpoints lack errors of unit {}", unit));
  if (share.momentum && wanted && !whole && plan_.shape.compression == Compression::begins &&
      !found.gathered)
    throw InternalError(
        fmt::format("broken plan: unit {} joins momentum that other ranks have", unit));
}

}  // namespace tessera::plan
