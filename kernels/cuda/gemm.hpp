// Describes each matrix operation to a library of column-major matrices: plain numbers and
// addresses, made and tested without a GPU.
#pragma once

#include <array>
#include <compare>
#include <vector>

#include "core/enums.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels::cuda {

/// How f32 operands are multiplied: as they are, or rounded to 10 bits of mantissa.
enum class MatmulMath : std::uint8_t { same, tf32 };

/// How a run's products are computed.
struct ProductRules {
  MatmulMath math = MatmulMath::same;
  bool gelu = true;  // within the product, where the library can
};

/// Whether an operand is used as it is stored, or transposed.
enum class Turn : std::uint8_t { none, transpose };

/// What happens to a sum before it is written: nothing; D = gelu(sum), and the sum itself to AUX; D
/// = sum times gelu's slope at what AUX holds.
enum class Epilogue : std::uint8_t { none, gelu, gelu_slope };

/// D (m, n) = A (m, k) B (k, n), column-major: element (row, column) of a matrix is `row + column
/// ld` elements behind its first. All that an algorithm's choice may depend on, so a product with
/// the same key has the same bits wherever its operands are.
struct GemmKey {
  DType type_a = DType::f32, type_b = DType::f32, result = DType::f32;
  Turn a = Turn::none, b = Turn::none;
  std::int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldd = 0;
  std::int64_t align_a = 0, align_b = 0, align_d = 0;  // of the addresses, in bytes
  bool bias = false;                                   // of the result's type, added to each column
  Write write = Write::overwrite;
  MatmulMath math = MatmulMath::same;
  Epilogue epilogue = Epilogue::none;
  std::int64_t ld_aux = 0, align_aux = 0;  // AUX (m, n) is of the result's type; 0 without

  auto operator<=>(const GemmKey&) const = default;
};

/// Alignments are distinguished up to this many bytes: no instruction that loads an operand needs
/// more.
inline constexpr std::int64_t kOperandAlignment = 16;

struct Gemm {
  GemmKey key;
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::byte* d = nullptr;
  std::byte* aux = nullptr;
  const std::byte *scale_a = nullptr, *scale_b = nullptr;  // f32, of fp8 operands
};

/// An operand of a product as fp8 codes in the call's scratch. Hopper multiplies such operands
/// along their rows only, so where a product's sums run over the rows of `x`, the copy is turned.
struct Fp8Operand {
  View x;
  DType format = DType::e4m3;
  Turn turn = Turn::none;
  View codes;       // dense
  View magnitudes;  // (kFp8Parts) i32: bits of the largest magnitudes in as many parts
  View scale;       // (1) f32: what takes codes back
};
/// The product's first and second.
std::array<Fp8Operand, 2> fp8_operands(const Linear& call);
std::array<Fp8Operand, 2> fp8_operands(const LinearBackwardInput& call);
std::array<Fp8Operand, 2> fp8_operands(const LinearBackwardWeight& call);

/// All of an operation as one product, gelu and the bias included, but for LinearBackwardWeight's
/// bias gradient. Throws InternalError for arguments that break the operation's contract.
Gemm whole_gemm_of(const Linear& call, const ProductRules& rules);
Gemm whole_gemm_of(const LinearBackwardInput& call, const ProductRules& rules);
Gemm whole_gemm_of(const LinearBackwardWeight& call, const ProductRules& rules);

/// What of that a library may be asked for, which
///   applies gelu where the rules say so, of 16-bit types, for cuBLASLt does not say how exact its
///     gelu is, of operands as stored, and where every row of them, of the result and of the
///     preactivation begins on kOperandAlignment, which it asks for; elsewhere it has no epilogue,
///     and gelu is an operation of its own
///   adds a bias unless it is of fp8 operands to f32, which cuBLASLt does not do.
Gemm gemm_of(const Linear& call, const ProductRules& rules);
Gemm gemm_of(const LinearBackwardInput& call, const ProductRules& rules);
Gemm gemm_of(const LinearBackwardWeight& call, const ProductRules& rules);

/// The distinct products of `calls`, whose views must be placed (addresses matter), in order.
std::vector<GemmKey> gemm_keys(std::span<const KernelCall> calls, const ProductRules& rules);

}  // namespace tessera::kernels::cuda

template <>
struct tessera::EnumWords<tessera::kernels::cuda::MatmulMath> {
  using enum kernels::cuda::MatmulMath;
  static constexpr std::array table = {std::pair{same, "same"}, std::pair{tf32, "tf32"}};
};
template <>
struct tessera::EnumWords<tessera::kernels::cuda::Turn> {
  using enum kernels::cuda::Turn;
  static constexpr std::array table = {std::pair{none, "n"}, std::pair{transpose, "t"}};
};
template <>
struct tessera::EnumWords<tessera::kernels::cuda::Epilogue> {
  using enum kernels::cuda::Epilogue;
  static constexpr std::array table = {std::pair{none, "none"}, std::pair{gelu, "gelu"},
                                       std::pair{gelu_slope, "gelu_slope"}};
};
