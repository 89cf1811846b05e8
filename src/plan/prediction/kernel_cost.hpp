// What a kernel takes on a machine that is not at hand.
#pragma once

#include "deck/machine.hpp"
#include "kernels/api/device.hpp"

namespace tessera::plan {

struct KernelCost {
  double seconds = 0;
  double flop = 0, bytes = 0;  // of its matrix work; that it moves
  /// Seconds that its flop would take at the machine's best rate of products of this type, or,
  /// where it has none, its bytes at the rate of memory.
  double at_best = 0;
};

/// Matrix products and attention take their flop at the machine's rates, or the time of their bytes
/// if that is more. A product also takes the time of what it writes beyond a result of its
/// operands' type; of gelu behind it, where the machine does not have it within; of the sum of a
/// bias's gradient; and of the conversion of fp8 operands. Other kernels take the time of their
/// bytes, at the rate that the machine file gives for the kernel, or at that of memory. Throws
/// DeckError where the machine file does not say what the kernel needs.
KernelCost kernel_cost(const kernels::KernelCall& call, const deck::Machine& machine);

/// Bytes that the kernel moves.
double bytes_of(const kernels::KernelCall& call);

}  // namespace tessera::plan
