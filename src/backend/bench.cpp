#include "backend/bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/bench_rows.hpp"
#include "core/math.hpp"
#include "core/random.hpp"
#include "kernels/cpu/triad.hpp"

namespace tessera::backend {

using namespace kernels;  // operations

namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // elements after which numbers repeat

/// Writes f(i mod kBlock) for every element i.
template <typename T, typename F>
void write_each(memory::Tier& tier, const View& v, F&& f) {
  std::vector<T> block(static_cast<std::size_t>(std::min(kBlock, v.elements())));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = f(static_cast<std::uint32_t>(i));
  const auto bytes = std::as_bytes(std::span(block));
  for (std::int64_t at = 0; at < v.span_bytes(); at += std::ssize(bytes)) {
    const std::int64_t some = std::min(std::ssize(bytes), v.span_bytes() - at);
    tier.write(v.data + at, bytes.first(static_cast<std::size_t>(some)));
  }
}

/// What the memory's test moves an element.
double memory_bytes(const Backend& backend) { return backend.kind == deck::Backend::cuda ? 8 : 12; }

// bf16 first: of a measurement that is cut short it is what training asks for.
constexpr DType kTypes[] = {DType::bf16, DType::f32};

/// Matrix products and attention.
class MatrixWork {
 public:
  explicit MatrixWork(BenchRows& rows)
      : rows_(rows), tier_(rows.tier()), options_(rows.options()), type_(rows.type()) {}

  void layers() {
    for (const BenchModel& m : options_.models) {
      const std::int64_t c = m.columns, mixed = m.heads * m.head_dim,
                         inner = m.activation == ActivationKind::swiglu ? 2 : 1,
                         rows = m.samples * m.tokens;
      for (const auto& [n, k] : {std::pair{c, mixed},
                                 {(m.heads + 2 * m.kv_heads) * m.head_dim, c},
                                 {inner * m.ffn, c},
                                 {c, m.ffn}}) {
        linear(rows, n, k);
      }
      if (rows_.operands() == Operands::stored) linear(rows, m.vocab, c);
      if (m.activation == ActivationKind::gelu) activated(rows, m.ffn, c);
    }
  }

  void squares() {
    for (std::int64_t n = 128; n <= options_.square; n *= 2) linear(n, n, n);
  }

  /// Samples of so many documents of equal length; 0: of one, whose table is absent.
  struct Masking {
    AttentionMask mask = AttentionMask::causal;
    std::int64_t documents = 0;
  };

  void attention(const BenchModel& m, std::int64_t tokens, const Masking& masking) {
    BenchMemory memory(tier_);
    const auto heads = [&](std::int64_t n) {
      return memory.floats(type_, {m.samples, tokens, n * m.head_dim});
    };
    const View q = heads(m.heads), k = heads(m.kv_heads), v = heads(m.kv_heads),
               out = heads(m.heads), d_q = heads(m.heads), d_k = heads(m.kv_heads),
               d_v = heads(m.kv_heads),
               lse = memory.zeros(DType::f32, {m.samples, m.heads, tokens});
    const std::int64_t length =
        masking.documents > 0 ? ceil_div(tokens, masking.documents) : tokens;
    const View documents =
        masking.documents > 0 ? memory.documents(m.samples, tokens, length) : View();
    const AttentionShape s{.heads = m.heads,
                           .kv_heads = m.kv_heads,
                           .head_dim = m.head_dim,
                           .scale = 1 / std::sqrt(static_cast<float>(m.head_dim)),
                           .mask = masking.mask};
    const std::string shape =
        fmt::format("B {} H {}{} T {}{} D {}{}", m.samples, m.heads,
                    m.kv_heads == m.heads ? "" : fmt::format(" KV {}", m.kv_heads),
                    documents ? fmt::format("{} x ", masking.documents) : "", length, m.head_dim,
                    masking.mask == AttentionMask::bidirectional ? ", encoder" : "");
    // Operations count flop as if a sample were one document.
    const std::int64_t whole = tokens / length, rest = tokens % length;
    const double seen =
        static_cast<double>(whole) * s.most_pairs(0, length, length) + s.most_pairs(0, rest, rest);
    const double share = seen / s.most_pairs(0, tokens, tokens);
    const auto add = [&](const auto& call) {
      BenchRow& done = rows_.row(call, shape);
      done.rate *= share, done.share *= share;
    };
    add(Attention{
        .q = q, .k = k, .v = v, .out = out, .lse = lse, .documents = documents, .shape = s});
    add(AttentionBackward{.q = q,
                          .k = k,
                          .v = v,
                          .out = out,
                          .lse = lse,
                          .documents = documents,
                          .d_out = q,
                          .d_q = d_q,
                          .d_k = d_k,
                          .d_v = d_v,
                          .shape = s});
  }
  /// Also of documents, and of encoders, whose heads share no keys.
  void attentions(const BenchModel& m, std::int64_t tokens) {
    attention(m, tokens, {});
    attention(m, tokens, {.documents = 8});
    if (m.kv_heads == m.heads) attention(m, tokens, {.mask = AttentionMask::bidirectional});
  }

 private:
  /// Forward and backward of (m, k) inputs and (m, n) outputs.
  void linear(std::int64_t m, std::int64_t n, std::int64_t k) {
    BenchMemory memory(tier_);
    const View x = memory.floats(type_, {m, k}), w = memory.floats(type_, {n, k}),
               b = memory.floats(type_, {n}), y = memory.floats(type_, {m, n}),
               d_w = memory.floats(DType::f32, {n, k}), d_b = memory.floats(DType::f32, {n});
    const std::string shape = fmt::format("M {} N {} K {}", m, n, k);
    rows_.row(Linear{.x = x, .weight = w, .bias = b, .y = y}, shape);
    rows_.row(LinearBackwardInput{.d_y = y, .weight = w, .d_x = x}, shape);
    rows_.row(
        LinearBackwardWeight{.d_y = y, .x = x, .d_weight = d_w, .d_bias = d_b, .write = Write::add},
        shape);
  }

  /// A feed-forward layer's gelu in the products that it comes from and goes back to.
  void activated(std::int64_t m, std::int64_t n, std::int64_t k) {
    BenchMemory memory(tier_);
    const View h = memory.floats(type_, {m, k}), up_w = memory.floats(type_, {n, k}),
               up_b = memory.floats(type_, {n}), down_w = memory.floats(type_, {k, n}),
               up = memory.floats(type_, {m, n}), act = memory.floats(type_, {m, n});
    rows_.row(Linear{.x = h, .weight = up_w, .bias = up_b, .y = act, .preactivation = up},
              fmt::format("M {} N {} K {}, gelu", m, n, k));
    rows_.row(LinearBackwardInput{.d_y = h, .weight = down_w, .d_x = act, .preactivation = up},
              fmt::format("M {} N {} K {}, gelu", m, k, n));
  }

  BenchRows& rows_;
  memory::Tier& tier_;
  const BenchOptions& options_;
  DType type_;
};

void bench_operations(BenchRows& rows) {
  MatrixWork work(rows);
  work.layers();
  for (const BenchModel& m : rows.options().models) {
    for (std::int64_t times : {1, 4}) work.attentions(m, times * m.tokens);
  }
  bench_others(rows);
  bench_sums_in_blocks(rows);
}

}  // namespace

View BenchMemory::zeros(DType type, std::initializer_list<std::int64_t> shape) {
  static std::byte anywhere;
  View v(&anywhere, type, shape);
  owned_.push_back(std::make_unique<memory::Arena>("of a benchmark", tier_,
                                                   std::max<std::int64_t>(v.span_bytes(), 1)));
  v.data = owned_.back()->base();
  return v;
}

void BenchMemory::add_scratch(KernelCall& call, const Device& device) {
  const std::int64_t bytes = device.scratch_bytes(call);
  std::visit([&](auto& args) { args.scratch = zeros(DType::u8, {bytes}); }, call);
}

View BenchMemory::floats(DType type, std::initializer_list<std::int64_t> shape) {
  const View v = zeros(type, shape);
  const auto number = [](std::uint32_t i) { return (to_uniform(i * 2654435761U) - 0.5F) * 0.1F; };
  if (type == DType::f32) {
    write_each<float>(tier_, v, number);
  } else {
    write_each<bf16>(tier_, v, [&](std::uint32_t i) { return bf16(number(i)); });
  }
  return v;
}

View BenchMemory::integers(std::initializer_list<std::int64_t> shape, std::int64_t below) {
  const View v = zeros(DType::i32, shape);
  write_each<std::int32_t>(tier_, v, [&](std::uint32_t i) {
    return static_cast<std::int32_t>(std::int64_t{i} * 7919 % below);
  });
  return v;
}

View BenchMemory::documents(std::int64_t samples, std::int64_t tokens, std::int64_t length) {
  const View v = zeros(DType::i32, {samples, tokens, 2});
  std::vector<std::int32_t> sample;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t begin = t / length * length;
    sample.push_back(static_cast<std::int32_t>(begin));
    sample.push_back(static_cast<std::int32_t>(std::min(begin + length, tokens)));
  }
  const auto bytes = std::as_bytes(std::span(sample));
  for (std::int64_t b = 0; b < samples; ++b) tier_.write(v.data + b * std::ssize(bytes), bytes);
  return v;
}

View BenchMemory::filled(std::initializer_list<std::int64_t> shape, float value) {
  const View v = zeros(DType::f32, shape);
  write_each<float>(tier_, v, [&](std::uint32_t) { return value; });
  return v;
}

BenchOptions usual_bench(const Backend& backend, int threads, std::int64_t repeats) {
  BenchOptions o{.threads = threads, .repeats = static_cast<int>(repeats)};
  if (backend.kind != deck::Backend::cuda) return o;
  o.at_least = 5e-3;  // a thousand times what queueing takes
  o.square = 8192;
  o.elements = std::int64_t{1} << 28;  // far beyond a GPU's caches
  o.models = {
      {.columns = 1600, .heads = 25, .kv_heads = 25, .ffn = 6400, .samples = 8, .tokens = 1024},
      {.columns = 4096,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 14336,
       .activation = ActivationKind::swiglu,
       .vocab = 128256,
       .samples = 2,
       .tokens = 2048}};
  return o;
}

std::vector<BenchRow> bench_kernels(const Backend& backend, const BenchOptions& options) {
  BenchRows rows(backend, options);
  rows.memory(memory_test(backend), memory_bytes(backend) * static_cast<double>(options.elements),
              memory_rate(backend, options));
  for (const DType type : kTypes) {
    rows.type(type);
    bench_operations(rows);
  }
  return rows.take();
}

std::vector<BenchRow> bench_gemm(const Backend& backend, const BenchOptions& options) {
  BenchRows rows(backend, options);
  for (const DType type : {DType::bf16, DType::e4m3, DType::f32}) {
    if (type == DType::e4m3 && !backend.multiplies_fp8) continue;
    rows.type(type);
    MatrixWork work(rows);
    work.squares();
    work.layers();
  }
  return rows.take();
}

std::vector<BenchRow> bench_attention(const Backend& backend, const BenchOptions& options) {
  BenchRows rows(backend, options);
  for (const DType type : kTypes) {
    rows.type(type);
    MatrixWork work(rows);
    for (const BenchModel& m : options.models) {
      for (const std::int64_t times : {1, 2, 4, 8}) work.attentions(m, times * m.tokens);
    }
  }
  return rows.take();
}

const char* memory_test(const Backend& backend) {
  return backend.kind == deck::Backend::cuda ? "copy" : "triad";
}

void finish_alone(streams::Streams& streams, const streams::Start& start) {
  streams.begin({.works = 1, .repeatable = false});
  streams.enqueue({.stream = 1}, start);
  streams.finish();
}

double memory_rate(const Backend& backend, const BenchOptions& options) {
  const std::int64_t n = options.elements;
  const bool on_gpu = backend.kind == deck::Backend::cuda;
  memory::Tier& tier = on_gpu ? *backend.device_tier : *backend.host_tier;
  BenchMemory memory(tier);
  const View a = memory.floats(DType::f32, {n}), b = memory.floats(DType::f32, {n}),
             c = on_gpu ? View() : memory.floats(DType::f32, {n});
  const double seconds = best_seconds(tier, options, [&] {
    if (on_gpu) {
      tier.start_copy(b.data, a.data, b.span_bytes());
    } else {
      cpu::triad(options.threads, n, b.as<float>(), c.as<float>(), a.as<float>());
    }
  });
  return memory_bytes(backend) * static_cast<double>(n) / seconds;
}

double gemm_rate(const Backend& backend, DType type, std::int64_t n, const BenchOptions& options) {
  BenchRows rows(backend, options);
  return rows.square(type, n).rate * 1e9;
}

AttentionRates attention_rates(const Backend& backend, DType type, const BenchModel& model,
                               const BenchOptions& options) {
  BenchRows rows(backend, options, type);
  MatrixWork(rows).attention(model, model.tokens, {});
  const std::vector<BenchRow> both = rows.take();
  return {.forward = both[0].rate * 1e9, .backward = both[1].rate * 1e9};
}

double kernel_start(const Backend& backend) {
  BenchMemory memory(*backend.device_tier);
  const KernelCall nothing = Fill{.out = memory.zeros(DType::u8, {1})};
  const BenchOptions options{.at_least = 1e-3};
  return best_seconds(*backend.device_tier, options, [&] { backend.device->run(nothing); });
}

std::vector<KernelRate> kernel_rates(const Backend& backend, DType type,
                                     const BenchOptions& options) {
  BenchRows rows(backend, options, type);
  bench_others(rows);
  std::vector<KernelRate> rates;
  for (const BenchRow& row : rows.take()) {
    const std::string name = row.name.substr(0, row.name.find(' '));
    if (std::ranges::find(rates, name, &KernelRate::name) == rates.end())
      rates.push_back({name, row.rate * 1e9});
  }
  return rates;
}

}  // namespace tessera::backend
