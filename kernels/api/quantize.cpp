#include "kernels/api/quantize.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

/// Dense codes of `extents` slots of n elements.
void check_codes(const View& code, std::initializer_list<std::int64_t> extents,
                 const BlockFormat& format, std::int64_t n) {
  const bool signs = format.type == BlockType::sign;
  TESSERA_CHECK(format.block > 0 && format.block % (signs ? 32 : 2) == 0 &&
                    (!signs || format.block <= 1 << 15),
                "blocks of {} elements", format.block);
  std::int64_t slots = 1;
  for (std::int64_t extent : extents) slots *= extent;
  check_flat({code}, DType::u8, slots * format.bytes(n));
  TESSERA_CHECK(std::equal(extents.begin(), extents.end(), code.shape.begin()) &&
                    code.rank == static_cast<int>(extents.size()) + 1,
                "{} codes of {} elements: slots of other extents", enum_word(format.type), n);
  TESSERA_CHECK(reinterpret_cast<std::uintptr_t>(code.data) % 16 == 0, "codes begin at {}",
                static_cast<const void*>(code.data));
}

void check_chance(const Chance& chance, const BlockFormat& format) {
  TESSERA_CHECK(!chance || format.type != BlockType::sign, "signs by chance");
  TESSERA_CHECK(!chance || (chance.samples.type == DType::i64 && chance.samples.elements() >= 1),
                "samples of {}", to_string(chance.samples.type));
}

/// Error feedback of `x`, an (S, n) or (A, B, n) view of its elements: all or none of these.
void check_errors(const View& x, const View& error, const View& lost, const View& scalars) {
  TESSERA_CHECK(static_cast<bool>(lost) == static_cast<bool>(scalars) && (lost || !error),
                "error feedback that keeps no error, or has no loss scale");
  for (const View& v : {error, lost})
    TESSERA_CHECK(!v || v.type == DType::bf16, "errors of {}", to_string(v.type));
  check_same_matrix({x, error, lost});
  if (scalars) check_flat({scalars}, DType::f32, kScalars);
}

void check_rounded(const BlockFormat& format) {
  TESSERA_CHECK(std::ranges::count(kRoundedTypes, format.type) > 0, "kernels do not round to {}",
                enum_word(format.type));
}

}  // namespace

void check_kept(const BlockFormat& format) {
  TESSERA_CHECK(format.type != BlockType::sign && format.block > 0 && format.block % 2 == 0,
                "{} in blocks of {} elements is nothing to keep", enum_word(format.type),
                format.block);
}

void check(const Quantize& a) {
  check_rounded(a.format);
  check_floats({a.x});
  TESSERA_CHECK(a.x.rank == 3, "x is (A, B, n), not of {} axes", a.x.rank);
  check_codes(a.code, {a.x.extent(1), a.x.extent(0)}, a.format, a.x.cols());
  check_chance(a.chance, a.format);
  check_errors(a.x, a.error, a.lost, a.scalars);
}

void check_parts(const View& code, const BlockFormat& format, std::int64_t n) {
  TESSERA_CHECK(code.rank == 3 && code.extent(0) >= 1, "codes are (parts, S, bytes)");
  check_codes(code, {code.extent(0), code.extent(1)}, format, n);
}

void check(const SumQuantized& a) {
  check_floats({a.out});
  check_parts(a.code, a.format, a.out.cols());
  TESSERA_CHECK(a.format.type != BlockType::nf4 || a.code.extent(0) == 1, "a sum of nf4");
  TESSERA_CHECK(a.out.rows() == a.code.extent(1), "{} slots for {} rows", a.code.extent(1),
                a.out.rows());
}

void check(const RequantizeSum& a) {
  check_rounded(a.format);
  check_parts(a.code, a.format, a.elements);
  check_codes(a.sum, {a.code.extent(1)}, a.format, a.elements);
  check_chance(a.chance, a.format);
  check_errors(a.lost, a.error, a.lost, a.scalars);
  TESSERA_CHECK(!a.lost || (a.lost.rows() == a.code.extent(1) && a.lost.cols() == a.elements),
                "errors of other slots");
}

}  // namespace tessera::kernels
