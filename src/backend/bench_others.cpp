// The operations of models, optimizers and reductions that are no matrix work.
#include "backend/bench_rows.hpp"
#include "core/exact_sum.hpp"
#include "core/math.hpp"
#include "kernels/common/optimizer_steps.hpp"

namespace tessera::backend {

using namespace kernels;  // operations

namespace {

class Others {
 public:
  explicit Others(BenchRows& rows)
      : rows_(rows),
        device_(rows.device()),
        tier_(rows.tier()),
        options_(rows.options()),
        type_(rows.type()) {}

  void all() {
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
      rows_.add(fmt::format("sum in blocks, {} {}", how, to_string(type_)),
                fmt::format("{}, {}", shape_text(x), enum_word(format.type)), seconds, rate);
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

 private:
  template <typename Operation>
  void row(const Operation& call, std::string shape) {
    rows_.row(call, std::move(shape));
  }

  void rope(const BenchModel& m) {
    BenchMemory memory(tier_);
    const View q = memory.floats(type_, {m.samples, m.tokens, m.heads * m.head_dim});
    row(Rope{.x = q, .head_dim = m.head_dim}, shape_text(q));
    // Half as many columns that heads share as a head has of its own.
    const std::int64_t columns = m.head_dim / 2;
    const View shared = memory.floats(type_, {m.samples, m.tokens, columns}),
               joined = memory.floats(type_, {m.samples, m.tokens, m.heads * 3 * columns});
    row(JoinHeads{.own = q, .shared = shared, .out = joined, .heads = m.heads}, shape_text(joined));
    row(SplitHeads{.d = joined, .d_own = q, .d_shared = shared, .heads = m.heads},
        shape_text(joined));
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
    row(call, shape_text(x));
    call.dropout = {.p = 0.1F, .samples = memory.zeros(DType::i64, {samples})};
    row(call, shape_text(x) + ", dropout");
    row(NormBackward{.d_out = y,
                     .d_resid = x,
                     .sum = sum,
                     .weight = w,
                     .stats = stats,
                     .d_sum = x,
                     .d_weight = d_w,
                     .d_bias = d_b},
        shape_text(x));
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
    row(ApplyDropout{.x = x, .out = out, .dropout = {.p = 0.1F, .samples = index}}, shape_text(x));
  }

  void activations(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t rows = m.samples * m.tokens, columns = m.ffn;
    const View x = memory.floats(type_, {rows, columns}), y = memory.floats(type_, {rows, columns}),
               wide = memory.floats(type_, {rows, 2 * columns});
    row(Activate{.x = x, .y = y}, shape_text(x));
    row(ActivateBackward{.x = x, .d_y = y, .d_x = y}, shape_text(x));
    row(Activate{.x = wide, .y = y, .kind = ActivationKind::swiglu}, shape_text(wide) + ", swiglu");
    row(ActivateBackward{.x = wide, .d_y = y, .d_x = wide, .kind = ActivationKind::swiglu},
        shape_text(wide) + ", swiglu");
  }

  /// Gates over groups of eight experts, and within them.
  void gates(const BenchModel& m) {
    BenchMemory memory(tier_);
    const std::int64_t count = 8, tokens = m.samples * m.tokens;
    const Routing levels{.choices = 4, .groups = 4, .open_groups = 2};
    const View logits = memory.floats(DType::f32, {tokens, count + levels.groups}),
               joined = memory.zeros(DType::f32, {tokens, count});
    row(JoinGates{.logits = logits, .joined = joined, .routing = levels}, shape_text(logits));
    row(
        JoinGatesBackward{
            .joined = joined, .d_joined = joined, .d_logits = logits, .routing = levels},
        shape_text(logits));
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
        shape_text(logits));
    row(ExpertLoad{.logits = logits,
                   .stats = stats,
                   .experts = chosen,
                   .counts = counts,
                   .shares = load.row_range(m.samples, m.samples),
                   .routing = routing},
        shape_text(logits));
    row(RouteBackward{.logits = logits,
                      .stats = stats,
                      .experts = chosen,
                      .d_weights = weights,
                      .counts = counts,
                      .scale = memory.filled({1}, 1),
                      .d_logits = memory.zeros(DType::f32, {tokens, count}),
                      .terms = {.balance = 1e-5F, .z = 1e-3F},
                      .routing = routing},
        shape_text(logits));
    row(CountChoices{.experts = chosen, .counts = memory.zeros(DType::i64, {count})},
        shape_text(chosen));
    row(BalanceExperts{.choices = memory.zeros(DType::i64, {count}),
                       .kept = memory.floats(DType::f32, {count}),
                       .verdict = memory.filled({kVerdictFields}, 1),
                       .rate = 1e-3F},
        shape_text(logits));
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
        shape_text(chosen));
    row(PartsOfChoices{.experts = chosen,
                       .place = place,
                       .parts = memory.zeros(DType::i32, {tokens, choices}),
                       .own = memory.zeros(DType::i32, {tokens, choices}),
                       .of_part = count / choices,
                       .count = choices},
        shape_text(chosen));
    const View x = memory.floats(type_, {tokens, columns}),
               rows = memory.floats(type_, {all, columns});
    row(SpreadRows{.x = x, .weights = {}, .source = source, .rows = rows, .choices = choices},
        shape_text(rows));
    row(CombineRows{.rows = rows, .weights = weights, .place = place, .out = x}, shape_text(rows));
    row(RowDots{.x = x, .rows = rows, .place = place, .dots = weights}, shape_text(rows));
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
    row(Embed{.tokens = ids, .token_table = table, .position_table = positions, .out = x},
        shape_text(x));
    row(AddPositions{.x = memory.floats(DType::f32, {samples, tokens, columns}),
                     .position_table = positions,
                     .out = x},
        shape_text(x));
    row(
        EmbedBackward{
            .tokens = ids, .d = x, .d_token_table = d_table, .d_position_table = d_positions},
        shape_text(x));
    const View pooled = memory.floats(type_, {samples, columns});
    row(Pool{.x = x, .out = pooled}, shape_text(x));
    row(PoolBackward{.d_out = pooled, .d_x = x}, shape_text(x));
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
    row(RowSquares{.weight = x, .update = update, .out = lengths}, shape_text(x));
    row(
        ScaleColumns{
            .x = update, .magnitude = squares, .squares = squares, .bias = biases, .out = y},
        shape_text(x));
    row(MagnitudeBackward{.d_y = x, .x = y, .squares = squares, .out = gradient}, shape_text(x));
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
        shape_text(logits));
    constexpr std::int64_t kClasses = 16;
    const View of_classes = memory.floats(type_, {rows, kClasses});
    row(Confusion{.logits = of_classes,
                  .targets = memory.integers({rows}, kClasses),
                  .counts = memory.zeros(DType::i64, {kClasses, kClasses})},
        shape_text(of_classes));
    row(ClassifyPart{.logits = logits,
                     .targets = targets,
                     .stats = stats.range(0, kPartStats * rows),
                     .vocab = vocab},
        shape_text(logits));
    row(
        ClassifyLoss{
            .stats = stats, .targets = targets, .losses = losses, .lse = lse, .vocab = vocab},
        shape_text(stats));
    row(
        ClassifyGradient{
            .logits = logits, .targets = targets, .lse = lse, .scale = scale, .vocab = vocab},
        shape_text(logits));
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
        shape_text(losses));
    row(ValueLoss{.values = losses,
                  .targets = targets,
                  .returns = memory.floats(DType::f32, {losses.elements()}),
                  .scale = scale,
                  .losses = memory.zeros(DType::f32, {losses.elements()}),
                  .slopes = memory.zeros(DType::f32, {losses.elements()}),
                  .terms = {.weight = 0.1F, .clip = 0.2F}},
        shape_text(losses));
    row(PreferenceLoss{.target_losses = losses.range(0, 2 * half).reshaped({2, half}),
                       .targets = targets.range(0, 2 * half),
                       .reference = memory.zeros(DType::f64, {2}),
                       .scale = scale,
                       .losses = memory.zeros(DType::f32, {2}),
                       .slopes = memory.zeros(DType::f32, {2 * half}),
                       .statistics = memory.zeros(DType::f32, {kPreferenceStats}),
                       .terms = {PreferenceKind::dpo, 0.1F, 0}},
        shape_text(losses));
    const View outputs = memory.floats(type_, {half, 8}), scores = losses.range(0, half);
    row(Score{.logits = outputs, .targets = targets.range(0, half), .losses = scores},
        shape_text(outputs));
    row(ScoreGradient{.slopes = scores, .logits = outputs}, shape_text(outputs));
  }

  /// What optimizers do with gradients x, for parameters.
  void updates(const View& x, const View& parameters) {
    BenchMemory memory(tier_);
    const std::int64_t n = x.elements();
    const View m = memory.floats(DType::f32, {n}), v = memory.zeros(DType::f32, {n}),
               w = memory.floats(DType::f32, {n}),
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
                             .parameter = makes_parameter ? parameters : View(),
                             .sums = has_sums(pass) ? sums : View(),
                             .scalars = scalars,
                             .verdict = verdict};
      for (std::size_t s = state_count(rule); s < kMostStates; ++s) update.state[s] = {};
      if (rule == UpdateRule::frozen_lamb) update.factors = {factor, factor};
      row(update, shape_text(x));
    }
    row(
        MomentRatio{
            .gradient = x, .moment = v, .frozen = m, .largest = largest, .verdict = verdict},
        shape_text(x));
    row(AverageTrust{.sums = sums, .average = factor, .verdict = verdict}, shape_text(factor));
    row(FollowRatio{.largest = largest, .ratio = factor, .verdict = verdict}, shape_text(factor));
    const std::int64_t side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(n)));
    const View matrix = direction.range(0, side * side).reshaped({side, side}),
               squares = memory.zeros(DType::i64, {kExactSumWords});
    row(DivideByNorm{.x = direction, .squares = squares, .out = parameters}, shape_text(direction));
    row(SquarePolynomial{.x = matrix, .square = matrix, .out = matrix, .coefficients = {1, 0, 0}},
        shape_text(matrix));
  }

  void flat() {
    BenchMemory memory(tier_);
    const std::int64_t n = options_.elements;
    const View x = memory.floats(DType::f32, {n}), narrow = memory.floats(type_, {n});
    updates(x, narrow);
    row(ExactSum{.x = narrow, .accumulator = memory.zeros(DType::i64, {kExactSumWords})},
        shape_text(x));
    const View rows = memory.floats(DType::f32, {8, n / 8});
    row(ExactSums{.x = rows,
                  .into = memory.zeros(DType::i32, {8}),
                  .accumulators = memory.zeros(DType::i64, {2, kExactSumWords})},
        shape_text(rows));
    row(Fill{.out = narrow}, shape_text(x));
    const std::int64_t bytes = n / 64 * 64;
    row(TakeRow{.x = View(x.data, DType::u8, {4, bytes}),
                .next = memory.zeros(DType::i64, {1}),
                .out = View(narrow.data, DType::u8, {bytes})},
        shape_text(x));
    row(Convert{.x = x, .out = narrow}, shape_text(x));
    row(Convert{.x = narrow, .out = x, .write = Write::add}, shape_text(x) + ", added");
    row(
        OrderChunks{
            .x = rows, .out = memory.zeros(DType::f32, {8, n / 8}), .chunks = {.shares = 4}},
        shape_text(rows));
    merged(rows.reshaped({1, 8, n / 8}));
    remembered(narrow.range(0, n / 8 * 8).reshaped({1, 8, n / 8}));
    row(Blend{.y = x, .out = memory.floats(DType::f32, {n}), .keep = 0.9F, .add = 0.1F},
        shape_text(x));
    const View parts = memory.floats(DType::f32, {4, n / 4});
    row(TreeSum{.parts = parts, .out = narrow.range(0, n / 4)}, shape_text(parts));
    const View travelled = memory.floats(DType::bf16, {4, n / 4});
    row(TreeSum{.parts = travelled, .out = x.range(0, n / 4)}, shape_text(travelled) + ", of bf16");
    for (const BlockType type : kRoundedTypes)
      quantized({.type = type}, narrow.range(0, n / 4 * 4).reshaped({4, n / 4}));
    kept({.type = BlockType::nf4, .block = 64}, narrow);
  }

  /// What queries get of two sets of keys.
  void merged(const View& attended) {
    BenchMemory memory(tier_);
    const View lse = memory.zeros(DType::f32, {1, 1, attended.extent(1)});
    row(MergeAttention{.x = attended, .x_lse = lse, .out = attended, .lse = lse},
        shape_text(attended));
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
        shape_text(x));
  }

  /// Parameters that are kept as codes which the host has made.
  void kept(const BlockFormat& format, const View& x) {
    BenchMemory memory(tier_);
    const std::int64_t n = x.elements();
    row(SumQuantized{.code = memory.zeros(DType::u8, {1, 1, format.bytes(n)}),
                     .out = x.reshaped({1, n}),
                     .format = format},
        fmt::format("{}, {}", shape_text(x), enum_word(format.type)));
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
    const std::string shape = fmt::format("{}, {}", shape_text(x), enum_word(format.type));
    row(Quantize{.x = x.reshaped({parts, 1, n}),
                 .code = code.reshaped({1, parts, bytes}),
                 .format = format},
        shape);
    row(SumQuantized{.code = code.reshaped({1, parts, bytes}), .out = x, .format = format},
        shape + ", each");
    row(SumQuantized{.code = code, .out = x.row_range(0, 1), .format = format}, shape);
    row(RequantizeSum{.code = code, .sum = sum, .elements = n, .format = format}, shape);
  }

  BenchRows& rows_;
  Device& device_;
  memory::Tier& tier_;
  const BenchOptions& options_;
  DType type_;
};

}  // namespace

void bench_others(BenchRows& rows) { Others(rows).all(); }

void bench_sums_in_blocks(BenchRows& rows) {
  for (const BlockType type : kRoundedTypes) Others(rows).sum_in_blocks({.type = type});
}

}  // namespace tessera::backend
