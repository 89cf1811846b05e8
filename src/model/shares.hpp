// This rank's chunks of sequences that ranks divide among them, and gradients that are sums over
// its shares of them.
#pragma once

#include <vector>

#include "model/context.hpp"

namespace tessera::model {

/// Sequences [first, first + count) of a view whose first axis they are.
View sequences(View v, std::int64_t first, std::int64_t count);

/// One of this rank's chunks: the micro-batch's sequences that it is in all samples, and its first
/// token there.
struct OwnChunk {
  std::int64_t first_sequence, first_token;
  /// Those sequences of a view; an absent one stays so.
  View of(const View& v, std::int64_t samples) const {
    return v ? sequences(v, first_sequence, samples) : v;
  }
  /// A mask with the samples of those sequences, if there is one.
  kernels::Dropout of(kernels::Dropout dropout, std::int64_t samples) const {
    if (dropout) dropout.samples = dropout.samples.range(first_sequence, samples);
    return dropout;
  }
};
/// Half 0 or 1 of one of this rank's shares.
OwnChunk own_chunk(const UnitContext& u, std::int64_t share, std::int64_t half);
/// f(chunk) for each of this rank's chunks, in their order.
template <typename F>
void for_each_own_chunk(const UnitContext& u, F&& f) {
  for (std::int64_t share = 0; share < u.context.own(); ++share)
    for (const std::int64_t half : {0, 1}) f(own_chunk(u, share, half));
}

/// Rows of a micro-batch, of one of this rank's shares, that go through something at once.
struct RowGroup {
  std::int64_t share;
  Range rows;
  bool first;  // of the share
  /// These rows of a matrix.
  View of(const View& v) const { return v.row_range(rows.begin, rows.count()); }
};
/// Groups of `most` of `all` rows, the same whatever the layout; 0: of a share.
std::vector<RowGroup> row_groups(const UnitContext& u, std::int64_t all, std::int64_t most);

/// A gradient of which each of this rank's shares of sequences gives a part; the parts are added in
/// a tree. With one share the part is the gradient.
class ShareSum {
 public:
  /// `gradient`: of any shape, dense; or absent, as all its parts are then.
  ShareSum(UnitContext& u, const View& gradient);
  View part(std::int64_t share) const;
  /// How to write the first summand of a part of a gradient that is to be written so.
  kernels::Write write_to(kernels::Write gradient) const {
    return parts_ ? kernels::Write::overwrite : gradient;
  }
  void finish(kernels::Write write);

 private:
  UnitContext& u_;
  View gradient_, parts_;  // (shares, elements) f32, or absent
};

}  // namespace tessera::model
