#include "model/cached.hpp"

namespace tessera::model {

using namespace kernels;

void check_cached(const UnitContext& u) {
  const MicroBatch& batch = u.micro_batch();
  TESSERA_CHECK(std::ssize(batch.cached) == batch.batch && u.tensor_region().whole(),
                "{} cached sequences of {}", batch.cached.size(), batch.batch);
}

View remember(UnitContext& u, const View& cache, std::int64_t sequence,
              std::initializer_list<View> columns) {
  const MicroBatch& batch = u.micro_batch();
  const CachedTokens& earlier = batch.cached[static_cast<std::size_t>(sequence)];
  View slot = sequences(cache, earlier.slot, 1);
  const View to = slot.row_range(earlier.tokens, batch.sequence);
  std::int64_t first = 0;
  for (const View& x : columns) {
    u.run(Convert{.x = sequences(x, sequence, 1).matrix(), .out = to.col_range(first, x.cols())});
    first += x.cols();
  }
  slot.shape[1] = earlier.tokens + batch.sequence;
  return slot;
}

void attend_cached(UnitContext& u, const Attention& a) {
  check_cached(u);
  for (std::int64_t i = 0; i < u.micro_batch().batch; ++i) {
    Attention own = a;
    own.q = sequences(a.q, i, 1), own.out = sequences(a.out, i, 1), own.lse = {};
    own.k = remember(u, u.cache->k, i, {a.k}), own.v = remember(u, u.cache->v, i, {a.v});
    u.run(own);
  }
}

}  // namespace tessera::model
