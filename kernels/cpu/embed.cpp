#include <algorithm>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// `rows` of the token table are here, of `vocab` if it is a part.
void check_tokens(const View& tokens, std::int64_t rows, std::int64_t first_token,
                  std::int64_t vocab) {
  TESSERA_CHECK(first_token >= 0 && vocab >= 0 && (vocab > 0 || first_token == 0),
                "tokens from {} on of a vocabulary of {}", first_token, vocab);
  const std::int64_t vocabulary = vocab > 0 ? vocab : rows;
  TESSERA_CHECK(tokens.rank == 2 && tokens.dense() && tokens.type == DType::i32,
                "tokens are dense (B, T) i32");
  const auto* id = tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    TESSERA_CHECK(id[i] >= 0 && id[i] < vocabulary, "token {} at place {}, vocabulary {}", id[i], i,
                  vocabulary);
  }
}

template <typename Operation>
void check_positions(const Operation& a, std::int64_t tokens) {
  if (!a.position_table) return;
  TESSERA_CHECK(a.position_table.cols() == a.out.cols() && a.first_position >= 0 &&
                    a.first_position + tokens <= a.position_table.rows(),
                "positions {} to {} of {}", a.first_position, a.first_position + tokens,
                a.position_table.rows());
}

}  // namespace

void run(const Embed& a, const Context& context) {
  check_tokens(a.tokens, a.token_table.extent(0), a.first_token, a.vocab);
  check_floats({a.token_table});
  check_same_type({a.token_table, a.position_table});
  TESSERA_CHECK(a.out.type == a.token_table.type || a.out.type == DType::f32,
                "{} from a table of {}", to_string(a.out.type), to_string(a.token_table.type));
  TESSERA_CHECK(a.out.rows() == a.tokens.elements() && a.out.cols() == a.token_table.cols(),
                "embedding of {} tokens and {} columns into ({}, {})", a.tokens.elements(),
                a.token_table.cols(), a.out.rows(), a.out.cols());
  check_positions(a, a.tokens.extent(1));
  check_dropout(a.dropout, a.tokens.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.embed(a, rule, rows); });
}

void run(const AddPositions& a, const Context& context) {
  check_floats({a.out});
  check_same_type({a.out, a.position_table});
  check_same_matrix({a.out, a.x});
  TESSERA_CHECK(a.x.rank == 3 && a.x.type == DType::f32, "x is (B, T, C) f32");
  check_positions(a, a.x.extent(1));
  check_dropout(a.dropout, a.x.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.add_positions(a, rule, rows); });
}

std::int64_t scratch_bytes(const EmbedBackward& a, const Context&) {
  return a.tokens.elements() * static_cast<std::int64_t>(sizeof(std::int64_t));  // sorted places
}

void run(const EmbedBackward& a, const Context& context) {
  check_tokens(a.tokens, a.d_token_table.extent(0), a.first_token, a.vocab);
  check_floats({a.d, a.d_token_table, a.d_position_table});
  TESSERA_CHECK(a.d.rows() == a.tokens.elements() && a.d.cols() == a.d_token_table.cols(),
                "gradient ({}, {}) of {} tokens and {} columns", a.d.rows(), a.d.cols(),
                a.tokens.elements(), a.d_token_table.cols());
  check_dropout(a.dropout, a.tokens.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);

  const auto* id = a.tokens.as<std::int32_t>();
  auto* place = reinterpret_cast<std::int64_t*>(a.scratch.data);
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < a.tokens.elements(); ++i) {
    const std::int64_t row = id[i] - a.first_token;
    if (row >= 0 && row < a.d_token_table.extent(0)) place[n++] = i;
  }
  std::sort(place, place + n,
            [&](std::int64_t i, std::int64_t j) { return id[i] != id[j] ? id[i] < id[j] : i < j; });
  const std::span<const std::int64_t> places(place, static_cast<std::size_t>(n));
  if (a.token_write == Write::overwrite) clear_rows(a.d_token_table, context.threads);
  parallel_ranges(context.threads, n, 1, [&](Range entries) {
    context.hot.embed_backward_tokens(a, rule, places, entries);
  });
  if (!a.d_position_table) return;
  TESSERA_CHECK(
      a.d_position_table.cols() == a.d.cols() && a.d_position_table.rows() >= a.tokens.extent(1),
      "{} positions of {} columns for {} tokens", a.d_position_table.rows(),
      a.d_position_table.cols(), a.tokens.extent(1));
  parallel_ranges(context.threads, a.d_position_table.rows(), 1, [&](Range positions) {
    context.hot.embed_backward_positions(a, rule, positions);
  });
}

}  // namespace tessera::kernels::cpu
