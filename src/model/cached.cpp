#include "model/cached.hpp"

namespace tessera::model {

using namespace kernels;

void attend_cached(UnitContext& u, const Attention& a) {
  const MicroBatch& batch = u.micro_batch();
  TESSERA_CHECK(std::ssize(batch.cached) == batch.batch && u.tensor_region().whole(),
                "{} cached sequences of {}", batch.cached.size(), batch.batch);
  for (std::int64_t i = 0; i < batch.batch; ++i) {
    const CachedTokens& earlier = batch.cached[static_cast<std::size_t>(i)];
    const auto remember = [&](const View& x, const View& cache) {
      View slot = sequences(cache, earlier.slot, 1);
      u.run(Convert{.x = sequences(x, i, 1).matrix(),
                    .out = slot.row_range(earlier.tokens, batch.sequence)});
      slot.shape[1] = earlier.tokens + batch.sequence;
      return slot;
    };
    Attention own = a;
    own.q = sequences(a.q, i, 1), own.out = sequences(a.out, i, 1), own.lse = {};
    own.k = remember(a.k, u.cache->k), own.v = remember(a.v, u.cache->v);
    u.run(own);
  }
}

}  // namespace tessera::model
