#include "plan/proof/error_feedback.hpp"

#include "plan/proof/reject.hpp"

namespace tessera::plan {
/// All errors of the unit, of which `v` has a chunk.
BufferUse ErrorFeedback::whole_of(std::size_t at, const Op& op, const View& v,
                                  const Range& chunk) const {
  const UnitShare& share = tessera::at(plan_.shares, op.unit);
  if (chunk_of(plan_, at, v, share.parts, share.shard) != chunk)
    reject(plan_, at, "takes the errors of other elements");
  View whole = v;
  whole.data -= chunk.begin * size_of(v.type);
  return homes_.home_of(View(whole.data, v.type, {share.parts * share.shard}));
}

void ErrorFeedback::rounds(std::size_t at, const Op& op, const kernels::Quantize& call,
                           const Range& chunk) {
  Errors& errors = of_[op.unit];
  ++errors.roundings;
  errors.with += call.lost ? 1 : 0;
  if (errors.with != 0 && errors.with != errors.roundings)
    reject(plan_, at, "forgets what other roundings have lost");
  if (!call.lost) return;
  const BufferUse lost = whole_of(at, op, call.lost, chunk);
  if (!homes_.is_at(call.scalars, plan_.scalars)) reject(plan_, at, "rounds by what is no step's");
  if (chunk.begin != errors.next) reject(plan_, at, "rounds without the errors before it");
  if (errors.wholes == 0) {
    if (!call.error) reject(plan_, at, "rounds without the errors of the step before");
    const BufferUse error = whole_of(at, op, call.error, chunk);
    if (chunk.begin == 0) {
      errors.error = error, errors.lost = lost;
      const Buffer& kept = plan_.buffer(error.buffer);
      if (!kept.persistent || kept.purpose != BufferPurpose::errors ||
          !taken_.insert(lost.buffer).second || !taken_.insert(error.buffer).second)
        reject(plan_, at, "takes errors from elsewhere");
    } else if (!same_bytes(error, errors.error) || !same_bytes(lost, errors.lost)) {
      reject(plan_, at, "takes errors from elsewhere");
    }
  } else if (call.error || !same_bytes(lost, errors.lost)) {
    reject(plan_, at, "rounds without the errors of this step");
  }
  errors.next = chunk.end;
  if (errors.next < tessera::at(plan_.shares, op.unit).shard) return;
  errors.next = 0;
  ++errors.wholes;
}

void ErrorFeedback::keeps(std::size_t at, const Op& op, const kernels::Convert& call,
                          bool verdict) {
  Errors& errors = of_[op.unit];
  if (!call.verdict) return sets_out(at, op, call);
  if (!verdict || !homes_.is_at(call.verdict, plan_.verdict))
    reject(plan_, at, "keeps errors of a step that may not be applied");
  if (errors.wholes == 0 || errors.next != 0 || errors.kept ||
      call.write != kernels::Write::overwrite || !same_bytes(homes_.home_of(call.x), errors.lost) ||
      !same_bytes(homes_.home_of(call.out), errors.error))
    reject(plan_, at, "keeps other errors than the step's");
  errors.kept = true;
}

/// A copy of the unit's errors, to be summed.
void ErrorFeedback::sets_out(std::size_t at, const Op& op, const kernels::Convert& call) {
  const UnitShare& share = tessera::at(plan_.shares, op.unit);
  const Buffer& kept = plan_.buffer(homes_.home_of(call.x).buffer);
  if (kept.purpose != BufferPurpose::errors || !kept.persistent || of_[op.unit].kept ||
      call.x.elements() != share.parts * share.shard || call.write != kernels::Write::overwrite)
    reject(plan_, at, "sums what is no error of the step before");
  if (!to_sum_.emplace(buffer_of(call.out), op.unit).second)
    reject(plan_, at, "overwrites errors that nobody added");
}

void ErrorFeedback::sums(std::size_t at, const Op& op, const comm::ReduceScatter& call) {
  const UnitShare& share = tessera::at(plan_.shares, op.unit);
  if (!on_way_.holds(call.full)) {
    const auto copy = to_sum_.find(buffer_of(call.full));
    if (copy == to_sum_.end() || copy->second != op.unit ||
        call.full.elements() != share.parts * share.shard || offset_of(call.full) != 0)
      reject(plan_, at, "sums what is no error of the step before");
    to_sum_.erase(copy);
  }
  if (!on_way_.reduce(at, call, share.parts)) return;
  const BufferId sum = homes_.home_of(call.shard).buffer;
  const Buffer& kept = plan_.buffer(sum);
  if (kept.purpose != BufferPurpose::errors || !kept.persistent || !taken_.insert(sum).second ||
      call.write != kernels::Write::overwrite || call.shard.elements() != share.shard ||
      !summed_.insert(op.unit).second)
    reject(plan_, at, "puts the sum of errors where another belongs");
}

void ErrorFeedback::end() const {
  if (!to_sum_.empty()) throw InternalError("broken plan: errors are never summed");
  on_way_.end();
  for (std::size_t u = 0; u < plan_.shares.size(); ++u) {
    const auto it = of_.find(static_cast<std::int32_t>(u));
    const bool trains = plan_.shape.purpose >= PlanPurpose::train && plan_.shares[u].errors,
               kept = it != of_.end() && it->second.kept;
    const bool saves = plan_.shape.purpose == PlanPurpose::train_snapshot ||
                       plan_.shape.purpose == PlanPurpose::flush;
    if (summed_.contains(static_cast<std::int32_t>(u)) != (saves && plan_.shares[u].errors))
      throw InternalError(fmt::format("broken plan: checkpoints have no errors of unit {}", u));
    if (kept != trains)
      throw InternalError(fmt::format("broken plan: unit {} loses its errors", u));
  }
}

}  // namespace tessera::plan
