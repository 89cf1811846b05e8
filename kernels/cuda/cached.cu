// What a cache has of sequences, on a GPU: checks arguments, launches the kernel.
#include "kernels/cuda/cached.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Remember& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    using Run = RememberRun<T>;
    const Run body{.x = rows_of<T>(a.x),
                   .cache = rows_of<T>(a.cache),
                   .cached = reinterpret_cast<const CachedSample*>(a.cached.data),
                   .pages = reinterpret_cast<const std::int32_t*>(a.pages.data),
                   .tokens = a.x.extent(1),
                   .most = a.pages.extent(1),
                   .room = a.cache.extent(1),
                   .wide = wide<Run::V>({a.x, a.cache})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

}  // namespace tessera::kernels::cuda
