// What every back end checks of the arguments of matrix operations.
#include "kernels/common/checks.hpp"
#include "kernels/common/contracts.hpp"

namespace tessera::kernels {
namespace {

/// What a product of operands of one type may be written as.
void check_result(const View& result, DType operands) {
  TESSERA_CHECK(result.type == DType::f32 || result.type == operands, "product of {} into {}",
                to_string(operands), to_string(result.type));
}

void check_linear(const View& x, const View& weight, const View& y) {
  check_floats({x, weight, y});
  TESSERA_CHECK(x.rows() == y.rows() && x.cols() == weight.cols() && y.cols() == weight.rows(),
                "x ({}, {}), weight ({}, {}), y ({}, {})", x.rows(), x.cols(), weight.rows(),
                weight.cols(), y.rows(), y.cols());
}

/// Extents, the type and the result of a product with fp8 operands.
void check_operands(Operands operands, const View& x, const View& y, const View& result) {
  if (operands == Operands::stored) return;
  TESSERA_CHECK(x.rows() % kFp8Granule == 0 && x.cols() % kFp8Granule == 0 &&
                    y.cols() % kFp8Granule == 0 && x.type != DType::f16,
                "an fp8 product of ({}, {}) to ({}, {}) in {}", x.rows(), x.cols(), y.rows(),
                y.cols(), to_string(x.type));
  const auto address = reinterpret_cast<std::uintptr_t>(result.data);
  const std::int64_t distance = result.matrix().ld * size_of(result.type);
  TESSERA_CHECK(address % kFp8Alignment == 0 && distance % kFp8Alignment == 0,
                "an fp8 product into rows {} bytes apart, {} bytes behind a boundary of {}",
                distance, address % kFp8Alignment, kFp8Alignment);
}

/// What gelu is of, beside its result or its gradient.
void check_preactivation(const View& preactivation, const View& result, DType operands) {
  if (!preactivation) return;
  check_same_matrix({preactivation, result});
  TESSERA_CHECK(preactivation.type == operands && result.type == operands,
                "gelu of {} from products of {} into {}", to_string(preactivation.type),
                to_string(operands), to_string(result.type));
}

void check_heads(const AttentionShape& s, const View& q, const View& k, const View& v) {
  TESSERA_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.skip >= 0 &&
                    (s.group > 0 || (s.group == 0 && s.heads % s.kv_heads == 0)) &&
                    s.kv_head_of(s.heads - 1) < s.kv_heads,
                "{} heads of {} columns in groups of {} after {}, {} kv heads", s.heads, s.head_dim,
                s.group, s.skip, s.kv_heads);
  check_floats({q});
  check_same_matrix({k, v});
  TESSERA_CHECK(q.rank == 3 && k.rank == 3 && q.extent(0) == k.extent(0) &&
                    q.extent(1) <= k.extent(1) && q.cols() == s.heads * s.head_dim &&
                    k.cols() == s.kv_heads * s.head_dim,
                "queries ({}, {}, {}), keys ({}, {}, {}) for {} heads, {} kv heads of {}",
                q.extent(0), q.extent(1), q.extent(2), k.extent(0), k.extent(1), k.extent(2),
                s.heads, s.kv_heads, s.head_dim);
}

}  // namespace

void check(const Linear& a) {
  check_linear(a.x, a.weight, a.y);
  check_same_type({a.x, a.weight, a.bias});
  check_result(a.y, a.x.type);
  if (a.bias) check_flat({a.bias}, a.x.type, a.weight.rows());
  check_preactivation(a.preactivation, a.y, a.x.type);
  check_operands(a.operands, a.x, a.y, product_of(a).y);
}

void check(const LinearBackwardInput& a) {
  check_linear(a.d_x, a.weight, a.d_y);
  check_same_type({a.d_y, a.weight});
  check_result(a.d_x, a.d_y.type);
  check_preactivation(a.preactivation, a.d_x, a.d_y.type);
  check_operands(a.operands, a.d_y, a.d_x, a.d_x);
}

void check(const LinearBackwardWeight& a) {
  check_linear(a.x, a.d_weight, a.d_y);
  check_same_type({a.d_y, a.x});
  check_result(a.d_weight, a.x.type);
  check_operands(a.operands, a.x, a.d_y, a.d_weight);
  if (!a.d_bias) return;
  check_floats({a.d_bias});
  check_flat({a.d_bias}, a.d_bias.type, a.d_y.cols());
}

void check(const Attention& a) {
  check_heads(a.shape, a.q, a.k, a.v);
  check_same_type({a.q, a.k, a.v, a.out});
  check_same_matrix({a.q, a.out});
  const std::int64_t samples = a.q.extent(0);
  if (a.lse) check_flat({a.lse}, DType::f32, samples * a.shape.heads * a.q.extent(1));
  check_dropout(a.dropout, samples);
}

void check(const AttentionBackward& a) {
  check_heads(a.shape, a.q, a.k, a.v);
  check_same_type({a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v});
  check_same_matrix({a.q, a.out, a.d_out, a.d_q});
  check_same_matrix({a.k, a.v, a.d_k, a.d_v});
  const std::int64_t samples = a.q.extent(0), tokens = a.q.extent(1);
  TESSERA_CHECK(a.k.extent(1) == tokens, "{} queries, {} keys", tokens, a.k.extent(1));
  check_flat({a.lse}, DType::f32, samples * a.shape.heads * tokens);
  check_dropout(a.dropout, samples);
}

}  // namespace tessera::kernels
