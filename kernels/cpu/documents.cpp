#include "kernels/cpu/documents.hpp"

#include "core/error.hpp"

namespace tessera::kernels::cpu {
namespace {

/// `positions`: of parts of sequences how many there are; 0: samples are whole.
void check_rows(const View& documents, std::int64_t tokens, std::int64_t positions) {
  const bool of_part = positions > 0;
  if (!documents) return;
  const auto* range = documents.as<std::int32_t>();
  const std::int64_t rows = documents.elements() / 2;
  for (std::int64_t row = 0, begin = 0, end = 0; row < rows; ++row) {
    const std::int64_t t = row % tokens;
    if (t == 0) end = 0;
    if (t == end) {
      begin = of_part && t == 0 && range[2 * row] < 0 ? range[2 * row] : t;
      end = range[2 * row + 1];
    }
    TESSERA_CHECK(range[2 * row] == begin && range[2 * row + 1] == end && end > t &&
                      (of_part || end <= tokens),
                  "token {} of sample {} is in document [{}, {}) of {} tokens, expected [{}, {})",
                  t, row / tokens, range[2 * row], range[2 * row + 1], tokens, begin, end);
    TESSERA_CHECK(!of_part || t - begin < positions, "token {} of sample {} has position {} of {}",
                  t, row / tokens, t - begin, positions);
  }
}

}  // namespace

void check_document_rows(const View& documents, std::int64_t tokens) {
  check_rows(documents, tokens, 0);
}

void check_position_rows(const View& documents, std::int64_t tokens, std::int64_t positions) {
  check_rows(documents, tokens, positions);
}

}  // namespace tessera::kernels::cpu
