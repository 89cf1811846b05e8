// Embedding on the CPU: checks arguments, divides rows over the team.
#include <algorithm>

#include "kernels/cpu/clear.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

/// Refuses tokens beyond the vocabulary. Only a back end that reads them on the host can.
void check_tokens(const View& tokens, std::int64_t vocabulary) {
  const auto* id = tokens.as<std::int32_t>();
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    TESSERA_CHECK(id[i] >= 0 && id[i] < vocabulary, "token {} at place {}, vocabulary {}", id[i], i,
                  vocabulary);
  }
}

}  // namespace

void run(const Embed& a, const Context& context) {
  check(a);
  check_tokens(a.tokens, a.vocab > 0 ? a.vocab : a.token_table.extent(0));
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.embed(a, rule, rows); });
}

void run(const AddPositions& a, const Context& context) {
  check(a);
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.out.rows(), 1,
                  [&](Range rows) { context.hot.add_positions(a, rule, rows); });
}

std::int64_t scratch_bytes(const EmbedBackward& a, const Context&) {
  return a.tokens.elements() * static_cast<std::int64_t>(sizeof(std::int64_t));  // sorted places
}

void run(const EmbedBackward& a, const Context& context) {
  check(a);
  check_tokens(a.tokens, a.vocab > 0 ? a.vocab : a.d_token_table.extent(0));
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
  parallel_ranges(context.threads, a.d_position_table.rows(), 1, [&](Range positions) {
    context.hot.embed_backward_positions(a, rule, positions);
  });
}

}  // namespace tessera::kernels::cpu
