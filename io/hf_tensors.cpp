#include "io/hf_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "core/error.hpp"

namespace tessera::io {
namespace {

using A = HfArchitecture;

/// Extents by name, so that the tables below read like a model's description.
enum class Extent {
  none,
  vocab,
  context,
  hidden,
  head,
  q,
  kv,
  ffn,
  experts,
  expert,
  shared,
  labels,
  q_latent,
  kv_latent,
  rope,
  keys,
  values
};

std::int64_t extent_of(Extent extent, const A& a) {
  switch (extent) {
    case Extent::none: return 1;
    case Extent::vocab: return a.vocab;
    case Extent::context: return a.context;
    case Extent::hidden: return a.hidden;
    case Extent::head: return a.head_dim;
    case Extent::q: return a.heads * a.head_dim;
    case Extent::kv: return a.kv_heads * a.head_dim;
    case Extent::ffn: return a.ffn_hidden;
    case Extent::experts: return a.moe_experts;
    case Extent::expert: return a.moe_ffn_hidden;
    case Extent::shared: return a.moe_shared_ffn_hidden;
    case Extent::labels: return a.labels;
    case Extent::q_latent: return a.q_latent;
    case Extent::kv_latent: return a.kv_latent;
    case Extent::rope: return a.rope_dim;
    case Extent::keys: return a.heads * (a.head_dim - a.rope_dim);
    case Extent::values: return a.heads * (a.value_dim > 0 ? a.value_dim : a.head_dim);
  }
  return 0;
}

/// How a parameter lies in its tensor: as it is, transposed, behind the parts before it in the same
/// tensor, or in turns with them, a head each.
enum class Layout { same, transposed, less_one, interleaved };

/// A tensor's name follows the family's prefix; a block's parameter follows "block.{i}.", and the
/// "{}" in its tensor's name is the same number. A parameter with a "{}" of its own stands for as
/// many as there are experts; the second in its tensor's name is the expert's number. Rows of one
/// tensor are next to each other.
struct Row {
  std::string_view parameter;
  std::string_view tensor;
  Extent rows;
  Extent cols = Extent::none;
  Layout layout = Layout::same;
  std::int64_t zeros = 0;       // rows of zeros before its first
  std::string_view added = "";  // the tensor whose first row is added to each, of so many rows
  std::int64_t added_rows = 0;
  bool (*of)(const A&) = nullptr;  // the models of the family that have it; null: all
  std::optional<DType> type = {};  // which the tensor has in any file
};
using Rows = std::vector<Row>;

using enum Extent;
using enum Layout;

struct Names {
  std::string_view prefix;
  Rows first, block, last;
  Rows experts_block = {};  // of blocks that have experts
  Extent outputs = vocab;
  std::string_view output = "lm_head.weight";  // here and below names are without the prefix
  Rows head = {};                              // what else the head has
  Rows copies = {};                            // other names of parameters
  std::vector<std::string_view> others = {};   // with what names of other heads' tensors begin
};

Rows joined(std::initializer_list<Rows> parts) {
  Rows all;
  for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const Names& gpt2_names() {
  static const Names names{
      .prefix = "transformer.",
      .first = {{"vocabulary.weight", "wte.weight", vocab, hidden},
                {"positions.weight", "wpe.weight", context, hidden}},
      .block = {{"norm1.weight", "h.{}.ln_1.weight", hidden},
                {"norm1.bias", "h.{}.ln_1.bias", hidden},
                {"attention.q.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed},
                {"attention.k.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed},
                {"attention.v.weight", "h.{}.attn.c_attn.weight", hidden, hidden, transposed},
                {"attention.q.bias", "h.{}.attn.c_attn.bias", hidden},
                {"attention.k.bias", "h.{}.attn.c_attn.bias", hidden},
                {"attention.v.bias", "h.{}.attn.c_attn.bias", hidden},
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

const Names& gptj_names() {
  static const Names names{
      .prefix = "transformer.",
      .first = {{"vocabulary.weight", "wte.weight", vocab, hidden}},
      .block = {{"norm1.weight", "h.{}.ln_1.weight", hidden},
                {"norm1.bias", "h.{}.ln_1.bias", hidden},
                {"attention.q.weight", "h.{}.attn.q_proj.weight", q, hidden},
                {"attention.k.weight", "h.{}.attn.k_proj.weight", q, hidden},
                {"attention.v.weight", "h.{}.attn.v_proj.weight", q, hidden},
                {"attention.out.weight", "h.{}.attn.out_proj.weight", hidden, q},
                {"mlp.up.weight", "h.{}.mlp.fc_in.weight", ffn, hidden},
                {"mlp.up.bias", "h.{}.mlp.fc_in.bias", ffn},
                {"mlp.down.weight", "h.{}.mlp.fc_out.weight", hidden, ffn},
                {"mlp.down.bias", "h.{}.mlp.fc_out.bias", hidden}},
      .last = {{"final_norm.weight", "ln_f.weight", hidden},
               {"final_norm.bias", "ln_f.bias", hidden}},
      .head = {{"head_bias.bias", "lm_head.bias", vocab}}};
  return names;
}

const Names& gpt_neox_names() {
  constexpr auto qkv_w = "layers.{}.attention.query_key_value.weight",
                 qkv_b = "layers.{}.attention.query_key_value.bias";
  static const Names names{
      .prefix = "gpt_neox.",
      .first = {{"vocabulary.weight", "embed_in.weight", vocab, hidden}},
      .block = {{"norm1.weight", "layers.{}.input_layernorm.weight", hidden},
                {"norm1.bias", "layers.{}.input_layernorm.bias", hidden},
                {"norm2.weight", "layers.{}.post_attention_layernorm.weight", hidden},
                {"norm2.bias", "layers.{}.post_attention_layernorm.bias", hidden},
                {"attention.q.weight", qkv_w, q, hidden, interleaved},
                {"attention.k.weight", qkv_w, q, hidden, interleaved},
                {"attention.v.weight", qkv_w, q, hidden, interleaved},
                {"attention.q.bias", qkv_b, q, none, interleaved},
                {"attention.k.bias", qkv_b, q, none, interleaved},
                {"attention.v.bias", qkv_b, q, none, interleaved},
                {"attention.out.weight", "layers.{}.attention.dense.weight", hidden, q},
                {"attention.out.bias", "layers.{}.attention.dense.bias", hidden},
                {"mlp.up.weight", "layers.{}.mlp.dense_h_to_4h.weight", ffn, hidden},
                {"mlp.up.bias", "layers.{}.mlp.dense_h_to_4h.bias", ffn},
                {"mlp.down.weight", "layers.{}.mlp.dense_4h_to_h.weight", hidden, ffn},
                {"mlp.down.bias", "layers.{}.mlp.dense_4h_to_h.bias", hidden}},
      .last = {{"final_norm.weight", "final_layer_norm.weight", hidden},
               {"final_norm.bias", "final_layer_norm.bias", hidden}},
      .output = "embed_out.weight"};
  return names;
}

/// What models that descend from BERT have in common: all but the head. Positions begin behind
/// `unused` ones, and there are so many types of tokens.
Names bert_like(std::string_view prefix, std::int64_t unused, std::int64_t types) {
  return {.prefix = prefix,
          .first = {{"vocabulary.weight", "embeddings.word_embeddings.weight", vocab, hidden},
                    {"positions.weight", "embeddings.position_embeddings.weight", context, hidden,
                     same, unused, "embeddings.token_type_embeddings.weight", types},
                    {"embedding_norm.weight", "embeddings.LayerNorm.weight", hidden},
                    {"embedding_norm.bias", "embeddings.LayerNorm.bias", hidden}},
          .block = {
              {"attention.q.weight", "encoder.layer.{}.attention.self.query.weight", q, hidden},
              {"attention.q.bias", "encoder.layer.{}.attention.self.query.bias", q},
              {"attention.k.weight", "encoder.layer.{}.attention.self.key.weight", q, hidden},
              {"attention.k.bias", "encoder.layer.{}.attention.self.key.bias", q},
              {"attention.v.weight", "encoder.layer.{}.attention.self.value.weight", q, hidden},
              {"attention.v.bias", "encoder.layer.{}.attention.self.value.bias", q},
              {"attention.out.weight", "encoder.layer.{}.attention.output.dense.weight", hidden, q},
              {"attention.out.bias", "encoder.layer.{}.attention.output.dense.bias", hidden},
              {"norm1_out.weight", "encoder.layer.{}.attention.output.LayerNorm.weight", hidden},
              {"norm1_out.bias", "encoder.layer.{}.attention.output.LayerNorm.bias", hidden},
              {"mlp.up.weight", "encoder.layer.{}.intermediate.dense.weight", ffn, hidden},
              {"mlp.up.bias", "encoder.layer.{}.intermediate.dense.bias", ffn},
              {"mlp.down.weight", "encoder.layer.{}.output.dense.weight", hidden, ffn},
              {"mlp.down.bias", "encoder.layer.{}.output.dense.bias", hidden},
              {"norm2_out.weight", "encoder.layer.{}.output.LayerNorm.weight", hidden},
              {"norm2_out.bias", "encoder.layer.{}.output.LayerNorm.bias", hidden}}};
}

Names bert_names() {
  Names names = bert_like("bert.", 0, 2);
  names.output = "cls.predictions.decoder.weight";
  names.head = {{"head_dense.weight", "cls.predictions.transform.dense.weight", hidden, hidden},
                {"head_dense.bias", "cls.predictions.transform.dense.bias", hidden},
                {"head_dense.norm.weight", "cls.predictions.transform.LayerNorm.weight", hidden},
                {"head_dense.norm.bias", "cls.predictions.transform.LayerNorm.bias", hidden},
                {"head_bias.bias", "cls.predictions.bias", vocab}};
  names.copies = {{"head_bias.bias", "cls.predictions.decoder.bias", vocab}};
  names.others = {"bert.pooler.", "cls.seq_relationship."};
  return names;
}

/// Such an encoder with a head that says a text's class from its first token: a dense layer and the
/// output matrix, with biases. Their names begin so.
Names classifier_names(Names names, std::string_view dense_w, std::string_view dense_b,
                       std::string_view output_w, std::string_view output_b,
                       std::vector<std::string_view> others = {}) {
  names.output = output_w;
  names.others = std::move(others);
  names.outputs = labels;
  names.head = {{"head_dense.weight", dense_w, hidden, hidden},
                {"head_dense.bias", dense_b, hidden},
                {"head_bias.bias", output_b, labels}};
  return names;
}

/// Such an encoder with an output matrix that says each token's class.
Names token_classifier_names(Names names, std::string_view pooler) {
  names.output = "classifier.weight";
  names.others = {pooler};
  names.outputs = labels;
  names.head = {{"head_bias.bias", "classifier.bias", labels}};
  return names;
}

Names roberta_names() {
  Names names = bert_like("roberta.", 2, 1);
  names.output = "lm_head.decoder.weight";
  names.head = {{"head_dense.weight", "lm_head.dense.weight", hidden, hidden},
                {"head_dense.bias", "lm_head.dense.bias", hidden},
                {"head_dense.norm.weight", "lm_head.layer_norm.weight", hidden},
                {"head_dense.norm.bias", "lm_head.layer_norm.bias", hidden},
                {"head_bias.bias", "lm_head.bias", vocab}};
  names.copies = {{"head_bias.bias", "lm_head.decoder.bias", vocab}};
  names.others = {"roberta.pooler."};
  return names;
}

/// Such a language model with one output in place of those that are tokens.
Names scorer_names(Names names) {
  names.output = "score.weight";
  names.outputs = none;  // one
  names.head.clear();
  names.copies.clear();
  names.others = {"lm_head.", "embed_out."};
  return names;
}

// What families that descend from Llama have in common.
const Rows kQkv = {{"attention.q.weight", "layers.{}.self_attn.q_proj.weight", q, hidden},
                   {"attention.k.weight", "layers.{}.self_attn.k_proj.weight", kv, hidden},
                   {"attention.v.weight", "layers.{}.self_attn.v_proj.weight", kv, hidden}};
const Rows kQkvBiases = {{"attention.q.bias", "layers.{}.self_attn.q_proj.bias", q},
                         {"attention.k.bias", "layers.{}.self_attn.k_proj.bias", kv},
                         {"attention.v.bias", "layers.{}.self_attn.v_proj.bias", kv}};
const Rows kJoinedQkv = {{"attention.q.weight", "layers.{}.self_attn.qkv_proj.weight", q, hidden},
                         {"attention.k.weight", "layers.{}.self_attn.qkv_proj.weight", kv, hidden},
                         {"attention.v.weight", "layers.{}.self_attn.qkv_proj.weight", kv, hidden}};
const Rows kOut = {{"attention.out.weight", "layers.{}.self_attn.o_proj.weight", hidden, q}};
const Rows kGateUp = {{"mlp.gate.weight", "layers.{}.mlp.gate_proj.weight", ffn, hidden},
                      {"mlp.up.weight", "layers.{}.mlp.up_proj.weight", ffn, hidden}};
const Rows kJoinedGateUp = {{"mlp.gate.weight", "layers.{}.mlp.gate_up_proj.weight", ffn, hidden},
                            {"mlp.up.weight", "layers.{}.mlp.gate_up_proj.weight", ffn, hidden}};
const Rows kDown = {{"mlp.down.weight", "layers.{}.mlp.down_proj.weight", hidden, ffn}};

/// What tensors of a layer's experts are called.
struct ExpertNames {
  std::string_view router, gate, up, down;
};
Rows experts_rows(const ExpertNames& names) {
  return {{"mlp.router.weight", names.router, experts, hidden},
          {"mlp.expert.{}.gate.weight", names.gate, expert, hidden},
          {"mlp.expert.{}.up.weight", names.up, expert, hidden},
          {"mlp.expert.{}.down.weight", names.down, hidden, expert}};
}
const Rows kMixtralExperts =
    experts_rows({.router = "layers.{}.block_sparse_moe.gate.weight",
                  .gate = "layers.{}.block_sparse_moe.experts.{}.w1.weight",
                  .up = "layers.{}.block_sparse_moe.experts.{}.w3.weight",
                  .down = "layers.{}.block_sparse_moe.experts.{}.w2.weight"});
const Rows kQwenExperts = experts_rows({.router = "layers.{}.mlp.gate.weight",
                                        .gate = "layers.{}.mlp.experts.{}.gate_proj.weight",
                                        .up = "layers.{}.mlp.experts.{}.up_proj.weight",
                                        .down = "layers.{}.mlp.experts.{}.down_proj.weight"});

const Rows kSharedExpert = {
    {"mlp.shared.gate.weight", "layers.{}.mlp.shared_experts.gate_proj.weight", shared, hidden},
    {"mlp.shared.up.weight", "layers.{}.mlp.shared_experts.up_proj.weight", shared, hidden},
    {"mlp.shared.down.weight", "layers.{}.mlp.shared_experts.down_proj.weight", hidden, shared}};
const Rows kRouterBias = {{.parameter = "mlp.router.bias",
                           .tensor = "layers.{}.mlp.gate.e_score_correction_bias",
                           .rows = experts,
                           .type = DType::f32}};

/// Those rows, of some models of the family.
Rows of_some(bool (*of)(const A&), Rows rows) {
  for (Row& row : rows) row.of = of;
  return rows;
}

Rows qk_norms(Extent q_extent, Extent k_extent, Layout layout) {
  return {{"attention.q_norm.weight", "layers.{}.self_attn.q_norm.weight", q_extent, none, layout},
          {"attention.k_norm.weight", "layers.{}.self_attn.k_norm.weight", k_extent, none, layout}};
}

/// The names of norms of inputs and of outputs, where there are both.
Rows norms_around(Layout layout) {
  return {
      {"norm1.weight", "layers.{}.input_layernorm.weight", hidden, none, layout},
      {"norm1_out.weight", "layers.{}.post_attention_layernorm.weight", hidden, none, layout},
      {"norm2.weight", "layers.{}.pre_feedforward_layernorm.weight", hidden, none, layout},
      {"norm2_out.weight", "layers.{}.post_feedforward_layernorm.weight", hidden, none, layout}};
}
const Rows kNormsBefore = {{"norm1.weight", "layers.{}.input_layernorm.weight", hidden},
                           {"norm2.weight", "layers.{}.post_attention_layernorm.weight", hidden}};
const Rows kNormsAfter = {
    {"norm1_out.weight", "layers.{}.post_attention_layernorm.weight", hidden},
    {"norm2_out.weight", "layers.{}.post_feedforward_layernorm.weight", hidden}};

/// Names of such a family, with the rows of its blocks.
Names llama_like(Rows block, Layout norm = same) {
  return {.prefix = "model.",
          .first = {{"vocabulary.weight", "embed_tokens.weight", vocab, hidden}},
          .block = std::move(block),
          .last = {{"final_norm.weight", "norm.weight", hidden, none, norm}}};
}

/// Names of such a family some of whose layers have experts in place of a feed-forward layer.
Names with_experts(const Rows& rest, const Rows& feed_forward, const Rows& experts) {
  Names names = llama_like(joined({rest, feed_forward}));
  names.experts_block = joined({rest, experts});
  return names;
}

/// Every part of GLM's attention but its products is a choice.
Names glm_names() {
  const Rows rest = joined(
      {kNormsBefore, kQkv, of_some([](const A& a) { return a.qkv_bias; }, kQkvBiases),
       of_some([](const A& a) { return a.qk_norm != "none"; }, qk_norms(head, head, same)), kOut});
  return with_experts(rest, joined({kGateUp, kDown}),
                      joined({kQwenExperts, kRouterBias, kSharedExpert}));
}

/// Keys and values of latents, with or without a router's biases.
Names deepseek_names(bool biases) {
  const Rows of_latents = {
      {"attention.q_latent.weight", "layers.{}.self_attn.q_a_proj.weight", q_latent, hidden},
      {"attention.q_latent_norm.weight", "layers.{}.self_attn.q_a_layernorm.weight", q_latent},
      {"attention.q.weight", "layers.{}.self_attn.q_b_proj.weight", q, q_latent}};
  const Rows of_input = {{"attention.q.weight", "layers.{}.self_attn.q_proj.weight", q, hidden}};
  constexpr auto kv_a = "layers.{}.self_attn.kv_a_proj_with_mqa.weight",
                 kv_b = "layers.{}.self_attn.kv_b_proj.weight";
  const Rows rest = joined(
      {kNormsBefore,
       of_some([](const A& a) { return a.q_latent > 0; }, of_latents),
       of_some([](const A& a) { return a.q_latent == 0; }, of_input),
       {{"attention.kv_latent.weight", kv_a, kv_latent, hidden},
        {"attention.k_rope.weight", kv_a, rope, hidden},
        {"attention.kv_latent_norm.weight", "layers.{}.self_attn.kv_a_layernorm.weight", kv_latent},
        {"attention.k.weight", kv_b, keys, kv_latent, interleaved},
        {"attention.v.weight", kv_b, values, kv_latent, interleaved},
        {"attention.out.weight", "layers.{}.self_attn.o_proj.weight", hidden, values}}});
  return with_experts(rest, joined({kGateUp, kDown}),
                      joined({kQwenExperts, biases ? kRouterBias : Rows{}, kSharedExpert}));
}

using NamesByHead = std::map<std::pair<std::string_view, std::string_view>, Names>;  // family, task

/// And those of each language model with a score in place of its head.
NamesByHead with_scorers(NamesByHead all) {
  NamesByHead scorers;
  for (const auto& [head, names] : all)
    if (head.second == "lm") scorers.emplace(std::pair(head.first, "reward"), scorer_names(names));
  all.merge(scorers);
  return all;
}

const Names& names_of(const A& a) {
  static const Rows rest = joined({kOut, kGateUp, kDown});
  static const Names llama = llama_like(joined({kNormsBefore, kQkv, rest}));
  static const NamesByHead all = with_scorers(
      {{{"llama", "lm"}, llama},
       {{"mistral", "lm"}, llama},
       {{"gpt2", "lm"}, gpt2_names()},
       {{"gpt_neox", "lm"}, gpt_neox_names()},
       {{"gptj", "lm"}, gptj_names()},
       {{"bert", "mlm"}, bert_names()},
       {{"bert", "classify"},
        classifier_names(bert_like("bert.", 0, 2), "bert.pooler.dense.weight",
                         "bert.pooler.dense.bias", "classifier.weight", "classifier.bias")},
       {{"bert", "tokens"}, token_classifier_names(bert_like("bert.", 0, 2), "bert.pooler.")},
       {{"roberta", "mlm"}, roberta_names()},
       {{"roberta", "classify"},
        classifier_names(bert_like("roberta.", 2, 1), "classifier.dense.weight",
                         "classifier.dense.bias", "classifier.out_proj.weight",
                         "classifier.out_proj.bias", {"roberta.pooler."})},
       {{"roberta", "tokens"},
        token_classifier_names(bert_like("roberta.", 2, 1), "roberta.pooler.")},
       {{"qwen2", "lm"}, llama_like(joined({kNormsBefore, kQkv, kQkvBiases, rest}))},
       {{"qwen3", "lm"},
        llama_like(joined({kNormsBefore, kQkv, qk_norms(head, head, same), rest}))},
       {{"mixtral", "lm"}, with_experts(joined({kNormsBefore, kQkv, kOut}), {}, kMixtralExperts)},
       {{"qwen3_moe", "lm"},
        with_experts(joined({kNormsBefore, kQkv, qk_norms(head, head, same), kOut}),
                     joined({kGateUp, kDown}), kQwenExperts)},
       {{"glm4_moe", "lm"}, glm_names()},
       {{"deepseek_v2", "lm"}, deepseek_names(false)},
       {{"deepseek_v3", "lm"}, deepseek_names(true)},
       {{"phi3", "lm"}, llama_like(joined({kNormsBefore, kJoinedQkv, kOut, kJoinedGateUp, kDown}))},
       {{"olmo2", "lm"}, llama_like(joined({kQkv, qk_norms(q, kv, same), rest, kNormsAfter}))},
       {{"gemma2", "lm"}, llama_like(joined({norms_around(less_one), kQkv, rest}), less_one)},
       {{"gemma3", "lm"},
        llama_like(joined({norms_around(less_one), kQkv, qk_norms(head, head, less_one), rest}),
                   less_one)}});
  const auto found = all.find({a.family, a.task});
  if (found != all.end()) return found->second;
  // A head that no row has is not in files: only what is before it is asked for.
  const auto of_family = all.lower_bound({a.family, ""});
  TESSERA_CHECK(of_family != all.end() && of_family->first.first == a.family,
                "no names of tensors of {}", a.family);
  return of_family->second;
}

HfTensor tensor_of(const Row& row, const A& a, std::string parameter, std::string tensor) {
  std::vector<std::int64_t> shape{extent_of(row.rows, a)};
  if (row.cols != none) shape.push_back(extent_of(row.cols, a));
  const std::int64_t rows = shape[0];
  return {.parameter = std::move(parameter),
          .shape = std::move(shape),
          .tensor = std::move(tensor),
          .transposed = row.layout == transposed,
          .block = row.layout == interleaved ? rows / a.heads : rows,
          .stride = rows,
          .stored_rows = rows,
          .less_one = row.layout == less_one,
          .zeros = row.zeros,
          .added = std::string(row.added),
          .added_rows = row.added_rows,
          .type = row.type};
}

/// Whether the row stands for a tensor of each expert.
bool of_experts(const Row& row) { return row.parameter.find("{}") != std::string_view::npos; }

/// Says of the parts of each tensor where in it they lie.
void place_parts(std::vector<HfTensor>& all) {
  for (auto part = all.begin(); part != all.end();) {
    const auto end = std::find_if(
        part, all.end(), [&](const HfTensor& other) { return other.tensor != part->tensor; });
    std::int64_t rows = part->zeros, turn = part->zeros;
    for (auto other = part; other != end; ++other) {
      other->first = turn;
      turn += other->block;
      rows += other->rows();
    }
    for (; part != end; ++part) part->stored_rows = rows, part->stride = turn;
  }
}

}  // namespace

std::int64_t HfTensor::elements() const { return shape[0] * (shape.size() > 1 ? shape[1] : 1); }

std::vector<std::int64_t> HfTensor::stored_shape() const {
  std::vector<std::int64_t> stored = shape;
  stored[0] = stored_rows;
  if (transposed) std::swap(stored[0], stored[1]);
  return stored;
}

float HfTensor::as_stored(float value, DType file_type) const {
  const DType stored = type.value_or(file_type);
  if (less_one) value -= 1.0F;
  if (stored == DType::bf16) value = static_cast<float>(bf16(value));
  if (stored == DType::f16) value = static_cast<float>(f16(value));
  return less_one ? 1.0F + value : value;
}

std::string_view hf_prefix(const HfArchitecture& a) { return names_of(a).prefix; }

std::vector<HfTensor> hf_tensors(const HfArchitecture& a) {
  const Names& names = names_of(a);
  std::vector<HfTensor> all;
  const auto add = [&](const Row& row, std::string parameter, const std::string& tensor,
                       std::string_view prefix) {
    all.push_back(tensor_of(row, a, std::move(parameter), fmt::format("{}{}", prefix, tensor)));
    std::string& added = all.back().added;
    if (!added.empty()) added = fmt::format("{}{}", prefix, added);
  };
  const auto add_all = [&](const Rows& rows, std::string_view prefix) {
    for (const Row& row : rows)
      add(row, std::string(row.parameter), std::string(row.tensor), prefix);
  };
  const auto add_of_layer = [&](const Row& row, std::int64_t i) {
    if (row.of != nullptr && !row.of(a)) return;
    const std::int64_t count = of_experts(row) ? a.moe_experts : 1;
    for (std::int64_t j = 0; j < count; ++j) {
      add(row, fmt::format("block.{}.{}", i, fmt::format(fmt::runtime(row.parameter), j)),
          fmt::format(fmt::runtime(row.tensor), i, j), names.prefix);
    }
  };
  add_all(names.first, names.prefix);
  for (std::int64_t i = 0; i < a.layers; ++i) {
    for (const Row& row : a.has_experts(i) ? names.experts_block : names.block)
      add_of_layer(row, i);
  }
  add_all(names.last, names.prefix);
  if (!a.tied_embeddings) add_all({{"head.weight", names.output, names.outputs, hidden}}, "");
  add_all(names.head, "");
  place_parts(all);
  return all;
}

std::vector<HfTensor> hf_copies(const A& a) {
  const Names& names = names_of(a);
  Rows rows = names.copies;
  if (a.tied_embeddings) rows.push_back({"vocabulary.weight", names.output, vocab, hidden});
  std::vector<HfTensor> all;
  for (const Row& row : rows)
    all.push_back(tensor_of(row, a, std::string(row.parameter), std::string(row.tensor)));
  return all;
}

bool hf_ignored(std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with(".attention.bias") || tensor.ends_with(".attention.masked_bias") ||
         tensor.ends_with(".rotary_emb.inv_freq") || tensor.ends_with(".attn.embed_positions") ||
         tensor.ends_with("embeddings.position_ids") ||
         tensor.ends_with("embeddings.token_type_ids");
}

bool hf_other_head(const A& a, std::string_view tensor, std::int64_t further_layers) {
  const Names& names = names_of(a);
  const auto begins = [&](std::string_view name) { return tensor.starts_with(name); };
  if (std::ranges::any_of(names.others, begins)) return true;
  for (std::int64_t i = a.layers; i < a.layers + further_layers; ++i)
    if (begins(fmt::format("{}layers.{}.", names.prefix, i))) return true;
  return false;
}

std::string hf_current_name(std::string_view tensor) {
  for (const auto& [before, now] :
       {std::pair{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (tensor.ends_with(before))
      return std::string(tensor.substr(0, tensor.size() - std::string_view(before).size())) + now;
  }
  return std::string(tensor);
}

}  // namespace tessera::io
