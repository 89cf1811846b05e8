#include "kernels/cpu/matmul.hpp"

#include <algorithm>

#include "kernels/cpu/scratch_cursor.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

// Rows of a block, which share a packing, and come from the third-level cache; and, where the depth
// goes on in another block, its columns for each thread, whose sums wait in scratch, 6 MiB at most.
constexpr std::int64_t kRowsAtOnce = 3072, kColumnsAtOnce = 512;
/// Multiply-adds of a product that one thread makes sooner than a team is woken.
constexpr std::int64_t kFew = std::int64_t{1} << 17;

void check(const Product& p) {
  const bool a_turned = p.a_stored == Stored::turned, b_turned = p.b_stored == Stored::turned;
  TESSERA_CHECK((a_turned ? p.a.cols() : p.a.rows()) == p.m() &&
                    (b_turned ? p.b.cols() : p.b.rows()) == p.k() &&
                    (b_turned ? p.b.rows() : p.b.cols()) == p.n() && p.a.type == p.b.type &&
                    p.m() > 0 && p.n() > 0 && p.k() > 0,
                "product of ({}, {}) and ({}, {}) into ({}, {})", p.a.rows(), p.a.cols(),
                p.b.rows(), p.b.cols(), p.m(), p.n());
}

/// In how many parts rows and columns are divided over the team.
struct Grid {
  std::int64_t rows = 1, columns = 1;
  std::int64_t parts() const { return rows * columns; }
};

/// The most that one thread has to do, in rows of tiles. Rows that the team packs are packed by
/// equal parts.
std::int64_t rows_of_tiles(std::int64_t rows, std::int64_t columns, const Grid& grid,
                           const ProductForm& form, bool packed_rows) {
  const std::int64_t own = ceil_div(ceil_div(rows, form.block_rows), grid.rows) * form.block_rows,
                     far = packed_rows ? own - own / grid.columns : 0;
  return ceil_div(ceil_div(columns, kTile), grid.columns) * (own + form.packing) +
         far * form.fetching;
}

Grid grid_of(std::int64_t rows, std::int64_t columns, std::int64_t depth, int threads,
             const ProductForm& form, bool packed_rows) {
  Grid best;
  if (rows * columns * depth <= kFew) return best;
  const auto most = [&](const Grid& grid) {
    return rows_of_tiles(rows, columns, grid, form, packed_rows);
  };
  for (std::int64_t r = 1; r <= threads; ++r) {
    const Grid grid{r, threads / r};
    if (most(grid) < most(best)) best = grid;
  }
  return best;
}

/// A part of [0, n), in whole granules.
Range part_of(std::int64_t n, std::int64_t granule, std::int64_t index, std::int64_t parts) {
  const Range granules = even_part(ceil_div(n, granule), index, parts);
  return {std::min(n, granules.begin * granule), std::min(n, granules.end * granule)};
}

Range behind(std::int64_t begin, Range r) { return {begin + r.begin, begin + r.end}; }

/// A product cut into blocks, which are made one after another, each by the whole team, and the
/// scratch that these need: a smaller product never needs more.
class Blocks {
 public:
  Blocks(const Product& p, int threads, const HotKernels& hot, ScratchCursor scratch)
      : p_(p),
        threads_(threads),
        hot_(hot),
        form_(hot.product_form(p.a.type)),
        whole_(std::min(p.k(), form_.depth_words * form_.word)),
        depth_(whole_ < p.k() ? form_.cut_words * form_.word : whole_),
        rows_(std::min(p.m(), kRowsAtOnce)),
        columns_(depth_ == p.k() ? p.n() : std::min(p.n(), kColumnsAtOnce * threads)),
        grid_(grid_of(rows_, columns_, depth_, threads, form_, packs_left())) {
    if (packs_left()) left_ = piece(scratch, left_bytes());
    right_ = piece(scratch, right_bytes() * (grid_.parts() > 1 ? threads : 1));
    if (depth_ < p.k())
      sums_ = piece(scratch, rows_ * round_up(columns_, kTile) * std::int64_t{sizeof(float)});
    bytes_ = scratch.used();
  }

  std::int64_t bytes() const { return bytes_; }

  void run() const {
    for_blocks(p_.m(), rows_, [&](Range rows) {
      for_blocks(p_.n(), columns_, [&](Range columns) {
        for_blocks(p_.k(), depth_, [&](Range depth) { run_block(rows, columns, depth); });
      });
    });
  }

 private:
  static std::byte* piece(ScratchCursor& scratch, std::int64_t bytes) {
    return scratch.matrix(1, bytes, DType::u8).data;
  }
  template <typename F>
  static void for_blocks(std::int64_t n, std::int64_t block, F&& f) {
    for (std::int64_t i = 0; i < n; i += block) f(Range{i, std::min(n, i + block)});
  }

  std::int64_t words() const { return round_up(ceil_div(whole_, form_.word), 16); }
  std::int64_t left_bytes() const {
    return round_up(rows_, kPackedRows) * words() * std::int64_t{sizeof(float)};
  }
  /// Of tiles that one thread packs at once.
  std::int64_t right_bytes() const {
    const std::int64_t all = ceil_div(columns_, kTile) * words();
    return std::min(all, std::max(words(), form_.right_words)) * kTile *
           std::int64_t{sizeof(float)};
  }

  /// Not where its words lie in memory as they are multiplied.
  bool packs_left() const {
    if (p_.a_stored == Stored::turned) return true;
    if (form_.word > 1)
      return p_.k() % form_.whole_depth != 0 || p_.a.matrix().ld % form_.word != 0;
    return p_.a.type != DType::f32;
  }

  void run_block(Range rows, Range columns, Range depth) const {
    const ProductPart block{.rows = rows,
                            .columns = columns,
                            .depth = depth,
                            .last = depth.end == p_.k(),
                            .block_rows = rows,
                            .first_column = columns.begin,
                            .left = left_,
                            .sums = reinterpret_cast<float*>(sums_)};
    if (left_ != nullptr) {
      parallel_ranges(threads_, rows.count(), kPackedRows, [&](Range of_thread) {
        ProductPart part = block;
        part.rows = behind(rows.begin, of_thread);
        hot_.pack_left(p_, part);
      });
    }
    parallel_ranges(threads_, grid_.parts(), 1, [&](Range one) {
      const std::int64_t i = one.begin, row = i / grid_.columns, column = i % grid_.columns;
      ProductPart part = block;
      part.rows = behind(rows.begin, part_of(rows.count(), form_.block_rows, row, grid_.rows));
      part.columns = behind(columns.begin, part_of(columns.count(), kTile, column, grid_.columns));
      part.right = right_ + i * right_bytes();
      if (!part.rows.empty()) hot_.multiply_part(p_, part);
    });
  }

  const Product& p_;
  int threads_;
  const HotKernels& hot_;
  ProductForm form_;
  std::int64_t whole_;  // elements of a depth that is not cut, at most: as much room as they take
                        // is there for a longer one too, which never needs less
  std::int64_t depth_, rows_, columns_;  // of a block
  Grid grid_;
  std::byte *left_ = nullptr, *right_ = nullptr, *sums_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::int64_t Matmul::scratch_bytes(const Product& p) const {
  check(p);
  return Blocks(p, threads_, hot_, ScratchCursor::measuring()).bytes();
}

void Matmul::run(const Product& p, View scratch) const {
  check(p);
  Blocks(p, threads_, hot_, ScratchCursor(scratch)).run();
}

}  // namespace tessera::kernels::cpu
