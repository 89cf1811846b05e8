#include "kernels/api/attention.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_heads(const AttentionShape& s, const View& q, const View& k, const View& v) {
  TESSERA_CHECK(s.window >= 0 && s.soft_cap >= 0 && s.scale > 0, "window {}, soft cap {}, scale {}",
                s.window, s.soft_cap, s.scale);
  TESSERA_CHECK(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.value_dim >= 0 &&
                    s.skip >= 0 && (s.group > 0 || (s.group == 0 && s.heads % s.kv_heads == 0)) &&
                    s.kv_head_of(s.heads - 1) < s.kv_heads,
                "{} heads of {} columns in groups of {} after {}, {} kv heads", s.heads, s.head_dim,
                s.group, s.skip, s.kv_heads);
  check_floats({q});
  TESSERA_CHECK(
      q.rank == 3 && k.rank == 3 && q.cols() == s.heads * s.head_dim &&
          k.cols() == s.kv_heads * s.head_dim && v.rows() == k.rows() &&
          v.cols() == s.kv_heads * s.values(),
      "queries ({}, {}, {}), keys ({}, {}, {}), values ({}, {}) for {} heads, {} kv heads "
      "of {} and {}",
      q.extent(0), q.extent(1), q.extent(2), k.extent(0), k.extent(1), k.extent(2), v.rows(),
      v.cols(), s.heads, s.kv_heads, s.head_dim, s.values());
}

/// (B, T, H E) beside queries.
void check_of_values(const AttentionShape& s, const View& q, const View& x) {
  TESSERA_CHECK(x.rows() == q.rows() && x.cols() == s.heads * s.values(),
                "({}, {}) beside {} queries of {} heads, whose values have {} columns", x.rows(),
                x.cols(), q.rows(), s.heads, s.values());
}

/// Of an Attention or its backward.
template <typename Operation>
void check_queries(const Operation& a) {
  check_heads(a.shape, a.q, a.k, a.v);
  TESSERA_CHECK(a.q.extent(0) == a.k.extent(0), "queries of {} samples, keys of {}", a.q.extent(0),
                a.k.extent(0));
  const std::int64_t tokens = sequence_of(a), first = first_token_of(a);
  TESSERA_CHECK(first >= 0 && first + a.q.extent(1) <= tokens && a.first_key >= 0 &&
                    a.first_key + a.k.extent(1) <= tokens,
                "{} queries from token {} and {} keys from token {} of {}", a.q.extent(1), first,
                a.k.extent(1), a.first_key, tokens);
  check_documents(a.documents, a.k.extent(0), tokens);
}

/// A cache has no documents, and no dropout.
void check_cache(const Attention& a) {
  check_heads(a.shape, a.q, a.k, a.v);
  check_cached(a.cached, a.q.extent(0));
  check_pages(a.pages, a.q.extent(0), a.k);
  TESSERA_CHECK(
      !a.documents && !a.dropout && !a.lse && a.first < 0 && a.first_key == 0 && a.tokens == 0,
      "attention to a cache, with what there is none of");
}

}  // namespace

void check(const Attention& a) {
  a.cached ? check_cache(a) : check_queries(a);
  check_same_type({a.q, a.k, a.v, a.out});
  check_of_values(a.shape, a.q, a.out);
  const std::int64_t samples = a.q.extent(0);
  if (a.lse) check_flat({a.lse}, DType::f32, samples * a.shape.heads * a.q.extent(1));
  check_dropout(a.dropout, samples);
}

void check(const AttentionBackward& a) {
  check_queries(a);
  check_same_type({a.q, a.k, a.v, a.out, a.d_out, a.d_q});
  check_same_type({a.d_k.type == DType::f32 ? a.d_v : a.q, a.d_k});
  check_same_type({a.d_k, a.d_v});
  check_same_matrix({a.q, a.d_q});
  check_of_values(a.shape, a.q, a.out), check_of_values(a.shape, a.q, a.d_out);
  check_same_matrix({a.k, a.d_k});
  check_same_matrix({a.v, a.d_v});
  const std::int64_t samples = a.q.extent(0), tokens = a.q.extent(1);
  check_flat({a.lse}, DType::f32, samples * a.shape.heads * tokens);
  check_dropout(a.dropout, samples);
}

void check(const MergeAttention& a) {
  check_floats({a.x});
  check_same_matrix({a.x, a.out});
  TESSERA_CHECK(
      a.out.type == DType::f32 && a.out.rank == 3 && a.heads > 0 && a.out.cols() % a.heads == 0,
      "({}, {}, {}) {} of {} heads", a.out.extent(0), a.out.extent(1), a.out.extent(2),
      to_string(a.out.type), a.heads);
  check_flat({a.x_lse, a.lse}, DType::f32, a.out.rows() * a.heads);
}

}  // namespace tessera::kernels
