// Pooling on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/pool.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

PooledDocuments pooled_documents(const View& x, const View& out, const View& documents,
                                 Pooling kind) {
  return {.table = documents ? documents.as<std::int32_t>() : nullptr,
          .tokens = x.extent(1),
          .most = out.rows() / x.extent(0),
          .kind = kind};
}

}  // namespace

void run(const Pool& a, const Context& context) {
  with_type(a.x.type, [&]<typename T>() {
    const std::int64_t columns = a.out.cols(), strips = ceil_div(columns, kPoolStrip);
    const PoolRows<T> rows{.x = rows_of<T>(a.x),
                           .out = rows_of<T>(a.out),
                           .documents = pooled_documents(a.x, a.out, a.documents, a.kind),
                           .columns = columns,
                           .strips = strips,
                           .wide = wide<kPoolRun>({a.x, a.out})};
    launch(on(context, a.kName, a.out.rows() * strips, kPoolThreads), pool_kernel<T>, rows);
  });
}

void run(const PoolBackward& a, const Context& context) {
  with_type(a.d_x.type, [&]<typename T>() {
    using Run = PoolBackwardRun<T>;
    const Run body{.d_out = rows_of<T>(a.d_out),
                   .d_x = rows_of<T>(a.d_x),
                   .documents = pooled_documents(a.d_x, a.d_out, a.documents, a.kind),
                   .wide = wide<Run::V>({a.d_out, a.d_x})};
    map<Run::V>(context, a.kName, body, a.d_x.rows(), a.d_x.cols());
  });
}

}  // namespace tessera::kernels::cuda
