#include "kernels/cpu/library.hpp"

#include <omp.h>

#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "kernels/cpu/isa.hpp"

namespace tessera::kernels {

bool has_matrix_instructions() {
  return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
}

namespace cpu {
namespace {

dnnl::memory::data_type type_of(DType type) {
  TESSERA_CHECK(type == DType::f32 || type == DType::bf16, "matrix product of {}", to_string(type));
  return type == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, DType type, std::int64_t ld,
                          bool turned = false) {
  using Dims = dnnl::memory::dims;
  return {{rows, columns}, type_of(type), turned ? Dims{1, ld} : Dims{ld, 1}};
}

/// oneDNN takes its number of threads from the calling thread's OpenMP setting.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamSize() { omp_set_num_threads(before_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

/// The library's exceptions say little; the shape is what a reader needs.
template <typename F>
auto with_shape(const Product& p, F&& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw InternalError(fmt::format("oneDNN: {} (status {}) in ({}, {}) {} x ({}, {}) {} -> {}",
                                    e.message, static_cast<int>(e.status), p.a.rows(), p.a.cols(),
                                    to_string(p.a.type), p.b.rows(), p.b.cols(),
                                    to_string(p.b.type), to_string(p.c.type)));
  }
}

}  // namespace

struct LibraryProducts::Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

struct LibraryProducts::Compiled {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;  // handles are set for each run
  std::unordered_map<int, dnnl::memory> arguments;
  std::int64_t scratch_bytes = 0;
};

LibraryProducts::LibraryProducts(int threads)
    : threads_(threads), library_(std::make_unique<Library>()) {
  // Products are kept here. The library's own cache keeps its lock where memory ends while a
  // product is made, so that the next thread that asks for one would wait for ever.
  dnnl::set_primitive_cache_capacity(0);
}
LibraryProducts::~LibraryProducts() = default;

LibraryProducts::Compiled& LibraryProducts::compiled(const Product& p) {
  const View a = p.a.matrix(), b = p.b.matrix(), c = p.c.matrix();
  const bool a_turned = p.a_stored == Stored::turned, b_turned = p.b_stored == Stored::turned;
  const std::int64_t m = p.m(), n = p.n(), k = p.k();
  const bool add = p.write == Write::add;
  const Key key{m,      n,      k,           a.ld,     b.ld,     c.ld,
                a.type, c.type, p.bias.type, a_turned, b_turned, static_cast<bool>(p.bias),
                add};
  auto& entry = compiled_[key];
  if (entry) return *entry;

  const auto a_desc = matrix(m, k, a.type, a.ld, a_turned);
  const auto b_desc = matrix(k, n, b.type, b.ld, b_turned);
  const auto c_desc = matrix(m, n, c.type, c.ld);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const dnnl::engine& engine = library_->engine;
  auto made = std::make_unique<Compiled>();
  const auto bias_desc = p.bias ? matrix(1, n, p.bias.type, n) : dnnl::memory::desc();
  const auto description = p.bias ? dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc)
                                  : dnnl::matmul::desc(a_desc, b_desc, c_desc);
  const dnnl::matmul::primitive_desc primitive(description, attributes, engine);
  made->primitive = dnnl::matmul(primitive);
  made->a = dnnl::memory(a_desc, engine, nullptr);
  made->b = dnnl::memory(b_desc, engine, nullptr);
  made->c = dnnl::memory(c_desc, engine, nullptr);
  made->scratch = dnnl::memory(primitive.scratchpad_desc(), engine, nullptr);
  made->scratch_bytes = static_cast<std::int64_t>(primitive.scratchpad_desc().get_size());
  made->arguments = {{DNNL_ARG_SRC, made->a},
                     {DNNL_ARG_WEIGHTS, made->b},
                     {DNNL_ARG_DST, made->c},
                     {DNNL_ARG_SCRATCHPAD, made->scratch}};
  if (p.bias) {
    made->bias = dnnl::memory(bias_desc, engine, nullptr);
    made->arguments.emplace(DNNL_ARG_BIAS, made->bias);
  }
  entry = std::move(made);
  return *entry;
}

std::int64_t LibraryProducts::scratch_bytes(const Product& product) {
  const TeamSize team(threads_);
  return with_shape(product, [&] { return compiled(product).scratch_bytes; });
}

void LibraryProducts::run(const Product& p, View scratch) {
  const TeamSize team(threads_);
  with_shape(p, [&] {
    Compiled& product = compiled(p);
    TESSERA_CHECK(scratch.span_bytes() >= product.scratch_bytes,
                  "a product has {} bytes of scratch and needs {}", scratch.span_bytes(),
                  product.scratch_bytes);
    product.a.set_data_handle(p.a.data);
    product.b.set_data_handle(p.b.data);
    product.c.set_data_handle(p.c.data);
    product.scratch.set_data_handle(scratch.data);
    if (p.bias) product.bias.set_data_handle(p.bias.data);
    product.primitive.execute(library_->stream, product.arguments);
    library_->stream.wait();
  });
}

}  // namespace cpu
}  // namespace tessera::kernels
