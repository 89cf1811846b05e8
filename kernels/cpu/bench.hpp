// How fast the operations of a GPT-2 124M step run here, as a share of what this machine can do:
// matrix work against a square product, the rest against the STREAM triad, measured in the same
// run.
#pragma once

#include <string>
#include <vector>

#include "kernels/api/device.hpp"

namespace tessera::kernels {

struct BenchOptions {
  int threads = 1;  // the device's
  int repeats = 10;
  std::int64_t samples = 4, tokens = 256, vocab = 50304;
  std::int64_t square = 2048;                // the product that matrix work is compared with
  std::int64_t elements = 32 * 1024 * 1024;  // of flat operations
};

enum class RateUnit : std::uint8_t { gflops, gbytes };

/// The fastest of the repeats.
struct BenchRow {
  std::string name, shape;
  double ms = 0;
  double rate = 0;
  RateUnit unit = RateUnit::gflops;
  double share = 0;  // of the square product's rate in this type, or of the triad's
};

/// The limits come first, then the operations in f32, then in bf16. Bytes are those of the
/// arguments' views, read and written once each.
std::vector<BenchRow> bench_kernels(Device& device, const BenchOptions& options);

/// Matrix products, forward and backward, of squares up to options.square and of the model's
/// layers. Shares are of the largest square product forward.
std::vector<BenchRow> bench_gemm(Device& device, const BenchOptions& options);

/// Attention, forward and backward, at options.tokens and 2, 4, 8 times that. Shares are of the
/// square product; flop are those of causal attention.
std::vector<BenchRow> bench_attention(Device& device, const BenchOptions& options);

/// Bytes a second of a STREAM triad over options.elements.
double triad_rate(const BenchOptions& options);

/// flop a second of the product of two n x n matrices.
double gemm_rate(Device& device, DType type, std::int64_t n, const BenchOptions& options);

/// Bytes a second of every operation that is no matrix work, by its name, in its usual form: of
/// options.samples x options.tokens, and over options.elements where it is flat.
struct KernelRate {
  std::string name;
  double rate = 0;
};
std::vector<KernelRate> kernel_rates(Device& device, DType type, const BenchOptions& options);

/// flop a second of causal attention over options.tokens, forward and backward together.
double attention_rate(Device& device, DType type, const BenchOptions& options);

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::RateUnit> {
  static constexpr std::array table = {std::pair{tessera::kernels::RateUnit::gflops, "GFLOP/s"},
                                       std::pair{tessera::kernels::RateUnit::gbytes, "GB/s"}};
};
