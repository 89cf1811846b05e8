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

GatherInBlocks gather_in_blocks(const comm::AllGather& gather, std::int64_t rank,
                                const kernels::BlockFormat& format, const View& staging,
                                const View& own) {
  const std::int64_t n = gather.shard.elements(), size = gather.full.elements() / n,
                     slot = format.bytes(n);
  const View all = shaped(staging, {1, size, slot}),
             code = own ? shaped(own, {1, 1, slot}) : all.row_range(rank, 1).reshaped({1, 1, slot});
  return {.quantize = KernelCall{kernels::Quantize{
              .x = gather.shard.reshaped({1, 1, n}), .code = code, .format = format}},
          .codes = {.shard = code, .full = all},
          .dequantize = KernelCall{kernels::SumQuantized{
              .code = all, .out = gather.full.reshaped({size, n}), .format = format}}};
}

Calls reduce_in_blocks(const comm::ReduceScatter& reduce, const comm::Route& route,
                       const kernels::BlockFormat& format, const View& leaving,
                       const View& arriving, const BlockRounding& rounding) {
  const std::int64_t n = reduce.shard.elements(), slot = format.bytes(n);
  // Slots that leave are in this order: number i is of a rank's shard.
  const auto rank_of_slot = [&](std::int64_t i) {
    return i % route.outer * route.inner + i / route.outer;
  };
  // Numbers that no other hop and no other unit has.
  const auto chance_of = [&](std::uint64_t hop, std::int64_t first, std::int64_t stride) {
    kernels::Chance chance = rounding.chance;
    chance.site = chance.site * 2 + hop;
    chance.first = first * n, chance.stride = stride * n;
    return chance;
  };
  Calls calls = {
      KernelCall{kernels::Quantize{.x = reduce.full.reshaped({route.outer, route.inner, n}),
                                   .code = shaped(leaving, {route.inner, route.outer, slot}),
                                   .format = format,
                                   .chance = chance_of(0, 0, 1),
                                   .error = rounding.error,
                                   .lost = rounding.lost,
                                   .scalars = rounding.scalars}}};
  std::int64_t slots = route.outer * route.inner, first = 0;
  for (const comm::Hop& hop : route.hops) {
    const std::int64_t ranks = hop.ranks.count;
    slots /= ranks;
    first += hop.ranks.index(rounding.rank) * slots;
    calls.emplace_back(
        comm::CollectiveCall{comm::AllToAll{.send = shaped(leaving, {ranks, slots * slot}),
                                            .receive = shaped(arriving, {ranks, slots * slot}),
                                            .ranks = hop.ranks,
                                            .remote = hop.remote}});
    const View arrived = shaped(arriving, {ranks, slots, slot});
    if (&hop == &route.hops.back()) {
      calls.emplace_back(KernelCall{kernels::SumQuantized{.code = arrived,
                                                          .out = reduce.shard.reshaped({1, n}),
                                                          .format = format,
                                                          .write = reduce.write}});
    } else {
      const std::int64_t own = rank_of_slot(first),
                         stride = slots > 1 ? rank_of_slot(first + 1) - own : 1;
      calls.emplace_back(KernelCall{kernels::RequantizeSum{.code = arrived,
                                                           .sum = shaped(leaving, {slots, slot}),
                                                           .elements = n,
                                                           .format = format,
                                                           .chance = chance_of(1, own, stride)}});
    }
  }
  return calls;
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
    add("gradients", *in.numerics.gradient_blocks,
        hops.size() == 1 ? fmt::format(", added over {} ranks at once", hops[0].ranks.count)
                         : fmt::format(", added in nodes of {} ranks, then over {} nodes",
                                       hops[0].ranks.count, hops[1].ranks.count));
  }
  return fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace tessera::plan
