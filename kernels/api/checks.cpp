#include "kernels/api/checks.hpp"

namespace tessera::kernels {

void check_floats(std::initializer_list<View> views) {
  for (const View& v : views) {
    TESSERA_CHECK(!v || v.type == DType::f32 || v.type == DType::bf16 || v.type == DType::f16,
                  "type {}", to_string(v.type));
  }
}

void check_same_type(std::initializer_list<View> views) {
  const DType type = views.begin()->type;
  for (const View& v : views) {
    TESSERA_CHECK(!v || v.type == type, "{} beside {}", to_string(v.type), to_string(type));
  }
}

void check_same_matrix(std::initializer_list<View> views) {
  const View& first = *views.begin();
  for (const View& v : views) {
    TESSERA_CHECK(!v || (v.rows() == first.rows() && v.cols() == first.cols()),
                  "({}, {}) beside ({}, {})", v.rows(), v.cols(), first.rows(), first.cols());
  }
}

void check_flat(std::initializer_list<View> views, DType type, std::int64_t count) {
  for (const View& v : views) {
    TESSERA_CHECK(v && v.dense() && v.type == type && v.elements() == count,
                  "{} elements of {}, expected {} of {}", v.elements(), to_string(v.type), count,
                  to_string(type));
  }
}

void check_documents(const View& documents, std::int64_t samples, std::int64_t tokens) {
  if (!documents) return;
  check_flat({documents}, DType::i32, samples * tokens * 2);
  TESSERA_CHECK(documents.rank == 3 && documents.extent(1) == tokens,
                "documents of {} tokens in {} axes, expected {} in 3", documents.extent(1),
                documents.rank, tokens);
}

void check_dropout(const Dropout& dropout, std::int64_t samples, bool may_jitter) {
  TESSERA_CHECK(dropout.p >= 0 && dropout.p < 1 && dropout.first >= 0, "dropout {} from element {}",
                dropout.p, dropout.first);
  const float most = may_jitter && dropout.p == 0 ? 1 : 0;
  TESSERA_CHECK(dropout.jitter == 0 || (dropout.jitter > 0 && dropout.jitter < most),
                "jitter {} beside dropout {}", dropout.jitter, dropout.p);
  if (dropout) check_flat({dropout.samples}, DType::i64, samples);
}

}  // namespace tessera::kernels
