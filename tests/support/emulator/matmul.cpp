// Stands in for cuBLASLt: the product that a description means, element by element.
#include "kernels/cuda/matmul.hpp"

#include "kernels/common/math.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/scratch.hpp"
#include "support/emulator/streams.hpp"

namespace tessera::kernels::cuda {
namespace {

template <typename T>
float element(const std::byte* matrix, std::int64_t row, std::int64_t column, std::int64_t ld) {
  return static_cast<float>(reinterpret_cast<const T*>(matrix)[row + column * ld]);
}

template <typename T, typename To>
void multiply(const Gemm& product, const std::byte* bias) {
  const GemmKey& key = product.key;
  for (std::int64_t column = 0; column < key.n; ++column) {
    for (std::int64_t row = 0; row < key.m; ++row) {
      To& out = reinterpret_cast<To*>(product.d)[row + column * key.ldd];
      float sum = key.write == Write::add ? static_cast<float>(out) : 0.0F;
      for (std::int64_t k = 0; k < key.k; ++k) {
        const float a = key.a == Turn::none ? element<T>(product.a, row, k, key.lda)
                                            : element<T>(product.a, k, row, key.lda);
        const float b = key.b == Turn::none ? element<T>(product.b, k, column, key.ldb)
                                            : element<T>(product.b, column, k, key.ldb);
        sum += a * b;
      }
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

}  // namespace

struct Matmul::Library {
  const Queue& queue;
};
Matmul::Matmul(const Queue& queue) : library_(new Library{queue}) {}
Matmul::~Matmul() = default;

void Matmul::run(const Gemm& product, const std::byte* bias, const View& workspace) {
  const GemmKey& key = product.key;
  TESSERA_CHECK(
      workspace.span_bytes() == kMatmulWorkspace && aligned(workspace.data, kWorkspaceAlignment),
      "{} bytes of workspace", workspace.span_bytes());
  TESSERA_CHECK(aligned(product.a, key.align_a) && aligned(product.b, key.align_b) &&
                    aligned(product.d, key.align_d) && aligned(bias, kOperandAlignment) &&
                    key.bias == (bias != nullptr),
                "operands on {}, {} and {} bytes", key.align_a, key.align_b, key.align_d);
  TESSERA_CHECK((key.epilogue == Epilogue::none) == (product.aux == nullptr) &&
                    (product.aux == nullptr || (aligned(product.aux, key.align_aux) &&
                                                key.ld_aux % 8 == 0 && key.ld_aux >= key.m)),
                "rows {} apart on {} bytes beside the result", key.ld_aux, key.align_aux);
  const auto code = emulator::queue_work(library_->queue.stream, [product, bias] {
    with_type(product.key.operands, [&]<typename T>() {
      if (product.key.result == DType::f32) {
        multiply<T, float>(product, bias);
      } else {
        multiply<T, T>(product, bias);
      }
    });
  });
  TESSERA_CHECK(code == cudaSuccess, "{}", cudaGetErrorName(code));
}

}  // namespace tessera::kernels::cuda
