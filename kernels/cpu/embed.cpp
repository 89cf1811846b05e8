// Embedding on the CPU: checks arguments, divides rows over the team.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cached.hpp"
#include "kernels/cpu/clear.hpp"
#include "kernels/cpu/documents.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// How many positions a table has; any number without one.
std::int64_t positions_of(const View& table) {
  return table ? table.rows() : std::numeric_limits<std::int64_t>::max();
}

/// Refuses tokens beyond the vocabulary. Only a back end that reads them on the host can.
void check_tokens(const View& tokens, std::int64_t vocabulary) {
  const auto* id = tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    TESSERA_CHECK(id[i] >= 0 && id[i] < vocabulary, "token {} at place {}, vocabulary {}", id[i], i,
                  vocabulary);
  }
}

void check_cached_positions(const View& cached, std::int64_t tokens, const View& table) {
  if (!cached) return;
  check_cached_rows(cached, tokens);
  const auto* sample = reinterpret_cast<const CachedSample*>(cached.data);
  for (std::int64_t b = 0; table && b < cached.elements() / kCachedColumns; ++b) {
    TESSERA_CHECK(std::int64_t{sample[b].before} + std::max(sample[b].count, 1) <= table.rows(),
                  "{} tokens after {}, of {} positions", sample[b].count, sample[b].before,
                  table.rows());
  }
}

}  // namespace

void run(const Embed& a, const Context& context) {
  check_tokens(a.tokens, a.vocab > 0 ? a.vocab : a.token_table.extent(0));
  check_position_rows(a.documents, a.tokens.extent(1), positions_of(a.position_table));
  check_cached_positions(a.cached, a.tokens.extent(1), a.position_table);
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.embed(a, rule, rows); });
}

void run(const AddPositions& a, const Context& context) {
  if (a.documents)
    check_position_rows(a.documents, a.documents.extent(1), positions_of(a.position_table));
  check_cached_positions(a.cached, a.x.extent(1), a.position_table);
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.add_positions(a, rule, rows); });
}

std::int64_t scratch_bytes(const EmbedBackward& a, const Context&) {
  return a.tokens.elements() * static_cast<std::int64_t>(sizeof(std::int64_t));  // sorted places
}

namespace {

/// Adds the gradients of places whose row the table has to that row, in order of place.
void add_rows(const EmbedBackward& a, const DropoutRule& rule, const PlaceRows& rows,
              const View& table, Write write, const Context& context) {
  auto* place = reinterpret_cast<std::int64_t*>(a.scratch.data);
  const std::int64_t all = a.tokens.elements();
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    if (const std::int64_t row = rows.of(i); row < rows.rows) place[n++] = row * all + i;
  }
  std::sort(place, place + n);
  for (std::int64_t i = 0; i < n; ++i) place[i] %= all;
  if (write == Write::overwrite) clear_rows(table, context.threads);
  const std::span<const std::int64_t> places(place, static_cast<std::size_t>(n));
  parallel_ranges(context.threads, n, 1, [&](Range entries) {
    context.hot.embed_backward_rows(a, rule, rows, table, places, entries);
  });
}

}  // namespace

void run(const EmbedBackward& a, const Context& context) {
  check_tokens(a.tokens, a.vocab > 0 ? a.vocab : a.d_token_table.extent(0));
  check_position_rows(a.documents, a.tokens.extent(1), positions_of({}));
  const DropoutRule rule = dropout_rule(a.dropout);
  add_rows(a, rule, token_rows(a), a.d_token_table, a.token_write, context);
  if (!a.d_position_table) return;
  if (a.documents) {
    return add_rows(a, rule, position_rows(a), a.d_position_table, a.position_write, context);
  }
  parallel_ranges(context.threads, a.d_position_table.rows(), 1, [&](Range positions) {
    context.hot.embed_backward_positions(a, rule, positions);
  });
}

}  // namespace tessera::kernels::cpu
