// Token and position embedding.
#pragma once

#include "kernels/api/cached.hpp"

namespace tessera::kernels {

/// out[b, t] = dropout(token_table[tokens[b, t]] + position_table[first_position + t]), summed in
/// f32, rounded once. With documents, positions count from the begin of the token's document, with
/// `cached` they are those of CachedSample, of padding that of the last token. The table may hold a
/// part of the vocabulary, [first_token, first_token + V): other tokens count as rows of zeros.
struct Embed {
  static constexpr const char* kName = "embed";
  View tokens;                      // (B, T) i32
  View token_table;                 // (V, C)
  View position_table;              // (positions, C) or absent
  View documents;                   // see check_documents; absent: a sample is one document
  View cached;                      // (B, 3), see CachedSample; absent: there is no cache
  View out;                         // (B, T, C), the tables' type or f32
  std::int64_t first_position = 0;  // 0 with documents, and with a cache
  std::int64_t first_token = 0;
  std::int64_t vocab = 0;  // rows of the whole table; 0: this one is whole
  Dropout dropout;
  View scratch;

  /// Bytes that it moves: of the tables only the rows that are looked up.
  double bytes() const {
    const auto rows = static_cast<double>(out.elements());
    const std::int64_t tables = position_table ? 2 : 1;
    return rows * static_cast<double>(tables * size_of(token_table.type) + size_of(out.type));
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.tokens, Access::read), f(s.token_table, Access::read), f(s.position_table, Access::read);
    f(s.documents, Access::read), f(s.cached, Access::read), f(s.dropout.samples, Access::read);
    f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Embed&) const = default;
};

/// d_token_table[v] (+)= sum of d over the places where token v stands, added in order of place and
/// without atomics, so that runs repeat to the bit; d_position_table[t] (+)= sum over b. `d` is the
/// gradient of Embed's output; dropout is undone here. With Write::overwrite rows of unused tokens
/// become 0. The table may hold a part of the vocabulary, as in Embed.
struct EmbedBackward {
  static constexpr const char* kName = "embed_backward";
  View tokens;            // (B, T) i32
  View d;                 // (B, T, C)
  View d_token_table;     // (V, C), accumulation type
  View d_position_table;  // (positions, C) or absent
  View documents;         // as in Embed
  Write token_write = Write::add;
  Write position_write = Write::overwrite;
  std::int64_t first_token = 0;
  std::int64_t vocab = 0;
  Dropout dropout;
  View scratch;

  /// Bytes that it moves: of a table that it adds to only the rows that tokens name.
  double bytes() const {
    const auto size = [](const View& v) {
      return static_cast<double>(v.elements() * size_of(v.type));
    };
    const auto rows = static_cast<double>(2 * d.elements() * size_of(d_token_table.type));
    return size(d) + (token_write == Write::add ? rows : size(d_token_table)) +
           (d_position_table ? size(d_position_table) : 0);
  }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.tokens, Access::read), f(s.d, Access::read), f(s.documents, Access::read),
        f(s.dropout.samples, Access::read);
    f(s.d_token_table, access_of(s.token_write)),
        f(s.d_position_table, access_of(s.position_write));
    f(s.scratch, Access::write);
  }
  bool operator==(const EmbedBackward&) const = default;
};

/// out[b, t] = dropout(x[b, t] + position_table[first_position + t]), summed in f32, rounded once:
/// the second half of Embed, for a sum over parts of the vocabulary. x may be some of the positions
/// of its samples: with documents, which are of all T' positions, x[b, t] is token first_position +
/// t of its sample, and positions count from the begin of the token's document.
struct AddPositions {
  static constexpr const char* kName = "add_positions";
  View x;               // (B, T, C) f32
  View position_table;  // (positions, C) or absent
  View documents;       // (B, T', 2), see check_documents; absent: a sample is one document
  View cached;          // as in Embed
  View out;             // (B, T, C)
  std::int64_t first_position = 0;
  Dropout dropout;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.position_table, Access::read), f(s.documents, Access::read),
        f(s.cached, Access::read), f(s.dropout.samples, Access::read);
    f(s.out, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const AddPositions&) const = default;
};

}  // namespace tessera::kernels
