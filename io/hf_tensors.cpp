#include "io/hf_tensors.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

namespace tessera::io {
namespace {

using A = HfArchitecture;

/// Extents by name, so that the tables below read like a model's description.
enum class Extent { none, vocab, context, hidden, q, kv, ffn };

std::int64_t extent_of(Extent extent, const A& a) {
  switch (extent) {
    case Extent::none: return 1;
    case Extent::vocab: return a.vocab;
    case Extent::context: return a.context;
    case Extent::hidden: return a.hidden;
    case Extent::q: return a.heads * a.head_dim;
    case Extent::kv: return a.kv_heads * a.head_dim;
    case Extent::ffn: return a.ffn_hidden;
  }
  return 0;
}

enum class Layout { same, transposed };

/// A tensor's name follows the family's prefix; a block's parameter follows "block.{i}.", and the
/// "{}" in its tensor's name is the same number.
struct Row {
  std::string_view parameter;
  std::string_view tensor;
  Extent rows;
  Extent cols = Extent::none;
  Layout layout = Layout::same;
  std::int64_t part = 0;
  std::int64_t parts = 1;
};

using enum Extent;
using enum Layout;

struct Names {
  std::string_view prefix;
  std::vector<Row> first, block, last;
};

const Names& gpt2_names() {
  static const Names names{
      .prefix = "transformer.",
      .first = {{"vocabulary.weight", "wte.weight", vocab, hidden},
                {"positions.weight", "wpe.weight", context, hidden}},
      .block = {{"norm1.weight", "h.{}.ln_1.weight", hidden},
                {"norm1.bias", "h.{}.ln_1.bias", hidden},
                {"attention.q.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed, 0, 3},
                {"attention.k.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed, 1, 3},
                {"attention.v.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed, 2, 3},
                {"attention.q.bias", "h.{}.attn.c_attn.bias", hidden, none, same, 0, 3},
                {"attention.k.bias", "h.{}.attn.c_attn.bias", hidden, none, same, 1, 3},
                {"attention.v.bias", "h.{}.attn.c_attn.bias", hidden, none, same, 2, 3},
                {"attention.out.weight", "h.{}.attn.c_proj.weight", hidden, hidden, transposed},
                {"attention.out.bias", "h.{}.attn.c_proj.bias", hidden},
                {"norm2.weight", "h.{}.ln_2.weight", hidden},
                {"norm2.bias", "h.{}.ln_2.bias", hidden},
                {"mlp.up.weight", "h.{}.mlp.c_fc.weight", ffn, hidden, transposed},
                {"mlp.up.bias", "h.{}.mlp.c_fc.bias", ffn},
                {"mlp.down.weight", "h.{}.mlp.c_proj.weight", hidden, ffn, transposed},
                {"mlp.down.bias", "h.{}.mlp.c_proj.bias", hidden}},
      .last = {{"final_norm.weight", "ln_f.weight", hidden},
               {"final_norm.bias", "ln_f.bias", hidden}}};
  return names;
}

const Names& llama_names() {
  static const Names names{
      .prefix = "model.",
      .first = {{"vocabulary.weight", "embed_tokens.weight", vocab, hidden}},
      .block = {{"norm1.weight", "layers.{}.input_layernorm.weight", hidden},
                {"attention.q.weight", "layers.{}.self_attn.q_proj.weight", q, hidden},
                {"attention.k.weight", "layers.{}.self_attn.k_proj.weight", kv, hidden},
                {"attention.v.weight", "layers.{}.self_attn.v_proj.weight", kv, hidden},
                {"attention.out.weight", "layers.{}.self_attn.o_proj.weight", hidden, q},
                {"norm2.weight", "layers.{}.post_attention_layernorm.weight", hidden},
                {"mlp.gate.weight", "layers.{}.mlp.gate_proj.weight", ffn, hidden},
                {"mlp.up.weight", "layers.{}.mlp.up_proj.weight", ffn, hidden},
                {"mlp.down.weight", "layers.{}.mlp.down_proj.weight", hidden, ffn}},
      .last = {{"final_norm.weight", "norm.weight", hidden}}};
  return names;
}

const Names& names_of(const A& a) { return a.family == "gpt2" ? gpt2_names() : llama_names(); }

// The output matrix has the same name in both families, and no prefix.
constexpr Row kHead{"head.weight", "lm_head.weight", vocab, hidden};

HfTensor tensor_of(const Row& row, const A& a, std::string parameter, std::string tensor) {
  std::vector<std::int64_t> shape{extent_of(row.rows, a)};
  if (row.cols != none) shape.push_back(extent_of(row.cols, a));
  return {.parameter = std::move(parameter),
          .shape = std::move(shape),
          .tensor = std::move(tensor),
          .transposed = row.layout == transposed,
          .part = row.part,
          .parts = row.parts};
}

}  // namespace

std::int64_t HfTensor::elements() const { return shape[0] * (shape.size() > 1 ? shape[1] : 1); }

std::vector<std::int64_t> HfTensor::stored_shape() const {
  std::vector<std::int64_t> stored = shape;
  stored[0] *= parts;
  if (transposed) std::swap(stored[0], stored[1]);
  return stored;
}

std::string_view hf_prefix(const HfArchitecture& a) { return names_of(a).prefix; }

std::vector<HfTensor> hf_tensors(const HfArchitecture& a) {
  const Names& names = names_of(a);
  std::vector<HfTensor> all;
  const auto add = [&](const Row& row) {
    all.push_back(tensor_of(row, a, std::string(row.parameter),
                            fmt::format("{}{}", names.prefix, row.tensor)));
  };
  for (const Row& row : names.first) add(row);
  for (std::int64_t i = 0; i < a.layers; ++i) {
    for (const Row& row : names.block) {
      all.push_back(
          tensor_of(row, a, fmt::format("block.{}.{}", i, row.parameter),
                    fmt::format("{}{}", names.prefix, fmt::format(fmt::runtime(row.tensor), i))));
    }
  }
  for (const Row& row : names.last) add(row);
  if (!a.tied_embeddings) all.push_back(hf_head(a));
  return all;
}

HfTensor hf_head(const A& a) {
  return tensor_of(kHead, a, std::string(kHead.parameter), std::string(kHead.tensor));
}

bool hf_ignored(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with(".rotary_emb.inv_freq");
}

}  // namespace tessera::io
