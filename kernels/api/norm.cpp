#include "kernels/api/norm.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

/// Heads that divide the columns of x.
void check_norm_heads(const View& x, std::int64_t heads) {
  TESSERA_CHECK(heads >= 1 && x.cols() % heads == 0, "{} heads of {} columns", heads, x.cols());
}

}  // namespace

void check(const AddNorm& a) {
  check_floats({a.resid});
  check_same_type({a.resid, a.pending, a.weight, a.bias, a.sum, a.out});
  check_same_matrix({a.resid, a.pending, a.sum, a.out});
  check_same_matrix({a.weight, a.bias});
  TESSERA_CHECK(static_cast<bool>(a.sum) == static_cast<bool>(a.pending),
                "a sum is written when there is something pending, and only then");
  check_norm_heads(a.resid, a.heads);
  TESSERA_CHECK(a.heads == 1 || !a.pending, "{} heads of what is pending", a.heads);
  check_flat({a.weight}, a.resid.type, a.resid.cols() / a.heads);
  check_flat({a.stats}, DType::f32, 2 * a.resid.rows() * a.heads);
  if (a.pending) check_dropout(a.dropout, a.pending.extent(0));
}

void check_groups(const NormBackward& a) {
  TESSERA_CHECK(a.groups >= 1 && a.sum.rank == 3 && a.sum.extent(1) % a.groups == 0,
                "{} groups of {} positions", a.groups, a.sum.rank == 3 ? a.sum.extent(1) : 0);
  check_norm_heads(a.sum, a.heads);
}

void check(const NormBackward& a) {
  check_groups(a);
  check_floats({a.sum, a.d_weight, a.d_bias});
  check_same_type({a.sum, a.d_out, a.d_resid, a.weight, a.d_sum});
  check_same_matrix({a.sum, a.d_out, a.d_resid, a.d_sum});
  check_same_matrix({a.d_weight, a.d_bias});
  const std::int64_t columns = a.sum.cols() / a.heads;
  check_flat({a.weight}, a.sum.type, columns);
  check_flat({a.d_weight}, a.d_weight.type, a.groups * columns);
  if (a.d_bias) check_flat({a.d_bias}, a.d_bias.type, a.groups * columns);
  check_flat({a.stats}, DType::f32, 2 * a.sum.rows() * a.heads);
}

void check(const AddPending& a) {
  check_floats({a.resid});
  check_same_type({a.resid, a.pending, a.sum});
  check_same_matrix({a.resid, a.pending, a.sum});
  check_dropout(a.dropout, a.pending.extent(0));
}

void check(const ApplyDropout& a) {
  check_floats({a.x});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x, a.out});
  check_dropout(a.dropout, a.x.extent(0), true);
  check_flat({a.dropout.samples}, DType::i64, a.x.extent(0));
  TESSERA_CHECK(a.columns == 0 || a.columns >= a.x.cols(), "rows of {} columns, of which {}",
                a.columns, a.x.cols());
}

}  // namespace tessera::kernels
