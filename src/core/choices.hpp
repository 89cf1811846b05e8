// Choices that a deck offers and several folders act on: one enumeration for each.
#pragma once

#include <cstdint>

#include "core/enums.hpp"

namespace tessera {

/// Layer norm (Ba et al. 2016); RMS norm (Zhang and Sennrich 2019).
enum class NormKind : std::uint8_t { layernorm, rmsnorm };

/// Which norms a sub-layer f has: x + f(norm(x)), x + norm(f(x)) (OLMo 2: Walsh et al. 2024,
/// section 3.1), or x + norm(f(norm(x))) (Gemma 2: Riviere et al. 2024); or the sum has one,
/// norm(x + f(x)) (Vaswani et al. 2017, BERT).
enum class NormPlacement : std::uint8_t { before, after, both, sum };

/// RMS norm of q and k before they are compared: of each head (Henry et al. 2020, Dehghani et al.
/// 2023), or of all heads' columns as one.
enum class QkNorm : std::uint8_t { none, head, whole };

/// Whether the feed-forward layer reads what attention has been added to, or both read the same,
/// each through a norm of its own (Black et al. 2022, GPT-NeoX), x + attention(norm1(x)) +
/// mlp(norm2(x)), or through one (Wang and Komatsuzaki 2021, GPT-J).
enum class BlockForm : std::uint8_t { sequential, parallel, parallel_one_norm };

/// Activations of the feed-forward layer. gelu is the tanh form and gelu_erf the exact one
/// (Hendrycks and Gimpel 2016); of the gated ones (Shazeer 2020), swiglu(x) = silu(gate) * up and
/// geglu(x) = gelu(gate) * up.
enum class ActivationKind : std::uint8_t { gelu, gelu_erf, relu, tanh, swiglu, geglu };
constexpr bool gated(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::geglu;
}

/// Whether a token's attention sees the tokens up to it, or all of its sample or document.
enum class AttentionMask : std::uint8_t { causal, bidirectional };

/// How attention or the embedding knows positions.
enum class PositionKind : std::uint8_t { learned, rope, sinusoidal, none };

/// What the initial standard deviation of projections back into the residual stream is divided by:
/// the root of the number of additions of all layers, 2 L (Radford et al. 2019, section 2.3); of
/// those up to their own layer l, 2 (l + 1) (Zhang et al. 2019, depth-scaled initialization, as in
/// OLMo); nothing.
enum class InitScale : std::uint8_t { scaled, depth, plain };

/// Which weights the head begins with where those before it are a model directory's: the
/// directory's too, or fresh ones, drawn as those of a model from scratch.
enum class HeadWeights : std::uint8_t { directory, fresh };

/// Which columns of a head are the two of a pair that rotary positions turn: i and i + D / 2, or 2
/// i and 2 i + 1.
enum class RopePairs : std::uint8_t { halves, neighbours };

/// How frequencies of rotary positions change for longer contexts than those of the training
/// before.
enum class RopeScalingKind : std::uint8_t { none, linear, dynamic, llama3, yarn };

/// What stands for a sample where all of it has one output: the mean of its tokens' vectors, or the
/// vector of its first or last token. None: each token has an output.
enum class Pooling : std::uint8_t { none, mean, first, last };

/// What scores of experts are of a router's logits: their softmax (Shazeer et al. 2017, Fedus et
/// al. 2021), or the sigmoid of each (DeepSeek-AI 2024, DeepSeek-V3).
enum class RouterScores : std::uint8_t { softmax, sigmoid };

/// How many gates make a router's scores: one over all experts; or one over groups of them, and one
/// over the experts of each group (Shazeer et al. 2017, appendix B).
enum class RouterGates : std::uint8_t { one, two_levels };

/// What a group of experts counts: its best expert's score, or the sum of its two best.
enum class GroupScore : std::uint8_t { largest, two_largest };

/// How ranks that divide a sequence compute attention: each gathers keys and values of all (Dubey
/// et al. 2024, Llama 3, section 3.3.2), or has those of one rank after another, which go round
/// (Liu et al. 2023, Ring Attention), or all tokens of some heads (Jacobs et al. 2023, DeepSpeed
/// Ulysses); or what sends less.
enum class ContextKind : std::uint8_t { gather, ring, heads, automatic };

/// What tensor ranks have of experts: a part of the width of each, or some of them whole.
enum class ExpertSplit : std::uint8_t { width, experts };

/// What copies of tokens are in training on their way to experts: as they are, or rounded to 8
/// bits.
enum class ExpertDispatch : std::uint8_t { exact, int8 };

/// How copies of tokens come to experts that ranks of several nodes divide among them.
enum class ExpertExchange : std::uint8_t {
  direct,   // each goes to the rank that has its expert
  by_node,  // a token goes once to each node that has experts for it, where copies are made
};

/// What backward computes again instead of keeping it: nothing, attention, whole blocks.
enum class Recompute : std::uint8_t { none, selective, full };

/// Order of micro-batches through a pipeline: see plan/passes/pipeline.
enum class PipelineSchedule : std::uint8_t { one_f_one_b, gpipe, interleaved, zero_bubble };

/// Gradients are summed over data ranks once a step, or every micro-batch.
enum class ReduceWhen : std::uint8_t { step, micro };

template <>
struct EnumWords<NormKind> {
  using enum NormKind;
  static constexpr std::array table = {std::pair{layernorm, "layernorm"},
                                       std::pair{rmsnorm, "rmsnorm"}};
};
template <>
struct EnumWords<ActivationKind> {
  using enum ActivationKind;
  static constexpr std::array table = {std::pair{gelu, "gelu"},     std::pair{gelu_erf, "gelu_erf"},
                                       std::pair{relu, "relu"},     std::pair{tanh, "tanh"},
                                       std::pair{swiglu, "swiglu"}, std::pair{geglu, "geglu"}};
};
template <>
struct EnumWords<NormPlacement> {
  using enum NormPlacement;
  static constexpr std::array table = {std::pair{before, "before"}, std::pair{after, "after"},
                                       std::pair{both, "both"}, std::pair{sum, "sum"}};
};
template <>
struct EnumWords<QkNorm> {
  using enum QkNorm;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{head, "head"},
                                       std::pair{whole, "whole"}};
};
template <>
struct EnumWords<BlockForm> {
  using enum BlockForm;
  static constexpr std::array table = {std::pair{sequential, "sequential"},
                                       std::pair{parallel, "parallel"},
                                       std::pair{parallel_one_norm, "parallel_one_norm"}};
};
template <>
struct EnumWords<AttentionMask> {
  using enum AttentionMask;
  static constexpr std::array table = {std::pair{causal, "causal"},
                                       std::pair{bidirectional, "bidirectional"}};
};
template <>
struct EnumWords<PositionKind> {
  using enum PositionKind;
  static constexpr std::array table = {std::pair{learned, "learned"}, std::pair{rope, "rope"},
                                       std::pair{sinusoidal, "sinusoidal"},
                                       std::pair{none, "none"}};
};
template <>
struct EnumWords<InitScale> {
  using enum InitScale;
  static constexpr std::array table = {std::pair{scaled, "scaled"}, std::pair{depth, "depth"},
                                       std::pair{plain, "plain"}};
};
template <>
struct EnumWords<HeadWeights> {
  using enum HeadWeights;
  static constexpr std::array table = {std::pair{directory, "directory"},
                                       std::pair{fresh, "fresh"}};
};
template <>
struct EnumWords<RopePairs> {
  using enum RopePairs;
  static constexpr std::array table = {std::pair{halves, "halves"},
                                       std::pair{neighbours, "neighbours"}};
};
template <>
struct EnumWords<RopeScalingKind> {
  using enum RopeScalingKind;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{linear, "linear"},
                                       std::pair{dynamic, "dynamic"}, std::pair{llama3, "llama3"},
                                       std::pair{yarn, "yarn"}};
};
template <>
struct EnumWords<Pooling> {
  using enum Pooling;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{mean, "mean"},
                                       std::pair{first, "first"}, std::pair{last, "last"}};
};
template <>
struct EnumWords<RouterScores> {
  using enum RouterScores;
  static constexpr std::array table = {std::pair{softmax, "softmax"},
                                       std::pair{sigmoid, "sigmoid"}};
};
template <>
struct EnumWords<RouterGates> {
  using enum RouterGates;
  static constexpr std::array table = {std::pair{one, "one"}, std::pair{two_levels, "two_levels"}};
};
template <>
struct EnumWords<GroupScore> {
  using enum GroupScore;
  static constexpr std::array table = {std::pair{largest, "largest"},
                                       std::pair{two_largest, "two_largest"}};
};
template <>
struct EnumWords<ExpertSplit> {
  using enum ExpertSplit;
  static constexpr std::array table = {std::pair{width, "width"}, std::pair{experts, "experts"}};
};
template <>
struct EnumWords<ExpertDispatch> {
  using enum ExpertDispatch;
  static constexpr std::array table = {std::pair{exact, "exact"}, std::pair{int8, "int8"}};
};
template <>
struct EnumWords<ExpertExchange> {
  using enum ExpertExchange;
  static constexpr std::array table = {std::pair{direct, "direct"}, std::pair{by_node, "by_node"}};
};
template <>
struct EnumWords<ContextKind> {
  using enum ContextKind;
  static constexpr std::array table = {std::pair{gather, "gather"}, std::pair{ring, "ring"},
                                       std::pair{heads, "heads"}, std::pair{automatic, "auto"}};
};
template <>
struct EnumWords<Recompute> {
  using enum Recompute;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{selective, "selective"},
                                       std::pair{full, "full"}};
};
template <>
struct EnumWords<PipelineSchedule> {
  using enum PipelineSchedule;
  static constexpr std::array table = {std::pair{one_f_one_b, "1f1b"}, std::pair{gpipe, "gpipe"},
                                       std::pair{interleaved, "interleaved"},
                                       std::pair{zero_bubble, "zero_bubble"}};
};
template <>
struct EnumWords<ReduceWhen> {
  using enum ReduceWhen;
  static constexpr std::array table = {std::pair{step, "step"}, std::pair{micro, "micro"}};
};

}  // namespace tessera
