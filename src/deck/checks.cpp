#include "deck/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <initializer_list>

#include "core/terminal.hpp"
#include "deck/deck_checker.hpp"
#include "deck/presets.hpp"
#include "deck/ranks.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

class Checker : DeckChecker {
 public:
  using DeckChecker::DeckChecker;

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
    latents();
  }

  /// Rotary positions, and that keys about them are not in vain.
  void rotary() {
    const ModelSection& m = deck_.model;
    const bool rope = m.position == PositionKind::rope;
    if (!usable({"model.position", "model.head_dim", "model.hidden", "model.heads"})) return;
    const bool latent = m.kv_latent > 0;
    const auto turned =
        latent ? m.rope_dim
               : static_cast<std::int64_t>(static_cast<double>(m.head_dim) * m.rotary_share);
    if (rope && !latent && m.rotary_share == 1 && m.head_dim % 2 != 0) {
      problem("model.head_dim",
              fmt::format("model.head_dim = {} is odd, but position rope turns pairs (give an even "
                          "one)",
                          m.head_dim));
    } else if (usable({"model.rotary_share"}) && rope && !latent &&
               (turned < 2 || turned % 2 != 0)) {
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
    needs("model.rope_mscale_all_dim", m.rope_mscale_all_dim != 0, yarn && latent,
          "model.rope_scaling = \"yarn\" and model.kv_latent");
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

  /// Keys and values that are made of latents, which every chunk makes an equal part of.
  void latents() {
    const ModelSection& m = deck_.model;
    const bool latent = m.kv_latent > 0;
    for (const auto& [key, value] : {std::pair{"model.q_latent", m.q_latent},
                                     {"model.rope_dim", m.rope_dim},
                                     {"model.value_dim", m.value_dim}})
      needs(key, value > 0, latent, "model.kv_latent");
    if (!latent || !usable({"model.kv_latent", "model.heads", "model.head_dim", "model.hidden"}))
      return;
    const std::string kind = fmt::format("model.kv_latent = {}", m.kv_latent);
    if (usable({"model.rope_dim"}) &&
        (m.rope_dim < 2 || m.rope_dim % 2 != 0 || m.rope_dim >= m.head_dim)) {
      problem(
          "model.rope_dim",
          fmt::format("model.rope_dim = {} is not possible with {}: it is the number of columns "
                      "that turn, in pairs, of the model.head_dim = {} of each head (give an "
                      "even number from 2 to {})",
                      m.rope_dim, kind, m.head_dim, (m.head_dim - 1) / 2 * 2));
    }
    not_with(kind, "model.position", m.position != PositionKind::rope,
             "positions are columns of heads", "use rope");
    not_with(kind, "model.rotary_share", m.rotary_share != 1,
             "model.rope_dim says how many columns turn", "leave it out");
    not_with(kind, "model.kv_heads", m.kv_heads != m.heads, "every head has keys of its own",
             "leave it out");
    not_with(kind, "model.bias", m.bias, "its products have no biases", "use false");
    not_with(kind, "model.qkv_bias", m.qkv_bias, "its products have no biases", "leave it out");
    not_with(kind, "model.qk_norm", m.qk_norm != QkNorm::none, "norms are of latents", "use none");
    if (!usable({"parallel.tensor", "zero.tiles", "run.reproducible", "run.reproducible_tensor"}))
      return;
    const std::int64_t chunks = tensor_chunks(deck_);
    for (const auto& [key, value] : {std::pair{"model.kv_latent", m.kv_latent},
                                     {"model.q_latent", m.q_latent},
                                     {"model.rope_dim", m.rope_dim},
                                     {"model.heads", m.heads}}) {
      if (value % chunks == 0 || !usable({key})) continue;
      const bool layout = deck_.run.reproducible == Reproducible::layout;
      problem(key, fmt::format("{} = {} does not divide over {} = {}: with model.kv_latent each "
                               "part makes as much (give so many parts that {} is a multiple of "
                               "their number)",
                               key, value,
                               layout ? "run.reproducible_tensor" : "parallel.tensor x zero.tiles",
                               chunks, value));
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
    if (usable({"data.positions", "batch.token_budget"}) &&
        deck_.data.positions == Positions::document) {
      problem("model.rope_scaling",
              fmt::format("model.rope_scaling = \"dynamic\" does not go with positions that "
                          "documents begin anew: which length would decide depends on what else is "
                          "in a micro-batch ({})",
                          deck_.batch.token_budget ? "leave batch.token_budget out"
                                                   : "let data.positions be \"sequence\""));
    }
    if (usable({"task.kind", "batch.sequence", "model.rope_original_context"}) &&
        one_document_each(deck_.task.kind) && !deck_.batch.token_budget &&
        deck_.batch.sequence > deck_.model.rope_original_context) {
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
    needs("model.global_every", m.global_every > 0, m.window > 0, "model.window");
    needs("model.rope_local_theta", m.rope_local_theta > 0, m.window > 0 && rope,
          "model.window and model.position = \"rope\"");
    needs("model.attention_bias", !m.attention_bias, m.bias, "model.bias = true");
    needs("model.qkv_bias", m.qkv_bias, !m.bias, "model.bias = false");
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
    at_most("parallel.tensor", deck_.parallel.tensor, "model.ffn_hidden", deck_.model.ffn_hidden);
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
    at_most("run.reproducible_tensor", most, "model.ffn_hidden", deck_.model.ffn_hidden);
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
  }

  /// Rows of feed-forward layers that go through them in groups.
  void rows_in_groups() {
    if (!usable({"memory.ffn"}) || deck_.memory.ffn == 0) return;
    const std::string rows = fmt::format("memory.ffn = {}", deck_.memory.ffn);
    not_with(rows, "precision.matmul", deck_.precision.matmul == Matmul::fp8,
             "a scale belongs to all rows of a micro-batch", "use \"same\", or memory.ffn = 0");
    not_with(
        rows, "parallel.schedule",
        deck_.parallel.pipeline != 1 && deck_.parallel.schedule == PipelineSchedule::zero_bubble,
        "it puts off gradients of weights, and keeps what they are made of",
        "use another, or memory.ffn = 0");
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
  checker.rows_in_groups();
  checker.quantization();
  checker.offload();
  check_data(loaded, problems);
  checker.faults();
  checker.log();
  checker.availability();
  check_context(loaded, problems);
  check_experts(loaded, problems);
  check_adapter(loaded, problems);
}

}  // namespace tessera::deck
