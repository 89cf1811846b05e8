// Loops of the embedding and of its tables' gradients.
#include "kernels/common/sight.hpp"
#include "kernels/cpu/hot/dropout.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// The position of row r of a call on `tokens` of each sample.
template <typename Operation>
std::int64_t position_of(const Operation& a, std::int64_t r, std::int64_t tokens) {
  const std::int64_t t = a.first_position + r % tokens;
  if (const auto* cached = reinterpret_cast<const CachedSample*>(a.cached.data); cached != nullptr)
    return kernels::position_of(cached[r / tokens], t);
  if (a.documents.data == nullptr) return t;
  const auto* documents = reinterpret_cast<const std::int32_t*>(a.documents.data);
  return t - document_of(documents, r / tokens, t, a.documents.shape[1]).begin;
}

/// Row r of out = dropout(x + its position's row); x is null where it is a row of zeros.
template <typename X, typename P, typename O, typename Operation>
void add_position_row(const Operation& a, const DropoutRule& rule, std::int64_t r,
                      std::int64_t tokens, const X* x) {
  const std::int64_t columns = columns_of(a.out);
  const P* position = a.position_table.data == nullptr
                          ? nullptr
                          : row_of<P>(a.position_table, position_of(a, r, tokens));
  O* out = row_of<O>(a.out, r);
  const auto add = [&](std::int64_t c0, const float* factors, std::int64_t n) {
    for_vectors(
        n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          Vec v = x != nullptr ? load(x + c0 + i, count) : Vec(0.0F);
          if (position != nullptr) v = v + load(position + c0 + i, count);
          if (factors != nullptr) v = v * load(factors + i, count);
          store(out + c0 + i, v, count);
        });
  };
  if (a.dropout.p > 0) {
    for_dropout_pieces(a.dropout, rule, r, tokens, columns, add);
  } else {
    add(0, nullptr, columns);
  }
}

template <typename T, typename O>
void embed_rows(const Embed& a, const DropoutRule& rule, Range rows) {
  const auto* ids = reinterpret_cast<const std::int32_t*>(a.tokens.data);
  const std::int64_t here = a.token_table.shape[0];
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t token = ids[r] - a.first_token;
    const T* x = token >= 0 && token < here ? row_of<T>(a.token_table, token) : nullptr;
    add_position_row<T, T, O>(a, rule, r, a.tokens.shape[1], x);
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
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        Vec v = load(d + i, count);
        if (a.dropout.p > 0) v = v * load(factors + i, count);
        store(sum + i, load(sum + i, count) + v, count);
      });
}

template <typename G>
void write_gradient(G* to, const float* sum, std::int64_t n, Write write) {
  for_vectors(
      n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
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
  with_type(a.token_table.type, [&]<typename T>() {
    if (a.out.type == a.token_table.type) {
      embed_rows<T, T>(a, rule, rows);
    } else {
      embed_rows<T, float>(a, rule, rows);
    }
  });
}

void add_positions(const AddPositions& a, const DropoutRule& rule, Range rows) {
  with_type(a.out.type, [&]<typename T>() {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      add_position_row<float, T, T>(a, rule, r, a.x.shape[1], row_of<float>(a.x, r));
    }
  });
}

void embed_backward_rows(const EmbedBackward& a, const DropoutRule& rule, const PlaceRows& rows,
                         const View& table, std::span<const std::int64_t> places, Range entries) {
  const std::int64_t* place = places.data();
  const auto total = static_cast<std::int64_t>(places.size());
  const auto sum_runs = [&]<typename T, typename G>() {
    std::int64_t i = entries.begin;
    while (i > 0 && i < entries.end && rows.of(place[i]) == rows.of(place[i - 1])) {
      ++i;  // began before
    }
    while (i < entries.end) {
      const std::int64_t row = rows.of(place[i]);
      std::int64_t end = i + 1;
      while (end < total && rows.of(place[end]) == row) ++end;
      // Rows of an overwritten table were cleared before, since many of them have no place.
      sum_gradients<T>(
          a, rule, end - i, [&](std::int64_t k) { return place[i + k]; }, row_of<G>(table, row),
          Write::add);
      i = end;
    }
  };
  with_type(a.d.type, [&]<typename T>() {
    with_type(table.type, [&]<typename G>() { sum_runs.template operator()<T, G>(); });
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
