// Stands in for cuBLASLt: the product that a description means, element by element.
#include "kernels/cuda/matmul.hpp"

#include <cmath>

#include "kernels/common/fp8.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/scratch.hpp"
#include "support/emulator/products.hpp"
#include "support/emulator/streams.hpp"

namespace tessera::emulator {
namespace {

using Which = std::function<bool(const kernels::cuda::GemmKey&)>;

Which& refused() {
  static Which which;
  return which;
}
Which& faster_apart() {
  static Which which;
  return which;
}

}  // namespace

void refuse_products(Which which) { refused() = std::move(which); }
void make_faster_apart(Which which) { faster_apart() = std::move(which); }

}  // namespace tessera::emulator

namespace tessera::kernels::cuda {
namespace {

bool refuses(const GemmKey& key) {
  const auto& which = emulator::refused();
  return which && which(key);
}

/// A code of 8 bits: sign, exponent and kMantissa bits of mantissa.
template <typename Format>
struct Fp8 {
  std::uint8_t bits;

  explicit operator float() const {
    constexpr int kMantissa = Format::kMantissa;
    constexpr bool kHalf = kMantissa == 2;  // e5m2 has binary16's infinities
    const int magnitude = bits & 0x7f, exponent = magnitude >> kMantissa;
    const int mantissa = magnitude & ((1 << kMantissa) - 1);
    if (kHalf ? magnitude > 0x7c : magnitude == 0x7f) return NAN;
    if (kHalf && magnitude == 0x7c) return INFINITY;
    const float x = exponent == 0
                        ? std::ldexp(static_cast<float>(mantissa), Format::kLeast - kMantissa)
                        : std::ldexp(static_cast<float>(mantissa + (1 << kMantissa)),
                                     Format::kLeast - kMantissa + exponent - 1);
    return (bits & 0x80) != 0 ? -x : x;
  }
};

/// f.operator()<A, B>() for the types of a product's operands.
template <typename F>
void with_operands(const GemmKey& key, F&& f) {
  if (key.type_a != DType::e4m3) {
    with_type(key.type_a, [&]<typename T>() { f.template operator()<T, T>(); });
  } else if (key.type_b == DType::e4m3) {
    f.template operator()<Fp8<E4m3>, Fp8<E4m3>>();
  } else {
    f.template operator()<Fp8<E4m3>, Fp8<E5m2>>();
  }
}

template <typename T>
float element(const std::byte* matrix, std::int64_t row, std::int64_t column, std::int64_t ld) {
  return static_cast<float>(reinterpret_cast<const T*>(matrix)[row + column * ld]);
}

template <typename A, typename B, typename To>
void multiply(const Gemm& product, const std::byte* bias) {
  const GemmKey& key = product.key;
  const bool scaled = size_of(key.type_a) == 1;
  const float scale =
      scaled ? element<float>(product.scale_a, 0, 0, 0) * element<float>(product.scale_b, 0, 0, 0)
             : 1.0F;
  for (std::int64_t column = 0; column < key.n; ++column) {
    for (std::int64_t row = 0; row < key.m; ++row) {
      To& out = reinterpret_cast<To*>(product.d)[row + column * key.ldd];
      const float before = key.write == Write::add ? static_cast<float>(out) : 0.0F;
      float sum = scaled ? 0.0F : before;
      for (std::int64_t k = 0; k < key.k; ++k) {
        const float a = key.a == Turn::none ? element<A>(product.a, row, k, key.lda)
                                            : element<A>(product.a, k, row, key.lda);
        const float b = key.b == Turn::none ? element<B>(product.b, k, column, key.ldb)
                                            : element<B>(product.b, column, k, key.ldb);
        sum += a * b;
      }
      if (scaled) sum = sum * scale + before;
      if (key.bias) sum += element<To>(bias, row, 0, 0);
      if (key.epilogue == Epilogue::gelu) {
        reinterpret_cast<To*>(product.aux)[row + column * key.ld_aux] = To(sum);
        sum = gelu(sum);
      }
      if (key.epilogue == Epilogue::gelu_slope)
        sum *= gelu_slope(element<To>(product.aux, row, column, key.ld_aux));
      out = To(sum);
    }
  }
}

bool aligned(const std::byte* address, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// What cuBLASLt asks of fp8 products on Hopper, by its documentation.
void check_fp8(const Gemm& product) {
  const GemmKey& key = product.key;
  const std::int64_t result = size_of(key.result);
  TESSERA_CHECK(key.a == Turn::transpose && key.b == Turn::none, "operands must lie along k");
  TESSERA_CHECK(key.m % 16 == 0 && key.n % 16 == 0 && key.k % 16 == 0 && key.lda % 16 == 0 &&
                    key.ldb % 16 == 0 && key.ldd * result % 16 == 0 && key.align_a == 16 &&
                    key.align_b == 16 && key.align_d == 16,
                "fp8 product ({}, {}, {})", key.m, key.n, key.k);
  TESSERA_CHECK(!(key.type_a == DType::e5m2 && key.type_b == DType::e5m2) &&
                    key.epilogue == Epilogue::none && !(key.bias && key.result == DType::f32),
                "fp8 product into {} with a bias or gelu", to_string(key.result));
  TESSERA_CHECK(product.scale_a != nullptr && product.scale_b != nullptr, "no scales");
}

/// What cuBLASLt asks of products with gelu, by its documentation.
void check_gelu(const Gemm& product) {
  const GemmKey& key = product.key;
  const auto rows_aligned = [](std::int64_t first, std::int64_t ld, DType type) {
    return first == 16 && ld * size_of(type) % 16 == 0;
  };
  TESSERA_CHECK(rows_aligned(key.align_a, key.lda, key.type_a) &&
                    rows_aligned(key.align_b, key.ldb, key.type_b) &&
                    rows_aligned(key.align_d, key.ldd, key.result) &&
                    rows_aligned(key.align_aux, key.ld_aux, key.result) &&
                    aligned(product.aux, key.align_aux) && key.ld_aux >= key.m,
                "gelu of rows {}, {}, {} and {} apart on {}, {}, {} and {} bytes", key.lda, key.ldb,
                key.ldd, key.ld_aux, key.align_a, key.align_b, key.align_d, key.align_aux);
}

}  // namespace

struct Matmul::Library {
  const Queue& queue;
  AlgorithmTable table;
};
Matmul::Matmul(const Queue& queue, int driver)
    : library_(new Library{
          queue, {.machine = {1, "emulated", 9, 0, driver}, .chosen = {}, .apart = {}}}) {}
Matmul::~Matmul() = default;

bool Matmul::takes(const GemmKey& key) { return !refuses(key); }
std::int64_t Matmul::timing_bytes(std::span<const GemmKey>) { return 0; }
void Matmul::choose(std::span<const GemmKey> keys, AlgorithmChoice how, const View&,
                    const OwnKernels& own) {
  const auto& apart = emulator::faster_apart();
  for (GemmKey key : keys) {
    while (how == AlgorithmChoice::timed && own && !is_plain(key) && apart && apart(key) &&
           !refuses(key)) {
      library_->table.apart.insert(key), apart_.insert(key);
      key = without_last({.key = key}).key;
    }
    if (!refuses(key)) library_->table.chosen[key] = {};
  }
}
std::vector<GemmKey> Matmul::adopt(const AlgorithmTable& table, std::span<const GemmKey> keys) {
  std::vector<GemmKey> missing;
  for (const GemmKey& key : keys) {
    if (table.apart.contains(key)) {
      library_->table.apart.insert(key), apart_.insert(key);
    } else if (table.chosen.contains(key) && !refuses(key)) {
      library_->table.chosen[key] = table.chosen.at(key);
    } else {
      missing.push_back(key);
    }
  }
  return missing;
}
AlgorithmTable Matmul::table() const { return library_->table; }
GemmMachine Matmul::machine() const { return library_->table.machine; }

void Matmul::run(const Gemm& product, const std::byte* bias, const View& workspace) {
  const GemmKey& key = product.key;
  TESSERA_CHECK(!refuses(key), "a product that is refused: {}", text_of(key));
  TESSERA_CHECK(
      workspace.span_bytes() == kMatmulWorkspace && aligned(workspace.data, kWorkspaceAlignment),
      "{} bytes of workspace", workspace.span_bytes());
  TESSERA_CHECK(aligned(product.a, key.align_a) && aligned(product.b, key.align_b) &&
                    aligned(product.d, key.align_d) && aligned(bias, kOperandAlignment) &&
                    key.bias == (bias != nullptr),
                "operands on {}, {} and {} bytes", key.align_a, key.align_b, key.align_d);
  TESSERA_CHECK((key.epilogue == Epilogue::none) == (product.aux == nullptr),
                "a matrix beside the result");
  if (product.aux != nullptr) check_gelu(product);
  if (size_of(key.type_a) == 1) check_fp8(product);
  const auto code = emulator::queue_work(library_->queue.stream, [product, bias] {
    with_operands(product.key, [&]<typename A, typename B>() {
      with_type(product.key.result, [&]<typename To>() { multiply<A, B, To>(product, bias); });
    });
  });
  TESSERA_CHECK(code == cudaSuccess, "{}", cudaGetErrorName(code));
}

}  // namespace tessera::kernels::cuda
