#include "plan/passes/updates.hpp"

namespace tessera::plan {

Op op_of(OpKind kind, Stream stream, std::size_t unit, Call call) {
  return {.kind = kind,
          .stream = stream,
          .unit = static_cast<std::int32_t>(unit),
          .call = std::move(call),
          .waits = {}};
}

Op update_op(const Plan& plan, const PlanInputs& in, std::size_t unit, const UnitState& s,
             const View& gradient, const Piece& piece, const optim::Pass& pass) {
  const Range part = piece.elements;
  const auto slice = [&](const View& v) {
    return v ? v.range(part.begin - s.owned.begin, part.count()) : View{};
  };
  std::vector<View> state;
  for (std::size_t r = 0; r < in.optimizer.state.size(); ++r) {
    const auto& [live, snapshot, elements] = s.state(r);
    const optim::Extent extent = in.optimizer.state[r].extent;
    const bool of_piece = optim::is_flat(extent);
    const bool has = live && (!of_piece || !intersect(elements, part).empty());
    const auto parameter = static_cast<std::int64_t>(piece.parameter);
    state.push_back(!has       ? View{}
                    : of_piece ? live.range(part.begin - elements.begin, part.count())
                    : extent == optim::Extent::tensor ? live.range(parameter, 1)
                                                      : live);
  }
  const Location at = in.offload.updates_at(s.optimizer);
  Op op = op_of(OpKind::update, at == Location::device ? Stream::compute : Stream::host, unit,
                pass({.gradient = slice(gradient),
                      .master = slice(s.master()),
                      .parameter = slice(s.copy),
                      .scalars = plan.update_scalars,
                      .verdict = plan.verdict,
                      .sums = piece.sums,
                      .direction = piece.direction,
                      .state = state},
                     piece.terms));
  op.location = at;
  return op;
}

Range with_padding(const zero::UnitLayout& layout, std::size_t piece) {
  const std::size_t next = piece + 1;
  return {at(layout.pieces, piece).offset,
          next < layout.pieces.size() ? layout.pieces[next].offset : layout.padded};
}

std::vector<SplitRange> split_by(Range whole, std::span<const Range> ranges) {
  std::vector<SplitRange> parts;
  const auto add = [&](const Range& elements, std::optional<std::size_t> of) {
    if (!elements.empty()) parts.push_back({elements, of});
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Range mine = intersect(whole, ranges[i]);
    if (mine.empty()) continue;
    add({whole.begin, mine.begin}, std::nullopt);
    add(mine, i);
    whole.begin = mine.end;
  }
  add(whole, std::nullopt);
  return parts;
}

std::vector<Range> tiles_of(const PlanInputs& in, const UnitState& s, Range part) {
  std::vector<Range> tiles;
  const bool whole = !in.offload.updates() || s.codes;  // codes are of whole shards
  const std::int64_t tile = whole ? s.layout.padded : in.offload.tile;
  for (; !part.empty(); part.begin += tile)
    tiles.push_back({part.begin, std::min(part.end, part.begin + tile)});
  return tiles;
}

}  // namespace tessera::plan
