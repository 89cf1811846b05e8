#include "plan/passes/blocks.hpp"

namespace tessera::plan {
namespace {

using kernels::KernelCall;

View shaped(const View& staging, std::initializer_list<std::int64_t> extents) {
  const View v(staging.data, DType::u8, extents);
  TESSERA_CHECK(v.span_bytes() <= staging.span_bytes(), "staging of {} bytes, which needs {}",
                staging.span_bytes(), v.span_bytes());
  return v;
}

}  // namespace

std::vector<Range> chunks_of(std::int64_t n, DType type, const kernels::BlockFormat& format,
                             std::int64_t bytes) {
  const std::int64_t blocks = ceil_div(n, format.block),
                     most = std::max<std::int64_t>(1, bytes / (format.block * size_of(type)));
  std::vector<Range> chunks;
  const std::int64_t count = ceil_div(blocks, most);
  for (std::int64_t i = 0; i < count; ++i) {
    const Range part = even_part(blocks, i, count);
    chunks.push_back({part.begin * format.block, std::min(n, part.end * format.block)});
  }
  return chunks;
}

GatherInBlocks gather_in_blocks(const comm::AllGather& gather, std::int64_t rank,
                                const kernels::BlockFormat& format, const Range& chunk,
                                const View& staging, const View& own) {
  const std::int64_t n = gather.shard.elements(), size = gather.full.elements() / n,
                     slot = format.bytes(chunk.count());
  const View all = shaped(staging, {1, size, slot}),
             code = own ? shaped(own, {1, 1, slot}) : all.row_range(rank, 1).reshaped({1, 1, slot});
  return {.quantize = KernelCall{kernels::Quantize{
              .x = gather.shard.reshaped({1, 1, n}).col_range(chunk.begin, chunk.count()),
              .code = code,
              .format = format}},
          .codes = {.shard = code, .full = all},
          .dequantize = KernelCall{kernels::SumQuantized{
              .code = all,
              .out = gather.full.reshaped({size, n}).col_range(chunk.begin, chunk.count()),
              .format = format}}};
}

std::vector<std::int64_t> hop_staging(const comm::Route& route, const kernels::BlockFormat& format,
                                      std::int64_t n) {
  std::vector<std::int64_t> bytes;
  std::int64_t slots = route.outer * route.inner;
  for (const comm::Hop& hop : route.hops) {
    bytes.push_back(block_staging(format, slots, n));
    slots /= hop.ranks.count;
  }
  return bytes;
}

namespace {

/// One chunk of a reduction.
class ChunkReduction {
 public:
  ChunkReduction(const comm::ReduceScatter& reduce, const comm::Route& route,
                 const kernels::BlockFormat& format, const Range& chunk,
                 const BlockRounding& rounding)
      : reduce_(reduce),
        route_(route),
        format_(format),
        chunk_(chunk),
        rounding_(rounding),
        slot_(format.bytes(chunk.count())) {}

  Calls calls(std::span<const HopStaging> staging) const {
    TESSERA_CHECK(staging.size() == route_.hops.size(), "staging of {} hops", staging.size());
    Calls calls = {{Leg::pack, quantize(staging[0].leaving)}};
    std::int64_t slots = route_.outer * route_.inner, first = 0;  // that this rank keeps
    for (std::size_t h = 0; h < route_.hops.size(); ++h) {
      const comm::Hop& hop = route_.hops[h];
      const std::int64_t ranks = hop.ranks.count;
      slots /= ranks;
      first += hop.ranks.index(rounding_.rank) * slots;
      const View arriving = shaped(staging[h].arriving, {ranks, slots * slot_}),
                 arrived = shaped(staging[h].arriving, {ranks, slots, slot_});
      calls.push_back({h == 0 ? Leg::within : Leg::across,
                       comm::CollectiveCall{comm::AllToAll{
                           .send = shaped(staging[h].leaving, {ranks, slots * slot_}),
                           .receive = arriving,
                           .ranks = hop.ranks,
                           .remote = hop.remote}}});
      if (h + 1 == route_.hops.size())
        calls.push_back({Leg::unpack, sum(arrived)});
      else
        calls.push_back({Leg::sum, requantize(arrived, staging[h + 1].leaving, first, slots)});
    }
    return calls;
  }

 private:
  KernelCall quantize(const View& leaving) const {
    return kernels::Quantize{.x = of_chunk(reduce_.full),
                             .code = shaped(leaving, {route_.inner, route_.outer, slot_}),
                             .format = format_,
                             .chance = chance_of(0, 0, 1),
                             .error = of_chunk(rounding_.error),
                             .lost = of_chunk(rounding_.lost),
                             .scalars = rounding_.scalars};
  }
  /// Of slots first .. first + slots, as they leave.
  KernelCall requantize(const View& arrived, const View& leaving, std::int64_t first,
                        std::int64_t slots) const {
    const std::int64_t own = rank_of_slot(first),
                       stride = slots > 1 ? rank_of_slot(first + 1) - own : 1;
    return kernels::RequantizeSum{.code = arrived,
                                  .sum = shaped(leaving, {slots, slot_}),
                                  .elements = chunk_.count(),
                                  .format = format_,
                                  .chance = chance_of(1, own, stride),
                                  .error = of_node(rounding_.node_error, slots),
                                  .lost = of_node(rounding_.node_lost, slots),
                                  .scalars = rounding_.node_lost ? rounding_.scalars : View{}};
  }
  KernelCall sum(const View& arrived) const {
    return kernels::SumQuantized{
        .code = arrived,
        .out = reduce_.shard.range(chunk_.begin, chunk_.count()).reshaped({1, chunk_.count()}),
        .format = format_,
        .write = reduce_.write};
  }

  /// Slots that leave are in this order: number i is of a rank's shard.
  std::int64_t rank_of_slot(std::int64_t i) const {
    return i % route_.outer * route_.inner + i / route_.outer;
  }
  std::int64_t elements() const { return reduce_.shard.elements(); }
  /// Numbers that no other hop and no other unit has, for shards `first`, `first` + stride, ...
  kernels::Chance chance_of(std::uint64_t hop, std::int64_t first, std::int64_t stride) const {
    kernels::Chance chance = rounding_.chance;
    chance.site = chance.site * 2 + hop;
    chance.first = first * elements() + chunk_.begin, chance.stride = stride * elements();
    return chance;
  }
  View of_node(const View& all, std::int64_t slots) const {
    return all ? all.reshaped({slots, elements()}).col_range(chunk_.begin, chunk_.count()) : View{};
  }
  View of_chunk(const View& whole) const {
    if (!whole) return {};
    return whole.reshaped({route_.outer, route_.inner, elements()})
        .col_range(chunk_.begin, chunk_.count());
  }

  const comm::ReduceScatter& reduce_;
  const comm::Route& route_;
  const kernels::BlockFormat& format_;
  const Range& chunk_;
  const BlockRounding& rounding_;
  std::int64_t slot_;  // bytes
};

}  // namespace

Calls reduce_in_blocks(const comm::ReduceScatter& reduce, const comm::Route& route,
                       const kernels::BlockFormat& format, const Range& chunk,
                       std::span<const HopStaging> staging, const BlockRounding& rounding) {
  return ChunkReduction(reduce, route, format, chunk, rounding).calls(staging);
}

View lost_buffer(Plan& plan, const PlanInputs& in, std::size_t unit, const char* what,
                 std::int64_t elements) {
  return buffer_view(
      add_buffer(plan, {.name = fmt::format("{} {}", in.model.units[unit].name, what),
                        .purpose = BufferPurpose::errors,
                        .bytes = elements * size_of(DType::bf16),
                        .location = in.offload.gradients}),
      DType::bf16, elements);
}

std::string blocks_text(const PlanInputs& in, const MeshPlace& place) {
  if (in.layout.mesh.data == 1) return "";
  std::vector<std::string> all;
  const auto add = [&](const char* what, const kernels::BlockFormat& format,
                       const std::string& way) {
    all.push_back(
        fmt::format("{} {} in blocks of {}{}", what, enum_word(format.type), format.block, way));
  };
  if (in.numerics.weight_blocks && in.sharded().parameters)
    add("parameters", *in.numerics.weight_blocks, "");
  if (in.numerics.gradient_blocks) {
    const auto hops = gradient_route(in, place).hops;
    add(in.optimizer.momentum ? "momentum's" : "gradients", *in.numerics.gradient_blocks,
        hops.size() == 1 ? fmt::format(", added over {} ranks at once", hops[0].ranks.count)
                         : fmt::format(", added in nodes of {} ranks, then over {} nodes",
                                       hops[0].ranks.count, hops[1].ranks.count));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace tessera::plan
