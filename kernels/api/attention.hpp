// Scaled-dot-product attention with grouped kv heads, computed in tiles with a running softmax (Dao
// et al. 2022, FlashAttention): neither the (T, S) matrix of scores nor that of which keys a query
// sees ever exists in memory.
#pragma once

#include "core/choices.hpp"
#include "kernels/api/cached.hpp"

namespace tessera::kernels {

/// Columns of the widest heads that kernels of a GPU take; those of a CPU take any.
inline constexpr std::int64_t kMostGpuHeadDim = 256;

struct AttentionShape {
  std::int64_t heads = 0;      // H
  std::int64_t kv_heads = 0;   // KV
  std::int64_t head_dim = 0;   // D
  std::int64_t value_dim = 0;  // E, of values and of what comes out; 0: D
  float scale = 0;             // of scores, normally 1 / sqrt(D)
  /// Which keys a query may see: those up to its own, or all. With a window only those that are
  /// fewer than `window` tokens away from it, itself included.
  AttentionMask mask = AttentionMask::causal;
  std::int64_t window = 0;  // 0: no limit
  float soft_cap = 0;       // scaled scores x become soft_cap tanh(x / soft_cap); 0: they stay
  /// Query heads that share a kv head (0: H / KV), and how many of the first kv head's come before
  /// the first query head: a rank may begin and end within such a group.
  std::int64_t group = 0, skip = 0;

  constexpr std::int64_t values() const { return value_dim > 0 ? value_dim : head_dim; }
  std::int64_t kv_head_of(std::int64_t head) const {
    return (skip + head) / (group > 0 ? group : heads / kv_heads);
  }
  /// How many pairs of one of `queries` and one of `keys` that mask and window let it see there
  /// are; the first query is `first` tokens behind the first key. Documents, which are known when a
  /// step runs, make them fewer.
  double most_pairs(std::int64_t first, std::int64_t queries, std::int64_t keys) const;
  bool operator==(const AttentionShape&) const = default;
};

inline double AttentionShape::most_pairs(std::int64_t first, std::int64_t queries,
                                         std::int64_t keys) const {
  // 1 + 2 + .. + n, each at most `keys`.
  const auto sum = [&](std::int64_t n) {
    if (n <= 0) return 0.0;
    const auto up = static_cast<double>(n < keys ? n : keys);
    return up * (up + 1) / 2 + (n > keys ? static_cast<double>(n - keys) * up : 0);
  };
  // Pairs whose query is at most so far behind its key.
  const auto within = [&](std::int64_t distance) {
    const std::int64_t of_first = keys + distance - first;
    return sum(of_first) - sum(of_first - queries);
  };
  const std::int64_t all = keys + queries + (first < 0 ? -first : first),
                     reach = window > 0 ? window - 1 : all;
  return within(reach) - within(mask == AttentionMask::causal ? -1 : -reach - 1);
}

/// Keys of a sample of an Attention or its backward; of a cache those that its pages have room for.
template <typename Operation>
std::int64_t keys_of(const Operation& a) {
  if constexpr (requires { a.pages; })
    if (a.pages) return a.pages.extent(1) * a.k.extent(1);
  return a.k.extent(1);
}
/// Tokens of a sequence.
template <typename Operation>
std::int64_t sequence_of(const Operation& a) {
  return a.tokens > 0 ? a.tokens : keys_of(a);
}
/// The token of its first query.
template <typename Operation>
std::int64_t first_token_of(const Operation& a) {
  return a.first < 0 ? sequence_of(a) - a.q.extent(1) : a.first;
}
/// How many tokens it is behind the first key.
template <typename Operation>
std::int64_t first_query_of(const Operation& a) {
  return first_token_of(a) - a.first_key;
}

/// out = softmax(scale q k^T, masked) v. Query t is token first + t of a sequence: the last T where
/// keys of earlier tokens come from a cache, any T where ranks have parts of a sequence. The keys
/// are all N tokens of it, or S from token first_key on. A query sees those of them that the
/// shape's mask and window let it see, of its own document; where there are none, it gets zeros and
/// an lse of -infinity. Dropout acts on probabilities, element (h N + first + t) N + first_key + s
/// of its sample. q, k and v may be column ranges of one matrix.
///
/// With `cached` k and v are caches, whose pages a sample has by the table `pages`: query t of a
/// sample is token before + t of its sequence, and sees of its before + count first tokens those
/// that the shape lets it see. What padding gets means nothing.
struct Attention {
  static constexpr const char* kName = "attention";
  View q;          // (B, T, H D)
  View k;          // (B, S, KV D); of caches (pages, tokens of a page, KV D)
  View v;          // (B, S, KV E); likewise
  View out;        // (B, T, H E)
  View lse;        // (B, H, T) f32: log of the softmax denominator; absent when no backward follows
  View documents;  // of N tokens, see check_documents; absent: a sample is one document
  View cached;     // (B, 3), see CachedSample; absent: there is no cache
  View pages;      // (B, P), see kPageTokens; of caches
  AttentionShape shape;
  Dropout dropout;
  std::int64_t first = -1;  // below 0: N - T
  std::int64_t first_key = 0;
  std::int64_t tokens = 0;  // N; 0: S
  View scratch;

  /// Of what mask and window let queries see; documents are not looked at.
  double flop() const {
    return 2.0 * static_cast<double>(q.extent(0) * (q.cols() + out.cols())) *
           shape.most_pairs(first_query_of(*this), q.extent(1), keys_of(*this));
  }
  /// Bytes that it moves: of a cache the pages of the call's samples alone, whole.
  double bytes() const {
    const auto of = [](const View& view) {
      return view ? static_cast<double>(view.elements() * size_of(view.type)) : 0;
    };
    const double share = static_cast<double>(q.extent(0) * keys_of(*this)) /
                         static_cast<double>(k.extent(0) * k.extent(1));
    return of(q) + (of(k) + of(v)) * share + of(documents) + of(cached) + of(pages) +
           of(dropout.samples) + of(out) + of(lse);
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.q, Access::read), f(s.k, Access::read), f(s.v, Access::read), f(s.documents, Access::read),
        f(s.cached, Access::read), f(s.pages, Access::read), f(s.dropout.samples, Access::read);
    f(s.out, Access::write), f(s.lse, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Attention&) const = default;
};

/// Whether an operation's sums must have the same bits each time, or may be added in whatever order
/// is fastest, where a device has such a way.
enum class SumOrder : std::uint8_t { fixed, any };

/// Gradients of Attention. Scores are computed again from q, k and lse, which with `out` are of all
/// keys that the queries see, also where k and v are of some. d_k and d_v are those that these
/// queries give; they may be f32 beside 16-bit operands, and be added to. d_q is what these keys
/// give.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  View q, k, v;        // as in Attention
  View out;            // (B, T, H E)
  View lse;            // (B, H, T) f32
  View documents;      // as in Attention
  View d_out;          // (B, T, H E)
  View d_q, d_k, d_v;  // shapes of q, k, v
  AttentionShape shape;
  Dropout dropout;
  SumOrder order = SumOrder::fixed;
  std::int64_t first = -1, first_key = 0, tokens = 0;  // as in Attention
  Write write = Write::overwrite;                      // of d_k and d_v
  View scratch;

  /// As of Attention: scores, d_q and d_k, and two products of values.
  double flop() const {
    return 2.0 * static_cast<double>(q.extent(0) * (3 * q.cols() + 2 * out.cols())) *
           shape.most_pairs(first_query_of(*this), q.extent(1), k.extent(1));
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.q, Access::read), f(s.k, Access::read), f(s.v, Access::read), f(s.out, Access::read);
    f(s.lse, Access::read), f(s.documents, Access::read), f(s.d_out, Access::read),
        f(s.dropout.samples, Access::read);
    f(s.d_q, Access::write), f(s.d_k, access_of(s.write)), f(s.d_v, access_of(s.write)),
        f(s.scratch, Access::write);
  }
  bool operator==(const AttentionBackward&) const = default;
};

/// What queries get of some keys, x, and of others, out, becomes what they get of all (Liu et al.
/// 2023, Ring Attention): each weighs its part of the sum of exponentials, of which lse is the log.
/// One of -infinity, of a query that sees none of the keys, weighs nothing.
struct MergeAttention {
  static constexpr const char* kName = "merge_attention";
  View x;                  // (B, T, H E)
  View x_lse;              // (B, H, T) f32
  View out;                // (B, T, H E) f32
  View lse;                // (B, H, T) f32
  std::int64_t heads = 1;  // H
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.x_lse, Access::read);
    f(s.out, Access::update), f(s.lse, Access::update), f(s.scratch, Access::write);
  }
  bool operator==(const MergeAttention&) const = default;
};

}  // namespace tessera::kernels
