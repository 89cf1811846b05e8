// What attention's loops have in common, however operands are multiplied: where keys and heads lie,
// dropout of probabilities, capped scores, what is written.
#pragma once

#include "kernels/cpu/hot/attention_shape.hpp"
#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/operands.hpp"

namespace tessera::kernels::TESSERA_ISA {

inline constexpr float kMasked = -__builtin_inff();
static_assert(kPageTokens % kTile == 0);

/// Of an Attention or its backward.
template <typename Operation>
KeyPart part_of(const Operation& a) {
  return {a.first_key, a.k.shape[1], sequence_of(a)};
}

/// The keys of one sample: which tokens, how many the first query is behind the first of them, and
/// which rows of k and v have them.
struct SampleKeys {
  SampleKeys(const Attention& a, std::int64_t b)
      : part(part_of(a)), first_query(first_query_of(a)), sample_(b), room_(a.k.shape[1]) {
    const auto* cached = reinterpret_cast<const CachedSample*>(a.cached.data);
    if (cached == nullptr) return;
    part = kernels::part_of(cached[b]), first_query = cached[b].before;
    pages_ = reinterpret_cast<const std::int32_t*>(a.pages.data) + b * a.pages.shape[1];
  }
  /// That of a token; those of a tile's other tokens are behind it.
  std::int64_t row(std::int64_t token) const {
    const std::int64_t page = pages_ == nullptr ? sample_ : pages_[token / room_];
    return page * room_ + token % room_;
  }
  KeyPart part;
  std::int64_t first_query;

 private:
  std::int64_t sample_, room_;
  const std::int32_t* pages_ = nullptr;
};

/// f(rows, document) for each document of some tokens of a sample, in order; rows are those of the
/// tokens that are of it, counted from the first of all. Returns the first row of padding, which is
/// of no document, or how many rows there are.
template <typename F>
TESSERA_INLINE std::int64_t for_documents(const View& table, const KeyPart& part,
                                          std::int64_t sample, Range tokens, F&& f) {
  const auto* documents = reinterpret_cast<const std::int32_t*>(table.data);
  std::int64_t row = 0;
  while (row < tokens.count()) {
    const Range document = part.document_of(documents, sample, tokens.begin + row);
    const std::int64_t end = at_most(tokens.count(), document.end - tokens.begin);
    if (end <= row) break;
    f(Range{row, end}, document);
    row = end;
  }
  return row;
}

/// One head's columns of a tensor of heads, `tokens` rows from `row` on.
inline Block rows_of_head(const View& view, std::int64_t row, std::int64_t tokens,
                          std::int64_t head, std::int64_t dim) {
  Block rows{view.data, view.type, view.ld, tokens, dim};
  return rows.from(row, head * dim);
}
/// The same of a sample of a (B, T, heads D) tensor, from token `first` on.
inline Block head_of(const View& view, std::int64_t sample, std::int64_t first, std::int64_t tokens,
                     std::int64_t head, std::int64_t dim) {
  return rows_of_head(view, sample * view.shape[1] + first, tokens, head, dim);
}

inline void unpack(const float* from, std::int64_t ld, float factor, const Block& to,
                   Write write = Write::overwrite) {
  with_type(to.type, [&]<typename T>() {
    for (std::int64_t t = 0; t < to.rows; ++t) {
      T* out = to.row<T>(t);
      for_vectors(
          to.columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            Vec x = load(from + t * ld + i, kLanes) * Vec(factor);
            if (write == Write::add) x = x + load(out + i, count);
            store(out + i, x, count);
          });
    }
  });
}

/// Dropout of a tile of probabilities: one row's factors.
struct TileDropout {
  const Dropout& dropout;
  const DropoutRule& rule;
  std::int64_t sample, head;
  KeyPart part;

  explicit operator bool() const { return dropout.p > 0; }
  void factors(std::int64_t query, std::int64_t s, std::int64_t n, float* out) const {
    const auto* samples = reinterpret_cast<const std::int64_t*>(dropout.samples.data);
    dropout_factors(rule, static_cast<std::uint64_t>(samples[sample]), part.pair(head, query, s), n,
                    out);
  }
};

/// One row of scores becomes cap tanh(factor x / cap); `slopes` the derivatives of cap tanh(x /
/// cap) there, unless it is null.
inline void cap_row(float* row, int vecs, float factor, float cap, float* slopes) {
  const Vec inverse(1.0F / cap);
  for (int j = 0; j < vecs; ++j) {
    const Vec t = tanh_of(load(row + j * kLanes, kLanes) * Vec(factor) * inverse);
    store(row + j * kLanes, Vec(cap) * t, kLanes);
    if (slopes != nullptr) store(slopes + j * kLanes, tanh_slope(t), kLanes);
  }
}

/// `count` words behind what is taken of scratch, each of which has room for a float.
template <typename Word>
Word* take(float*& scratch, std::int64_t count) {
  static_assert(sizeof(Word) == sizeof(float));
  auto* const taken = reinterpret_cast<Word*>(scratch);
  scratch += count;
  return taken;
}

/// delta[t] = out . d_out, which equals the sum over keys of P dP (FlashAttention, equation 4).
inline void row_products(const Block& out, const Block& d_out, float* delta) {
  with_type(out.type, [&]<typename T>() {
    for (std::int64_t t = 0; t < out.rows; ++t) {
      const T* x = out.row<T>(t);
      const T* y = d_out.row<T>(t);
      Vec sum(0.0F);
      for_vectors(
          out.columns, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
            sum = fmadd(load(x + i, count), load(y + i, count), sum);
          });
      delta[t] = sum_of(sum);
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
