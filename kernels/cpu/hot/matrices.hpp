// bf16 for a processor's instructions for matrices (AMX: Intel's Software Developer's Manual,
// volume 2, TDPBF16PS). A register holds a matrix of sixteen rows of sixteen words.
//
// Of 32 elements along the depth the products of the earlier one of each pair are a chain of
// multiply-adds, those of the later one another; both are added, then added to the sum so far. What
// is below the smallest normal number is 0.
#pragma once

#include "kernels/cpu/hot/operands.hpp"

namespace tessera::kernels::TESSERA_ISA {

/// The processor's matrices, as this thread has them for blocks of so many rows; it has none of
/// them when this ends, so that whoever switches threads need not keep them.
class MatrixRegisters {
 public:
  MatrixRegisters() = default;
  ~MatrixRegisters() {
    if (rows_ > 0) asm volatile("tilerelease" ::: "memory");
  }
  MatrixRegisters(const MatrixRegisters&) = delete;
  MatrixRegisters& operator=(const MatrixRegisters&) = delete;

  /// 1 to 32 rows. What they hold is lost where these are other rows than before.
  void set_rows(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    const auto above = static_cast<std::uint8_t>(at_most(rows, kLanes)),
               below = static_cast<std::uint8_t>(rows - above);
    Configuration c;
    const std::uint8_t rows_of[] = {above, above, below, below, above, below, kLanes, kLanes};
    for (int i = 0; i < 8; ++i) {
      if (rows_of[i] == 0) continue;
      c.rows[i] = rows_of[i];
      c.row_bytes[i] = kLanes * sizeof(Pair);
    }
    asm volatile("ldtilecfg %0" : : "m"(c) : "memory");
  }

 private:
  struct Configuration {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Configuration) == 64);

  std::int64_t rows_ = 0;
};

/// Pairs, of whose depth there are whole matrices: what is behind its end is 0.
struct Matrices : Pairs {
  static constexpr std::int64_t kBlockRows = 2 * kLanes;

  static std::int64_t words_of(std::int64_t depth) {
    return round_up(Pairs::words_of(depth), kLanes);
  }
  /// A left operand: rows so far apart, and matrices along the depth and below each other.
  struct Left {
    const Pair* data;
    std::int64_t row, next, below;
  };
  static Left rows_as_left(const Pair* data, std::int64_t ld) {
    return {data, ld, kLanes, kLanes * ld};
  }
  static Left packed_as_left(const Pair* data, std::int64_t depth) {
    return {data, kLanes, kLanes * kLanes, kLanes * words_of(depth)};
  }

  /// to (rows / 16, words / 16, 16, 16) = x (depth, rows) as a left operand, so that what a
  /// register holds lies in one piece.
  static void pack_turned_left(const Block& x, Pair* to) {
    const std::int64_t words = words_of(x.rows);
    for (std::int64_t w = 0; w < words; w += kLanes) {
      for (std::int64_t c = 0; c < x.columns; c += 2 * kLanes) {
        alignas(64) Pair pairs[2][kLanes * kLanes];
        for (std::int64_t t = 0; t < kLanes; ++t) {
          __m512i both[2];
          join_rows(x, w + t, c, both);
          for (int i = 0; i < 2; ++i) _mm512_store_si512(pairs[i] + t * kLanes, both[i]);
        }
        for (int i = 0; i < 2 && c + i * kLanes < x.columns; ++i)
          turn_square(pairs[i], kLanes * sizeof(Pair), to + ((c / kLanes + i) * words + w) * kLanes,
                      kLanes);
      }
    }
  }
  /// Words of two rows of x, from column c on: 0 where it has none.
  TESSERA_INLINE static void join_rows(const Block& x, std::int64_t word, std::int64_t c,
                                       __m512i (&words)[2]) {
    const auto row = [&](std::int64_t r) {
      return r < x.rows ? load_pairs(x.row<bf16>(r) + c, x.columns - c) : __m512i{};
    };
    join(row(2 * word), row(2 * word + 1), words);
  }

  /// to (columns / 16, words, 16) = x (depth, columns) as a right operand, so that what a register
  /// holds lies in one piece; columns up to sixteen are 0.
  static void pack_tiles(const Block& x, Pair* to) { pack_tiles(x, to, words_of(x.rows) * kLanes); }
  /// The same with so many words from one sixteen of columns to the next.
  static void pack_tiles(const Block& x, Pair* to, std::int64_t group) {
    const std::int64_t words = words_of(x.rows);
    for (std::int64_t t = 0; t < words; ++t, to += kLanes) {
      look_ahead(x, x.row<bf16>(2 * t));
      look_ahead(x, x.row<bf16>(2 * t + 1));
      for (std::int64_t c = 0; c < x.columns; c += 2 * kLanes) {
        __m512i both[2];
        join_rows(x, t, c, both);
        Pair* own = to + c / kLanes * group;
        _mm512_storeu_si512(own, both[0]);
        if (c + kLanes < x.columns) _mm512_storeu_si512(own + group, both[1]);
      }
    }
  }
  /// The same of x (columns, depth).
  static void pack_turned_tiles(const Block& x, Pair* to) {
    const std::int64_t words = words_of(x.columns);
    for (std::int64_t r = 0; r < x.rows; r += kLanes) {
      for (std::int64_t w = 0; w < words; w += kLanes, to += kLanes * kLanes) {
        const std::int64_t rows = at_most(kLanes, x.rows - r), columns = x.columns - 2 * w;
        if (rows == kLanes && columns >= 2 * kLanes) {
          turn_square(x.row<bf16>(r) + 2 * w, x.ld * std::int64_t{sizeof(bf16)}, to, kLanes);
          continue;
        }
        alignas(64) Pair some[kLanes * kLanes] = {};
        for (std::int64_t i = 0; i < rows; ++i)
          _mm512_storeu_si512(some + i * kLanes, load_pairs(x.row<bf16>(r + i) + 2 * w, columns));
        turn_square(some, kLanes * sizeof(Pair), to, kLanes);
      }
    }
  }

  /// C (+)= A B over `depth` elements, with MatrixRegisters for these rows; b is what pack_tiles()
  /// makes. The depth is cut so that rows of the left operand stay in the first-level cache for all
  /// columns.
  static void multiply(std::int64_t rows, int vecs, std::int64_t depth, Left a, const Pair* b,
                       TileC c, Write write) {
    const std::int64_t words = words_of(depth);
    for (std::int64_t k = 0; k < words; k += kWordsAtOnce) {
      Left left = a;
      left.data += k / kLanes * a.next;
      const std::int64_t here = at_most(kWordsAtOnce, words - k);
      for (int v = 0; v < vecs; v += 2) {
        const Pair* right = b + (v * words + k) * kLanes;
        const TileC sums{c.data + v * kLanes, c.ld};
        const Write how = k > 0 ? Write::add : write;
        block(rows > kLanes, v + 1 < vecs, here, left, right, words, sums, how);
      }
    }
  }

  /// C (+)= A B with one or two matrices of sums above and beside each other, of a depth of which b
  /// has `all` words.
  static void block(bool two_above, bool two_beside, std::int64_t words, const Left& a,
                    const Pair* b, std::int64_t all, TileC c, Write write) {
    if (two_above) {
      two_beside ? block<2, 2>(words, a, b, all, c, write)
                 : block<2, 1>(words, a, b, all, c, write);
    } else {
      two_beside ? block<1, 2>(words, a, b, all, c, write)
                 : block<1, 1>(words, a, b, all, c, write);
    }
  }

 private:
  static constexpr std::int64_t kWordsAtOnce = 128;

  // Which register is which matrix: sums 0 to 3, two of the left operand, two of the right one.
  template <int kRegister, typename T>
  TESSERA_INLINE static void load(const T* from, std::int64_t ld) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(ld * std::int64_t{sizeof(T)}), "i"(kRegister)
                 : "memory");
  }
  template <int kRegister>
  TESSERA_INLINE static void store(float* to, std::int64_t ld) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(to), "r"(ld * std::int64_t{sizeof(float)}), "i"(kRegister)
                 : "memory");
  }
  template <int kRegister>
  TESSERA_INLINE static void clear() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kRegister));
  }
  template <int kSum, int kLeft, int kRight>
  TESSERA_INLINE static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }

  /// The same, with how many is known.
  template <int kAbove, int kBeside>
  [[gnu::noinline]] static void block(std::int64_t words, const Left& a, const Pair* b,
                                      std::int64_t all, TileC c, Write write) {
    const std::int64_t below = kLanes * c.ld;
    if (write == Write::add) {
      load<0>(c.data, c.ld);
      if constexpr (kBeside > 1) load<1>(c.data + kLanes, c.ld);
      if constexpr (kAbove > 1) load<2>(c.data + below, c.ld);
      if constexpr (kAbove > 1 && kBeside > 1) load<3>(c.data + below + kLanes, c.ld);
    } else {
      clear<0>();
      if constexpr (kBeside > 1) clear<1>();
      if constexpr (kAbove > 1) clear<2>();
      if constexpr (kAbove > 1 && kBeside > 1) clear<3>();
    }
    const Pair* left = a.data;
    for (std::int64_t k = 0; k < words; k += kLanes, left += a.next) {
      load<6>(b + k * kLanes, kLanes);
      load<4>(left, a.row);
      multiply_add<0, 4, 6>();
      if constexpr (kBeside > 1) {
        load<7>(b + (all + k) * kLanes, kLanes);
        multiply_add<1, 4, 7>();
      }
      if constexpr (kAbove > 1) {
        load<5>(left + a.below, a.row);
        multiply_add<2, 5, 6>();
        if constexpr (kBeside > 1) multiply_add<3, 5, 7>();
      }
    }
    store<0>(c.data, c.ld);
    if constexpr (kBeside > 1) store<1>(c.data + kLanes, c.ld);
    if constexpr (kAbove > 1) store<2>(c.data + below, c.ld);
    if constexpr (kAbove > 1 && kBeside > 1) store<3>(c.data + below + kLanes, c.ld);
  }
};

}  // namespace tessera::kernels::TESSERA_ISA
