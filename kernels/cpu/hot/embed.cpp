#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T>
void embed_rows(const Embed& a, const DropoutRule& rule, Range rows) {
  const std::int64_t tokens = a.tokens.shape[1], columns = columns_of(a.out);
  const auto* ids = reinterpret_cast<const std::int32_t*>(a.tokens.data);
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* token = row_of<T>(a.token_table, ids[r]);
    const T* position = a.position_table.data == nullptr
                            ? nullptr
                            : row_of<T>(a.position_table, a.first_position + r % tokens);
    T* out = row_of<T>(a.out, r);
    const auto embed = [&](std::int64_t c0, const float* factors, std::int64_t n) {
      for_vectors(n, [&](std::int64_t i, std::int64_t count) {
        Vec v = load(token + c0 + i, count);
        if (position != nullptr) v = v + load(position + c0 + i, count);
        if (factors != nullptr) v = v * load(factors + i, count);
        store(out + c0 + i, v, count);
      });
    };
    if (a.dropout.p > 0) {
      for_dropout_pieces(a.dropout, rule, r, tokens, columns, embed);
    } else {
      embed(0, nullptr, columns);
    }
  }
}

/// sum[i] += gradient of column c0 + i of row r, dropout undone.
template <typename T>
void add_gradient(const EmbedBackward& a, const DropoutRule& rule, std::int64_t r, std::int64_t c0,
                  std::int64_t n, float* sum) {
  float factors[kDropoutPiece];
  if (a.dropout.p > 0) {
    const std::int64_t tokens = a.tokens.shape[1];
    const auto* samples = reinterpret_cast<const std::int64_t*>(a.dropout.samples.data);
    dropout_factors(rule, static_cast<std::uint64_t>(samples[r / tokens]),
                    (r % tokens) * columns_of(a.d) + c0, n, factors);
  }
  const T* d = row_of<T>(a.d, r) + c0;
  for_vectors(n, [&](std::int64_t i, std::int64_t count) {
    Vec v = load(d + i, count);
    if (a.dropout.p > 0) v = v * load(factors + i, count);
    store(sum + i, load(sum + i, count) + v, count);
  });
}

template <typename G>
void write_gradient(G* to, const float* sum, std::int64_t n, Write write) {
  for_vectors(n, [&](std::int64_t i, std::int64_t count) {
    const Vec v = load(sum + i, count);
    store(to + i, write == Write::add ? load(to + i, count) + v : v, count);
  });
}

/// to (+)= the gradients of rows row_at(0) .. row_at(rows - 1), in this order, piece by piece.
template <typename T, typename G, typename RowAt>
void sum_gradients(const EmbedBackward& a, const DropoutRule& rule, std::int64_t rows, RowAt row_at,
                   G* to, Write write) {
  const std::int64_t columns = columns_of(a.d);
  for (std::int64_t c = 0; c < columns; c += kDropoutPiece) {
    const std::int64_t n = columns - c < kDropoutPiece ? columns - c : kDropoutPiece;
    float sum[kDropoutPiece] = {};
    for (std::int64_t i = 0; i < rows; ++i) add_gradient<T>(a, rule, row_at(i), c, n, sum);
    write_gradient(to + c, sum, n, write);
  }
}

}  // namespace

void embed(const Embed& a, const DropoutRule& rule, Range rows) {
  with_type(a.out.type, [&]<typename T>() { embed_rows<T>(a, rule, rows); });
}

void embed_backward_tokens(const EmbedBackward& a, const DropoutRule& rule,
                           const std::int64_t* places, Range entries) {
  const auto* ids = reinterpret_cast<const std::int32_t*>(a.tokens.data);
  const std::int64_t total = a.tokens.shape[0] * a.tokens.shape[1];
  const auto sum_runs = [&]<typename T, typename G>() {
    std::int64_t i = entries.begin;
    while (i > 0 && i < entries.end && ids[places[i]] == ids[places[i - 1]]) ++i;  // began before
    while (i < entries.end) {
      const std::int32_t token = ids[places[i]];
      std::int64_t end = i + 1;
      while (end < total && ids[places[end]] == token) ++end;
      // Rows of an overwritten table were cleared before, since most of them have no token.
      sum_gradients<T>(
          a, rule, end - i, [&](std::int64_t k) { return places[i + k]; },
          row_of<G>(a.d_token_table, token), Write::add);
      i = end;
    }
  };
  with_type(a.d.type, [&]<typename T>() {
    with_type(a.d_token_table.type, [&]<typename G>() { sum_runs.template operator()<T, G>(); });
  });
}

void embed_backward_positions(const EmbedBackward& a, const DropoutRule& rule, Range positions) {
  const std::int64_t samples = a.tokens.shape[0], tokens = a.tokens.shape[1];
  with_type(a.d.type, [&]<typename T>() {
    with_type(a.d_position_table.type, [&]<typename G>() {
      for (std::int64_t t = positions.begin; t < positions.end; ++t) {
        sum_gradients<T>(
            a, rule, t < tokens ? samples : 0, [&](std::int64_t b) { return b * tokens + t; },
            row_of<G>(a.d_position_table, t), a.position_write);
      }
    });
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
