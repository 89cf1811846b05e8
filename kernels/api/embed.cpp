#include "kernels/api/embed.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_vocabulary(const View& tokens, std::int64_t first_token, std::int64_t vocab) {
  TESSERA_CHECK(first_token >= 0 && vocab >= 0 && (vocab > 0 || first_token == 0),
                "tokens from {} on of a vocabulary of {}", first_token, vocab);
  TESSERA_CHECK(tokens.rank == 2 && tokens.dense() && tokens.type == DType::i32,
                "tokens are dense (B, T) i32");
}

template <typename Operation>
void check_positions(const Operation& a, std::int64_t tokens) {
  if (!a.position_table) return;
  // With documents or a cache, none has more tokens than there are positions.
  TESSERA_CHECK(
      a.position_table.cols() == a.out.cols() && a.first_position >= 0 &&
          (a.documents || a.cached || a.first_position + tokens <= a.position_table.rows()),
      "positions {} to {} of {}", a.first_position, a.first_position + tokens,
      a.position_table.rows());
}

}  // namespace

void check(const Embed& a) {
  check_vocabulary(a.tokens, a.first_token, a.vocab);
  check_floats({a.token_table});
  check_same_type({a.token_table, a.position_table});
  TESSERA_CHECK(a.out.type == a.token_table.type || a.out.type == DType::f32,
                "{} from a table of {}", to_string(a.out.type), to_string(a.token_table.type));
  TESSERA_CHECK(a.out.rows() == a.tokens.elements() && a.out.cols() == a.token_table.cols(),
                "embedding of {} tokens and {} columns into ({}, {})", a.tokens.elements(),
                a.token_table.cols(), a.out.rows(), a.out.cols());
  check_positions(a, a.tokens.extent(1));
  check_documents(a.documents, a.tokens.extent(0), a.tokens.extent(1));
  check_cached(a.cached, a.tokens.extent(0));
  TESSERA_CHECK(!(a.documents || a.cached) || a.first_position == 0,
                "documents or a cache from position {}", a.first_position);
  check_dropout(a.dropout, a.tokens.extent(0));
}

void check(const EmbedBackward& a) {
  check_vocabulary(a.tokens, a.first_token, a.vocab);
  check_floats({a.d, a.d_token_table, a.d_position_table});
  TESSERA_CHECK(a.d.rows() == a.tokens.elements() && a.d.cols() == a.d_token_table.cols(),
                "gradient ({}, {}) of {} tokens and {} columns", a.d.rows(), a.d.cols(),
                a.tokens.elements(), a.d_token_table.cols());
  check_documents(a.documents, a.tokens.extent(0), a.tokens.extent(1));
  check_dropout(a.dropout, a.tokens.extent(0));
  if (!a.d_position_table) return;
  TESSERA_CHECK(a.d_position_table.cols() == a.d.cols() &&
                    (a.documents || a.d_position_table.rows() >= a.tokens.extent(1)),
                "{} positions of {} columns for {} tokens", a.d_position_table.rows(),
                a.d_position_table.cols(), a.tokens.extent(1));
}

void check(const AddPositions& a) {
  check_floats({a.out});
  check_same_type({a.out, a.position_table});
  check_same_matrix({a.out, a.x});
  TESSERA_CHECK(a.x.rank == 3 && a.x.type == DType::f32, "x is (B, T, C) f32");
  check_positions(a, a.x.extent(1));
  check_cached(a.cached, a.x.extent(0));
  TESSERA_CHECK(!a.cached || (!a.documents && a.first_position == 0),
                "a cache beside documents, or from position {}", a.first_position);
  if (a.documents) {
    check_documents(a.documents, a.x.extent(0), a.documents.extent(1));
    TESSERA_CHECK(a.documents.extent(1) >= a.first_position + a.x.extent(1),
                  "documents of {} tokens for positions {} to {}", a.documents.extent(1),
                  a.first_position, a.first_position + a.x.extent(1));
  }
  check_dropout(a.dropout, a.x.extent(0));
}

}  // namespace tessera::kernels
