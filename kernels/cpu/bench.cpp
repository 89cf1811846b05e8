#include "kernels/cpu/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "core/exact_sum.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels {
namespace {

/// Owns the memory of one operation's arguments, filled with small numbers.
class Buffers {
 public:
  View floats(DType type, std::initializer_list<std::int64_t> shape) {
    const View v = raw(type, shape);
    for (std::int64_t i = 0; i < v.elements(); ++i) {
      const float x = (to_uniform(static_cast<std::uint32_t>(i) * 2654435761U) - 0.5F) * 0.1F;
      if (type == DType::f32) {
        v.as<float>()[i] = x;
      } else {
        v.as<bf16>()[i] = bf16(x);
      }
    }
    return v;
  }
  View integers(std::initializer_list<std::int64_t> shape, std::int64_t below) {
    const View v = raw(DType::i32, shape);
    for (std::int64_t i = 0; i < v.elements(); ++i) {
      v.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % below);
    }
    return v;
  }
  View zeros(DType type, std::initializer_list<std::int64_t> shape) {
    const View v = raw(type, shape);
    std::memset(v.data, 0, static_cast<std::size_t>(v.span_bytes()));
    return v;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  View raw(DType type, std::initializer_list<std::int64_t> shape) {
    static std::byte anywhere;
    View v(&anywhere, type, shape);
    const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(v.span_bytes(), 1));
    v.data = static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}));
    owned_.emplace_back(v.data);
    return v;
  }

  std::vector<std::unique_ptr<std::byte[], Free>> owned_;
};

template <typename F>
double best_seconds(int repeats, F&& f) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

std::string text(const View& v) {
  std::string s;
  for (int i = 0; i < v.rank; ++i) s += fmt::format("{}{}", i == 0 ? "" : " x ", v.extent(i));
  return s;
}

// GPT-2 124M's.
constexpr std::int64_t kColumns = 768, kHeads = 12;
constexpr DType kTypes[] = {DType::f32, DType::bf16};

class Bench {
 public:
  Bench(Device& device, const BenchOptions& options, DType type = DType::f32)
      : device_(device), options_(options), type_(type) {}

  void machine() {
    triad_ = triad_rate(options_) * 1e-9;
    const auto bytes = 12.0 * static_cast<double>(options_.elements);
    rows_.push_back({"triad", std::to_string(options_.elements), bytes / triad_ * 1e-6, triad_,
                     RateUnit::gbytes, 1});
  }

  /// What follows is in this type, as a share of its square product.
  void type(DType type) {
    square_ = 1;
    BenchRow& limit = square(type, options_.square);
    square_ = limit.rate, limit.share = 1;
  }

  void operations() {
    layers();
    for (std::int64_t tokens : {options_.tokens, 4 * options_.tokens}) attention(tokens);
    others();
  }

  void layers() {
    const std::int64_t c = kColumns;
    for (const auto& [n, k] :
         {std::pair{c, c}, {3 * c, c}, {4 * c, c}, {c, 4 * c}, {options_.vocab, c}}) {
      linear(options_.samples * options_.tokens, n, k);
    }
  }

  void squares() {
    for (std::int64_t n = 128; n <= options_.square; n *= 2) linear(n, n, n);
  }

  BenchRow& square(DType type, std::int64_t n) {
    type_ = type;
    Buffers memory;
    return row(Linear{.x = memory.floats(type_, {n, n}),
                      .weight = memory.floats(type_, {n, n}),
                      .y = memory.floats(type_, {n, n})},
               fmt::format("{0} x {0} x {0}", n));
  }

  void attention(std::int64_t tokens) {
    Buffers memory;
    const std::int64_t heads = kHeads, dim = kColumns / kHeads, columns = kColumns,
                       samples = options_.samples;
    const View q = memory.floats(type_, {samples, tokens, columns}),
               k = memory.floats(type_, {samples, tokens, columns}),
               v = memory.floats(type_, {samples, tokens, columns}),
               out = memory.floats(type_, {samples, tokens, columns}),
               lse = memory.zeros(DType::f32, {samples, heads, tokens}),
               d_q = memory.floats(type_, {samples, tokens, columns}),
               d_k = memory.floats(type_, {samples, tokens, columns}),
               d_v = memory.floats(type_, {samples, tokens, columns});
    const AttentionShape s{.heads = heads, .kv_heads = heads, .head_dim = dim, .scale = 0.125F};
    const std::string shape = fmt::format("B {} H {} T {} D {}", samples, heads, tokens, dim);
    row(Attention{.q = q, .k = k, .v = v, .out = out, .lse = lse, .shape = s}, shape);
    row(AttentionBackward{.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .lse = lse,
                          .d_out = q,
                          .d_q = d_q,
                          .d_k = d_k,
                          .d_v = d_v,
                          .shape = s},
        shape);
  }

  void others() {
    rope(options_.tokens);
    norms(kColumns);
    activations(4 * kColumns);
    ends(kColumns);
    flat();
  }

  std::vector<BenchRow> rows() { return std::move(rows_); }

 private:
  template <typename Operation>
  BenchRow& row(Operation call, std::string shape) {
    Buffers memory;
    call.scratch = memory.zeros(DType::u8, {device_.scratch_bytes(call)});
    const KernelCall any = call;
    device_.run(any);  // compiles, touches memory
    const double seconds = best_seconds(options_.repeats, [&] { device_.run(any); });
    const double flop = flop_of(any);
    call.scratch = View();
    const double work = flop > 0 ? flop : bytes_of(call);
    const double rate = work / seconds * 1e-9;
    rows_.push_back({fmt::format("{} {}", call.kName, to_string(type_)), std::move(shape),
                     seconds * 1e3, rate, flop > 0 ? RateUnit::gflops : RateUnit::gbytes,
                     rate / (flop > 0 ? square_ : triad_)});
    return rows_.back();
  }

  /// Forward and backward of (m, k) inputs and (m, n) outputs.
  void linear(std::int64_t m, std::int64_t n, std::int64_t k) {
    Buffers memory;
    const View x = memory.floats(type_, {m, k}), w = memory.floats(type_, {n, k}),
               b = memory.floats(type_, {n}), y = memory.floats(type_, {m, n}),
               d_w = memory.floats(DType::f32, {n, k}), d_b = memory.floats(DType::f32, {n});
    const std::string shape = fmt::format("M {} N {} K {}", m, n, k);
    row(Linear{.x = x, .weight = w, .bias = b, .y = y}, shape);
    row(LinearBackwardInput{.d_y = y, .weight = w, .d_x = x}, shape);
    row(LinearBackwardWeight{.d_y = y, .x = x, .d_weight = d_w, .d_bias = d_b, .write = Write::add},
        shape);
  }

  void rope(std::int64_t tokens) {
    Buffers memory;
    const View q = memory.floats(type_, {options_.samples, tokens, kColumns});
    row(Rope{.x = q, .head_dim = kColumns / kHeads}, text(q));
  }

  void norms(std::int64_t columns) {
    Buffers memory;
    const std::int64_t samples = options_.samples, tokens = options_.tokens;
    const auto tensor = [&] { return memory.floats(type_, {samples, tokens, columns}); };
    const View x = tensor(), y = tensor(), sum = tensor(), out = tensor();
    const View w = memory.floats(type_, {columns}), b = memory.floats(type_, {columns}),
               stats = memory.floats(DType::f32, {samples * tokens, 2}),
               d_w = memory.floats(DType::f32, {columns}),
               d_b = memory.floats(DType::f32, {columns}),
               index = memory.zeros(DType::i64, {samples});
    const Dropout dropout{.p = 0.1F, .samples = index};
    AddNorm call{
        .resid = x, .pending = y, .weight = w, .bias = b, .sum = sum, .out = out, .stats = stats};
    row(call, text(x));
    call.dropout = dropout;
    row(call, text(x) + ", dropout");
    row(NormBackward{.d_out = y,
                     .d_resid = x,
                     .sum = sum,
                     .weight = w,
                     .stats = stats,
                     .d_sum = x,
                     .d_weight = d_w,
                     .d_bias = d_b},
        text(x));
    row(AddPending{.resid = x, .pending = y, .sum = sum}, text(x));
    row(ApplyDropout{.x = x, .out = y, .dropout = dropout}, text(x));
  }

  void activations(std::int64_t columns) {
    Buffers memory;
    const std::int64_t rows = options_.samples * options_.tokens;
    const View x = memory.floats(type_, {rows, columns}), y = memory.floats(type_, {rows, columns}),
               wide = memory.floats(type_, {rows, 2 * columns});
    row(Activate{.x = x, .y = y}, text(x));
    row(ActivateBackward{.x = x, .d_y = y, .d_x = y}, text(x));
    row(Activate{.x = wide, .y = y, .kind = ActivationKind::swiglu}, text(wide) + ", swiglu");
    row(ActivateBackward{.x = wide, .d_y = y, .d_x = wide, .kind = ActivationKind::swiglu},
        text(wide) + ", swiglu");
  }

  void ends(std::int64_t columns) {
    Buffers memory;
    const std::int64_t samples = options_.samples, tokens = options_.tokens;
    const std::int64_t rows = samples * tokens;  // of the table too: bytes are those in use
    const View ids = memory.integers({samples, tokens}, std::min(options_.vocab, rows)),
               table = memory.floats(type_, {rows, columns}),
               positions = memory.floats(type_, {tokens, columns}),
               x = memory.floats(type_, {samples, tokens, columns}),
               d_table = memory.floats(DType::f32, {rows, columns}),
               d_positions = memory.floats(DType::f32, {tokens, columns});
    row(Embed{.tokens = ids, .token_table = table, .position_table = positions, .out = x}, text(x));
    row(AddPositions{.x = memory.floats(DType::f32, {samples, tokens, columns}),
                     .position_table = positions,
                     .out = x},
        text(x));
    row(
        EmbedBackward{
            .tokens = ids, .d = x, .d_token_table = d_table, .d_position_table = d_positions},
        text(x));
    classifiers(ids.reshaped({rows}));
  }

  void classifiers(const View& targets) {
    Buffers memory;
    const std::int64_t rows = targets.cols(), vocab = options_.vocab, parts = 4;
    const View logits = memory.floats(type_, {rows, vocab}),
               losses = memory.zeros(DType::f32, {rows}), lse = memory.zeros(DType::f32, {rows}),
               scale = memory.floats(DType::f32, {1}),
               stats = memory.floats(DType::f32, {parts, rows, 3});
    row(
        Classify{
            .logits = logits, .targets = targets, .losses = losses, .scale = scale, .vocab = vocab},
        text(logits));
    row(ClassifyPart{.logits = logits,
                     .targets = targets,
                     .stats = stats.range(0, 3 * rows),
                     .vocab = vocab},
        text(logits));
    row(ClassifyLoss{.stats = stats, .targets = targets, .losses = losses, .lse = lse},
        text(stats));
    row(
        ClassifyGradient{
            .logits = logits, .targets = targets, .lse = lse, .scale = scale, .vocab = vocab},
        text(logits));
  }

  void flat() {
    Buffers memory;
    const std::int64_t n = options_.elements;
    const View x = memory.floats(DType::f32, {n}), m = memory.floats(DType::f32, {n}),
               v = memory.zeros(DType::f32, {n}), w = memory.floats(DType::f32, {n}),
               narrow = memory.floats(type_, {n}),
               scalars = memory.zeros(DType::f32, {static_cast<std::int64_t>(StepScalar::count)}),
               verdict = memory.zeros(DType::f32, {static_cast<std::int64_t>(VerdictField::count)});
    for (std::int64_t i = 0; i < scalars.elements(); ++i) scalars.as<float>()[i] = 1e-3F;
    for (std::int64_t i = 0; i < verdict.elements(); ++i) verdict.as<float>()[i] = 1;
    row(AdamUpdate{.gradient = x,
                   .master = w,
                   .m = m,
                   .v = v,
                   .parameter = type_ == DType::f32 ? View() : narrow,
                   .scalars = scalars,
                   .verdict = verdict},
        text(x));
    row(ExactSum{.x = narrow, .accumulator = memory.zeros(DType::i64, {kExactSumWords})}, text(x));
    row(Fill{.out = narrow}, text(x));
    row(Convert{.x = x, .out = narrow}, text(x));
    row(Convert{.x = narrow, .out = x, .write = Write::add}, text(x) + ", added");
    const View parts = memory.floats(DType::f32, {4, n / 4});
    row(TreeSum{.parts = parts, .out = narrow.range(0, n / 4)}, text(parts));
  }

  Device& device_;
  BenchOptions options_;
  DType type_;
  double triad_ = 1, square_ = 1;  // limits: 1 until they are measured
  std::vector<BenchRow> rows_;
};

}  // namespace

std::vector<BenchRow> bench_kernels(Device& device, const BenchOptions& options) {
  Bench bench(device, options);
  bench.machine();
  for (const DType type : kTypes) {
    bench.type(type);
    bench.operations();
  }
  return bench.rows();
}

std::vector<BenchRow> bench_gemm(Device& device, const BenchOptions& options) {
  Bench bench(device, options);
  for (const DType type : kTypes) {
    bench.type(type);
    bench.squares();
    bench.layers();
  }
  return bench.rows();
}

std::vector<BenchRow> bench_attention(Device& device, const BenchOptions& options) {
  Bench bench(device, options);
  for (const DType type : kTypes) {
    bench.type(type);
    for (const std::int64_t times : {1, 2, 4, 8}) bench.attention(times * options.tokens);
  }
  return bench.rows();
}

double triad_rate(const BenchOptions& options) {
  const std::int64_t n = options.elements;
  Buffers memory;
  const View a = memory.floats(DType::f32, {n}), b = memory.floats(DType::f32, {n}),
             c = memory.floats(DType::f32, {n});
  const double seconds = best_seconds(options.repeats, [&] {
    cpu::parallel_ranges(options.threads, n, 4096, [&](Range part) {
      float* to = a.as<float>();
      const float *x = b.as<float>(), *y = c.as<float>();
#pragma omp simd
      for (std::int64_t i = part.begin; i < part.end; ++i) to[i] = x[i] + 3.0F * y[i];
    });
  });
  return 12.0 * static_cast<double>(n) / seconds;
}

double gemm_rate(Device& device, DType type, std::int64_t n, const BenchOptions& options) {
  Bench bench(device, options);
  return bench.square(type, n).rate * 1e9;
}

double attention_rate(Device& device, DType type, const BenchOptions& options) {
  Bench bench(device, options, type);
  bench.attention(options.tokens);
  double flop = 0, seconds = 0;
  for (const BenchRow& row : bench.rows()) flop += row.rate * row.ms * 1e6, seconds += row.ms / 1e3;
  return flop / seconds;
}

std::vector<KernelRate> kernel_rates(Device& device, DType type, const BenchOptions& options) {
  Bench bench(device, options, type);
  bench.others();
  std::vector<KernelRate> rates;
  for (const BenchRow& row : bench.rows()) {
    const std::string name = row.name.substr(0, row.name.find(' '));
    if (std::ranges::find(rates, name, &KernelRate::name) == rates.end())
      rates.push_back({name, row.rate * 1e9});
  }
  return rates;
}

}  // namespace tessera::kernels
