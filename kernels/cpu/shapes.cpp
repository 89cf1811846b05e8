#include "kernels/cpu/shapes.hpp"

#include <cstring>

#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

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

void check_dropout(const Dropout& dropout, std::int64_t samples) {
  TESSERA_CHECK(dropout.p >= 0 && dropout.p < 1 && dropout.first >= 0, "dropout {} from element {}",
                dropout.p, dropout.first);
  if (dropout) check_flat({dropout.samples}, DType::i64, samples);
}

void clear_rows(const View& x, int threads) {
  const View m = x.matrix();
  const std::int64_t element = size_of(m.type), width = m.extent(1) * element;
  if (m.dense()) {
    parallel_ranges(threads, m.extent(0) * width, 4096, [&](Range bytes) {
      std::memset(m.data + bytes.begin, 0, static_cast<std::size_t>(bytes.count()));
    });
    return;
  }
  parallel_ranges(threads, m.extent(0), 1, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      std::memset(m.data + r * m.ld * element, 0, static_cast<std::size_t>(width));
    }
  });
}

}  // namespace tessera::kernels::cpu
