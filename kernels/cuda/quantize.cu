// Quantised blocks on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/quantize.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

/// f.operator()<kRuns>(team) for a block of elements of which a thread keeps at most 16, in runs
/// of V.
template <int V, typename F>
void with_block_team(std::int64_t block, F&& f) {
  constexpr int kKept = 16;
  const Team team = block <= 32 * kKept ? kWarpTeam : Team{kBlockThreads};
  if (block <= kBlockThreads * kKept) {
    f.template operator()<kKept / V>(team);
  } else {
    f.template operator()<0>(team);
  }
}

/// Whether blocks of all slots begin where runs of V codes and of elements do.
bool blocks_on_runs(const SlotLayout& layout, int v) {
  return layout.block % v == 0 || layout.blocks == 1;
}

CodeParts code_parts(const View& code, const SlotLayout& layout, int v) {
  return {.code = code.data,
          .parts = code.extent(0),
          .slots = code.extent(1),
          .layout = layout,
          .wide = blocks_on_runs(layout, v)};
}

/// f.operator()<kMost>() for the number of parts that a kernel is made for. Missing ones cost
/// little: nothing of them is read.
template <typename F>
void with_parts(std::int64_t parts, F&& f) {
  if (parts <= kPartGroup) {
    f.template operator()<kPartGroup>();
  } else {
    f.template operator()<0>();
  }
}

template <typename Call>
Errors errors_of(const Call& a) {
  if (!a.lost) return {};
  return {.error = rows_of<const bf16>(a.error ? a.error : a.lost),
          .lost = rows_of<bf16>(a.lost),
          .scalars = a.scalars.template as<float>()};
}

}  // namespace

void run(const Quantize& a, const Context& context) {
  const SlotLayout layout = slot_layout(a.format, a.x.cols());
  const std::int64_t blocks = a.x.rows() * layout.blocks;
  with_type(a.x.type, [&]<typename T>() {
    QuantizeSlots<T> slots{.x = rows_of<const T>(a.x),
                           .code = a.code.data,
                           .errors = errors_of(a),
                           .offsets = offsets_of(a.chance),
                           .a_slots = a.x.extent(0),
                           .b_slots = a.x.extent(1),
                           .layout = layout};
    with_bits(a.format.type, [&]<int kBits>() {
      constexpr int V = kCodeRun<T, kBits>;
      slots.wide = blocks_on_runs(layout, V) && wide<V>({a.x, a.error, a.lost});
      with_block_team<V>(layout.block, [&]<int kRuns>(Team team) {
        slots.team = team;
        launch(on(context, a.kName, ceil_div(blocks, team.per_block()), team.block()),
               quantize_kernel<T, kBits, kRuns>, slots);
      });
    });
  });
}

void run(const SumQuantized& a, const Context& context) {
  const SlotLayout layout = slot_layout(a.format, a.out.cols());
  const std::int64_t blocks = a.code.extent(1) * layout.blocks;
  with_type(a.out.type, [&]<typename T>() {
    with_block_type(a.format.type, [&]<BlockType kType>() {
      constexpr int V = kCodeRun<T, kBitsOf<kType>>;
      const SumQuantizedSlots<T> slots{.parts = code_parts(a.code, layout, V),
                                       .out = rows_of<T>(a.out),
                                       .add = a.write == Write::add,
                                       .wide = blocks_on_runs(layout, V) && wide<V>({a.out})};
      const auto queue = [&]<int kMost>() {
        launch(on(context, a.kName, ceil_div(blocks, kWarpTeam.per_block()), kWarpTeam.block()),
               sum_quantized_kernel<T, kType, kMost>, slots);
      };
      if (a.code.extent(0) == 1) return queue.template operator()<1>();
      if constexpr (kType != BlockType::nf4) with_parts(a.code.extent(0), queue);
    });
  });
}

void run(const RequantizeSum& a, const Context& context) {
  constexpr int V = RequantizeSlots::V;
  const SlotLayout layout = slot_layout(a.format, a.elements);
  const std::int64_t blocks = a.code.extent(1) * layout.blocks;
  RequantizeSlots slots{.parts = code_parts(a.code, layout, V),
                        .sum = a.sum.data,
                        .errors = errors_of(a),
                        .offsets = offsets_of(a.chance)};
  slots.parts.wide = slots.parts.wide && wide<V>({a.error, a.lost});
  with_bits(a.format.type, [&]<int kBits>() {
    with_parts(a.code.extent(0), [&]<int kMost>() {
      with_block_team<V>(layout.block, [&]<int kRuns>(Team team) {
        slots.team = team;
        launch(on(context, a.kName, ceil_div(blocks, team.per_block()), team.block()),
               requantize_sum_kernel<kBits, kMost, kRuns>, slots);
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
