#include "deck/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>

#include "core/bytes.hpp"
#include "core/terminal.hpp"
#include "deck/curriculum.hpp"
#include "deck/presets.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

class Checker {
 public:
  Checker(const LoadedDeck& loaded, Problems& problems)
      : loaded_(loaded), deck_(loaded.deck), problems_(problems) {}

  /// A name is no path: it may have parts, as "small/seed_1", but leads nowhere else.
  void names() {
    const RunSection& run = deck_.run;
    for (const auto& [key, text] : {std::pair{"run.name", run.name}, {"run.dir", run.dir}}) {
      if (printable(text) != text) {
        problem(key, fmt::format("{} = {} has characters that cannot be shown: it is the name of a "
                                 "directory, and stands in logs",
                                 key, value_excerpt({text, {}})));
      }
    }
    const std::filesystem::path name(run.name);
    if (name.is_absolute() || std::find(name.begin(), name.end(), "..") != name.end()) {
      problem("run.name",
              fmt::format("run.name = {} leads out of the directory of runs: give a name "
                          "without \"..\" and a leading \"/\", and the path as run.dir",
                          value_excerpt({run.name, {}})));
    }
  }

  void model() {
    const ModelSection& m = deck_.model;
    if (usable({"model.hidden", "model.heads"}) && !set("model.head_dim") &&
        m.hidden % m.heads != 0) {
      problem("model.hidden",
              fmt::format("model.hidden = {} is not a multiple of model.heads = {} (give a "
                          "multiple, or model.head_dim)",
                          m.hidden, m.heads));
    }
    if (usable({"model.heads", "model.kv_heads"}) && m.heads % m.kv_heads != 0) {
      problem("model.kv_heads", fmt::format("model.kv_heads = {} does not divide model.heads = {}",
                                            m.kv_heads, m.heads));
    }
    if (usable({"model.activation"}) && gated(m.activation) && !set("model.ffn_hidden")) {
      problem("model.ffn_hidden",
              fmt::format("model.ffn_hidden is missing: activation {} has no default width (8/3 of "
                          "model.hidden, rounded up, keeps the size of a gelu layer)",
                          enum_word(m.activation)));
    }
    rotary();
    attention();
  }

  /// A key that only has a meaning beside others.
  void needs(std::string_view key, bool used, bool good, std::string_view what) {
    if (usable({key}) && used && !good)
      problem(key, fmt::format("{} has no effect without {} (leave it out)", key, what));
  }

  /// Rotary positions, and that keys about them are not in vain.
  void rotary() {
    const ModelSection& m = deck_.model;
    const bool rope = m.position == PositionKind::rope;
    if (!usable({"model.position", "model.head_dim", "model.hidden", "model.heads"})) return;
    const auto turned = static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rotary_share);
    if (rope && m.rotary_share == 1 && m.head_dim % 2 != 0) {
      problem("model.head_dim",
              fmt::format("model.head_dim = {} is odd, but position rope turns pairs (give an even "
                          "one)",
                          m.head_dim));
    } else if (usable({"model.rotary_share"}) && rope && (turned < 2 || turned % 2 != 0)) {
      problem("model.rotary_share",
              fmt::format("model.rotary_share = {} turns {} of model.head_dim = {} columns, but "
                          "position rope turns pairs (let it be an even number of them)",
                          m.rotary_share, turned, m.head_dim));
    }
    needs("model.rotary_share", set("model.rotary_share") && m.rotary_share != 1, rope,
          "model.position = \"rope\"");
    needs("model.rope_pairs", m.rope_pairs != RopePairs::halves, rope, "model.position = \"rope\"");
    needs("model.rope_scaling", m.rope_scaling != RopeScalingKind::none, rope,
          "model.position = \"rope\"");
    const bool yarn = m.rope_scaling == RopeScalingKind::yarn;
    const bool ramp = yarn || m.rope_scaling == RopeScalingKind::llama3;
    constexpr const char* kRamp = "model.rope_scaling = \"llama3\" or \"yarn\"";
    needs("model.rope_factor", m.rope_factor != 1, m.rope_scaling != RopeScalingKind::none,
          "model.rope_scaling");
    for (const char* key : {"model.rope_low_frequency", "model.rope_high_frequency"})
      needs(key, find_row(key)->field.get(deck_) != find_row(key)->field.get(Deck{}), ramp, kRamp);
    const bool dynamic = m.rope_scaling == RopeScalingKind::dynamic;
    needs("model.rope_original_context", m.rope_original_context != 0, ramp || dynamic,
          "model.rope_scaling = \"dynamic\", \"llama3\" or \"yarn\"");
    needs("model.rope_magnitude", m.rope_magnitude != 0, yarn, "model.rope_scaling = \"yarn\"");
    if (dynamic) dynamic_positions(turned);
    if ((ramp || dynamic) && usable({"model.rope_original_context"}) &&
        m.rope_original_context == 0) {
      problem("model.rope_original_context",
              fmt::format("model.rope_original_context is missing: model.rope_scaling = \"{}\" "
                          "needs the longest sequence of the training before",
                          enum_word(m.rope_scaling)));
    }
    if (ramp && usable({"model.rope_low_frequency", "model.rope_high_frequency"}) &&
        m.rope_low_frequency >= m.rope_high_frequency) {
      problem(
          "model.rope_low_frequency",
          fmt::format("model.rope_low_frequency = {} is not below model.rope_high_frequency = {}",
                      m.rope_low_frequency, m.rope_high_frequency));
    }
  }

  /// What frequencies that follow the length of sequences need of it.
  void dynamic_positions(std::int64_t turned) {
    if (usable({"model.rotary_share"}) && turned == 2) {
      problem(
          "model.rope_scaling",
          "model.rope_scaling = \"dynamic\" changes the base of frequencies, but where 2 columns "
          "of a head turn their only frequency is 1 (leave it out)");
    }
    if (usable({"data.positions"}) && deck_.data.positions == Positions::document) {
      problem("model.rope_scaling",
              "model.rope_scaling = \"dynamic\" does not go with positions that documents begin "
              "anew: which length would decide depends on what else is in a micro-batch (let "
              "data.positions be \"sequence\")");
    }
    if (usable({"task.kind", "batch.sequence", "model.rope_original_context"}) &&
        has_classes(deck_.task.kind) && deck_.batch.sequence > deck_.model.rope_original_context) {
      problem("model.rope_scaling",
              fmt::format("model.rope_scaling = \"dynamic\" does not go with task.kind = \"{}\" "
                          "and batch.sequence = {}: a document would have other frequencies beside "
                          "padding than alone (give batch.sequence of at most "
                          "model.rope_original_context = {})",
                          enum_word(deck_.task.kind), deck_.batch.sequence,
                          deck_.model.rope_original_context));
    }
  }

  /// Windows, norms of q and k, biases, and what embeddings are.
  void attention() {
    const ModelSection& m = deck_.model;
    const bool rope = m.position == PositionKind::rope;
    needs("model.global_every", set("model.global_every") && m.global_every > 0, m.window > 0,
          "model.window");
    needs("model.rope_local_theta", set("model.rope_local_theta") && m.rope_local_theta > 0,
          m.window > 0 && rope, "model.window and model.position = \"rope\"");
    needs("model.attention_bias", set("model.attention_bias") && !m.attention_bias, m.bias,
          "model.bias = true");
    needs("model.qkv_bias", set("model.qkv_bias") && m.qkv_bias, !m.bias, "model.bias = false");
    if (usable({"model.scaled_embeddings", "model.position"}) && m.scaled_embeddings &&
        m.position == PositionKind::learned) {
      problem(
          "model.scaled_embeddings",
          "model.scaled_embeddings = true is not possible with model.position = \"learned\": only "
          "tokens are multiplied (use rope, sinusoidal or none)");
    }
    if (!usable({"model.qk_norm", "parallel.tensor", "zero.tiles", "run.reproducible_tensor"}) ||
        m.qk_norm != QkNorm::whole)
      return;
    const bool layout = deck_.run.reproducible == Reproducible::layout;
    const auto one_rank = [&](std::string_view key, std::int64_t value) {
      if (value == 1) return;
      problem(key,
              fmt::format("{} = {} is not possible with model.qk_norm = \"whole\", which needs "
                          "all heads at once (give 1; \"head\" and \"none\" need one head)",
                          key, value));
    };
    one_rank("parallel.tensor", deck_.parallel.tensor);
    one_rank("zero.tiles", deck_.zero.tiles);
    if (layout) one_rank("run.reproducible_tensor", deck_.run.reproducible_tensor);
  }

  void optimizer() {
    if (!usable({"optimizer.name"})) return;
    for (const std::string& key : unused_optimizer_keys(deck_.optimizer.name)) {
      if (set(key)) {
        problem(key, fmt::format("{} has no effect: optimizer.name = \"{}\" does not use it (leave "
                                 "it out)",
                                 key, enum_word(deck_.optimizer.name)));
      }
    }
    const auto& trust = deck_.optimizer.trust;
    if (usable({"optimizer.trust"}) && trust && (*trust)[0] > (*trust)[1]) {
      problem("optimizer.trust",
              fmt::format("optimizer.trust = [{}, {}]: the least factor is more than the largest "
                          "(exchange them)",
                          (*trust)[0], (*trust)[1]));
    }
  }

  /// Momentum that travels compressed leaves no summed gradient, and is whole on each rank.
  void compressed_momentum() {
    if (!usable({"optimizer.name", "optimizer.compress_after"}) || !deck_.optimizer.compress_after)
      return;
    const std::string name =
        fmt::format("optimizer.name = \"{}\"", enum_word(deck_.optimizer.name));
    const std::int64_t after = *deck_.optimizer.compress_after;
    if (after < 1) {
      problem(
          "optimizer.compress_after",
          fmt::format("optimizer.compress_after is missing: {} needs the number of updates that "
                      "come before momentum is compressed (some 15 % of the run)",
                      name));
    }
    const auto not_with = [&](std::string_view key, bool used, std::string_view why,
                              std::string_view remedy) {
      if (usable({key}) && used)
        problem(key, fmt::format("{} is not possible with {}: {} ({})", key, name, why, remedy));
    };
    if (usable({"run.steps"}) && deck_.run.steps && after >= *deck_.run.steps) {
      problem(
          "optimizer.compress_after",
          fmt::format("optimizer.compress_after = {} is not before the end of the run, run.steps "
                      "= {}: nothing would be compressed (give less, or use adamw or lamb)",
                      after, *deck_.run.steps));
    }
    const auto &least = deck_.optimizer.r_min, &most = deck_.optimizer.r_max;
    if (usable({"optimizer.r_min", "optimizer.r_max"}) && least && *least > *most) {
      problem("optimizer.r_min",
              fmt::format("optimizer.r_min = {} is more than optimizer.r_max = {} (exchange them)",
                          *least, *most));
    }
    not_with("optimizer.clip_norm", deck_.optimizer.clip_norm > 0,
             "no gradient is summed whose norm could be clipped", "set it to 0");
    not_with("optimizer.moments", deck_.optimizer.moments != SumPrecision::f32,
             "momentum is kept in f32", "leave it out");
    not_with("precision.accumulate", deck_.precision.accumulate != SumPrecision::f32,
             "momentum joins gradients in f32", "leave it out");
    not_with("zero.stage", deck_.zero.stage >= zero_stages(deck_.optimizer.name),
             "each rank keeps all momentum, so that little else would be sharded",
             "give 0, 1 or 2");
    not_with("zero.quantize.gradients", deck_.zero.quantize.gradients != QuantizedGradients::none,
             "momentum travels in the place of gradients", "leave it out");
    not_with("run.reproducible", deck_.run.reproducible == Reproducible::layout,
             "what rounding loses depends on the ranks", "use \"run\"");
  }

  void layout() {
    at_most("parallel.tensor", deck_.parallel.tensor, "model.heads", deck_.model.heads);
    at_most("parallel.pipeline", deck_.parallel.pipeline, "model.layers", deck_.model.layers);
    if (usable({"parallel.tensor", "parallel.sequence", "batch.sequence"}) &&
        deck_.parallel.sequence && deck_.batch.sequence % deck_.parallel.tensor != 0) {
      problem("batch.sequence",
              fmt::format("batch.sequence = {} does not divide over parallel.tensor = {} (give a "
                          "multiple, or parallel.sequence = false)",
                          deck_.batch.sequence, deck_.parallel.tensor));
    }
    if (usable({"parallel.pipeline", "parallel.schedule", "parallel.virtual_stages",
                "parallel.placement", "model.layers"})) {
      pipeline();
    }
    if (usable({"run.reproducible", "run.reproducible_tensor"})) reproducible();
    if (usable({"parallel.tensor", "zero.tiles", "model.heads"})) tiles();
  }

  /// Each tile has whole heads.
  void tiles() {
    const std::int64_t tensor = deck_.parallel.tensor, tiles = deck_.zero.tiles;
    if (tiles == 1 || tensor > deck_.model.heads) return;
    if (tiles > deck_.model.heads / tensor) {
      problem("zero.tiles",
              fmt::format("parallel.tensor x zero.tiles = {} x {} is more than model.heads = {}: "
                          "each tile has at least one head (give {} or less)",
                          tensor, tiles, deck_.model.heads, deck_.model.heads / tensor));
    }
  }

  void pipeline() {
    const ParallelSection& p = deck_.parallel;
    const bool interleaved = p.schedule == PipelineSchedule::interleaved;
    if (interleaved != (p.virtual_stages > 1)) {
      problem("parallel.virtual_stages",
              fmt::format("parallel.virtual_stages = {} with parallel.schedule = \"{}\": {}",
                          p.virtual_stages, enum_word(p.schedule),
                          interleaved ? "an interleaved schedule needs 2 or more"
                                      : "only schedule \"interleaved\" has more than one"));
    }
    if (interleaved && p.pipeline == 1) {
      problem("parallel.schedule",
              "parallel.schedule = \"interleaved\" needs parallel.pipeline = 2 or more");
    }
    const std::int64_t chunks = p.pipeline * p.virtual_stages;
    if (p.virtual_stages > 1 && chunks > deck_.model.layers) {
      problem("parallel.virtual_stages",
              fmt::format("parallel.pipeline x parallel.virtual_stages = {} x {} is more than "
                          "model.layers = {}",
                          p.pipeline, p.virtual_stages, deck_.model.layers));
    }
    const auto* first = std::get_if<std::vector<std::int64_t>>(&p.placement);
    if (first == nullptr) return;
    const bool rising =
        std::adjacent_find(first->begin(), first->end(), std::greater_equal<>()) == first->end();
    if (static_cast<std::int64_t>(first->size()) != chunks || !rising || first->front() != 0 ||
        first->back() >= deck_.model.layers) {
      problem("parallel.placement",
              fmt::format("parallel.placement = [{}] must be {} rising block numbers, 0 the first, "
                          "below model.layers = {}: the block that each chunk of each stage begins "
                          "with",
                          fmt::join(*first, ", "), chunks, deck_.model.layers));
    }
  }

  /// What batch.sequence must be a multiple of, its phases' lengths must.
  void curriculum() {
    const char* key = "batch.curriculum";
    const BatchSection& batch = deck_.batch;
    if (batch.curriculum.empty() || !usable({key, "batch.sequence"})) return;
    if (const auto what = curriculum_problem(batch.curriculum, batch.sequence))
      return problem(key, *what);
    const auto& after = deck_.optimizer.compress_after;
    const bool rows = usable({"optimizer.compress_after", "model.position"}) &&
                      deck_.model.position == PositionKind::learned;
    if (const auto last = phases(batch).back().step; after && rows && last > *after) {
      problem(key,
              fmt::format("{} goes on until step {}, but optimizer.compress_after = {}: learned "
                          "positions that come into use later would have no second moments "
                          "(let it end before, or compress later)",
                          key, last, *after));
    }
    const std::int64_t tensor = deck_.parallel.tensor, most = deck_.run.reproducible_tensor;
    const bool split = deck_.parallel.sequence && usable({"parallel.tensor", "parallel.sequence"});
    const bool layout = deck_.run.reproducible == Reproducible::layout &&
                        usable({"run.reproducible", "run.reproducible_tensor"});
    const char* given =
        batch.curriculum.table.empty() ? "start, end and round" : "the lengths of table";
    for (const LengthEntry& phase : phases(batch)) {
      const auto refuse = [&](const char* of, std::int64_t divisor, const char* other) {
        problem(key,
                fmt::format("{}: the {} tokens of sequences from step {} on do not divide "
                            "over {} = {} (give multiples of {} as {}{})",
                            key, phase.length, phase.step, of, divisor, divisor, given, other));
      };
      if (layout && phase.length % most != 0) return refuse("run.reproducible_tensor", most, "");
      if (split && phase.length % tensor != 0)
        return refuse("parallel.tensor", tensor, ", or parallel.sequence = false");
    }
  }

  /// What the same bits on every layout need.
  void reproducible() {
    const std::int64_t most = deck_.run.reproducible_tensor;
    if (deck_.run.reproducible != Reproducible::layout) {
      if (most > 1) {
        problem("run.reproducible_tensor",
                fmt::format("run.reproducible_tensor = {} has a meaning with run.reproducible = "
                            "\"layout\" only",
                            most));
      }
      return;
    }
    const auto needs = [&](std::string_view key, bool good, const std::string& what) {
      if (usable({key}) && !good)
        problem(key, fmt::format("run.reproducible = \"layout\" needs {}", what));
    };
    at_most("run.reproducible_tensor", most, "model.heads", deck_.model.heads);
    needs("run.reproducible_tensor", std::has_single_bit(static_cast<std::uint64_t>(most)),
          fmt::format("a power of two as run.reproducible_tensor, which is {}", most));
    needs("parallel.tensor", most % deck_.parallel.tensor == 0,
          fmt::format("a divisor of run.reproducible_tensor = {} as parallel.tensor, which is {}",
                      most, deck_.parallel.tensor));
    if (usable({"zero.tiles"}) && most % deck_.parallel.tensor == 0) {
      needs("zero.tiles", most / deck_.parallel.tensor % deck_.zero.tiles == 0,
            fmt::format("a divisor of run.reproducible_tensor / parallel.tensor = {} / {} as "
                        "zero.tiles, which is {}",
                        most, deck_.parallel.tensor, deck_.zero.tiles));
    }
    needs("batch.sequence", deck_.batch.sequence % most == 0,
          fmt::format("a multiple of run.reproducible_tensor = {} as batch.sequence, which is {}",
                      most, deck_.batch.sequence));
    needs("precision.compute", deck_.precision.compute != Precision::f16,
          "precision.compute f32 or bf16");
    needs("precision.accumulate", deck_.precision.accumulate == SumPrecision::f32,
          "precision.accumulate = \"f32\"");
    needs("precision.gradients", deck_.precision.gradients == SumPrecision::f32,
          "precision.gradients = \"f32\"");
    const QuantizeSection& q = deck_.zero.quantize;
    needs("zero.quantize.weights",
          q.weights == QuantizedWeights::none || q.weights == QuantizedWeights::automatic,
          "zero.quantize.weights = \"none\"");
    needs("zero.quantize.gradients",
          q.gradients == QuantizedGradients::none || q.gradients == QuantizedGradients::automatic,
          "zero.quantize.gradients = \"none\"");
    needs("run.threads", deck_.run.threads || std::getenv("OMP_NUM_THREADS") != nullptr,
          "run.threads in the deck, or OMP_NUM_THREADS in the environment");
  }

  void precision() {
    const PrecisionSection& p = deck_.precision;
    if (usable({"precision.matmul", "precision.compute"}) && p.matmul == Matmul::tf32 &&
        p.compute != Precision::f32) {
      problem("precision.matmul",
              fmt::format("precision.matmul = \"tf32\" is of precision.compute = \"f32\", not "
                          "\"{}\"",
                          enum_word(p.compute)));
    }
    if (usable({"precision.matmul", "precision.compute"}) && p.matmul == Matmul::fp8 &&
        p.compute == Precision::f16) {
      problem(
          "precision.matmul",
          "precision.matmul = \"fp8\" needs precision.compute = \"bf16\" or \"f32\": its scales "
          "do what loss scaling does for \"f16\"");
    }
    if (usable({"precision.accumulate", "precision.compute"}) &&
        p.accumulate == SumPrecision::bf16 && p.compute != Precision::bf16) {
      problem("precision.accumulate",
              fmt::format("precision.accumulate = \"bf16\" needs precision.compute = \"bf16\", "
                          "which is \"{}\" (sums of its products keep f32)",
                          enum_word(p.compute)));
    }
  }

  void offload() {
    const OffloadSection& o = deck_.offload;
    if (!usable({"offload.parameters", "offload.gradients", "offload.optimizer",
                 "offload.activations"}))
      return;
    if (usable({"offload.ahead"}) && set("offload.ahead") && !o.anything())
      problem("offload.ahead", "offload.ahead has no effect: nothing is offloaded (leave it out)");
    if (usable({"offload.optimizer_share"}) && o.optimizer_share != 1 &&
        o.optimizer == OffloadTier::none)
      problem(
          "offload.optimizer_share",
          "offload.optimizer_share has no effect: offload.optimizer is \"none\" (leave it out)");
    if (usable({"offload.nvme"}) && o.uses(OffloadTier::nvme) && o.nvme.empty())
      problem("offload.nvme",
              "what lives on \"nvme\" needs offload.nvme = [\"DIRECTORY\", ...] on local disks");
    if (usable({"offload.block"}) && o.block.count % 4096 != 0)
      problem("offload.block",
              fmt::format("offload.block = {} must be a multiple of 4096", o.block.count));
  }

  void quantization() {
    const QuantizeSection& q = deck_.zero.quantize;
    if (usable({"zero.quantize.gradients", "precision.gradients"}) &&
        q.gradients != QuantizedGradients::none && q.gradients != QuantizedGradients::automatic &&
        deck_.precision.gradients != SumPrecision::f32) {
      problem("zero.quantize.gradients",
              fmt::format("zero.quantize.gradients = \"{}\" and precision.gradients = \"{}\" both "
                          "say how gradients travel (leave one out)",
                          enum_word(q.gradients), enum_word(deck_.precision.gradients)));
    }
    const auto of_gradients = [&](std::string_view key, bool used) {
      if (usable({key, "zero.quantize.gradients"}) && used &&
          q.gradients == QuantizedGradients::none) {
        problem(key, fmt::format("{} has no effect: zero.quantize.gradients is \"none\" (set it to "
                                 "\"int4\" or \"int8\", or leave {} out)",
                                 key, key));
      }
    };
    of_gradients("zero.quantize.error_feedback", q.error_feedback);
    of_gradients("zero.quantize.stochastic", q.stochastic);
    const auto of_blocks = [&](std::string_view key, bool used) {
      if (usable({key, "zero.quantize.weights", "zero.quantize.gradients"}) && used &&
          q.weights == QuantizedWeights::none && q.gradients == QuantizedGradients::none) {
        problem(key, fmt::format("{} has no effect: zero.quantize.weights and .gradients are "
                                 "\"none\" (leave it out)",
                                 key));
      }
    };
    const bool signs = deck_.optimizer.compress_after.has_value();  // which go in chunks too
    of_blocks("zero.quantize.chunk", q.chunk != QuantizeSection{}.chunk && !signs);
    of_blocks("zero.quantize.block", q.block != QuantizeSection{}.block);
    if (usable({"zero.quantize.block"}) && q.block % 2 != 0) {
      problem("zero.quantize.block",
              fmt::format("zero.quantize.block = {} is odd (two int4 share a byte)", q.block));
    }
  }

  void data_and_batch() {
    if (usable({"data.train"}) && deck_.data.train.empty()) {
      problem("data.train", "data.train = [] names no token file");
    }
    if (usable({"data.validation", "evaluate.every"}) && deck_.evaluate.every > 0 &&
        deck_.data.validation.empty()) {
      problem("evaluate.every",
              fmt::format("evaluate.every = {} needs data.validation", deck_.evaluate.every));
    }
    if (!deck_.batch.token_budget)
      at_most("batch.sequence", deck_.batch.sequence, "model.context", deck_.model.context);
    constexpr std::int64_t kMostTokens = 0x7fffffff;  // libraries count rows in 32 bits
    const BatchSection& batch = deck_.batch;
    if (usable({"batch.micro", "batch.sequence"}) &&
        batch.micro > kMostTokens / std::max<std::int64_t>(1, batch.sequence)) {
      problem("batch.micro",
              fmt::format("batch.micro = {} makes micro-batches of more than {} tokens (give at "
                          "most {})",
                          batch.micro, kMostTokens, kMostTokens / batch.sequence));
    }
    const auto& ramp = deck_.batch.ramp;
    const auto stalled =
        std::adjacent_find(ramp.begin(), ramp.end(),
                           [](const RampEntry& a, const RampEntry& b) { return a.step >= b.step; });
    if (usable({"batch.ramp"}) && stalled != ramp.end()) {
      problem("batch.ramp", fmt::format("batch.ramp has step {} after step {} (steps must grow)",
                                        (stalled + 1)->step, stalled->step));
    }
    if (usable({"batch.ramp", "batch.lr_scaling", "batch.token_budget"}) && ramp.empty() &&
        !batch.token_budget && batch.lr_scaling != LrScaling::none) {
      problem("batch.lr_scaling",
              fmt::format("batch.lr_scaling = \"{}\" has no effect without batch.ramp or "
                          "batch.token_budget: all steps have the batch that optimizer.lr is for "
                          "(leave it out, or give batch.ramp)",
                          enum_word(batch.lr_scaling)));
    }
  }

  /// A mixture says of each of its corpora how much there is of it.
  void mixture() {
    const auto& train = deck_.data.train;
    const auto with = [&](auto member) {
      return std::ranges::count_if(train,
                                   [&](const DataEntry& e) { return (e.*member).has_value(); });
    };
    if (!usable({"data.train"})) return;
    const auto weights = with(&DataEntry::weight), epochs = with(&DataEntry::epochs);
    if (weights + epochs == 0) return;
    if (weights != std::ssize(train) && epochs != std::ssize(train)) {
      problem(
          "data.train",
          fmt::format("data.train has {} with a weight and {} with epochs, of {}: a mixture needs "
                      "one of these for all (weights add up to any number)",
                      count_text(weights, "entry", "entries"), epochs, train.size()));
    }
    if (usable({"batch.curriculum"}) && deck_.batch.curriculum.cuts_anew()) {
      problem(
          "data.train",
          "data.train is a mixture, which batch.curriculum with cut = \"anew\" does not cut (give "
          "cut = \"truncate\", or one corpus)");
    }
  }

  /// What is learned, and what attention must see for it.
  void task() {
    const TaskSection& task = deck_.task;
    if (!usable({"task.kind", "model.attention"})) return;
    const bool masked = task.kind == TaskKind::mlm, classes = has_classes(task.kind);
    const auto wanted = masked ? AttentionMask::bidirectional : AttentionMask::causal;
    if (!classes && deck_.model.attention != wanted) {
      problem("model.attention",
              fmt::format(
                  "model.attention = \"{}\" does not go with task.kind = \"{}\": {} (give \"{}\")",
                  enum_word(deck_.model.attention), enum_word(task.kind),
                  masked ? "a masked token would not see what follows it"
                         : "each token would see its target",
                  enum_word(wanted)));
    }
    const auto idle_unless = [&](bool used, const char* key, bool given) {
      if (used || !given) return;
      problem(key, fmt::format("{} has no effect with task.kind = \"{}\" (leave it out)", key,
                               enum_word(task.kind)));
    };
    idle_unless(masked, "task.masked", task.masked.has_value());
    idle_unless(masked, "task.mask_token", task.mask_token.has_value());
    idle_unless(masked, "task.never_masked", !task.never_masked.empty());
    idle_unless(classes, "task.labels", task.labels.has_value());
    idle_unless(task.kind == TaskKind::classify, "task.pooling", task.pooling.has_value());
    idle_unless(classes, "task.overlong", task.overlong.has_value());
    initial_head();
    if (masked) masked_tokens();
    if (classes) classification();
    const ModelSection& m = deck_.model;
    const bool dense = usable({"model.head_hidden"}) && m.head_hidden > 0;
    needs("model.head_norm", m.head_norm, dense, "model.head_hidden");
    needs("model.head_activation", m.head_activation != ModelSection{}.head_activation, dense,
          "model.head_hidden");
    if (usable({"model.head_activation"}) && gated(m.head_activation)) {
      problem(
          "model.head_activation",
          fmt::format("model.head_activation = \"{}\" is gated, which the head's dense layer is "
                      "not (give gelu, gelu_erf, relu or tanh)",
                      enum_word(m.head_activation)));
    }
    if (dense && m.tied_embeddings && m.head_hidden != m.hidden &&
        usable({"model.hidden", "model.tied_embeddings"})) {
      problem("model.head_hidden",
              fmt::format("model.head_hidden = {} is not model.hidden = {}, of which the token "
                          "matrix has columns that is the head's too (give {}, or "
                          "model.tied_embeddings = false)",
                          m.head_hidden, m.hidden, m.hidden));
    }
    if (usable({"model.norm_placed", "model.block"}) && m.norm_placed == NormPlacement::sum &&
        m.block != BlockForm::sequential) {
      problem(
          "model.norm_placed",
          fmt::format("model.norm_placed = \"sum\" does not go with model.block = \"{}\", where "
                      "both sub-layers are added to the same sum (give block = \"sequential\")",
                      enum_word(m.block)));
    }
  }

  void initial_head() {
    if (deck_.model.init_head != HeadWeights::fresh) return;
    const bool directory = deck_.model.init_from.has_value();
    needs("model.init_head", true, directory, "model.init_from");
    needs("model.init_head", directory, has_classes(deck_.task.kind),
          "task.kind = \"classify\" or \"tokens\"");
  }

  /// What a model directory would have had to say.
  std::string unknown_mask() const {
    const auto& directory = deck_.model.init_from;
    if (!directory) return "";
    return fmt::format(
        " ({} has no tokenizer.json that says so, and its config.json no \"mask_token_id\": give "
        "one of them)",
        *directory);
  }

  void masked_tokens() {
    const TaskSection& task = deck_.task;
    if (!usable({"task.masked", "task.mask_token", "task.never_masked", "model.vocab"})) return;
    if (task.masked.value_or(0) >= 1)
      problem("task.masked", fmt::format("task.masked = {} must be below 1", *task.masked));
    if (!task.mask_token) {
      problem("task.mask_token",
              fmt::format("task.mask_token is missing: task.kind = \"mlm\" needs the token that "
                          "stands for masked ones{}",
                          unknown_mask()));
    }
    const auto below = [&](const char* key, std::int64_t token) {
      if (token < deck_.model.vocab) return;
      problem(key, fmt::format("{}: token {} is not below model.vocab = {}", key, token,
                               deck_.model.vocab));
    };
    if (task.mask_token) below("task.mask_token", *task.mask_token);
    for (const std::int64_t token : task.never_masked) below("task.never_masked", token);
    count_targets_first();
  }

  /// Where it is not the same in each step.
  void count_targets_first() {
    if (!deck_.optimizer.compress_after || !usable({"optimizer.name"})) return;
    problem(
        "task.kind",
        fmt::format("task.kind = \"{}\" does not go with optimizer.name = \"{}\", whose gradients "
                    "join momentum before the number of targets that count is known (use adamw "
                    "or lamb)",
                    enum_word(deck_.task.kind), enum_word(deck_.optimizer.name)));
  }

  /// A document is a sample, followed by padding.
  void classification() {
    const TaskKind kind = deck_.task.kind;
    const auto refuse = [&](const char* key, bool given, const char* why) {
      if (usable({key}) && given)
        problem(key, fmt::format("{} does not go with task.kind = \"{}\": {}", key, enum_word(kind),
                                 why));
    };
    if (usable({"task.labels"}) && !deck_.task.labels) {
      problem("task.labels",
              fmt::format("task.labels is missing: task.kind = \"{}\" needs the number of classes, "
                          "which PREFIX.labels.json names",
                          enum_word(kind)));
    }
    if (kind == TaskKind::tokens) count_targets_first();
    refuse("task.pooling", kind == TaskKind::classify && deck_.task.pooling == Pooling::none,
           "a document has one class (give mean, first or last)");
    refuse("data.documents", deck_.data.documents != Documents::separate,
           "a sample is a document (leave it out)");
    refuse("data.separator", deck_.data.separator.has_value(),
           "documents and their labels are those of the .idx (leave it out)");
    refuse("batch.token_budget", deck_.batch.token_budget.has_value(),
           "a sample is one document (leave it out, and give batch.micro)");
    refuse("batch.curriculum", !deck_.batch.curriculum.empty(),
           "its labels are of all of it (leave it out)");
    refuse("model.tied_embeddings", deck_.model.tied_embeddings,
           "outputs are classes, not tokens (leave it out)");
    refuse("model.logit_soft_cap", deck_.model.logit_soft_cap > 0,
           "it is of tokens' logits (leave it out)");
  }

  /// A micro-batch of whole documents.
  void token_budget() {
    const auto& budget = deck_.batch.token_budget;
    if (!budget || !usable({"batch.token_budget", "batch.sequence", "batch.micro"})) return;
    const auto refuse = [&](const char* key, const std::string& what) {
      problem(key, fmt::format("{} with batch.token_budget = {}", what, *budget));
    };
    if (deck_.batch.sequence != *budget) {
      refuse("batch.sequence",
             fmt::format("batch.sequence = {} does not go (leave it out)", deck_.batch.sequence));
    }
    if (deck_.batch.micro != 1) {
      refuse("batch.micro", fmt::format("batch.micro = {} does not go, for a micro-batch is one "
                                        "sequence (leave it out)",
                                        deck_.batch.micro));
    }
    if (!usable({"data.documents", "data.positions", "data.separator", "batch.curriculum"})) return;
    if (deck_.data.documents != Documents::separate)
      refuse("data.documents", "data.documents = \"joined\" does not go (leave it out)");
    if (deck_.data.positions != Positions::document)
      refuse("data.positions", "data.positions = \"sequence\" does not go (leave it out)");
    if (deck_.data.separator) {
      refuse("data.separator",
             "data.separator does not go: where documents end is read from the .idx "
             "before the run begins (leave it out)");
    }
    if (!deck_.batch.curriculum.empty())
      refuse("batch.curriculum",
             "batch.curriculum does not go, which cuts sequences (leave one out)");
  }

  /// What documents that share a sequence are to each other.
  void documents() {
    const DataSection& data = deck_.data;
    if (!usable({"data.documents", "data.positions", "data.separator"})) return;
    if (data.separator && *data.separator >= deck_.model.vocab && usable({"model.vocab"})) {
      problem("data.separator", fmt::format("data.separator = {} is not below model.vocab = {}",
                                            *data.separator, deck_.model.vocab));
    }
    if (data.documents == Documents::joined) {
      if (data.positions == Positions::document) {
        problem(
            "data.positions",
            "data.positions = \"document\" needs data.documents = \"separate\": tokens that see "
            "other documents need positions that tell them apart");
      }
      if (data.separator) {
        problem("data.separator",
                "data.separator has no effect where data.documents = \"joined\" "
                "(leave it out, or give \"separate\")");
      }
      return;
    }
    if (deck_.optimizer.compress_after && usable({"optimizer.name"})) {
      problem(
          "data.documents",
          fmt::format("data.documents = \"separate\" does not go with optimizer.name = \"{}\", "
                      "whose gradients join momentum before the number of targets that count is "
                      "known (give \"joined\", or adamw or lamb)",
                      enum_word(deck_.optimizer.name)));
    }
  }

  void lengths() {
    if (!set("run.steps") && !set("run.epochs") && !set("run.tokens")) {
      problem("run.steps", "the run has no end: give run.steps, run.epochs or run.tokens");
    }
    at_most_one({"schedule.warmup_steps", "schedule.warmup_tokens", "schedule.warmup_epochs"});
    at_most_one({"schedule.decay_steps", "schedule.decay_tokens", "schedule.decay_epochs"});
    at_most_one({"schedule.step_size", "schedule.step_epochs"});
    const ScheduleSection& s = deck_.schedule;
    if (usable({"schedule.kind"}) && s.kind == ScheduleKind::step && !set("schedule.step_size") &&
        !set("schedule.step_epochs")) {
      problem("schedule.kind",
              "schedule.kind = \"step\" needs schedule.step_size, or schedule.step_epochs");
    }
    if (usable({"schedule.kind", "schedule.warmup_steps", "schedule.warmup_tokens",
                "schedule.warmup_epochs"}) &&
        s.kind == ScheduleKind::inverse_sqrt && !s.warmup_steps && !s.warmup_tokens &&
        !s.warmup_epochs) {
      problem("schedule.kind",
              "schedule.kind = \"inverse_sqrt\" needs a warm-up, from whose length the rate falls: "
              "give schedule.warmup_steps, warmup_tokens or warmup_epochs");
    }
    if (usable({"schedule.min_lr", "optimizer.lr"}) && s.min_lr > deck_.optimizer.lr) {
      problem("schedule.min_lr", fmt::format("schedule.min_lr = {} is more than optimizer.lr = {}",
                                             s.min_lr, deck_.optimizer.lr));
    }
  }

  void faults() {
    const auto& all = deck_.fault.inject;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto begin = all.begin(), end = begin + static_cast<std::ptrdiff_t>(i);
      if (std::find(begin, end, all[i]) == end) continue;
      problem("fault.inject",
              fmt::format("fault.inject has \"{}\" twice, but each happens once in a run",
                          to_text(all[i])));
    }
  }

  void log() {
    const auto& steps = deck_.log.profile;
    if (!usable({"log.profile"}) || !steps || steps->front() <= steps->back()) return;
    problem("log.profile", fmt::format("log.profile = [{}, {}] ends before it begins (give [first, "
                                       "last])",
                                       steps->front(), steps->back()));
  }

  void availability() {
    for (const SchemaRow& row : schema_rows()) {
      if (problems_.about(row.name) || row.is_built(deck_)) continue;
      problem(row.name, fmt::format("{} = {} is not available in this version ({})", row.name,
                                    value_excerpt(row.field.get(deck_)), row.available()));
    }
  }

 private:
  bool set(std::string_view key) const { return loaded_.origins.contains(key); }

  bool usable(std::initializer_list<std::string_view> keys) const {
    return std::none_of(keys.begin(), keys.end(),
                        [&](std::string_view key) { return problems_.about(key); });
  }

  void problem(std::string_view key, std::string text) {
    problems_.add(loaded_.place(key), key, std::move(text));
  }

  void at_most(std::string_view key, std::int64_t value, std::string_view limit_key,
               std::int64_t limit) {
    if (!usable({key, limit_key}) || value <= limit) return;
    problem(key, fmt::format("{} = {} is more than {} = {} (at most {})", key, value, limit_key,
                             limit, limit));
  }

  void at_most_one(std::initializer_list<std::string_view> keys) {
    std::string_view first;
    for (const std::string_view key : keys) {
      if (find_row(key)->field.get(deck_).unset()) continue;
      if (first.empty()) {
        first = key;
      } else {
        problem(key, fmt::format("{} and {} ({}) say the same thing: keep one", key, first,
                                 loaded_.where(first)));
      }
    }
  }

  const LoadedDeck& loaded_;
  const Deck& deck_;
  Problems& problems_;
};

}  // namespace

void check_deck(const LoadedDeck& loaded, Problems& problems) {
  Checker checker(loaded, problems);
  checker.names();
  checker.model();
  checker.optimizer();
  checker.compressed_momentum();
  checker.layout();
  checker.precision();
  checker.quantization();
  checker.offload();
  checker.data_and_batch();
  checker.mixture();
  checker.token_budget();
  checker.task();
  checker.documents();
  checker.curriculum();
  checker.lengths();
  checker.faults();
  checker.log();
  checker.availability();
}

}  // namespace tessera::deck
