#include "model/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/pattern.hpp"

namespace tessera::model {
namespace {

ParamDesc matrix(std::string name, std::int64_t rows, std::int64_t cols, double std) {
  return {.name = std::move(name),
          .shape = {rows, cols},
          .stored_rows = rows,
          .init = Init::normal,
          .init_std = std};
}

ParamDesc vector(std::string name, std::int64_t size, Init init = Init::zeros) {
  return {.name = std::move(name), .shape = {size}, .stored_rows = size, .init = init};
}

ParamDesc cut(ParamDesc p, int axis, std::int64_t granule = 1) {
  p.tensor_axis = axis;
  p.granule = granule;
  return p;
}

ParamDesc of_heads(ParamDesc p, std::int64_t rows) {
  p.head_rows = rows;
  return p;
}

ParamDesc joined(ParamDesc p) {
  p.joined = true;
  return p;
}

ParamDesc latent(ParamDesc p) {
  p.latent = true;
  return p;
}

void add_norm(std::vector<ParamDesc>& params, const ModelConfig& c, const std::string& prefix) {
  params.push_back(vector(prefix + ".weight", c.hidden, Init::ones));
  if (c.norm == NormKind::layernorm && c.bias) params.push_back(vector(prefix + ".bias", c.hidden));
}

/// Initial standard deviation of a layer's projections back into the residual stream.
double residual_std(const ModelConfig& c, std::int64_t layer) {
  const std::int64_t layers = c.init == InitScale::scaled  ? c.layers
                              : c.init == InitScale::depth ? layer + 1
                                                           : 0;
  return layers == 0 ? c.init_std : c.init_std / std::sqrt(2.0 * static_cast<double>(layers));
}

/// Whose matrices are cut, or whole in one chunk.
enum class MatricesOf : std::uint8_t { layer, experts, whole_experts };

/// The matrices of `count` feed-forward layers of `hidden` columns, whose names begin with those
/// that `prefix` gives: first those that make these columns, which one product serves if there are
/// several, then those behind the activation.
void add_matrices(std::vector<ParamDesc>& params, const ModelConfig& c, std::int64_t count,
                  std::int64_t hidden, double out_std, MatricesOf form,
                  const std::function<std::string(std::int64_t)>& prefix) {
  std::int64_t number = 0;
  const auto add = [&](bool first, ParamDesc p, int axis) {
    p = cut(std::move(p), axis);
    if (form != MatricesOf::layer) p.expert = number, p.experts = count;
    p.undivided = form == MatricesOf::whole_experts;
    params.push_back(first ? std::move(p) : joined(std::move(p)));
  };
  for (number = 0; number < count; ++number) {
    const auto in = [&](const char* name) {
      return matrix(prefix(number) + name, hidden, c.hidden, c.init_std);
    };
    if (gated(c.activation)) add(number == 0, in("gate.weight"), 0);
    add(number == 0 && !gated(c.activation), in("up.weight"), 0);
  }
  for (number = 0; number < count; ++number)
    add(number == 0, matrix(prefix(number) + "down.weight", c.hidden, hidden, out_std), 1);
}

/// The matrices of a layer's feed-forward, or of its experts and their router.
void add_feed_forward(std::vector<ParamDesc>& params, const ModelConfig& c, std::int64_t layer,
                      const std::string& mlp, double out_std, ExpertSplit split) {
  const ExpertsConfig& e = c.experts;
  if (!e.in(layer)) {
    return add_matrices(params, c, 1, c.ffn_hidden, out_std, MatricesOf::layer,
                        [&](std::int64_t) { return mlp; });
  }
  params.push_back(matrix(mlp + "router.weight", e.router_rows(), c.hidden, c.init_std));
  add_matrices(params, c, e.count, e.hidden, out_std,
               split == ExpertSplit::experts ? MatricesOf::whole_experts : MatricesOf::experts,
               [&](std::int64_t i) { return fmt::format("{}expert.{}.", mlp, i); });
  if (e.shared_hidden > 0) {
    add_matrices(params, c, 1, e.shared_hidden, out_std, MatricesOf::layer,
                 [&](std::int64_t) { return mlp + "shared."; });
  }
}

/// How heads are cut for `chunks` tensor ranks: between heads of keys and values, with the queries
/// that read them; between queries where all ranks have all keys, which are fewer.
class HeadCut {
 public:
  HeadCut(const ModelConfig& c, std::int64_t chunks)
      : whole_keys_(c.kv_heads < chunks), queries_(whole_keys_ ? 1 : c.heads / c.kv_heads) {}

  /// What has `size` along `axis` for each head of queries.
  ParamDesc of_queries(ParamDesc p, std::int64_t size, int axis = 0) const {
    return cut(std::move(p), axis, queries_ * size);
  }
  /// What has `rows` for each head of keys or values.
  ParamDesc of_keys(ParamDesc p, std::int64_t rows) const {
    return whole_keys_ ? std::move(p) : joined(cut(std::move(p), 0, rows));
  }

 private:
  bool whole_keys_;
  std::int64_t queries_;  // that stay together
};

/// What makes queries, keys and values of a layer's input, and the output matrix.
void add_attention(std::vector<ParamDesc>& p, const ModelConfig& c, const std::string& attention,
                   const HeadCut& by_heads, double out_std) {
  const auto heads = [&](const char* name, std::int64_t count, std::int64_t rows) {
    return of_heads(matrix(attention + name, count * rows, c.hidden, c.init_std), rows);
  };
  p.push_back(by_heads.of_queries(heads("q.weight", c.heads, c.head_dim), c.head_dim));
  p.push_back(by_heads.of_keys(heads("k.weight", c.kv_heads, c.head_dim), c.head_dim));
  p.push_back(by_heads.of_keys(heads("v.weight", c.kv_heads, c.values()), c.values()));
  p.push_back(by_heads.of_queries(
      matrix(attention + "out.weight", c.hidden, c.heads * c.values(), out_std), c.values(), 1));
}

/// The same where keys and values are made of latents, which one product makes of the input.
void add_latent_attention(std::vector<ParamDesc>& p, const ModelConfig& c,
                          const std::string& attention, double out_std) {
  const auto add = [&](bool first, ParamDesc d, std::int64_t granule = 1) {
    d = cut(std::move(d), 0, granule);
    p.push_back(first ? std::move(d) : joined(std::move(d)));
  };
  const auto of_input = [&](const char* name, std::int64_t rows) {
    return latent(matrix(attention + name, rows, c.hidden, c.init_std));
  };
  const auto heads = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return of_heads(matrix(attention + name, c.heads * rows, columns, c.init_std), rows);
  };
  const std::int64_t own = c.head_dim - c.latent.rope;
  if (c.latent.q > 0) add(true, of_input("q_latent.weight", c.latent.q));
  add(c.latent.q == 0, of_input("kv_latent.weight", c.latent.kv));
  add(false, of_input("k_rope.weight", c.latent.rope));
  add(true, heads("q.weight", c.head_dim, c.latent.q > 0 ? c.latent.q : c.hidden), c.head_dim);
  add(true, heads("k.weight", own, c.latent.kv), own);
  add(false, heads("v.weight", c.values(), c.latent.kv), c.values());
  p.push_back(cut(matrix(attention + "out.weight", c.hidden, c.heads * c.values(), out_std), 1,
                  c.values()));
  if (c.latent.q > 0)
    p.push_back(vector(attention + "q_latent_norm.weight", c.latent.q, Init::ones));
  p.push_back(vector(attention + "kv_latent_norm.weight", c.latent.kv, Init::ones));
}

UnitDesc block(const ModelConfig& c, std::int64_t layer, std::int64_t chunks, ExpertSplit split) {
  UnitDesc unit{.name = fmt::format("block.{}", layer), .kind = UnitKind::block, .params = {}};
  const std::string attention = unit.name + ".attention.", mlp = unit.name + ".mlp.";
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const double out_std = residual_std(c, layer);
  const HeadCut by_heads(c, chunks);
  auto& p = unit.params;
  if (c.latent) {
    add_latent_attention(p, c, attention, out_std);
  } else {
    add_attention(p, c, attention, by_heads, out_std);
  }
  add_feed_forward(p, c, layer, mlp, out_std, split);
  if (c.norms_inputs()) add_norm(p, c, unit.name + ".norm1");
  if (c.norms_inputs() && c.block != BlockForm::parallel_one_norm)
    add_norm(p, c, unit.name + ".norm2");
  for (const char* sub_layer : {".norm1_out", ".norm2_out"})
    if (c.norms_outputs() || c.norms_sums()) add_norm(p, c, unit.name + sub_layer);
  if (c.qk_norm != QkNorm::none) {
    const bool whole = c.qk_norm == QkNorm::whole;
    p.push_back(vector(attention + "q_norm.weight", whole ? q : c.head_dim, Init::ones));
    p.push_back(vector(attention + "k_norm.weight", whole ? kv : c.head_dim, Init::ones));
  }
  const bool attention_bias = c.bias && c.attention_bias;
  if (attention_bias || c.qkv_bias) {
    p.push_back(by_heads.of_queries(vector(attention + "q.bias", q), c.head_dim));
    p.push_back(by_heads.of_keys(vector(attention + "k.bias", kv), c.head_dim));
    p.push_back(by_heads.of_keys(vector(attention + "v.bias", kv), c.head_dim));
  }
  if (attention_bias) p.push_back(vector(attention + "out.bias", c.hidden));
  if (c.bias && !c.experts.in(layer)) {
    const auto up_bias = cut(vector(mlp + "up.bias", c.ffn_hidden), 0);
    if (gated(c.activation)) {
      p.push_back(cut(vector(mlp + "gate.bias", c.ffn_hidden), 0));
      p.push_back(joined(up_bias));
    } else {
      p.push_back(up_bias);
    }
    p.push_back(vector(mlp + "down.bias", c.hidden));
  }
  return unit;
}

/// A parameter with a row for each output, `rows` of them with padding. Rows of tokens are cut, and
/// those of classes, which are few, are not.
ParamDesc of_outputs(ParamDesc p, const ModelConfig& c, std::int64_t rows) {
  p.stored_rows = rows;
  return c.head.labels > 0 ? p : cut(std::move(p), 0);
}

UnitDesc vocabulary(const ModelConfig& c) {
  UnitDesc unit{.name = "vocabulary",
                .kind = UnitKind::vocabulary,
                .params = {cut(matrix("vocabulary.weight", c.vocab, c.hidden, c.init_std), 0)}};
  unit.params[0].stored_rows = c.padded_vocab();
  return unit;
}

UnitDesc positions(const ModelConfig& c) {
  UnitDesc unit{.name = "positions",
                .kind = UnitKind::positions,
                .params = {matrix("positions.weight", c.context, c.hidden, c.init_std)}};
  if (c.position == PositionKind::sinusoidal) {
    unit.params[0].init = Init::sinusoids;
    unit.traits.trained = false;
  }
  return unit;
}

UnitDesc head_dense(const ModelConfig& c) {
  UnitDesc unit{.name = "head_dense",
                .kind = UnitKind::head_dense,
                .params = {matrix("head_dense.weight", c.head.hidden, c.hidden, c.init_std),
                           vector("head_dense.bias", c.head.hidden)}};
  if (!c.head.norm) return unit;
  unit.params.push_back(vector("head_dense.norm.weight", c.head.hidden, Init::ones));
  if (c.norm == NormKind::layernorm)
    unit.params.push_back(vector("head_dense.norm.bias", c.head.hidden));
  return unit;
}

/// Adds a unit as `tiles` units, each with a part of the chunks of all its parameters.
void add_tiles(std::vector<UnitDesc>& units, UnitDesc unit, std::int64_t tiles) {
  if (tiles == 1) return units.push_back(std::move(unit));
  const std::string name = unit.name;
  for (std::int64_t i = 0; i < tiles; ++i) {
    unit.name = fmt::format("{}.{}", name, i);
    unit.tile = {.index = i, .count = tiles};
    units.push_back(unit);
  }
}

/// Whether it may travel quantised.
bool in_blocks(const ParamDesc& p, std::int64_t chunks) {
  return p.is_matrix() && (p.tensor_axis >= 0 || chunks == 1);
}
/// Whether it may be kept as codes: a router's choices are nothing that may be rounded.
bool in_codes(const ParamDesc& p, std::int64_t chunks) {
  return in_blocks(p, chunks) && !p.name.ends_with(".mlp.router.weight");
}

/// The experts of a block, as a unit of their own, or nothing. They are taken out of it.
UnitDesc take_experts(UnitDesc& block) {
  UnitDesc experts = block;
  experts.name = block.name + ".experts";
  experts.kind = UnitKind::block_part;
  experts.traits.shared_by = MeshGroup::replicas;
  std::erase_if(experts.params, [](const ParamDesc& p) { return p.experts == 0; });
  std::erase_if(block.params, [](const ParamDesc& p) { return p.experts > 0; });
  return experts;
}

/// What is kept of how often each of a block's experts is chosen.
UnitDesc balance(const ModelConfig& c, const UnitDesc& block) {
  const std::string_view name = c.experts.keeps_shares() ? kRouterShares : ".mlp.router.bias";
  return {.name = block.name + ".balance",
          .kind = UnitKind::block_part,
          .params = {vector(fmt::format("{}{}", block.name, name), c.experts.count)},
          .traits = {.trained = false,
                     .stored = {},
                     .type = DType::f32,
                     .divided = false,
                     .balances = c.experts.balance},
          .layer = block.name,
          .tile = {}};
}

/// Adds a block: what is in no tile and not quantised, then the tiles of each sub-layer, or all
/// that is quantised.
void add_block(std::vector<UnitDesc>& units, const UnitDesc& block, std::int64_t chunks,
               const UnitDivision& division) {
  const bool tiled = division.tiles > 1;
  if (!tiled && division.block == 0 && !division.codes) return units.push_back(block);
  const auto apart = [&](const ParamDesc& p) {
    return (!tiled || (p.tensor_axis >= 0 && !p.latent)) &&
           (division.block == 0 || in_blocks(p, chunks)) &&
           (!division.codes || in_codes(p, chunks));
  };
  UnitDesc rest = block;
  std::erase_if(rest.params, apart);
  units.push_back(std::move(rest));
  const auto add = [&](const char* name, const std::string& of) {
    UnitDesc part = block;
    part.name = fmt::format("{}.{}", block.name, name);
    part.kind = UnitKind::block_part;
    std::erase_if(part.params,
                  [&](const ParamDesc& p) { return !apart(p) || !p.name.starts_with(of); });
    add_tiles(units, std::move(part), division.tiles);
  };
  if (!tiled) return add("matrices", block.name + ".");
  for (const char* sub : {"attention", "mlp"}) add(sub, fmt::format("{}.{}.", block.name, sub));
}

/// The adapters of a block, in a unit of its own: it is trained, and travels as it is. Their
/// magnitudes are another one, in f32: they are numbers about 1 whose steps bf16 would lose.
void add_adapters(std::vector<UnitDesc>& units, const AdapterConfig& adapter,
                  const UnitDesc& block) {
  UnitDesc unit{.name = block.name + ".adapter",
                .kind = UnitKind::block_part,
                .params = {},
                .traits = {},
                .layer = block.name,
                .tile = {}};
  UnitDesc magnitudes = unit;
  magnitudes.name = block.name + ".magnitudes";
  magnitudes.traits.type = DType::f32;
  for (const ParamDesc& p : block.params) {
    const bool wanted = std::ranges::any_of(adapter.targets, [&](const std::string& pattern) {
      return matches_pattern(pattern, p.name);
    });
    if (!wanted || !adapter_target(block.name, p.name)) continue;
    const std::string stem = p.name.substr(0, p.name.rfind('.'));
    const std::int64_t out = p.shape[0], in = p.shape[1];
    // The variance of PEFT's A, which is uniform within 1 / sqrt(in).
    const double std = 1 / std::sqrt(3.0 * static_cast<double>(in));
    ParamDesc a = matrix(stem + std::string(kAdapterA), adapter.rank, in, std);
    ParamDesc b = matrix(stem + std::string(kAdapterB), out, adapter.rank, 0);
    b.init = Init::zeros;
    if (p.tensor_axis == 0) b = cut(std::move(b), 0, p.granule);
    if (p.tensor_axis == 1) a = cut(std::move(a), 1, p.granule);
    unit.params.push_back(std::move(a));
    unit.params.push_back(std::move(b));
    if (!adapter.magnitudes) continue;
    ParamDesc magnitude = vector(stem + std::string(kAdapterMagnitude), out, Init::ones);
    if (p.tensor_axis == 0) magnitude = cut(std::move(magnitude), 0, p.granule);
    magnitudes.params.push_back(std::move(magnitude));
  }
  if (!unit.params.empty()) units.push_back(std::move(unit));
  if (!magnitudes.params.empty()) units.push_back(std::move(magnitudes));
}

/// Freezes what the configuration says: beside adapters all other units, else layers.
void freeze(std::vector<UnitDesc>& units, const ModelConfig& c) {
  for (UnitDesc& unit : units) {
    const bool named = std::ranges::any_of(
        c.frozen, [&](const std::string& pattern) { return matches_pattern(pattern, unit.layer); });
    const bool beside = unit.has_adapters() || unit.kind == UnitKind::value_head;
    if (!named && (c.adapter.rank == 0 || beside)) continue;
    unit.traits.trained = false;
    if (unit.traits.balances == kernels::BalanceBy::bias) unit.traits.balances.reset();
  }
}

bool is_of_layer(const UnitDesc& unit) {
  return unit.kind == UnitKind::block || unit.kind == UnitKind::block_part;
}

/// Keeps frozen units of layers as codes that have nothing but what may be.
void keep_as_codes(std::vector<UnitDesc>& units, std::int64_t chunks,
                   const kernels::BlockFormat& format) {
  for (UnitDesc& unit : units) {
    const bool all =
        std::ranges::all_of(unit.params, [&](const ParamDesc& p) { return in_codes(p, chunks); });
    if (unit.traits.trained || !is_of_layer(unit) || !all || unit.params.empty()) continue;
    unit.traits.stored = {.type = DType::u8, .codes = format};
    unit.traits.block = format.block;
  }
}

}  // namespace

bool may_be_codes(const UnitDesc& unit, const ParamDesc& p) {
  return is_of_layer(unit) && in_codes(p, 1) && !unit.has_adapters();
}

std::optional<std::size_t> adapter_target(std::string_view layer, std::string_view parameter) {
  for (std::size_t i = 0; i < kAdapterTargets.size(); ++i) {
    if (parameter == fmt::format("{}.{}.weight", layer, kAdapterTargets[i])) return i;
  }
  return std::nullopt;
}

namespace {

std::optional<std::string> without_end(std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  return std::string(name.substr(0, name.size() - end.size()));
}

}  // namespace

std::optional<std::string> adapted_by(std::string_view parameter) {
  return without_end(parameter, kAdapterA);
}

std::optional<std::string> measured_by(std::string_view parameter) {
  return without_end(parameter, kAdapterMagnitude);
}

std::int64_t ParamDesc::elements() const {
  std::int64_t n = 1;
  for (auto extent : shape) n *= extent;
  return n;
}

std::int64_t ParamDesc::stored_elements() const { return elements() / shape[0] * stored_rows; }

MatrixRange ParamDesc::part(std::int64_t chunk, const TensorCut& cut) const {
  MatrixRange all{{0, stored_rows}, {0, elements() / shape[0]}};
  if (tensor_axis < 0) return all;
  if (!undivided) {
    Range& axis = tensor_axis == 0 ? all.rows : all.columns;
    const Range granules = even_part(ceil_div(axis.count(), granule), chunk, cut.chunks);
    axis = {granules.begin * granule, std::min(axis.end, granules.end * granule)};
  }
  if (experts == 0) return all;
  const Range of_chunk = undivided ? even_part(experts, chunk, cut.chunks) : Range{0, experts},
              own = even_part(of_chunk.count(), cut.expert_rank, cut.expert_ranks);
  const std::int64_t at = expert - of_chunk.begin;
  if (at < own.begin || at >= own.end) all.rows = {0, 0};
  return all;
}

bool UnitDesc::is(const ParamDesc& p, std::string_view local) const {
  return p.name.size() == layer.size() + 1 + local.size() && p.name.ends_with(local) &&
         p.name[layer.size()] == '.' && p.name.starts_with(layer);
}

bool UnitDesc::has(std::string_view local) const {
  return std::ranges::any_of(params, [&](const ParamDesc& p) { return is(p, local); });
}

bool UnitDesc::has_adapters() const {
  return !params.empty() && (adapted_by(params[0].name) || measured_by(params[0].name));
}

std::size_t UnitDesc::index_of(std::string_view local) const {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (is(params[i], local)) return i;
  }
  throw InternalError(fmt::format("unit {} has no parameter {}", name, local));
}

std::vector<UnitDesc> model_units(const ModelConfig& c, std::int64_t chunks,
                                  const UnitDivision& division) {
  std::vector<UnitDesc> units;
  const auto add_norm_unit = [&](const char* name, UnitKind kind) {
    units.push_back({.name = name, .kind = kind, .params = {}});
    add_norm(units.back().params, c, name);
  };
  add_tiles(units, vocabulary(c), division.tiles);
  if (c.position_table()) units.push_back(positions(c));
  if (c.embedding_norm) add_norm_unit("embedding_norm", UnitKind::embedding_norm);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const UnitDesc whole = block(c, i, chunks, division.experts);
    UnitDesc own = whole, experts;
    if (division.expert_ranks) experts = take_experts(own);
    add_block(units, own, chunks, division);
    if (!experts.params.empty()) units.push_back(std::move(experts));
    if (c.experts.balance && c.experts.in(i)) units.push_back(balance(c, whole));
    if (c.adapter.rank > 0) add_adapters(units, c.adapter, whole);
  }
  if (c.final_norm()) add_norm_unit("final_norm", UnitKind::final_norm);
  if (c.head.hidden > 0) units.push_back(head_dense(c));
  if (!c.tied_embeddings) {
    const auto weight = matrix("head.weight", c.outputs(), c.head_columns(), c.init_std);
    add_tiles(units,
              {.name = "head",
               .kind = UnitKind::head,
               .params = {of_outputs(weight, c, c.padded_outputs())}},
              c.head.labels > 0 ? 1 : division.tiles);
  }
  if (c.head.bias) {
    units.push_back(
        {.name = "head_bias",
         .kind = UnitKind::head_bias,
         .params = {of_outputs(vector("head_bias.bias", c.outputs()), c, c.padded_outputs())}});
  }
  if (c.head.values) {
    ParamDesc weight = matrix(fmt::format("{}weight", kValueHead), 1, c.hidden, 0);
    weight.init = Init::zeros;
    units.push_back({.name = "value_head",
                     .kind = UnitKind::value_head,
                     .params = {weight, vector(fmt::format("{}bias", kValueHead), 1)}});
  }
  for (UnitDesc& unit : units) {
    const auto travels = [&](const ParamDesc& p) { return in_blocks(p, chunks); };
    if (std::ranges::all_of(unit.params, travels) && !unit.has_adapters())
      unit.traits.block = division.block;
  }
  freeze(units, c);
  if (division.codes) keep_as_codes(units, chunks, *division.codes);
  return units;
}

Range own_chunks(const UnitDesc& unit, const TensorCut& cut) {
  const Range own = even_part(cut.own(), unit.tile.index, unit.tile.count);
  return {cut.first() + own.begin, cut.first() + own.end};
}

std::int64_t parameter_count(std::span<const UnitDesc> units) {
  std::int64_t n = 0;
  for (const auto& unit : units) {
    for (const auto& p : unit.params) {
      n += p.tensor_axis < 0 ? p.elements()
                             : even_part(p.elements(), unit.tile.index, unit.tile.count).count();
    }
  }
  return n;
}

std::int64_t trained_count(std::span<const UnitDesc> units) {
  std::int64_t n = 0;
  for (const auto& unit : units)
    n += unit.traits.trained ? parameter_count(std::span(&unit, 1)) : 0;
  return n;
}

double flop_per_token(const ModelConfig& c, std::int64_t sequence) {
  auto units = model_units(c);
  if (c.head.pooling != Pooling::none) {
    std::erase_if(units, [](const UnitDesc& unit) {
      using enum UnitKind;
      return unit.kind == head_dense || unit.kind == head || unit.kind == head_bias;
    });
  }
  // Backward ends at the lowest layer that is trained.
  const auto lowest =
      std::ranges::find(units, true, [](const UnitDesc& u) { return u.traits.trained; });
  bool below = lowest != units.begin();
  double products = 0, keys = 0;
  std::int64_t layer = 0;
  for (const UnitDesc& unit : units) {
    below = below && (lowest == units.end() || unit.layer != lowest->layer);
    const bool of_head = unit.kind == UnitKind::vocabulary && c.tied_embeddings;
    std::int64_t met = parameter_count(std::span(&unit, 1));
    // Look-ups; of a tied matrix the head's products stay.
    if (unit.kind == UnitKind::positions) met = 0;
    if (unit.kind == UnitKind::vocabulary && !c.tied_embeddings) met = 0;
    if (unit.kind == UnitKind::block) {
      keys += (below ? 4.0 : 12.0) * c.keys_seen(layer, sequence);
      met -= c.idle_parameters(layer++);
    }
    const double each = unit.traits.trained ? 6 : below && !of_head ? 2 : 4;
    products += each * static_cast<double>(met);
  }
  return products + static_cast<double>(c.heads * (c.head_dim + c.values())) / 2 * keys;
}

}  // namespace tessera::model
