#include "model/cached.hpp"

#include <algorithm>

#include "model/adapters.hpp"
#include "model/block.hpp"

namespace tessera::model {

using namespace kernels;

CachedColumns cached_columns(const ModelConfig& config, const TensorCut& cut,
                             std::int64_t own_chunk, bool latents) {
  if (latents) return {.k = own_chunk == 0 ? config.latent.kv + config.latent.rope : 0};
  const std::int64_t heads = heads_of(config, cut.first() + own_chunk, cut.chunks).kv_heads.count();
  return {.k = heads * config.head_dim, .v = heads * config.values()};
}

bool keeps_latents(const ModelConfig& config, std::span<const UnitDesc> units,
                   std::int64_t most_head_dim) {
  if (!config.latent || config.latent.kv + config.latent.rope > most_head_dim) return false;
  return std::ranges::none_of(units, [](const UnitDesc& unit) {
    return unit.has_adapters() && (unit.has("attention.k" + std::string(kAdapterA)) ||
                                   unit.has("attention.v" + std::string(kAdapterA)));
  });
}

void remember(UnitContext& u, const View& x, const View& cache) {
  const MicroBatch& batch = u.micro_batch();
  u.run(Remember{.x = x, .cached = batch.cached, .pages = batch.pages, .cache = cache});
}

void attend_cached(UnitContext& u, const KvCache& cache, Attention a) {
  remember(u, a.k, cache.k), remember(u, a.v, cache.v);
  a.k = cache.k, a.v = cache.v;
  a.cached = u.micro_batch().cached, a.pages = u.micro_batch().pages;
  u.run(a);
}

}  // namespace tessera::model
