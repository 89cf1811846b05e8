// Which row of a gradient's table the places of a batch of tokens add to.
#pragma once

#include <cstdint>

#include "kernels/api/embed.hpp"
#include "kernels/api/experts.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

struct PlaceRows {
  const std::int32_t* tokens;     // (B, T), or null
  const std::int32_t* documents;  // (B, T, 2), where tokens are null
  std::int64_t first_token, tokens_per_sample;
  std::int64_t rows;  // of the table

  /// The row of the place's token, or of its position in its document; `rows` where the table does
  /// not have it.
  TESSERA_INLINE std::int64_t of(std::int64_t place) const {
    const std::int64_t row = tokens != nullptr ? tokens[place] - first_token
                                               : place % tokens_per_sample - documents[2 * place];
    return row >= 0 && row < rows ? row : rows;
  }
};

inline PlaceRows token_rows(const EmbedBackward& a) {
  return {.tokens = a.tokens.as<std::int32_t>(),
          .documents = nullptr,
          .first_token = a.first_token,
          .tokens_per_sample = a.tokens.extent(1),
          .rows = a.d_token_table.extent(0)};
}
/// With documents.
inline PlaceRows position_rows(const EmbedBackward& a) {
  return {.tokens = nullptr,
          .documents = a.documents.as<std::int32_t>(),
          .first_token = 0,
          .tokens_per_sample = a.tokens.extent(1),
          .rows = a.d_position_table.extent(0)};
}

/// Of copies of tokens: the row of each is its expert among the own ones.
inline PlaceRows rows_of_experts(const Dispatch& a) {
  return {.tokens = a.experts.as<std::int32_t>(),
          .documents = nullptr,
          .first_token = a.first,
          .tokens_per_sample = a.experts.elements(),
          .rows = a.own()};
}

}  // namespace tessera::kernels
