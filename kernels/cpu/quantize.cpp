// Quantised blocks on the CPU: checks arguments, divides blocks over the team.
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// Bytes of what a thread keeps between making a block's numbers and rounding them: the numbers,
/// and what chance adds to each.
std::int64_t number_bytes(const BlockFormat& format, const Chance& chance) {
  return (chance ? 2 : 1) * format.block * size_of(DType::f32);
}

/// f(blocks, numbers) for each thread's part of `blocks`.
template <typename F>
void for_threads(std::int64_t blocks, std::int64_t bytes, const View& scratch,
                 const Context& context, F&& f) {
  parallel_ranges(context.threads, context.threads, 1, [&](Range parts) {
    for (std::int64_t i = parts.begin; i < parts.end; ++i)
      f(even_part(blocks, i, context.threads),
        bytes == 0 ? nullptr : reinterpret_cast<float*>(scratch.data + i * bytes));
  });
}

}  // namespace

/// A block is rounded from where it lies unless its numbers are sums, or chance has a part in it.
static std::int64_t thread_bytes(const Quantize& a) {
  return a.lost || a.chance ? number_bytes(a.format, a.chance) : 0;
}
std::int64_t scratch_bytes(const Quantize& a, const Context& context) {
  return context.threads * thread_bytes(a);
}

void run(const Quantize& a, const Context& context) {
  const SlotLayout slot = slot_layout(a.format, a.x.cols());
  for_threads(
      a.x.rows() * slot.blocks, thread_bytes(a), a.scratch, context,
      [&](Range blocks, float* numbers) { context.hot.quantize(a, slot, blocks, numbers); });
}

void run(const SumQuantized& a, const Context& context) {
  const SlotLayout slot = slot_layout(a.format, a.out.cols());
  parallel_ranges(context.threads, a.code.extent(1) * slot.blocks, 1,
                  [&](Range blocks) { context.hot.sum_quantized(a, slot, blocks); });
}

std::int64_t scratch_bytes(const RequantizeSum& a, const Context& context) {
  return context.threads * number_bytes(a.format, a.chance);
}

void run(const RequantizeSum& a, const Context& context) {
  const SlotLayout slot = slot_layout(a.format, a.elements);
  for_threads(
      a.code.extent(1) * slot.blocks, number_bytes(a.format, a.chance), a.scratch, context,
      [&](Range blocks, float* numbers) { context.hot.requantize_sum(a, slot, blocks, numbers); });
}

}  // namespace tessera::kernels::cpu
