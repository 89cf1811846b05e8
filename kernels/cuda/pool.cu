// Pooling on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/pool.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

const std::int32_t* table_of(const View& documents) {
  return documents ? documents.as<std::int32_t>() : nullptr;
}

}  // namespace

void run(const Pool& a, const Context& context) {
  check(a);
  with_type(a.x.type, [&]<typename T>() {
    const std::int64_t columns = a.out.cols(), strips = ceil_div(columns, kPoolStrip);
    const PoolRows<T> rows{.x = rows_of<T>(a.x),
                           .out = rows_of<T>(a.out),
                           .documents = table_of(a.documents),
                           .tokens = a.x.extent(1),
                           .columns = columns,
                           .strips = strips,
                           .kind = a.kind,
                           .wide = wide<kPoolRun>({a.x, a.out})};
    launch(on(context, a.kName, a.out.rows() * strips, kPoolThreads), pool_kernel<T>, rows);
  });
}

void run(const PoolBackward& a, const Context& context) {
  check(a);
  with_type(a.d_x.type, [&]<typename T>() {
    using Run = PoolBackwardRun<T>;
    const Run body{.d_out = rows_of<T>(a.d_out),
                   .d_x = rows_of<T>(a.d_x),
                   .documents = table_of(a.documents),
                   .tokens = a.d_x.extent(1),
                   .kind = a.kind,
                   .wide = wide<Run::V>({a.d_out, a.d_x})};
    map<Run::V>(context, a.kName, body, a.d_x.rows(), a.d_x.cols());
  });
}

}  // namespace tessera::kernels::cuda
