// How fast the operations of models run on a back end, as a share of what its machine can do:
// matrix work against a square product, the rest against its memory, measured in the same run.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "core/clock.hpp"
#include "memory/arena.hpp"

namespace tessera::backend {

/// What the operations of a model's step have for sizes; GPT-2 124M by default.
struct BenchModel {
  std::int64_t columns = 768, heads = 12, kv_heads = 12, head_dim = 64, ffn = 3072;
  ActivationKind activation = ActivationKind::gelu;
  std::int64_t vocab = 50304, samples = 4, tokens = 256;
};

struct BenchOptions {
  int threads = 1;  // of a CPU
  int repeats = 10;
  double at_least = 0;  // seconds that a repeat takes: as many calls are queued one after another
  std::vector<BenchModel> models = {BenchModel{}};
  std::int64_t square = 2048;                // the product that matrix work is compared with
  std::int64_t elements = 32 * 1024 * 1024;  // of flat operations, and of what memory is read for
};

/// GPT-2 124M on CPUs; on GPUs GPT-2 1.5B and Llama 8B, and sizes that keep one busy.
BenchOptions usual_bench(const Backend& backend, int threads, std::int64_t repeats);

enum class RateUnit : std::uint8_t { gflops, gbytes };

/// The fastest of the repeats.
struct BenchRow {
  std::string name, shape;
  double ms = 0;
  double rate = 0;
  RateUnit unit = RateUnit::gflops;
  double share = 0;  // of the square product's rate in this type, or of memory's
};

/// The limits come first, then the operations in f32, then in bf16. Bytes are those of the
/// arguments' views, read and written once each. A GPU's products are those that its library
/// proposes first.
std::vector<BenchRow> bench_kernels(const Backend& backend, const BenchOptions& options);

/// Matrix products, forward and backward, of squares up to options.square and of the models'
/// layers, at last those of fp8 operands where the back end is made for them. Shares are of the
/// largest square product forward.
std::vector<BenchRow> bench_gemm(const Backend& backend, const BenchOptions& options);

/// Attention, forward and backward, at a model's tokens and 2, 4, 8 times that: causal, causal
/// within 8 documents a sample ("T 8 x 32"), and both ways, as encoders do. Shares are of the
/// square product; flop are those of keys that queries see.
std::vector<BenchRow> bench_attention(const Backend& backend, const BenchOptions& options);

/// Bytes a second over options.elements: of a STREAM triad where the CPU computes, of a copy from
/// device memory to device memory, read and written, where a GPU does.
double memory_rate(const Backend& backend, const BenchOptions& options);
const char* memory_test(const Backend& backend);  // "triad", "copy"

/// flop a second of the product of two n x n matrices; e4m3: of bf16 ones as fp8 operands.
double gemm_rate(const Backend& backend, DType type, std::int64_t n, const BenchOptions& options);

/// Seconds from one kernel to the next, beyond its work: of many that have none, queued together.
double kernel_start(const Backend& backend);

/// Bytes a second of every operation that is no matrix work, by its name, in its usual form: of the
/// first model, and over options.elements where it is flat.
struct KernelRate {
  std::string name;
  double rate = 0;
};
std::vector<KernelRate> kernel_rates(const Backend& backend, DType type,
                                     const BenchOptions& options);

/// flop a second of a model's causal attention.
struct AttentionRates {
  double forward = 0, backward = 0;
};
AttentionRates attention_rates(const Backend& backend, DType type, const BenchModel& model,
                               const BenchOptions& options);

/// Work that is none of a step's: done on return.
void finish_alone(streams::Streams& streams, const streams::Start& start);

/// Seconds from when all ranks begin `work` until the last is done.
template <typename Work>
double seconds_together(const comm::Control& control, Work&& work) {
  control.barrier();
  const auto begin = SteadyClock::now();
  work();
  return control.max(seconds_since(begin));
}

/// The same where `work` may fail on some ranks; `best` becomes the time if that is less.
template <typename Work>
void keep_fastest(double& best, const comm::Control& control, Work&& work) {
  best = std::min(best, seconds_together(control, [&] { control.together(work); }));
}

/// Device memory of a benchmark, filled with small numbers.
class BenchMemory {
 public:
  explicit BenchMemory(memory::Tier& tier) : tier_(tier) {}
  View floats(DType type, std::initializer_list<std::int64_t> shape);
  View integers(std::initializer_list<std::int64_t> shape, std::int64_t below);
  View zeros(DType type, std::initializer_list<std::int64_t> shape);
  /// The table (B, T, 2) of samples cut into documents of `length` tokens.
  View documents(std::int64_t samples, std::int64_t tokens, std::int64_t length);
  View filled(std::initializer_list<std::int64_t> shape, float value);
  /// Gives the call the scratch that it needs on the device.
  void add_scratch(kernels::KernelCall& call, const kernels::Device& device);

 private:
  memory::Tier& tier_;
  std::vector<std::unique_ptr<memory::Arena>> owned_;
};

}  // namespace tessera::backend

template <>
struct tessera::EnumWords<tessera::backend::RateUnit> {
  static constexpr std::array table = {std::pair{tessera::backend::RateUnit::gflops, "GFLOP/s"},
                                       std::pair{tessera::backend::RateUnit::gbytes, "GB/s"}};
};
