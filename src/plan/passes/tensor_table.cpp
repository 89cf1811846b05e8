#include "plan/passes/tensor_table.hpp"

#include "plan/passes/buffers.hpp"

namespace tessera::plan {

TensorTable::TensorTable(Plan& plan, const PlanInputs& in, const char* name, std::int64_t words)
    : in_(in), words_(words) {
  if (words_ == 0) return;
  for (const model::UnitDesc& unit : in.model.units) {
    for (const model::ParamDesc& p : unit.params) {
      if (unit.traits.trained) places_.try_emplace(p.name, std::ssize(places_));
    }
  }
  const std::int64_t all = words_ * std::ssize(places_);
  all_ = buffer_view(add_buffer(plan, name, BufferPurpose::staging, all * size_of(DType::i64)),
                     DType::i64, all);
}

View TensorTable::of(std::size_t unit, std::size_t parameter) const {
  if (words_ == 0) return {};
  return all_.range(words_ * places_.at(in_.model.units[unit].params[parameter].name), words_);
}

View TensorTable::of_unit(std::size_t unit) const {
  if (words_ == 0) return {};
  const auto& params = in_.model.units[unit].params;
  const std::int64_t first = places_.at(params.front().name), count = std::ssize(params);
  TESSERA_CHECK(places_.at(params.back().name) == first + count - 1,
                "parameters of {} that are not neighbours", in_.model.units[unit].name);
  return all_.range(words_ * first, words_ * count);
}

}  // namespace tessera::plan
