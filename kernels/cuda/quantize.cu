#include "kernels/cuda/quantize.cuh"

#include "kernels/common/contracts.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

/// f.operator()<kThreads, kRuns>() for the team of a block of elements of which a thread keeps at
/// most 16, in runs of V.
template <int V, typename F>
void with_block_team(std::int64_t block, F&& f) {
  constexpr int kRuns = 16 / V;
  if (block <= 32 * 16) {
    f.template operator()<32, kRuns>();
  } else if (block <= 256 * 16) {
    f.template operator()<256, kRuns>();
  } else {
    f.template operator()<256, 0>();
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

/// f.operator()<kMost>() for the number of parts that a kernel is made for.
template <typename F>
void with_parts(std::int64_t parts, F&& f) {
  if (parts <= 1) {
    f.template operator()<1>();
  } else if (parts <= 2) {
    f.template operator()<2>();
  } else if (parts <= 4) {
    f.template operator()<4>();
  } else if (parts <= kPartGroup) {
    f.template operator()<kPartGroup>();
  } else {
    f.template operator()<0>();
  }
}

}  // namespace

void run(const Quantize& a, const Context& context) {
  check(a);
  const SlotLayout layout = slot_layout(a.format, a.x.cols());
  const std::int64_t blocks = a.x.rows() * layout.blocks;
  with_type(a.x.type, [&]<typename T>() {
    constexpr int V = kRun<T>;
    const QuantizeSlots<T> slots{.x = a.x.as<T>(),
                                 .code = a.code.data,
                                 .a_slots = a.x.extent(0),
                                 .b_slots = a.x.extent(1),
                                 .layout = layout,
                                 .wide = blocks_on_runs(layout, V) && wide<V>({a.x})};
    with_bits(a.format.type, [&]<int kBits>() {
      with_block_team<V>(layout.block, [&]<int kThreads, int kRuns>() {
        using Block = Team<kThreads>;
        launch(on(context, a.kName, ceil_div(blocks, Block::kPerBlock), Block::kBlock),
               quantize_kernel<T, kBits, kThreads, kRuns>, slots);
      });
    });
  });
}

void run(const SumQuantized& a, const Context& context) {
  check(a);
  const SlotLayout layout = slot_layout(a.format, a.out.cols());
  const std::int64_t blocks = a.code.extent(1) * layout.blocks;
  with_type(a.out.type, [&]<typename T>() {
    constexpr int V = kRun<T>;
    const View out = a.out.reshaped({a.code.extent(1), layout.elements});
    const SumQuantizedSlots<T> slots{.parts = code_parts(a.code, layout, V),
                                     .out = out.as<T>(),
                                     .add = a.write == Write::add,
                                     .wide = blocks_on_runs(layout, V) && wide<V>({out})};
    with_bits(a.format.type, [&]<int kBits>() {
      with_parts(a.code.extent(0), [&]<int kMost>() {
        using Block = Team<32>;
        launch(on(context, a.kName, ceil_div(blocks, Block::kPerBlock), Block::kBlock),
               sum_quantized_kernel<T, kBits, kMost>, slots);
      });
    });
  });
}

void run(const RequantizeSum& a, const Context& context) {
  check(a);
  constexpr int V = RequantizeSlots::V;
  const SlotLayout layout = slot_layout(a.format, a.elements);
  const std::int64_t blocks = a.code.extent(1) * layout.blocks;
  const RequantizeSlots slots{.parts = code_parts(a.code, layout, V), .sum = a.sum.data};
  with_bits(a.format.type, [&]<int kBits>() {
    with_parts(a.code.extent(0), [&]<int kMost>() {
      with_block_team<V>(layout.block, [&]<int kThreads, int kRuns>() {
        using Block = Team<kThreads>;
        launch(on(context, a.kName, ceil_div(blocks, Block::kPerBlock), Block::kBlock),
               requantize_sum_kernel<kBits, kMost, kThreads, kRuns>, slots);
      });
    });
  });
}

}  // namespace tessera::kernels::cuda
