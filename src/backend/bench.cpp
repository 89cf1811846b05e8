#include "backend/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/exact_sum.hpp"
#include "core/math.hpp"
#include "core/random.hpp"
#include "kernels/common/optimizer_steps.hpp"
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

/// Seconds of one call of `f`, which queues work on the tier's device or does it.
template <typename F>
double best_seconds(memory::Tier& tier, const BenchOptions& options, F&& f) {
  const auto seconds_of = [&](int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) f();
    tier.wait();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    return time.count() / calls;
  };
  f();  // compiles, touches memory
  tier.wait();
  int calls = 1;
  if (options.at_least > 0)
    calls = static_cast<int>(std::clamp(std::ceil(options.at_least / seconds_of(1)), 1.0, 1000.0));
  double best = seconds_of(calls);
  for (int i = 1; i < options.repeats; ++i) best = std::min(best, seconds_of(calls));
  return best;
}

std::string text(const View& v) {
  std::string s;
  for (int i = 0; i < v.rank; ++i) s += fmt::format("{}{}", i == 0 ? "" : " x ", v.extent(i));
  return s;
}

/// What the memory's test moves an element.
double memory_bytes(const Backend& backend) { return backend.kind == deck::Backend::cuda ? 8 : 12; }

// bf16 first: of a measurement that is cut short it is what training asks for.
constexpr DType kTypes[] = {DType::bf16, DType::f32};

class Bench {
 public:
  Bench(const Backend& backend, const BenchOptions& options, DType type = DType::f32)
      : device_(*backend.device), tier_(*backend.device_tier), options_(options), type_(type) {}

  void memory(const Backend& backend) {
    memory_ = memory_rate(backend, options_) * 1e-9;
    const auto bytes = memory_bytes(backend) * static_cast<double>(options_.elements);
    rows_.push_back({memory_test(backend), std::to_string(options_.elements),
                     bytes / memory_ * 1e-6, memory_, RateUnit::gbytes, 1});
  }

  /// What follows is in this type, as a share of its square product; e4m3: in bf16, but for the
  /// operands of products.
  void type(DType type) {
    square_ = 1;
    BenchRow& limit = square(type, options_.square);
    square_ = limit.rate, limit.share = 1;
  }

  void operations() {
    layers();
    for (const BenchModel& m : options_.models) {
      for (std::int64_t times : {1, 4}) attentions(m, times * m.tokens);
    }
    others();
    for (const BlockType type : kRoundedTypes) sum_in_blocks({.type = type});
  }

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
      if (operands_ == Operands::stored) linear(rows, m.vocab, c);
      if (m.activation == ActivationKind::gelu) activated(rows, m.ffn, c);
    }
  }

  void squares() {
    for (std::int64_t n = 128; n <= options_.square; n *= 2) linear(n, n, n);
  }

  BenchRow& square(DType type, std::int64_t n) {
    operands_ = type == DType::e4m3 ? Operands::fp8 : Operands::stored;
    type_ = operands_ == Operands::fp8 ? DType::bf16 : type;
    BenchMemory memory(tier_);
    return row(Linear{.x = memory.floats(type_, {n, n}),
                      .weight = memory.floats(type_, {n, n}),
                      .y = memory.floats(type_, {n, n})},
               fmt::format("{0} x {0} x {0}", n));
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
      BenchRow& done = row(call, shape);
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

  void others() {
    for (const BenchModel& m : options_.models) {
      rope(m);
      norms(m);
      examples(m);
      dropout(m);
      activations(m);
      ends(m);
      gates(m);
      experts(m);
    }
    flat();
    coded();
  }

  std::vector<BenchRow> rows() { return std::move(rows_); }

 private:
  template <typename Operation>
  BenchRow& row(Operation call, std::string shape) {
    BenchMemory memory(tier_);
    if constexpr (requires { call.operands; }) call.operands = operands_;
    call.scratch = memory.zeros(DType::u8, {device_.scratch_bytes(call)});
    const KernelCall any = call;
    const double seconds = best_seconds(tier_, options_, [&] { device_.run(any); });
    const double flop = flop_of(any);
    call.scratch = View();
    const double work = flop > 0 ? flop : bytes_of(call);
    const double rate = work / seconds * 1e-9;
    const auto type = operands_ == Operands::fp8 ? "fp8" : to_string(type_);
    rows_.push_back({fmt::format("{} {}", name_of_args(call), type), std::move(shape),
                     seconds * 1e3, rate, flop > 0 ? RateUnit::gflops : RateUnit::gbytes,
                     rate / (flop > 0 ? square_ : memory_)});
    return rows_.back();
  }

  /// Forward and backward of (m, k) inputs and (m, n) outputs.
  void linear(std::int64_t m, std::int64_t n, std::int64_t k) {
    BenchMemory memory(tier_);
    const View x = memory.floats(type_, {m, k}), w = memory.floats(type_, {n, k}),
               b = memory.floats(type_, {n}), y = memory.floats(type_, {m, n}),
               d_w = memory.floats(DType::f32, {n, k}), d_b = memory.floats(DType::f32, {n});
    const std::string shape = fmt::format("M {} N {} K {}", m, n, k);
    row(Linear{.x = x, .weight = w, .bias = b, .y = y}, shape);
    row(LinearBackwardInput{.d_y = y, .weight = w, .d_x = x}, shape);
    row(LinearBackwardWeight{.d_y = y, .x = x, .d_weight = d_w, .d_bias = d_b, .write = Write::add},
        shape);
  }

  /// A feed-forward layer's gelu in the products that it comes from and goes back to.
  void activated(std::int64_t m, std::int64_t n, std::int64_t k) {
    BenchMemory memory(tier_);
    const View h = memory.floats(type_, {m, k}), up_w = memory.floats(type_, {n, k}),
               up_b = memory.floats(type_, {n}), down_w = memory.floats(type_, {k, n}),
               up = memory.floats(type_, {m, n}), act = memory.floats(type_, {m, n});
    row(Linear{.x = h, .weight = up_w, .bias = up_b, .y = act, .preactivation = up},
        fmt::format("M {} N {} K {}, gelu", m, n, k));
    row(LinearBackwardInput{.d_y = h, .weight = down_w, .d_x = act, .preactivation = up},
        fmt::format("M {} N {} K {}, gelu", m, k, n));
  }

  void rope(const BenchModel& m) {
    BenchMemory memory(tier_);
    const View q = memory.floats(type_, {m.samples, m.tokens, m.heads * m.head_dim});
    row(Rope{.x = q, .head_dim = m.head_dim}, text(q));
    // Half as many columns that heads share as a head has of its own.
    const std::int64_t columns = m.head_dim / 2;
    const View shared = memory.floats(type_, {m.samples, m.tokens, columns}),
               joined = memory.floats(type_, {m.samples, m.tokens, m.heads * 3 * columns});
    row(JoinHeads{.own = q, .shared = shared, .out = joined, .heads = m.heads}, text(joined));
    row(SplitHeads{.d = joined, .d_own = q, .d_shared = shared, .heads = m.heads}, text(joined));
  }

  void norms(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t samples = m.samples, tokens = m.tokens, columns = m.columns;
    const auto tensor = [&] { return memory.floats(type_, {samples, tokens, columns}); };
    const View x = tensor(), y = tensor(), sum = tensor(), out = tensor();
    const View w = memory.floats(type_, {columns}), b = memory.floats(type_, {columns}),
               stats = memory.floats(DType::f32, {samples * tokens, 2}),
               d_w = memory.floats(DType::f32, {columns}),
               d_b = memory.floats(DType::f32, {columns});
    AddNorm call{
        .resid = x, .pending = y, .weight = w, .bias = b, .sum = sum, .out = out, .stats = stats};
    row(call, text(x));
    call.dropout = {.p = 0.1F, .samples = memory.zeros(DType::i64, {samples})};
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
  }

  void examples(const BenchModel& m) {
    BenchMemory memory(tier_);
    const auto tensor = [&] { return memory.floats(type_, {m.samples, m.tokens, m.columns}); };
    const std::string shape = fmt::format("{} x {} x {}", m.samples, m.tokens, m.columns);
    for_each_example(tensor, [&](const auto& call) { row(call, shape); });
  }

  void dropout(const BenchModel& m) {
    BenchMemory memory(tier_);
    const auto tensor = [&] { return memory.floats(type_, {m.samples, m.tokens, m.columns}); };
    const View x = tensor(), out = tensor(), index = memory.zeros(DType::i64, {m.samples});
    row(ApplyDropout{.x = x, .out = out, .dropout = {.p = 0.1F, .samples = index}}, text(x));
  }

  void activations(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t rows = m.samples * m.tokens, columns = m.ffn;
    const View x = memory.floats(type_, {rows, columns}), y = memory.floats(type_, {rows, columns}),
               wide = memory.floats(type_, {rows, 2 * columns});
    row(Activate{.x = x, .y = y}, text(x));
    row(ActivateBackward{.x = x, .d_y = y, .d_x = y}, text(x));
    row(Activate{.x = wide, .y = y, .kind = ActivationKind::swiglu}, text(wide) + ", swiglu");
    row(ActivateBackward{.x = wide, .d_y = y, .d_x = wide, .kind = ActivationKind::swiglu},
        text(wide) + ", swiglu");
  }

  /// Gates over groups of eight experts, and within them.
  void gates(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t count = 8, tokens = m.samples * m.tokens;
    const Routing levels{.choices = 4, .groups = 4, .open_groups = 2};
    const View logits = memory.floats(DType::f32, {tokens, count + levels.groups}),
               joined = memory.zeros(DType::f32, {tokens, count});
    row(JoinGates{.logits = logits, .joined = joined, .routing = levels}, text(logits));
    row(
        JoinGatesBackward{
            .joined = joined, .d_joined = joined, .d_logits = logits, .routing = levels},
        text(logits));
  }

  /// Eight experts as wide as the model, of which each token goes to two.
  void experts(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t count = 8, tokens = m.samples * m.tokens, columns = m.columns;
    const Routing routing{.choices = 2, .normalized = true};
    const View logits = memory.floats(DType::f32, {tokens, count}),
               stats = memory.zeros(DType::f32, {tokens, kRouteStats}),
               chosen = memory.zeros(DType::i32, {tokens, routing.choices}),
               weights = memory.zeros(DType::f32, {tokens, routing.choices}),
               load = memory.zeros(DType::f32, {2, m.samples, count});
    const View counts = load.row_range(0, m.samples);
    // Each finds what those before it have written.
    row(Route{.logits = logits,
              .experts = chosen,
              .weights = weights,
              .stats = stats,
              .routing = routing},
        text(logits));
    row(ExpertLoad{.logits = logits,
                   .stats = stats,
                   .experts = chosen,
                   .counts = counts,
                   .shares = load.row_range(m.samples, m.samples),
                   .routing = routing},
        text(logits));
    row(RouteBackward{.logits = logits,
                      .stats = stats,
                      .experts = chosen,
                      .d_weights = weights,
                      .counts = counts,
                      .scale = memory.filled({1}, 1),
                      .d_logits = memory.zeros(DType::f32, {tokens, count}),
                      .terms = {.balance = 1e-5F, .z = 1e-3F},
                      .routing = routing},
        text(logits));
    row(CountChoices{.experts = chosen, .counts = memory.zeros(DType::i64, {count})}, text(chosen));
    row(BalanceExperts{.choices = memory.zeros(DType::i64, {count}),
                       .kept = memory.floats(DType::f32, {count}),
                       .verdict = memory.filled({kVerdictFields}, 1),
                       .rate = 1e-3F},
        text(logits));
    copies(chosen, weights, count, columns);
  }

  /// Of tokens for the experts that they have chosen.
  void copies(const View& chosen, const View& weights, std::int64_t count, std::int64_t columns) {
    BenchMemory memory(tier_);
    const std::int64_t tokens = chosen.rows(), choices = chosen.cols(),
                       all = dispatched_rows(tokens, choices, count);
    const View place = memory.zeros(DType::i32, {tokens, choices}),
               source = memory.zeros(DType::i32, {all}),
               begins = memory.zeros(DType::i32, {count + 1});
    row(Dispatch{.experts = chosen, .place = place, .source = source, .begins = begins},
        text(chosen));
    row(PartsOfChoices{.experts = chosen,
                       .place = place,
                       .parts = memory.zeros(DType::i32, {tokens, choices}),
                       .own = memory.zeros(DType::i32, {tokens, choices}),
                       .of_part = count / choices,
                       .count = choices},
        text(chosen));
    const View x = memory.floats(type_, {tokens, columns}),
               rows = memory.floats(type_, {all, columns});
    row(SpreadRows{.x = x, .weights = {}, .source = source, .rows = rows, .choices = choices},
        text(rows));
    row(CombineRows{.rows = rows, .weights = weights, .place = place, .out = x}, text(rows));
    row(RowDots{.x = x, .rows = rows, .place = place, .dots = weights}, text(rows));
    expert_products(rows, begins, tokens * choices);
  }

  /// Of rows that begin where `begins` says, with an expert's square matrix each.
  void expert_products(const View& rows, const View& begins, std::int64_t copies) {
    BenchMemory memory(tier_);
    const std::int64_t count = begins.elements() - 1, all = rows.rows(), columns = rows.cols();
    const View w = memory.floats(type_, {count * columns, columns}),
               y = memory.floats(type_, {all, columns}),
               d_w = memory.floats(DType::f32, {count * columns, columns});
    const std::string shape =
        fmt::format("{} rows to {} of {} x {}", copies, count, columns, columns);
    row(ExpertLinear{.x = rows, .weight = w, .begins = begins, .y = y, .copies = copies}, shape);
    row(
        ExpertLinearBackwardInput{
            .d_y = y, .weight = w, .begins = begins, .d_x = rows, .copies = copies},
        shape);
    row(ExpertLinearBackwardWeight{.d_y = y,
                                   .x = rows,
                                   .begins = begins,
                                   .d_weight = d_w,
                                   .write = Write::add,
                                   .copies = copies},
        shape);
  }

  void ends(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t samples = m.samples, tokens = m.tokens, columns = m.columns;
    const std::int64_t rows = samples * tokens;  // of the table too: bytes are those in use
    const View ids = memory.integers({samples, tokens}, std::min(m.vocab, rows)),
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
    const View pooled = memory.floats(type_, {samples, columns});
    row(Pool{.x = x, .out = pooled}, text(x));
    row(PoolBackward{.d_out = pooled, .d_x = x}, text(x));
    magnitudes(rows, columns);
    classifiers(m, ids.reshaped({rows}));
  }

  /// As of a matrix of so many rows, and of a product of so many tokens.
  void magnitudes(std::int64_t rows, std::int64_t columns) {
    BenchMemory memory(tier_);
    const View x = memory.floats(type_, {rows, columns}), y = memory.floats(type_, {rows, columns}),
               update = memory.floats(DType::f32, {rows, columns}),
               lengths = memory.floats(DType::f32, {rows}),
               squares = memory.floats(DType::f32, {columns}),
               biases = memory.floats(type_, {columns}),
               gradient = memory.floats(DType::f32, {columns});
    row(RowSquares{.weight = x, .update = update, .out = lengths}, text(x));
    row(
        ScaleColumns{
            .x = update, .magnitude = squares, .squares = squares, .bias = biases, .out = y},
        text(x));
    row(MagnitudeBackward{.d_y = x, .x = y, .squares = squares, .out = gradient}, text(x));
  }

  void classifiers(const BenchModel& m, const View& targets) {
    BenchMemory memory(tier_);
    const std::int64_t rows = targets.cols(), vocab = m.vocab, parts = 4;
    const View logits = memory.floats(type_, {rows, vocab}),
               losses = memory.zeros(DType::f32, {rows}), lse = memory.zeros(DType::f32, {rows}),
               scale = memory.floats(DType::f32, {1}),
               stats = memory.floats(DType::f32, {parts, rows, kPartStats});
    row(
        Classify{
            .logits = logits, .targets = targets, .losses = losses, .scale = scale, .vocab = vocab},
        text(logits));
    constexpr std::int64_t kClasses = 16;
    const View of_classes = memory.floats(type_, {rows, kClasses});
    row(Confusion{.logits = of_classes,
                  .targets = memory.integers({rows}, kClasses),
                  .counts = memory.zeros(DType::i64, {kClasses, kClasses})},
        text(of_classes));
    row(ClassifyPart{.logits = logits,
                     .targets = targets,
                     .stats = stats.range(0, kPartStats * rows),
                     .vocab = vocab},
        text(logits));
    row(
        ClassifyLoss{
            .stats = stats, .targets = targets, .losses = losses, .lse = lse, .vocab = vocab},
        text(stats));
    row(
        ClassifyGradient{
            .logits = logits, .targets = targets, .lse = lse, .scale = scale, .vocab = vocab},
        text(logits));
    pairs(targets, losses, scale);
  }

  /// Each half of the targets is a sample.
  void pairs(const View& targets, const View& losses, const View& scale) {
    BenchMemory memory(tier_);
    const std::int64_t half = targets.cols() / 2;
    row(PolicyLoss{.target_losses = losses,
                   .targets = targets,
                   .advantages = memory.floats(DType::f32, {losses.elements()}),
                   .scale = scale,
                   .losses = memory.zeros(DType::f32, {losses.elements()}),
                   .slopes = memory.zeros(DType::f32, {losses.elements()})},
        text(losses));
    row(ValueLoss{.values = losses,
                  .targets = targets,
                  .returns = memory.floats(DType::f32, {losses.elements()}),
                  .scale = scale,
                  .losses = memory.zeros(DType::f32, {losses.elements()}),
                  .slopes = memory.zeros(DType::f32, {losses.elements()}),
                  .terms = {.weight = 0.1F, .clip = 0.2F}},
        text(losses));
    row(PreferenceLoss{.target_losses = losses.range(0, 2 * half).reshaped({2, half}),
                       .targets = targets.range(0, 2 * half),
                       .reference = memory.zeros(DType::f64, {2}),
                       .scale = scale,
                       .losses = memory.zeros(DType::f32, {2}),
                       .slopes = memory.zeros(DType::f32, {2 * half}),
                       .statistics = memory.zeros(DType::f32, {kPreferenceStats}),
                       .terms = {PreferenceKind::dpo, 0.1F, 0}},
        text(losses));
    const View outputs = memory.floats(type_, {half, 8}), scores = losses.range(0, half);
    row(Score{.logits = outputs, .targets = targets.range(0, half), .losses = scores},
        text(outputs));
    row(ScoreGradient{.slopes = scores, .logits = outputs}, text(outputs));
  }

  void flat() {
    BenchMemory memory(tier_);
    const std::int64_t n = options_.elements;
    const View x = memory.floats(DType::f32, {n}), m = memory.floats(DType::f32, {n}),
               v = memory.zeros(DType::f32, {n}), w = memory.floats(DType::f32, {n}),
               narrow = memory.floats(type_, {n}),
               scalars = memory.filled({static_cast<std::int64_t>(StepScalar::count)}, 1e-3F),
               verdict = memory.filled({static_cast<std::int64_t>(VerdictField::count)}, 1),
               sums = memory.zeros(DType::i64, {kTensorWords}),
               direction = memory.floats(type_, {n}), factor = memory.filled({1}, 1),
               largest = memory.zeros(DType::i64, {1});
    for (const auto& [rule, word] : EnumWords<UpdateRule>::table) {
      const UpdatePass pass = pass_of(rule);
      const bool makes_parameter = moves_weights(pass) && type_ != DType::f32;
      OptimizerUpdate update{.rule = rule,
                             .gradient = reads_gradient(pass) ? x : View(),
                             .master = w,
                             .state = {m, v},
                             .direction = has_direction(pass) ? direction : View(),
                             .parameter = makes_parameter ? narrow : View(),
                             .sums = has_sums(pass) ? sums : View(),
                             .scalars = scalars,
                             .verdict = verdict};
      for (std::size_t s = state_count(rule); s < kMostStates; ++s) update.state[s] = {};
      if (rule == UpdateRule::frozen_lamb) update.factors = {factor, factor};
      row(update, text(x));
    }
    row(
        MomentRatio{
            .gradient = x, .moment = v, .frozen = m, .largest = largest, .verdict = verdict},
        text(x));
    row(AverageTrust{.sums = sums, .average = factor, .verdict = verdict}, text(factor));
    row(FollowRatio{.largest = largest, .ratio = factor, .verdict = verdict}, text(factor));
    const std::int64_t side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n)));
    const View matrix = direction.range(0, side * side).reshaped({side, side}),
               squares = memory.zeros(DType::i64, {kExactSumWords});
    row(DivideByNorm{.x = direction, .squares = squares, .out = narrow}, text(direction));
    row(SquarePolynomial{.x = matrix, .square = matrix, .out = matrix, .coefficients = {1, 0, 0}},
        text(matrix));
    row(ExactSum{.x = narrow, .accumulator = memory.zeros(DType::i64, {kExactSumWords})}, text(x));
    const View rows = memory.floats(DType::f32, {8, n / 8});
    row(ExactSums{.x = rows,
                  .into = memory.zeros(DType::i32, {8}),
                  .accumulators = memory.zeros(DType::i64, {2, kExactSumWords})},
        text(rows));
    row(Fill{.out = narrow}, text(x));
    const std::int64_t bytes = n / 64 * 64;
    row(TakeRow{.x = View(x.data, DType::u8, {4, bytes}),
                .next = memory.zeros(DType::i64, {1}),
                .out = View(narrow.data, DType::u8, {bytes})},
        text(x));
    row(Convert{.x = x, .out = narrow}, text(x));
    row(Convert{.x = narrow, .out = x, .write = Write::add}, text(x) + ", added");
    row(
        OrderChunks{
            .x = rows, .out = memory.zeros(DType::f32, {8, n / 8}), .chunks = {.shares = 4}},
        text(rows));
    merged(rows.reshaped({1, 8, n / 8}));
    remembered(narrow.range(0, n / 8 * 8).reshaped({1, 8, n / 8}));
    row(Blend{.y = x, .out = m, .keep = 0.9F, .add = 0.1F}, text(x));
    const View parts = memory.floats(DType::f32, {4, n / 4});
    row(TreeSum{.parts = parts, .out = narrow.range(0, n / 4)}, text(parts));
    const View travelled = memory.floats(DType::bf16, {4, n / 4});
    row(TreeSum{.parts = travelled, .out = x.range(0, n / 4)}, text(travelled) + ", of bf16");
    for (const BlockType type : kRoundedTypes)
      quantized({.type = type}, narrow.range(0, n / 4 * 4).reshaped({4, n / 4}));
    kept({.type = BlockType::nf4, .block = 64}, narrow);
  }

  /// What queries get of two sets of keys.
  void merged(const View& attended) {
    BenchMemory memory(tier_);
    const View lse = memory.zeros(DType::f32, {1, 1, attended.extent(1)});
    row(MergeAttention{.x = attended, .x_lse = lse, .out = attended, .lse = lse}, text(attended));
  }

  /// Tokens of one sequence, in an empty cache.
  void remembered(const View& x) {
    BenchMemory memory(tier_);
    const CachedSample all{.count = static_cast<std::int32_t>(x.extent(1))};
    const View cached = memory.zeros(DType::i32, {1, kCachedColumns});
    tier_.write(cached.data, std::as_bytes(std::span(&all, 1)));
    row(Remember{.x = x,
                 .cached = cached,
                 .pages = memory.zeros(DType::i32, {1, 1}),
                 .cache = memory.zeros(x.type, {1, x.extent(1), x.extent(2)})},
        text(x));
  }

  /// Parameters that are kept as codes which the host has made.
  void kept(const BlockFormat& format, const View& x) {
    BenchMemory memory(tier_);
    const std::int64_t n = x.elements();
    row(SumQuantized{.code = memory.zeros(DType::u8, {1, 1, format.bytes(n)}),
                     .out = x.reshaped({1, n}),
                     .format = format},
        fmt::format("{}, {}", text(x), enum_word(format.type)));
  }

  /// Where the device multiplies codes, weights of these.
  void coded() {
    if (!device_.multiplies_codes(4)) return;
    for (const BlockType type : {BlockType::int8, BlockType::int4, BlockType::nf4})
      for (const std::int64_t rows : {1, 4}) coded(rows, 8192, 4096, {.type = type, .block = 64});
  }

  /// A weight of whole blocks that few rows meet as codes.
  void coded(std::int64_t m, std::int64_t n, std::int64_t k, const BlockFormat& format) {
    BenchMemory memory(tier_);
    const View x = memory.floats(type_, {m, k}), y = memory.floats(type_, {m, n});
    row(Linear{.x = x,
               .weight = memory.zeros(DType::u8, {n, k * format.bits() / 8}),
               .y = y,
               .codes = {.scales = memory.floats(DType::f32, {n * k / format.block}),
                         .format = format}},
        fmt::format("M {} N {} K {}, {}", m, n, k, enum_word(format.type)));
  }

  /// Four parts: quantised, each dequantised, all added up.
  void quantized(const BlockFormat& format, const View& x) {
    BenchMemory memory(tier_);
    const std::int64_t parts = x.extent(0), n = x.cols(), bytes = format.bytes(n);
    const View code = memory.zeros(DType::u8, {parts, 1, bytes}),
               sum = memory.zeros(DType::u8, {1, bytes});
    const std::string shape = fmt::format("{}, {}", text(x), enum_word(format.type));
    row(Quantize{.x = x.reshaped({parts, 1, n}),
                 .code = code.reshaped({1, parts, bytes}),
                 .format = format},
        shape);
    row(SumQuantized{.code = code.reshaped({1, parts, bytes}), .out = x, .format = format},
        shape + ", each");
    row(SumQuantized{.code = code, .out = x.row_range(0, 1), .format = format}, shape);
    row(RequantizeSum{.code = code, .sum = sum, .elements = n, .format = format}, shape);
  }

  /// What a rank computes on the first of two hops of a sum in blocks, from its contributions to
  /// sums that go on: slots are reordered and quantised; those that arrive are dequantised, added
  /// and quantised again. By kernels that do several of these at once, and by one for each.
  void sum_in_blocks(const BlockFormat& format) {
    BenchMemory memory(tier_);
    constexpr std::int64_t kParts = 4;
    const std::int64_t n = options_.elements / kParts, bytes = format.bytes(n);
    const View x = memory.floats(type_, {kParts, 1, n}),
               ordered = memory.zeros(type_, {kParts, 1, n}),
               code = memory.zeros(DType::u8, {1, kParts, bytes}),
               arrived = code.reshaped({kParts, 1, bytes}),
               parts = memory.zeros(DType::f32, {kParts, n}),
               sum = memory.zeros(DType::f32, {1, 1, n}),
               sums = memory.zeros(DType::u8, {1, 1, bytes});
    const auto run = [&](const char* how, std::vector<KernelCall> calls) {
      for (KernelCall& call : calls) memory.add_scratch(call, device_);
      const double seconds = best_seconds(tier_, options_, [&] {
        for (const KernelCall& call : calls) device_.run(call);
      });
      const double rate = static_cast<double>(x.span_bytes()) / seconds * 1e-9;
      rows_.push_back({fmt::format("sum in blocks, {} {}", how, to_string(type_)),
                       fmt::format("{}, {}", text(x), enum_word(format.type)), seconds * 1e3, rate,
                       RateUnit::gbytes, rate / memory_});
    };
    run("fused",
        {Quantize{.x = x, .code = code, .format = format},
         RequantizeSum{
             .code = arrived, .sum = sums.reshaped({1, bytes}), .elements = n, .format = format}});
    run("apart",
        {Convert{.x = x, .out = ordered}, Quantize{.x = ordered, .code = code, .format = format},
         SumQuantized{.code = code, .out = parts, .format = format},
         TreeSum{.parts = parts, .out = sum.reshaped({1, n})},
         Quantize{.x = sum, .code = sums, .format = format}});
  }

  Device& device_;
  memory::Tier& tier_;
  BenchOptions options_;
  DType type_;
  Operands operands_ = Operands::stored;
  double memory_ = 1, square_ = 1;  // limits: 1 until they are measured
  std::vector<BenchRow> rows_;
};

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
  Bench bench(backend, options);
  bench.memory(backend);
  for (const DType type : kTypes) {
    bench.type(type);
    bench.operations();
  }
  return bench.rows();
}

std::vector<BenchRow> bench_gemm(const Backend& backend, const BenchOptions& options) {
  Bench bench(backend, options);
  for (const DType type : {DType::bf16, DType::e4m3, DType::f32}) {
    if (type == DType::e4m3 && !backend.multiplies_fp8) continue;
    bench.type(type);
    bench.squares();
    bench.layers();
  }
  return bench.rows();
}

std::vector<BenchRow> bench_attention(const Backend& backend, const BenchOptions& options) {
  Bench bench(backend, options);
  for (const DType type : kTypes) {
    bench.type(type);
    for (const BenchModel& m : options.models) {
      for (const std::int64_t times : {1, 2, 4, 8}) bench.attentions(m, times * m.tokens);
    }
  }
  return bench.rows();
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
  Bench bench(backend, options);
  return bench.square(type, n).rate * 1e9;
}

AttentionRates attention_rates(const Backend& backend, DType type, const BenchModel& model,
                               const BenchOptions& options) {
  Bench bench(backend, options, type);
  bench.attention(model, model.tokens, {});
  const std::vector<BenchRow> rows = bench.rows();
  return {.forward = rows[0].rate * 1e9, .backward = rows[1].rate * 1e9};
}

double kernel_start(const Backend& backend) {
  BenchMemory memory(*backend.device_tier);
  const KernelCall nothing = Fill{.out = memory.zeros(DType::u8, {1})};
  const BenchOptions options{.at_least = 1e-3};
  return best_seconds(*backend.device_tier, options, [&] { backend.device->run(nothing); });
}

std::vector<KernelRate> kernel_rates(const Backend& backend, DType type,
                                     const BenchOptions& options) {
  Bench bench(backend, options, type);
  bench.others();
  std::vector<KernelRate> rates;
  for (const BenchRow& row : bench.rows()) {
    const std::string name = row.name.substr(0, row.name.find(' '));
    if (std::ranges::find(rates, name, &KernelRate::name) == rates.end())
      rates.push_back({name, row.rate * 1e9});
  }
  return rates;
}

}  // namespace tessera::backend
