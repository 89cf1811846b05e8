// The choices a deck offers: one enum a choice, with the word that decks, logs and messages use.
#pragma once

#include "core/choices.hpp"

namespace tessera::deck {

enum class Backend { automatic, cpu, cuda, debug };
enum class Reproducible { off, run, layout };
enum class Resume { automatic, never, must };
enum class Family {
  gpt2,
  llama,
  mistral,
  mixtral,
  qwen2,
  qwen3,
  qwen3_moe,
  glm4_moe,
  deepseek_v2,
  deepseek_v3,
  phi3,
  olmo2,
  gpt_neox,
  gemma2,
  gemma3,
  gptj,
  bert,
  roberta
};
enum class Preset {
  gpt2_124m,
  gpt2_350m,
  gpt2_774m,
  gpt2_1_5b,
  llama_1b,
  llama_3b,
  llama_8b,
  llama2_7b,
  mixtral_8x7b,
  qwen3_30b_a3b
};
enum class OptimizerName { adamw, adam, lamb, lion, sgd, muon, onebit_adam, onebit_lamb };
enum class WholeAttention { projections, heads };
/// Matrices of low rank beside frozen ones, whose sum is multiplied with alpha / rank (Hu et al.
/// 2021, LoRA) or with alpha / sqrt(rank) (Kalajdzievski 2023, rsLoRA); or with alpha / rank, where
/// rows of what they make together have lengths that are learned (Liu et al. 2024, DoRA).
enum class AdapterKind { none, lora, rslora, dora };
/// What frozen matrices of layers are kept as (Dettmers et al. 2023, QLoRA): elements, or codes
/// with a scale a block.
enum class FrozenType { none, int8, int4, nf4 };
/// Of whose choices the balance of experts is: each sequence's, or those of a whole step (Qiu et
/// al. 2025, global-batch load balance).
enum class AuxOver { sequence, global_batch };
enum class LrScaling { none, linear, sqrt };
/// What a token sees of the other documents of its sequence: those before it, or none; and where
/// its positions count from.
enum class Documents { joined, separate };
/// What a model learns: the next token, tokens that are masked (Devlin et al. 2019), the classes of
/// documents or of their words, which of two answers is preferred (Rafailov et al. 2023; Azar et
/// al. 2023), or by how much (Ouyang et al. 2022), or which of its own answers are rewarded, beside
/// others (Shao et al. 2024) or by what it expected (Schulman et al. 2017). `values` is of no deck
/// that is given, but of the critic that the last one may train beside the model.
enum class TaskKind { lm, mlm, classify, tokens, dpo, ipo, reward, grpo, ppo, values };
/// Whether outputs are classes.
constexpr bool has_classes(TaskKind kind) {
  return kind == TaskKind::classify || kind == TaskKind::tokens;
}
/// Whether the model that a run begins with is one that it is compared with.
constexpr bool has_reference(TaskKind kind) {
  return kind == TaskKind::dpo || kind == TaskKind::ipo;
}
/// Whether two samples that follow one another are a pair of answers, of which the first is
/// preferred.
constexpr bool has_pairs(TaskKind kind) { return has_reference(kind) || kind == TaskKind::reward; }
/// Whether the model draws what it learns from: answers to prompts.
constexpr bool draws_answers(TaskKind kind) {
  return kind == TaskKind::grpo || kind == TaskKind::ppo;
}
/// Whether answers are compared with the rewards that were expected.
constexpr bool has_values(TaskKind kind) { return kind == TaskKind::ppo; }
/// Whether each token, or document, has a single output, which is no class.
constexpr bool has_one_output(TaskKind kind) {
  return kind == TaskKind::reward || kind == TaskKind::values;
}
/// Whether the model is one that continues text, whatever it learns of that.
constexpr bool is_of_language(TaskKind kind) {
  return kind == TaskKind::lm || has_reference(kind) || draws_answers(kind);
}
/// Whether a document has one output, of its pooled vectors.
constexpr bool pools(TaskKind kind) {
  return kind == TaskKind::classify || kind == TaskKind::reward;
}
/// Whether outputs are something else than tokens.
constexpr bool has_own_head(TaskKind kind) { return has_classes(kind) || has_one_output(kind); }
/// Whether a sample is one document, followed by padding, unless batch.token_budget fills it.
constexpr bool one_document_each(TaskKind kind) {
  return has_classes(kind) || has_pairs(kind) || draws_answers(kind) || kind == TaskKind::values;
}
/// The mean loss of answers: of the means of their tokens, or of all tokens.
enum class AnswerMean { answers, tokens };
/// How good an answer is: its text is what the prompt's line says, or a program or a model says
/// it.
enum class RewardKind { match, command, model };
/// What becomes of documents that are longer than a sequence: they are refused, or lose their end.
enum class Overlong { refuse, cut };
enum class Positions { sequence, document };
enum class Growth { linear, root };
enum class Cut { truncate, anew };
enum class ScheduleKind { constant, linear, cosine, wsd, step, inverse_sqrt };
enum class Warmup { linear, log };
enum class ScheduleBy { steps, tokens };
enum class Precision { f32, bf16, f16 };
enum class Matmul { same, tf32, fp8 };
enum class SumPrecision { f32, bf16 };
enum class LossScale { dynamic };
enum class Placement { balanced };
enum class Secondary { none, node, automatic };
enum class QuantizedWeights { none, int8, automatic };
enum class QuantizedGradients { none, int4, int8, automatic };
enum class OffloadTier { none, host, nvme };
enum class CacheTier { none, host };
enum class MemoryBudget { automatic };
enum class NonFinite { skip, stop };
enum class Spike { off, warn, rollback };
enum class FaultKind {
  kill,
  stop,
  slow,
  nan,
  flip,
  flip_file,
  eio,
  enospc,
  short_transfer,
  slow_disk
};

}  // namespace tessera::deck

namespace tessera {

template <>
struct EnumWords<deck::Backend> {
  using enum deck::Backend;
  static constexpr std::array table = {std::pair{automatic, "auto"}, std::pair{cpu, "cpu"},
                                       std::pair{cuda, "cuda"}, std::pair{debug, "debug"}};
};
template <>
struct EnumWords<deck::Reproducible> {
  using enum deck::Reproducible;
  static constexpr std::array table = {std::pair{off, "off"}, std::pair{run, "run"},
                                       std::pair{layout, "layout"}};
};
template <>
struct EnumWords<deck::Resume> {
  using enum deck::Resume;
  static constexpr std::array table = {std::pair{automatic, "auto"}, std::pair{never, "never"},
                                       std::pair{must, "must"}};
};
template <>
struct EnumWords<deck::Family> {
  using enum deck::Family;
  static constexpr std::array table = {std::pair{gpt2, "gpt2"},
                                       std::pair{llama, "llama"},
                                       std::pair{mistral, "mistral"},
                                       std::pair{mixtral, "mixtral"},
                                       std::pair{qwen2, "qwen2"},
                                       std::pair{qwen3, "qwen3"},
                                       std::pair{qwen3_moe, "qwen3_moe"},
                                       std::pair{glm4_moe, "glm4_moe"},
                                       std::pair{deepseek_v2, "deepseek_v2"},
                                       std::pair{deepseek_v3, "deepseek_v3"},
                                       std::pair{phi3, "phi3"},
                                       std::pair{olmo2, "olmo2"},
                                       std::pair{gpt_neox, "gpt_neox"},
                                       std::pair{gemma2, "gemma2"},
                                       std::pair{gemma3, "gemma3"},
                                       std::pair{gptj, "gptj"},
                                       std::pair{bert, "bert"},
                                       std::pair{roberta, "roberta"}};
};
template <>
struct EnumWords<deck::Preset> {
  using enum deck::Preset;
  static constexpr std::array table = {
      std::pair{gpt2_124m, "gpt2_124m"},       std::pair{gpt2_350m, "gpt2_350m"},
      std::pair{gpt2_774m, "gpt2_774m"},       std::pair{gpt2_1_5b, "gpt2_1.5b"},
      std::pair{llama_1b, "llama_1b"},         std::pair{llama_3b, "llama_3b"},
      std::pair{llama_8b, "llama_8b"},         std::pair{llama2_7b, "llama2_7b"},
      std::pair{mixtral_8x7b, "mixtral_8x7b"}, std::pair{qwen3_30b_a3b, "qwen3_30b_a3b"}};
};
template <>
struct EnumWords<deck::OptimizerName> {
  using enum deck::OptimizerName;
  static constexpr std::array table = {std::pair{adamw, "adamw"},
                                       std::pair{adam, "adam"},
                                       std::pair{lamb, "lamb"},
                                       std::pair{lion, "lion"},
                                       std::pair{sgd, "sgd"},
                                       std::pair{muon, "muon"},
                                       std::pair{onebit_adam, "onebit_adam"},
                                       std::pair{onebit_lamb, "onebit_lamb"}};
};
template <>
struct EnumWords<deck::WholeAttention> {
  using enum deck::WholeAttention;
  static constexpr std::array table = {std::pair{projections, "projections"},
                                       std::pair{heads, "heads"}};
};
template <>
struct EnumWords<deck::TaskKind> {
  using enum deck::TaskKind;
  static constexpr std::array table = {
      std::pair{lm, "lm"},         std::pair{mlm, "mlm"},   std::pair{classify, "classify"},
      std::pair{tokens, "tokens"}, std::pair{dpo, "dpo"},   std::pair{ipo, "ipo"},
      std::pair{reward, "reward"}, std::pair{grpo, "grpo"}, std::pair{ppo, "ppo"},
      std::pair{values, "values"}};
};
template <>
struct EnumWords<deck::AnswerMean> {
  using enum deck::AnswerMean;
  static constexpr std::array table = {std::pair{answers, "answers"}, std::pair{tokens, "tokens"}};
};
template <>
struct EnumWords<deck::RewardKind> {
  using enum deck::RewardKind;
  static constexpr std::array table = {std::pair{match, "match"}, std::pair{command, "command"},
                                       std::pair{model, "model"}};
};
template <>
struct EnumWords<deck::Overlong> {
  using enum deck::Overlong;
  static constexpr std::array table = {std::pair{refuse, "refuse"}, std::pair{cut, "cut"}};
};
template <>
struct EnumWords<deck::Documents> {
  using enum deck::Documents;
  static constexpr std::array table = {std::pair{joined, "joined"},
                                       std::pair{separate, "separate"}};
};
template <>
struct EnumWords<deck::Positions> {
  using enum deck::Positions;
  static constexpr std::array table = {std::pair{sequence, "sequence"},
                                       std::pair{document, "document"}};
};
template <>
struct EnumWords<deck::AdapterKind> {
  using enum deck::AdapterKind;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{lora, "lora"},
                                       std::pair{rslora, "rslora"}, std::pair{dora, "dora"}};
};
template <>
struct EnumWords<deck::FrozenType> {
  using enum deck::FrozenType;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{int8, "int8"},
                                       std::pair{int4, "int4"}, std::pair{nf4, "nf4"}};
};
template <>
struct EnumWords<deck::AuxOver> {
  using enum deck::AuxOver;
  static constexpr std::array table = {std::pair{sequence, "sequence"},
                                       std::pair{global_batch, "global_batch"}};
};
template <>
struct EnumWords<deck::LrScaling> {
  using enum deck::LrScaling;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{linear, "linear"},
                                       std::pair{sqrt, "sqrt"}};
};
template <>
struct EnumWords<deck::Growth> {
  using enum deck::Growth;
  static constexpr std::array table = {std::pair{linear, "linear"}, std::pair{root, "root"}};
};
template <>
struct EnumWords<deck::Cut> {
  using enum deck::Cut;
  static constexpr std::array table = {std::pair{truncate, "truncate"}, std::pair{anew, "anew"}};
};
template <>
struct EnumWords<deck::ScheduleKind> {
  using enum deck::ScheduleKind;
  static constexpr std::array table = {
      std::pair{constant, "constant"}, std::pair{linear, "linear"},
      std::pair{cosine, "cosine"},     std::pair{wsd, "wsd"},
      std::pair{step, "step"},         std::pair{inverse_sqrt, "inverse_sqrt"}};
};
template <>
struct EnumWords<deck::Warmup> {
  using enum deck::Warmup;
  static constexpr std::array table = {std::pair{linear, "linear"}, std::pair{log, "log"}};
};
template <>
struct EnumWords<deck::ScheduleBy> {
  using enum deck::ScheduleBy;
  static constexpr std::array table = {std::pair{steps, "steps"}, std::pair{tokens, "tokens"}};
};
template <>
struct EnumWords<deck::Precision> {
  using enum deck::Precision;
  static constexpr std::array table = {std::pair{f32, "f32"}, std::pair{bf16, "bf16"},
                                       std::pair{f16, "f16"}};
};
template <>
struct EnumWords<deck::Matmul> {
  using enum deck::Matmul;
  static constexpr std::array table = {std::pair{same, "same"}, std::pair{tf32, "tf32"},
                                       std::pair{fp8, "fp8"}};
};
template <>
struct EnumWords<deck::SumPrecision> {
  using enum deck::SumPrecision;
  static constexpr std::array table = {std::pair{f32, "f32"}, std::pair{bf16, "bf16"}};
};
template <>
struct EnumWords<deck::LossScale> {
  static constexpr std::array table = {std::pair{deck::LossScale::dynamic, "dynamic"}};
};
template <>
struct EnumWords<deck::Placement> {
  static constexpr std::array table = {std::pair{deck::Placement::balanced, "balanced"}};
};
template <>
struct EnumWords<deck::Secondary> {
  using enum deck::Secondary;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{node, "node"},
                                       std::pair{automatic, "auto"}};
};
template <>
struct EnumWords<deck::QuantizedWeights> {
  using enum deck::QuantizedWeights;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{int8, "int8"},
                                       std::pair{automatic, "auto"}};
};
template <>
struct EnumWords<deck::QuantizedGradients> {
  using enum deck::QuantizedGradients;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{int4, "int4"},
                                       std::pair{int8, "int8"}, std::pair{automatic, "auto"}};
};
template <>
struct EnumWords<deck::OffloadTier> {
  using enum deck::OffloadTier;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{host, "host"},
                                       std::pair{nvme, "nvme"}};
};
template <>
struct EnumWords<deck::CacheTier> {
  using enum deck::CacheTier;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{host, "host"}};
};
template <>
struct EnumWords<deck::MemoryBudget> {
  static constexpr std::array table = {std::pair{deck::MemoryBudget::automatic, "auto"}};
};
template <>
struct EnumWords<deck::NonFinite> {
  using enum deck::NonFinite;
  static constexpr std::array table = {std::pair{skip, "skip"}, std::pair{stop, "stop"}};
};
template <>
struct EnumWords<deck::Spike> {
  using enum deck::Spike;
  static constexpr std::array table = {std::pair{off, "off"}, std::pair{warn, "warn"},
                                       std::pair{rollback, "rollback"}};
};
template <>
struct EnumWords<deck::FaultKind> {
  using enum deck::FaultKind;
  static constexpr std::array table = {std::pair{kill, "kill"},
                                       std::pair{stop, "stop"},
                                       std::pair{slow, "slow"},
                                       std::pair{nan, "nan"},
                                       std::pair{flip, "flip"},
                                       std::pair{flip_file, "flip_file"},
                                       std::pair{eio, "eio"},
                                       std::pair{enospc, "enospc"},
                                       std::pair{short_transfer, "short_transfer"},
                                       std::pair{slow_disk, "slow_disk"}};
};

}  // namespace tessera
