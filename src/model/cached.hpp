// Attention and positions where earlier tokens of sequences are in a cache (UnitContext::cache),
// for generation: each sequence has seen as many as it has.
#pragma once

#include <initializer_list>

#include "model/shares.hpp"

namespace tessera::model {

/// f(first sequence, sequences, position of their first token) for all sequences of the micro-batch
/// that begin at the same position: for each by itself where they are cached, else once.
template <typename F>
void for_each_beginning(const UnitContext& u, F&& f) {
  const MicroBatch& batch = u.micro_batch();
  if (batch.cached.empty()) return f(std::int64_t{0}, batch.batch, std::int64_t{0});
  for (std::int64_t i = 0; i < batch.batch; ++i)
    f(i, std::int64_t{1}, batch.cached[static_cast<std::size_t>(i)].tokens);
}

/// Refuses a micro-batch of which not all sequences are cached, or that several tensor ranks share.
void check_cached(const UnitContext& u);

/// Puts what is made of the tokens of one of the micro-batch's sequences, side by side, behind what
/// a cache (KvCache) has of it; returns all of that, (1, tokens, columns).
View remember(UnitContext& u, const View& cache, std::int64_t sequence,
              std::initializer_list<View> columns);

/// Puts k and v of the micro-batch's tokens behind those that the cache has of their sequences, and
/// attends to all of them. On one tensor rank; the caller counts the tokens.
void attend_cached(UnitContext& u, const kernels::Attention& attention);

}  // namespace tessera::model
