#include "kernels/cpu/documents.hpp"

#include "core/error.hpp"

namespace tessera::kernels::cpu {
namespace {

void check_rows(const View& documents, std::int64_t tokens, bool of_part) {
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
  }
}

}  // namespace

void check_document_rows(const View& documents, std::int64_t tokens) {
  check_rows(documents, tokens, false);
}

void check_position_rows(const View& documents, std::int64_t tokens) {
  check_rows(documents, tokens, true);
}

}  // namespace tessera::kernels::cpu
