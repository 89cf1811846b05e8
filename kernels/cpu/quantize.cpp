// Quantised blocks on the CPU: checks arguments, divides blocks over the team.
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// Bytes of a block's sums, which a thread keeps between adding and quantising them.
std::int64_t block_sum_bytes(const RequantizeSum& a) {
  return (a.elements < a.format.block ? a.elements : a.format.block) * size_of(DType::f32);
}

}  // namespace

void run(const Quantize& a, const Context& context) {
  check(a);
  const SlotLayout slot = slot_layout(a.format, a.x.cols());
  parallel_ranges(context.threads, a.x.rows() * slot.blocks, 1,
                  [&](Range blocks) { context.hot.quantize(a, slot, blocks); });
}

void run(const SumQuantized& a, const Context& context) {
  check(a);
  const SlotLayout slot = slot_layout(a.format, a.out.cols());
  parallel_ranges(context.threads, a.code.extent(1) * slot.blocks, 1,
                  [&](Range blocks) { context.hot.sum_quantized(a, slot, blocks); });
}

std::int64_t scratch_bytes(const RequantizeSum& a, const Context& context) {
  return context.threads * block_sum_bytes(a);
}

void run(const RequantizeSum& a, const Context& context) {
  check(a);
  const SlotLayout slot = slot_layout(a.format, a.elements);
  parallel_ranges(context.threads, context.threads, 1, [&](Range parts) {
    for (std::int64_t i = parts.begin; i < parts.end; ++i) {
      context.hot.requantize_sum(a, slot,
                                 even_part(a.code.extent(1) * slot.blocks, i, context.threads),
                                 reinterpret_cast<float*>(a.scratch.data + i * block_sum_bytes(a)));
    }
  });
}

}  // namespace tessera::kernels::cpu
