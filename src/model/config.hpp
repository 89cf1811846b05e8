// The architecture of a model. Model families are values of these fields; they have no code of
// their own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/math.hpp"
#include "kernels/api/activation.hpp"
#include "kernels/api/experts.hpp"
#include "kernels/api/norm.hpp"
#include "kernels/api/rope.hpp"

namespace tessera::model {

/// How far a layer's attention sees: to the begin of the sample or document, or as far as a window.
enum class Reach : std::uint8_t { global, window };

/// What makes outputs of the last layer's vectors: one matrix, and what may come before it.
struct HeadConfig {
  Pooling pooling = Pooling::none;  // an output is of a document's pooled vectors
  std::int64_t documents = 1;       // of a sample, that are pooled: its first so many
  std::int64_t tokens = 0;          // of such a sample; 0: as many as the context
  std::int64_t labels = 0;          // outputs are classes, so many; 0: tokens of the vocabulary
  std::int64_t hidden = 0;          // columns of a dense layer before the matrix; 0: there is none
  ActivationKind activation = ActivationKind::gelu;  // of the dense layer, which has a bias
  bool norm = false;                                 // a norm follows the dense layer
  bool bias = false;                                 // of outputs
  bool values = false;  // each token's vector also gives a number, the value of what is there
};

/// Feed-forward layers of experts, of which a router chooses some for each token (Shazeer et al.
/// 2017). Each is a feed-forward layer without biases.
struct ExpertsConfig {
  std::int64_t count = 0;          // E of a layer that has them; 0: the model has none
  std::int64_t hidden = 0;         // F of each
  std::int64_t shared_hidden = 0;  // F of one that every token goes through; 0: there is none
  std::int64_t every = 1;          // the last of every so many layers has experts,
  std::int64_t first = 0;          // but none of the first so many
  /// Tokens that an expert takes in training, over those of an even spread; 0: all.
  double capacity = 0;
  float jitter = 0;  // of what the router reads in training (kernels::Dropout)
  ExpertDispatch dispatch = ExpertDispatch::exact;
  /// What is kept of steps' choices, if anything: a bias of each expert, with which experts are
  /// chosen by scores, but not weighed; or each one's share, by which their balance is weighed.
  std::optional<kernels::BalanceBy> balance;
  RouterGates gates = RouterGates::one;
  kernels::Routing routing;

  bool keeps_shares() const { return balance == kernels::BalanceBy::shares; }
  /// Rows of a router's matrix: of experts, and of groups of them that have a gate.
  std::int64_t router_rows() const {
    return count + (gates == RouterGates::two_levels ? routing.groups : 0);
  }
  /// How experts are chosen from what kernels::JoinGates makes of logits, or of these.
  kernels::Routing last_routing() const {
    if (gates == RouterGates::one) return routing;
    return {.choices = routing.choices, .scale = routing.scale};
  }

  bool in(std::int64_t layer) const {
    return count > 0 && layer >= first && (layer + 1) % every == 0;
  }
};

/// Attention whose keys and values are made of a vector of few columns for each token, its latent
/// (DeepSeek-AI 2024, DeepSeek-V2, section 2.1). Heads have columns without positions of their own,
/// and behind them `rope` that turn, which keys of all heads share.
struct LatentConfig {
  std::int64_t kv = 0;    // columns of the latent; 0: keys and values are made of the layer's input
  std::int64_t q = 0;     // of one that queries are made of; 0: these are made of the input
  std::int64_t rope = 0;  // of each head

  explicit operator bool() const { return kv > 0; }
  /// Columns of all that is made of a layer's input, beside queries that are.
  std::int64_t columns() const { return q + kv + rope; }
};

/// Probabilities with which elements are dropped out.
struct DropoutRates {
  float embedding = 0;  // of the sum of a token's and a position's vectors
  float attention = 0;  // of attention's probabilities
  float residual = 0;   // of each sub-layer's output
};
constexpr DropoutRates same_dropout(float p) { return {p, p, p}; }

/// Matrices of low rank beside those that `targets` name, which are all that is trained (Hu et al.
/// 2021, LoRA), with the lengths of rows if so wanted (Liu et al. 2024, DoRA).
struct AdapterConfig {
  std::int64_t rank = 0;             // 0: there are none
  float scale = 1;                   // of what they add
  float dropout = 0;                 // of what they read
  bool magnitudes = false;           // rows of the sum have lengths of their own (DoRA)
  std::vector<std::string> targets;  // patterns of names of parameters
};

struct ModelConfig {
  std::int64_t layers = 0;      // L
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // KV
  std::int64_t head_dim = 0;    // D
  std::int64_t value_dim = 0;   // E, of values; 0: D
  std::int64_t hidden = 0;      // C
  std::int64_t ffn_hidden = 0;  // F
  std::int64_t vocab = 0;       // V
  std::int64_t context = 0;     // longest sequence
  NormKind norm = NormKind::layernorm;
  NormPlacement norm_placed = NormPlacement::before;
  float norm_eps = 1e-5F;
  AttentionMask attention = AttentionMask::causal;
  PositionKind position = PositionKind::learned;
  double rope_theta = 10000.0;
  double rope_local_theta = 0;  // of layers with a window; 0: as of the others
  std::int64_t rotary_dim = 0;  // columns of a head that turn; 0: all
  RopePairs rope_pairs = RopePairs::halves;
  kernels::RopeScaling rope_scaling;
  std::int64_t window = 0;        // of attention, in tokens; 0: none
  std::int64_t global_every = 0;  // the last of every so many layers has none; 0: all have it
  float attention_soft_cap = 0;   // scores x are cap tanh(x / cap); 0: as they are
  ActivationKind activation = ActivationKind::gelu;
  bool bias = true;            // in linear layers and layer norms
  bool attention_bias = true;  // in attention's linear layers, where `bias` is
  bool qkv_bias = false;       // in the products that make q, k and v, where there are no others
  QkNorm qk_norm = QkNorm::none;
  BlockForm block = BlockForm::sequential;
  std::int64_t query_scalar = 0;   // scores are q k / sqrt(query_scalar); 0: D
  float score_scale = 1;           // which they are multiplied by besides
  bool scaled_embeddings = false;  // tokens' vectors are multiplied with sqrt(C)
  bool embedding_norm = false;     // of the sum of a token's and a position's vectors
  float logit_soft_cap = 0;        // logits x are cap tanh(x / cap); 0: as they are
  bool tied_embeddings = true;
  LatentConfig latent;
  ExpertsConfig experts;
  DropoutRates dropout;
  float init_std = 0.02F;
  HeadConfig head;
  AdapterConfig adapter;
  std::vector<std::string> frozen;  // patterns of names of layers that are not trained
  InitScale init = InitScale::scaled;

  /// Rows of the token matrix as stored and multiplied: padded to 64 whatever the layout, so that
  /// the layout does not change the loss (trap 22 in tests/README.md).
  std::int64_t padded_vocab() const { return round_up(vocab, 64); }
  std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  /// Parameters of a layer's experts that a token does not meet.
  std::int64_t idle_parameters(std::int64_t layer) const {
    if (!experts.in(layer)) return 0;
    const std::int64_t matrices = gated(activation) ? 3 : 2;
    return (experts.count - experts.routing.choices) * matrices * experts.hidden * hidden;
  }
  /// The number of the layer among those that have experts.
  std::int64_t experts_before(std::int64_t layer) const {
    std::int64_t n = 0;
    for (std::int64_t i = 0; i < layer; ++i) n += experts.in(i) ? 1 : 0;
    return n;
  }
  Reach reach_of(std::int64_t layer) const {
    const bool global = window == 0 || (global_every > 0 && (layer + 1) % global_every == 0);
    return global ? Reach::global : Reach::window;
  }
  /// How many keys a query of the layer sees, on average over the positions of a sequence.
  double keys_seen(std::int64_t layer, std::int64_t sequence) const {
    const auto all = static_cast<double>(sequence);
    const double most =
        reach_of(layer) == Reach::window && window < sequence ? static_cast<double>(window) : all;
    const double behind = most - most * most / (2 * all);
    return attention == AttentionMask::causal ? behind : 2 * behind;
  }
  bool norms_inputs() const {
    return norm_placed == NormPlacement::before || norm_placed == NormPlacement::both;
  }
  bool norms_outputs() const {
    return norm_placed == NormPlacement::after || norm_placed == NormPlacement::both;
  }
  bool norms_sums() const { return norm_placed == NormPlacement::sum; }
  /// Where sums are normalised, the last layer's is.
  bool final_norm() const { return !norms_sums(); }
  bool position_table() const {
    return position == PositionKind::learned || position == PositionKind::sinusoidal;
  }
  /// Columns of what the output matrix reads.
  std::int64_t head_columns() const { return head.hidden > 0 ? head.hidden : hidden; }
  /// Rows of the output matrix as stored and multiplied. Those of classes are whole on every tensor
  /// rank.
  std::int64_t padded_outputs() const {
    return head.labels > 0 ? round_up(head.labels, 8) : padded_vocab();
  }
  std::int64_t outputs() const { return head.labels > 0 ? head.labels : vocab; }
  /// How many targets a token stands for, on average.
  double targets_per_token() const {
    if (head.pooling == Pooling::none) return 1;
    return static_cast<double>(head.documents) /
           static_cast<double>(head.tokens > 0 ? head.tokens : context);
  }
  /// How many targets a sample of so many tokens has.
  std::int64_t targets_of(std::int64_t sequence) const {
    return head.pooling == Pooling::none ? sequence : head.documents;
  }
};

}  // namespace tessera::model
