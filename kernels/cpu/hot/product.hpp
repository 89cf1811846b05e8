// Matrix products, and how they are cut into parts. Each element of a result is one chain of
// multiply-adds over the whole depth, in an order that the operands' type decides, so that no bit
// depends on how a product is cut, on its other rows and columns or on the number of threads.
#pragma once

#include "core/math.hpp"
#include "core/view.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// How an operand is stored: as the product has it, or transposed.
enum class Stored : std::uint8_t { straight, turned };

/// c (m, n) (+)= a (m, k) b (k, n) + bias (n). A turned operand's view has its extents exchanged.
/// a and b have one type; sums are f32, rounded once to c's type.
struct Product {
  View a, b, c;
  View bias;  // or absent
  Stored a_stored = Stored::straight, b_stored = Stored::straight;
  Write write = Write::overwrite;

  std::int64_t m() const { return c.rows(); }
  std::int64_t n() const { return c.cols(); }
  std::int64_t k() const { return a_stored == Stored::turned ? a.rows() : a.cols(); }
};

/// Columns of a tile of the right operand that is packed at once, and of tiles of scores.
inline constexpr std::int64_t kTile = 64;
/// Rows of the left operand that are packed at once: whole register blocks.
inline constexpr std::int64_t kPackedRows = 96;

/// How operands of a type are packed and multiplied.
struct ProductForm {
  std::int64_t word = 1;         // elements along the depth that are multiplied at once
  std::int64_t whole_depth = 1;  // elements that rows of the left operand are padded to
  std::int64_t block_rows = 1;   // of a block of registers
  std::int64_t depth_words = 1;  // of a product whose depth is not cut, at most
  std::int64_t cut_words = 1;    // of a block of one that is
  std::int64_t right_words = 0;  // of the depth of tiles that are packed at once; one at least is
  std::int64_t packing = 0;   // what packing a tile takes, in rows that it could be multiplied by
  std::int64_t fetching = 0;  // what a row that another thread has packed takes, in such rows
};

/// What one thread packs or makes of a block of a product. The depth goes on in order, in one block
/// after another.
struct ProductPart {
  Range rows, columns, depth;
  bool last = true;  // the depth ends here
  Range block_rows;
  std::int64_t first_column = 0;  // of the block
  /// The left operand's packed rows of the block, or null: they are multiplied from where they lie.
  std::byte* left = nullptr;
  std::byte* right = nullptr;  // scratch for tiles of 64 columns that are packed at once
  /// (columns / 64, rows, 64) sums of the block so far, or null: the depth is whole.
  float* sums = nullptr;
};

}  // namespace tessera::kernels
