#include "kernels/api/pool.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

/// Of samples x (B, T, C) and their documents' vectors y (B K, C).
void check_pool(const View& x, const View& y, const View& documents, Pooling kind) {
  check_floats({x});
  check_same_type({x, y});
  TESSERA_CHECK(x.rank == 3 && y.rows() % x.extent(0) == 0 && y.cols() == x.cols(),
                "({}, {}) pooled of {} rows of {} columns", y.rows(), y.cols(), x.rows(), x.cols());
  TESSERA_CHECK(kind != Pooling::none, "pooling of nothing");
  check_documents(documents, x.extent(0), x.extent(1));
}

}  // namespace

void check(const Pool& a) { check_pool(a.x, a.out, a.documents, a.kind); }

void check(const PoolBackward& a) { check_pool(a.d_x, a.d_out, a.documents, a.kind); }

}  // namespace tessera::kernels
