// Pooling on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/pool.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {

void run(const Pool& a, const Context& context) {
  check(a);
  with_type(a.x.type, [&]<typename T>() {
    using Run = PoolRun<T>;
    const Run body{.x = rows_of<T>(a.x),
                   .out = rows_of<T>(a.out),
                   .documents = a.documents.as<std::int32_t>(),
                   .tokens = a.x.extent(1),
                   .kind = a.kind,
                   .wide = wide<Run::V>({a.x, a.out})};
    map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
  });
}

void run(const PoolBackward& a, const Context& context) {
  check(a);
  with_type(a.d_x.type, [&]<typename T>() {
    using Run = PoolBackwardRun<T>;
    const Run body{.d_out = rows_of<T>(a.d_out),
                   .d_x = rows_of<T>(a.d_x),
                   .documents = a.documents.as<std::int32_t>(),
                   .tokens = a.d_x.extent(1),
                   .kind = a.kind,
                   .wide = wide<Run::V>({a.d_out, a.d_x})};
    map<Run::V>(context, a.kName, body, a.d_x.rows(), a.d_x.cols());
  });
}

}  // namespace tessera::kernels::cuda
