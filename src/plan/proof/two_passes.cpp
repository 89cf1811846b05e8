#include "plan/proof/two_passes.hpp"

#include <utility>

#include "plan/proof/reject.hpp"

namespace tessera::plan {

using kernels::UpdatePass;

void TwoPasses::between(std::size_t at, const Op& op) {
  if (op.kind == OpKind::matrices) ++exchanges_;
  if (op.kind != OpKind::tensor_sums) return;
  if (const auto* trust = kernel_of<kernels::AverageTrust>(op)) return averages(at, op, *trust);
  if (whole_) reject(plan_, at, "changes sums that ranks have added up already");
  if (const auto* kernel = std::get_if<kernels::KernelCall>(&op.call)) {
    const auto* fill = std::get_if<kernels::Fill>(kernel);
    if (fill == nullptr || cleared_) reject(plan_, at, "clears the sums of tensors again");
    cleared_ = home_of(fill->out);
    return;
  }
  const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
  const auto* words = call == nullptr ? nullptr : std::get_if<comm::AllReduceWords>(call);
  if (words == nullptr || op.group != MeshGroup::world || !cleared_ ||
      home_of(words->words).buffer != cleared_->buffer ||
      home_of(words->words).bytes != cleared_->bytes)
    reject(plan_, at, "does not add up all sums of tensors over all ranks");
  whole_ = true;
}

void TwoPasses::averages(std::size_t at, const Op& op, const kernels::AverageTrust& call) {
  const bool in_sums = whole_ && home_of(call.sums).buffer == cleared_->buffer;
  if (!in_sums || !homes_.is_at(call.verdict, plan_.verdict) ||
      plan_.buffer(home_of(call.average).buffer).bytes != 4 * call.average.elements() ||
      plan_.buffer(home_of(call.average).buffer).purpose != BufferPurpose::optimizer ||
      std::exchange(units_[op.unit].averaged, true))
    reject(plan_, at, "averages other ratios than the step's, of whole tensors");
}

void TwoPasses::begin(std::size_t at, const kernels::OptimizerUpdate& update,
                      const Element& element) {
  const BufferUse home = home_of(update.master);
  elements_[home.buffer].each(home.bytes, [&](Element& e) {
    if (e.settings) reject(plan_, at, "updates an element again");
    e = element;
  });
}

void TwoPasses::finish(std::size_t at, const kernels::OptimizerUpdate& update) {
  const BufferUse home = home_of(update.master);
  elements_[home.buffer].each(home.bytes, [&](const Element& e) {
    if (!e.settings) reject(plan_, at, "updates without a first pass");
    if (update.sums && e.sums >= 0 && e.sums != home_of(update.sums).bytes.begin)
      reject(plan_, at, "updates by the sums of another tensor");
    if (update.direction && e.exchanges == exchanges_)
      reject(plan_, at, "updates by directions that no matrix was made of");
    const kernels::UpdateSettings &a = *e.settings, &b = update.settings;
    if (update.sums && (a.eps != b.eps || a.decay != b.decay))
      reject(plan_, at, "updates along another direction than it has summed");
  });
}

void TwoPasses::pass(std::size_t at, const Op& op, const kernels::OptimizerUpdate& update) {
  const std::int64_t n = update.master.elements();
  Unit& unit = units_[op.unit];
  switch (kernels::pass_of(update.rule)) {
    case UpdatePass::only:
    case UpdatePass::by_state: return;
    case UpdatePass::first: {
      if (whole_) reject(plan_, at, "adds to sums that ranks have added up already");
      const bool in_sums =
          update.sums && cleared_ && home_of(update.sums).buffer == cleared_->buffer &&
          intersect(home_of(update.sums).bytes, cleared_->bytes) == home_of(update.sums).bytes;
      if (update.sums && !in_sums) reject(plan_, at, "adds to sums that do not begin at 0");
      begin(at, update,
            {.settings = update.settings,
             .sums = update.sums ? home_of(update.sums).bytes.begin : -1});
      unit.first += n;
      if (update.sums) unit.summed += n;
      return;
    }
    case UpdatePass::second:
      if (!whole_) reject(plan_, at, "updates by sums of this rank alone");
      finish(at, update);
      unit.second += n;
      return;
    case UpdatePass::direct:
      begin(at, update, {.settings = update.settings, .exchanges = exchanges_});
      unit.directed += n;
      return;
    case UpdatePass::move:
      finish(at, update);
      unit.moved += n;
      return;
  }
}

void TwoPasses::end() const {
  for (const auto& [u, unit] : units_) {
    const std::int64_t counted = at(plan_.shares, u).counted;
    if (unit.first != unit.second || (unit.first > 0 && unit.summed != counted)) {
      throw InternalError(fmt::format(
          "broken plan: {} elements of unit {} have a first pass and {} a second; {} enter sums, "
          "of {} that this rank counts",
          unit.first, u, unit.second, unit.summed, counted));
    }
    if (unit.averaged != (unit.first > 0 && at(plan_.shares, u).factors))
      throw InternalError(fmt::format("broken plan: unit {} loses ratios of its tensors", u));
    if (unit.directed != unit.moved) {
      throw InternalError(
          fmt::format("broken plan: {} elements of unit {} have directions and {} are moved",
                      unit.directed, u, unit.moved));
    }
  }
}

}  // namespace tessera::plan
