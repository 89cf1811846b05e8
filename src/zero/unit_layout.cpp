#include "zero/unit_layout.hpp"

namespace tessera::zero {

UnitLayout unit_layout(const model::UnitDesc& unit, std::int64_t data_ranks) {
  UnitLayout layout;
  for (const auto& p : unit.params) {
    const std::int64_t offset = p.joined ? layout.used : round_up(layout.used, kShardGrain);
    layout.offsets.push_back(offset);
    layout.used = offset + p.stored_elements();
    if (p.decay) {
      TESSERA_CHECK(
          layout.decay_end == 0 || layout.offsets.size() == 1 || layout.decay_end <= offset,
          "{}: matrices must come before vectors", p.name);
      layout.decay_end = layout.used;
    }
  }
  layout.padded = round_up(layout.used, data_ranks * kShardGrain);
  layout.shard = layout.padded / data_ranks;
  return layout;
}

std::vector<View> parameter_views(const model::UnitDesc& unit, const UnitLayout& layout,
                                  const View& flat) {
  TESSERA_CHECK(flat.elements() == layout.padded, "{}: flat buffer of {} elements, not {}",
                unit.name, flat.elements(), layout.padded);
  std::vector<View> views;
  for (std::size_t i = 0; i < unit.params.size(); ++i) {
    const auto& p = unit.params[i];
    const View part = flat.range(layout.offsets[i], p.stored_elements());
    views.push_back(p.shape.size() == 1
                        ? part
                        : part.reshaped({p.stored_rows, p.stored_elements() / p.stored_rows}));
  }
  return views;
}

std::vector<ParameterSlice> slices_in(const model::UnitDesc& unit, const UnitLayout& layout,
                                      Range range) {
  std::vector<ParameterSlice> slices;
  for (std::size_t i = 0; i < unit.params.size(); ++i) {
    const std::int64_t begin = layout.offsets[i];
    const Range part = intersect({begin, begin + unit.params[i].elements()}, range);
    if (!part.empty()) slices.push_back({i, {part.begin - begin, part.end - begin}, part.begin});
  }
  return slices;
}

}  // namespace tessera::zero
