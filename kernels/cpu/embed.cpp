#include <algorithm>
#include <numeric>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/shapes.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

void check_tokens(const View& tokens, std::int64_t vocabulary) {
  TESSERA_CHECK(tokens.rank == 2 && tokens.dense() && tokens.type == DType::i32,
                "tokens are dense (B, T) i32");
  const auto* id = tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    TESSERA_CHECK(id[i] >= 0 && id[i] < vocabulary, "token {} at place {}, vocabulary {}", id[i], i,
                  vocabulary);
  }
}

}  // namespace

void run(const Embed& a, const Context& context) {
  check_tokens(a.tokens, a.token_table.extent(0));
  check_floats({a.token_table, a.out});
  check_same_type({a.token_table, a.position_table, a.out});
  TESSERA_CHECK(a.out.rows() == a.tokens.elements() && a.out.cols() == a.token_table.cols(),
                "embedding of {} tokens and {} columns into ({}, {})", a.tokens.elements(),
                a.token_table.cols(), a.out.rows(), a.out.cols());
  if (a.position_table) {
    TESSERA_CHECK(a.position_table.cols() == a.out.cols() && a.first_position >= 0 &&
                      a.first_position + a.tokens.extent(1) <= a.position_table.rows(),
                  "positions {} to {} of {}", a.first_position,
                  a.first_position + a.tokens.extent(1), a.position_table.rows());
  }
  check_dropout(a.dropout, a.tokens.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.embed(a, rule, rows); });
}

std::int64_t scratch_bytes(const EmbedBackward& a, const Context&) {
  return a.tokens.elements() * static_cast<std::int64_t>(sizeof(std::int64_t));  // sorted places
}

void run(const EmbedBackward& a, const Context& context) {
  check_tokens(a.tokens, a.d_token_table.extent(0));
  check_floats({a.d, a.d_token_table, a.d_position_table});
  TESSERA_CHECK(a.d.rows() == a.tokens.elements() && a.d.cols() == a.d_token_table.cols(),
                "gradient ({}, {}) of {} tokens and {} columns", a.d.rows(), a.d.cols(),
                a.tokens.elements(), a.d_token_table.cols());
  check_dropout(a.dropout, a.tokens.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);

  const std::int64_t n = a.tokens.elements();
  const auto* id = a.tokens.as<std::int32_t>();
  auto* place = reinterpret_cast<std::int64_t*>(a.scratch.data);
  std::iota(place, place + n, std::int64_t{0});
  std::sort(place, place + n,
            [&](std::int64_t i, std::int64_t j) { return id[i] != id[j] ? id[i] < id[j] : i < j; });
  if (a.token_write == Write::overwrite) clear_rows(a.d_token_table, context.threads);
  parallel_ranges(context.threads, n, 1, [&](Range entries) {
    context.hot.embed_backward_tokens(a, rule, place, entries);
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
