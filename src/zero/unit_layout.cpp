#include "zero/unit_layout.hpp"

#include <algorithm>
#include <numeric>

namespace tessera::zero {
namespace {

/// The grain, or where the unit travels quantised the next one on which its blocks begin too.
std::int64_t on_blocks(std::int64_t grain, const model::UnitDesc& unit) {
  return unit.traits.block > 0 ? std::lcm(grain, unit.traits.block) : grain;
}

/// Appends the matrices, or the vectors, of a unit to the layout.
class Placement {
 public:
  Placement(UnitLayout& layout, const model::UnitDesc& unit, const model::TensorCut& cut)
      : layout_(layout), unit_(unit), cut_(cut) {
    layout.piece_of.resize(unit.params.size());
  }

  void place(bool matrices) {
    const auto each = [&](bool whole, auto&& f) {
      for (std::size_t i = 0; i < unit_.params.size(); ++i) {
        const auto& p = unit_.params[i];
        if (p.is_matrix() == matrices && (p.tensor_axis < 0) == whole) f(i);
      }
    };
    const Range chunks = own_chunks(unit_, cut_);
    for (std::int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk)
      each(false, [&](std::size_t i) { add(i, chunk); });
    each(true, [&](std::size_t i) { add(i, 0); });
  }

 private:
  void add(std::size_t parameter, std::int64_t chunk) {
    const auto& p = unit_.params[parameter];
    const LayoutPiece piece{
        .parameter = parameter,
        .whole = p.tensor_axis < 0,
        .part = p.part(chunk, cut_),
        .offset = p.joined ? layout_.used : round_up(layout_.used, on_blocks(kPieceGrain, unit_))};
    layout_.used = piece.offset + piece.part.elements();
    layout_.piece_of[parameter].push_back(layout_.pieces.size());
    layout_.pieces.push_back(piece);
  }

  UnitLayout& layout_;
  const model::UnitDesc& unit_;
  const model::TensorCut& cut_;
};

}  // namespace

std::int64_t UnitLayout::offset_of(std::size_t parameter, std::int64_t chunk) const {
  return pieces[piece_of[parameter][static_cast<std::size_t>(chunk)]].offset;
}

UnitLayout unit_layout(const model::UnitDesc& unit, std::int64_t data_ranks,
                       const model::TensorCut& cut) {
  UnitLayout layout;
  Placement placement(layout, unit, cut);
  placement.place(true);
  placement.place(false);
  layout.padded = round_up(layout.used, data_ranks * on_blocks(kShardGrain, unit));
  layout.shard = layout.padded / data_ranks;
  return layout;
}

model::ParameterViews parameter_views(const model::UnitDesc& unit, const UnitLayout& layout,
                                      const View& flat) {
  TESSERA_CHECK(flat.elements() == layout.padded, "{}: flat buffer of {} elements, not {}",
                unit.name, flat.elements(), layout.padded);
  model::ParameterViews views(unit.params.size());
  for (std::size_t i = 0; i < unit.params.size(); ++i) {
    for (std::size_t index : layout.piece_of[i]) {
      const LayoutPiece& piece = layout.pieces[index];
      const View part = flat.range(piece.offset, piece.part.elements());
      views[i].push_back(
          unit.params[i].shape.size() == 1
              ? part
              : part.reshaped({piece.part.rows.count(), piece.part.columns.count()}));
    }
  }
  return views;
}

std::vector<ParameterSlice> slices_in(const model::UnitDesc& unit, const UnitLayout& layout,
                                      Range range) {
  std::vector<ParameterSlice> slices;
  for (const LayoutPiece& piece : layout.pieces) {
    const Range rows = intersect(piece.part.rows, {0, unit.params[piece.parameter].shape[0]});
    const std::int64_t width = piece.part.columns.count();
    const Range elements{piece.offset, piece.offset + rows.count() * width};
    Range todo = intersect(elements, range);
    todo = {todo.begin - piece.offset, todo.end - piece.offset};
    while (!todo.empty()) {  // the rest of a row, whole rows, or the begin of a row
      const std::int64_t row = todo.begin / width, column = todo.begin % width;
      MatrixRange part{{row, row + 1}, {column, std::min(width, column + todo.count())}};
      if (column == 0 && todo.count() >= width) part.rows.end = row + todo.count() / width;
      const std::int64_t flat = piece.offset + todo.begin;
      todo.begin += part.elements();
      const auto shift = [](Range& r, std::int64_t by) { r = {r.begin + by, r.end + by}; };
      shift(part.rows, piece.part.rows.begin);
      shift(part.columns, piece.part.columns.begin);
      slices.push_back({piece.parameter, piece.whole, part, flat});
    }
  }
  return slices;
}

std::vector<Range> counted(const UnitLayout& layout, Range range, const model::TensorCut& cut) {
  std::vector<Range> parts{range};
  for (const LayoutPiece& piece : layout.pieces) {
    if (!piece.whole || cut.rank == 0) continue;
    const Range last = parts.back();  // pieces are in flat order
    const Range hole = intersect({piece.offset, piece.offset + piece.part.elements()}, last);
    if (hole.empty()) continue;
    parts.back() = {last.begin, hole.begin};
    parts.push_back({hole.end, last.end});
  }
  std::erase_if(parts, [](const Range& r) { return r.empty(); });
  return parts;
}

}  // namespace tessera::zero
