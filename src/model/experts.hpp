// The experts of a feed-forward layer (Shazeer et al. 2017; Fedus et al. 2021): a router chooses
// some for each token, copies of tokens go to them in the order of experts, and what they make is
// added up with the router's weights.
#pragma once

#include <vector>

#include "model/tensor_parallel.hpp"

namespace tessera::model {

/// Views of one chunk of the experts' matrices, or of their gradients: of G experts up_w is
/// (G F, C), or of gated ones (G 2 F, C), each expert's gate before its up; down_w is (G C, F). A
/// chunk has a part of the width F of all experts, or some experts whole.
struct ExpertsChunk {
  View up_w, down_w;
};

/// What a layer's router has chosen: for N tokens K experts each.
struct RoutedTokens {
  View h;                                // (B, T, C) what experts read
  View jittered;                         // what the router reads, which may be h
  View scores, stats, experts, weights;  // of kernels::Route: the logits that it has read, ...
  View counts;                           // of kernels::ExpertLoad, where balance is weighed by it
  std::int64_t capacity = 0;             // of each expert, in tokens; 0: no limit
};

/// The way of tokens to the nodes that have experts for them, once to each, in R rows: a slot for
/// each node, to whose rank with this one's number they go.
struct CrossedTokens {
  View place, source, begins;  // of kernels::Dispatch
  View arrived;                // (nodes, 2) i32
  std::int64_t expected = 0;   // tokens of a slot
  explicit operator bool() const { return static_cast<bool>(place); }
};

/// The copies of tokens that go to some experts, in R rows: a slot of rows for each of the ranks
/// that exchange copies (ExpertRegion::within). This rank's experts read the slots that have
/// arrived.
struct DispatchedTokens {
  Range experts;          // of all ranks that divide them
  CrossedTokens crossed;  // absent where copies are of this rank's tokens
  View tokens;            // (N, C) that copies are made of here, or their codes (N, bytes)
  View chosen, weights;   // (N, K) of these; chosen are i32, of which the own begin with `first`
  std::int64_t first = 0, all = 0;
  std::int64_t capacity = 0;   // of each expert, in these tokens; 0: no limit
  View place, source, begins;  // of kernels::Dispatch
  View arrived;             // (ranks, G / ranks + 1) i32: where rows of this rank's experts begin
  View codes;               // (R, bytes) of rows that have arrived rounded, if they do
  View rows;                // (R, C) that have arrived; of codes, once read_tokens() has made them
  std::int64_t copies = 0;  // that are expected of a slot
};

/// What backward needs of one chunk of the experts.
struct ExpertsSaved {
  DispatchedTokens dispatched;  // the same where chunks have parts of the same experts
  View up, act;                 // (R, F or 2 F), (R, F), of what has arrived
  View out;                     // (R, C), of the tokens that copies were made of here
  View home;  // (rows of CrossedTokens, C), their sums that have come back to this rank's tokens
};

/// `h`: at all positions; `router_b` (f32) may be absent. Every tensor rank routes alike.
RoutedTokens route_tokens(UnitContext& u, const ModelConfig& c, const View& router_w,
                          const View& router_b, const View& h);

/// Tokens begin their way to experts.
DispatchedTokens dispatch_tokens(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed,
                                 Range experts);

/// What is left of it, once for all chunks of experts: makes copies of tokens that have come to
/// this node, and rows of what travels rounded.
void read_tokens(UnitContext& u, const ModelConfig& c, DispatchedTokens& to);

/// What these experts, of which `w` is a chunk, make of each copy, which begins its way back, over
/// nodes as a sum. What is computed before combine_experts() goes on beside it, as what is computed
/// after dispatch_tokens() goes on beside the way there.
void experts_forward(UnitContext& u, const ModelConfig& c, const DispatchedTokens& to,
                     const ExpertsChunk& w, ExpertsSaved& saved);

/// out = the sum of what these experts have made of each token that chose them.
void combine_experts(UnitContext& u, const ExpertsSaved& saved, const View& out);

/// The way back, in the order of its functions.
class ExpertsBackward {
 public:
  /// `d_out`: the gradient of the experts' output, at all positions; `chunks`: this rank's.
  ExpertsBackward(UnitContext& u, const ModelConfig& c, const RoutedTokens& routed,
                  const View& d_out, std::int64_t chunks);
  /// Of each chunk in order: gradients of what its experts have made begin their way there; these
  /// make gradients of copies, which begin their way back; and d_x = the gradient of what the chunk
  /// has read. What is computed between goes on beside their ways.
  void begin(const ExpertsSaved& saved);
  void products(const ExpertsChunk& w);
  void input(const View& d_x);
  /// The gradient of the router's logits, once all chunks have gone so far. Its own terms enter
  /// here, of which `shares` weigh experts where the model has them.
  void logits(const View& shares);
  /// d_x = that of what the router has read.
  void router_input(const View& router_w, const View& d_x) const;
  /// Gradients of the parameters.
  void weights(std::size_t i, const ExpertsChunk& gradients, kernels::Write write) const;
  void router_weights(const View& gradient, kernels::Write write) const;

 private:
  /// Of a chunk, and of what has arrived: what forward has saved; the gradients of tokens' outputs,
  /// where copies are made (N, C), of what experts have made (R, C), and of their first product;
  /// those of copies, or of their sums that have come back; and the products of the former with
  /// what was made of copies (rows of CrossedTokens, K), if they come over nodes.
  struct Chunk {
    const ExpertsSaved* saved;
    View d_tokens, d_rows, d_up, d_copies, dots;
    const DispatchedTokens& dispatched() const { return saved->dispatched; }
  };
  /// The chunk before the last one, if it has the same copies.
  const Chunk* alike() const;
  /// (N K) f32 of this rank's tokens.
  View dots_of(std::size_t chunk) const;
  /// Gradients of tokens' outputs become those of copies, which go where their experts are.
  void depart();
  View spread(const Chunk& chunk) const;
  View rows(const DispatchedTokens& of, std::int64_t columns) const;

  UnitContext& u_;
  const ModelConfig& c_;
  const RoutedTokens& routed_;
  View d_out_;  // (B, T, C)
  std::vector<Chunk> chunks_;
  PartialGradients partial_;
  View d_weights_, dots_;  // (N, K) f32, and the chunks' parts of it
  View d_logits_;
};

}  // namespace tessera::model
