// Products of few rows: rows of a weight of codes, as elements, and the bias.
#pragma once

#include "kernels/cpu/hot/codes.hpp"
#include "kernels/cpu/hot/hot.hpp"

namespace tessera::kernels::TESSERA_ISA {

/// What the bias adds to `count` columns from this one on: 0 where it is absent.
inline Vec bias_of(const FewRows& p, std::int64_t column, std::int64_t count) {
  Vec added(0.0F);
  if (p.bias.data == nullptr) return added;
  with_type(p.bias.type,
            [&]<typename B>() { added = load(row_of<const B>(p.bias, 0) + column, count); });
  return added;
}

/// Codes of a weight, from one of its rows on.
struct CodeRows {
  const std::byte* codes;
  const float* scales;
  std::int64_t columns, block;
};
inline CodeRows code_rows(const FewRows& p, std::int64_t row) {
  const std::int64_t columns = p.x.shape[1], block = p.codes.format.block;
  return {row_of<std::byte>(p.weight, row),
          row_of<const float>(p.codes.scales, 0) + row * columns / block, columns, block};
}
/// Whether rows are whole blocks, and blocks whole vectors.
inline bool has_whole_blocks(const FewRows& p) {
  const std::int64_t block = p.codes.format.block;
  return p.x.shape[1] % block == 0 && block % kLanes == 0;
}

/// Elements of rows of codes in whole blocks, as kernels::SumQuantized makes them.
template <BlockType kType, typename T>
void decode_blocks(const CodeRows& w, std::int64_t rows, T* to) {
  constexpr std::int64_t kBits = kBitsOf<kType>;
  const std::int64_t blocks = rows * w.columns / w.block;
  const std::byte* codes = w.codes;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const BlockValues<kType, T> values(w.scales[b]);
    for (std::int64_t i = 0; i < w.block; i += kLanes, codes += kLanes * kBits / 8, to += kLanes)
      store_values(to, values.at(codes));
  }
}
/// The same of any elements.
template <BlockType kType, typename T>
void decode(const FewRows& p, Range elements, T* to) {
  const std::int64_t block = p.codes.format.block;
  const auto* scales = row_of<const float>(p.codes.scales, 0);
  for (std::int64_t i = elements.begin; i < elements.end;) {
    const Vec scale(scales[i / block]);
    const std::byte* codes = p.weight.data + i * kBitsOf<kType> / 8;
    const std::int64_t n = at_most((i / block + 1) * block, elements.end) - i;
    for_vectors(
        n, [&](std::int64_t at, std::int64_t count) __attribute__((always_inline)) {
          store(to + at, load_values<kType>(codes + at * kBitsOf<kType> / 8, scale, count), count);
        });
    i += n, to += n;
  }
}

}  // namespace tessera::kernels::TESSERA_ISA
