#include "kernels/cuda/matmul.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/cuda.hpp"
#include "core/library.hpp"
#include "core/math.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels::cuda {
namespace {

struct CublasLt {
  Library library{"libcublasLt.so.13"};
  TESSERA_SYMBOL(cublasLtGetVersion)
  TESSERA_SYMBOL(cublasLtGetStatusString)
  TESSERA_SYMBOL(cublasLtCreate)
  TESSERA_SYMBOL(cublasLtDestroy)
  TESSERA_SYMBOL(cublasLtMatmulDescCreate)
  TESSERA_SYMBOL(cublasLtMatmulDescDestroy)
  TESSERA_SYMBOL(cublasLtMatmulDescSetAttribute)
  TESSERA_SYMBOL(cublasLtMatrixLayoutCreate)
  TESSERA_SYMBOL(cublasLtMatrixLayoutDestroy)
  TESSERA_SYMBOL(cublasLtMatmulPreferenceCreate)
  TESSERA_SYMBOL(cublasLtMatmulPreferenceDestroy)
  TESSERA_SYMBOL(cublasLtMatmulPreferenceSetAttribute)
  TESSERA_SYMBOL(cublasLtMatmulAlgoGetHeuristic)
  TESSERA_SYMBOL(cublasLtMatmulAlgoCheck)
  TESSERA_SYMBOL(cublasLtMatmulAlgoConfigGetAttribute)
  TESSERA_SYMBOL(cublasLtMatmul)
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Algorithm));

constexpr int kProposals = 32;     // asked of the library
constexpr int kSamples = 7;        // of a proposal's time, of which the median counts
constexpr int kRunsPerSample = 4;  // so that a sample is long beside the clock's resolution
constexpr float kHopeless = 2;     // times the best's, twice: there are no more samples then
constexpr float kAsFast = 1.02F;   // times the best's, which another measurement may give it
constexpr std::int64_t kPlacement = kWorkspaceAlignment;  // of operands while timing

/// No sum whose order depends on which block comes first, and none rounded to the result's type.
constexpr std::uint32_t kOrderedReductions =
    CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::e4m3: return CUDA_R_8F_E4M3;
    case DType::e5m2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}
bool has_scales(const GemmKey& key) { return size_of(key.type_a) == 1; }
cublasOperation_t operation_of(Turn turn) { return turn == Turn::none ? CUBLAS_OP_N : CUBLAS_OP_T; }
cublasLtEpilogue_t epilogue_of(const GemmKey& key) {
  switch (key.epilogue) {
    case Epilogue::none: return key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::gelu:
      return key.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_slope: return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}
std::int64_t rows_of(Turn turn, std::int64_t rows, std::int64_t columns) {
  return turn == Turn::none ? rows : columns;
}

/// Bytes of a column-major matrix.
std::int64_t bytes_of(std::int64_t columns, std::int64_t ld, DType type) {
  return round_up(columns * ld * size_of(type), kPlacement);
}
/// Where each operand of a product lies while it is timed, and what all take.
struct TimingPlaces {
  std::int64_t b, d, aux, bias, scale, workspace, end;

  explicit TimingPlaces(const GemmKey& key)
      : b(bytes_of(key.a == Turn::none ? key.k : key.m, key.lda, key.type_a)),
        d(b + bytes_of(key.b == Turn::none ? key.n : key.k, key.ldb, key.type_b)),
        aux(d + bytes_of(key.n, key.ldd, key.result)),
        bias(aux + bytes_of(key.n, key.ld_aux, key.result)),
        scale(bias + (key.bias ? bytes_of(1, key.m, key.result) : 0)),
        workspace(scale + (has_scales(key) ? bytes_of(1, 1, DType::f32) : 0)),
        end(workspace + kMatmulWorkspace) {}
};

CudaHandle<cudaEvent_t> make_event() {
  cudaEvent_t event = nullptr;
  CUDA_TRY(cudaEventCreate(&event));
  return CudaHandle<cudaEvent_t>(event);
}

float median(std::vector<float> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

struct Matmul::Library {
  /// One product's descriptions, and its algorithm unless it is computed apart.
  struct Product {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    std::optional<Algorithm> algorithm;
    bool apart = false;  // as it was faster

    bool chosen() const { return algorithm || apart; }
  };
  struct Timed {
    Algorithm algorithm;
    float time;
  };
  /// A product whose operands are where TimingPlaces says, and what computes its parts.
  struct Trial {
    Gemm at;
    std::byte* bias;
    std::byte* workspace;
    const OwnKernels& own;
  };

  Library(const Queue& on, int driver) : queue(on) {
    int device = 0;
    cudaDeviceProp properties;
    check_cuda(cudaGetDevice(&device), "a GPU's name");
    check_cuda(cudaGetDeviceProperties(&properties, device), "a GPU's name");
    machine = {.library = static_cast<std::int64_t>(lt.cublasLtGetVersion()),
               .gpu = properties.name,
               .major = properties.major,
               .minor = properties.minor,
               .driver = driver};
    check(lt.cublasLtCreate(&handle), "cublasLtCreate");
  }
  ~Library() {
    for (auto& [key, product] : products) {
      lt.cublasLtMatrixLayoutDestroy(product.a);
      lt.cublasLtMatrixLayoutDestroy(product.b);
      lt.cublasLtMatrixLayoutDestroy(product.d);
      lt.cublasLtMatmulDescDestroy(product.operation);
    }
    lt.cublasLtDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void check(cublasStatus_t status, std::string_view what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    if (status == CUBLAS_STATUS_ALLOC_FAILED) gpu_is_full(what);
    throw DeviceError(fmt::format("{}: {}", what, lt.cublasLtGetStatusString(status)));
  }

  template <typename T>
  void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
           T value) const {
    check(lt.cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
  void make_layout(cublasLtMatrixLayout_t& layout, DType type, std::int64_t rows,
                   std::int64_t columns, std::int64_t ld) const {
    check(lt.cublasLtMatrixLayoutCreate(&layout, type_of(type), static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), ld),
          "cublasLtMatrixLayoutCreate");
  }

  void set_scales(const Product& p, const std::byte* a, const std::byte* b) const {
    set(p.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a);
    set(p.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b);
  }

  Product& product(const GemmKey& key) {
    const auto [entry, is_new] = products.try_emplace(key);
    Product& p = entry->second;
    if (!is_new) return p;
    const auto compute =
        key.math == MatmulMath::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check(lt.cublasLtMatmulDescCreate(&p.operation, compute, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, operation_of(key.a));
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, operation_of(key.b));
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
    // Proposals may depend on whether there is an address, and on its alignment.
    if (key.bias) {
      set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.result));
      set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
          reinterpret_cast<const void*>(kOperandAlignment));
    }
    if (key.epilogue != Epilogue::none) {
      set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ld_aux);
      set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
          reinterpret_cast<const void*>(key.align_aux));
    }
    if (has_scales(key)) {
      const auto* anywhere = reinterpret_cast<const std::byte*>(kOperandAlignment);
      set(p.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
      set_scales(p, anywhere, anywhere);
    }
    make_layout(p.a, key.type_a, rows_of(key.a, key.m, key.k), rows_of(key.a, key.k, key.m),
                key.lda);
    make_layout(p.b, key.type_b, rows_of(key.b, key.k, key.n), rows_of(key.b, key.n, key.k),
                key.ldb);
    make_layout(p.d, key.result, key.m, key.n, key.ldd);
    return p;
  }

  bool ordered(const cublasLtMatmulAlgo_t& algorithm) const {
    std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
    std::size_t written = 0;
    check(lt.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                  &scheme, sizeof(scheme), &written),
          "cublasLtMatmulAlgoConfigGetAttribute");
    return (scheme & ~kOrderedReductions) == 0;
  }

  /// What the library proposes, the best guess first; nothing where it refuses the product.
  std::vector<Algorithm> proposals(const GemmKey& key, const Product& p) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(lt.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(lt.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    const auto alignment = [](std::int64_t bytes) { return static_cast<std::uint32_t>(bytes); };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kMatmulWorkspace));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kOrderedReductions);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(key.align_a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(key.align_b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(key.align_d));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(key.align_d));
    std::vector<cublasLtMatmulHeuristicResult_t> results(kProposals);
    int count = 0;
    const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
        handle, p.operation, p.a, p.b, p.d, p.d, preference, kProposals, results.data(), &count);
    lt.cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
    check(status, text_of(key));
    std::vector<Algorithm> usable;
    for (const auto& result : std::span(results).first(static_cast<std::size_t>(count))) {
      if (result.state == CUBLAS_STATUS_SUCCESS && ordered(result.algo) &&
          result.workspaceSize <= static_cast<std::size_t>(kMatmulWorkspace)) {
        usable.push_back(std::bit_cast<Algorithm>(result.algo));
      }
    }
    return usable;
  }

  std::optional<Algorithm> first(const GemmKey& key, const Product& p) const {
    const auto all = proposals(key, p);
    return all.empty() ? std::nullopt : std::optional(all.front());
  }

  /// Whether the library takes the algorithm for this product.
  bool takes(const Product& p, const Algorithm& bytes) const {
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(bytes);
    cublasLtMatmulHeuristicResult_t result{};
    return lt.cublasLtMatmulAlgoCheck(handle, p.operation, p.a, p.b, p.d, p.d, &algorithm,
                                      &result) == CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && ordered(algorithm) &&
           result.workspaceSize <= static_cast<std::size_t>(kMatmulWorkspace);
  }

  cublasStatus_t queue_product(const GemmKey& key, const Product& p, const Algorithm& bytes,
                               const Gemm& at, const std::byte* bias, std::byte* workspace) const {
    const float one = 1, zero = 0;
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(bytes);
    if (key.bias) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (has_scales(key)) set_scales(p, at.scale_a, at.scale_b);
    if (at.aux != nullptr) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at.aux);
    return lt.cublasLtMatmul(handle, p.operation, &one, at.a, p.a, at.b, p.b,
                             key.write == Write::add ? &one : &zero, at.d, p.d, at.d, p.d,
                             &algorithm, workspace, static_cast<std::size_t>(kMatmulWorkspace),
                             queue.stream);
  }

  cublasStatus_t queue_trial(const Trial& trial, const Product& p, const Algorithm& bytes) const {
    return queue_product(trial.at.key, p, bytes, trial.at, trial.bias, trial.workspace);
  }
  /// As it is chosen; in parts where it has no algorithm.
  cublasStatus_t queue_chosen(const Trial& trial) {
    const Product& p = product(trial.at.key);
    if (p.algorithm) return queue_trial(trial, p, *p.algorithm);
    return is_plain(trial.at.key) ? CUBLAS_STATUS_NOT_SUPPORTED : queue_parts(trial);
  }
  cublasStatus_t queue_parts(const Trial& trial) {
    Trial part = trial;
    part.at = without_last(trial.at);
    const cublasStatus_t status = queue_chosen(part);
    if (status == CUBLAS_STATUS_SUCCESS) trial.own(trial.at, trial.bias);
    return status;
  }

  /// The median time of kRunsPerSample runs of what queue_one() queues; of fewer samples where it
  /// is hopeless beside `least`. Nothing where the library refuses it.
  template <typename F>
  std::optional<float> time_of(const GemmKey& key, float least, F&& queue_one) const {
    if (queue_one() != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    const auto begin = make_event(), end = make_event();
    const char* what = "timing a matrix product";
    std::vector<float> times;
    for (int sample = 0; sample < kSamples; ++sample) {
      check_cuda(cudaEventRecord(begin.get(), queue.stream), what);
      for (int i = 0; i < kRunsPerSample; ++i) check(queue_one(), text_of(key));
      check_cuda(cudaEventRecord(end.get(), queue.stream), what);
      check_cuda(cudaEventSynchronize(end.get()), what);
      check_cuda(cudaEventElapsedTime(&times.emplace_back(), begin.get(), end.get()), what);
      if (times.size() == 2 && std::ranges::min(times) > kHopeless * least) break;
    }
    return median(times);
  }

  /// The first that is as fast as any of the algorithms that the library proposes for the product,
  /// so that runs seldom differ in what they choose; nothing where it refuses all of them.
  std::optional<Timed> fastest(const Trial& trial, const Product& p) const {
    const GemmKey& key = trial.at.key;
    std::vector<Timed> timed;
    float least = std::numeric_limits<float>::infinity();
    for (const Algorithm& algorithm : proposals(key, p)) {
      const auto time = time_of(key, least, [&] { return queue_trial(trial, p, algorithm); });
      if (!time) continue;  // refused after all
      timed.push_back({algorithm, *time});
      least = std::min(least, *time);
    }
    for (const Timed& t : timed) {
      if (t.time <= kAsFast * least) return t;
    }
    return std::nullopt;
  }

  /// Chooses the product's fastest algorithm, none where the library refuses it, or its parts where
  /// these are faster still; they are chosen before, unless they are already.
  void choose_timed(const GemmKey& key, std::byte* memory, const OwnKernels& own) {
    const TimingPlaces places(key);
    const Trial trial{.at = {.key = key,
                             .a = memory,
                             .b = memory + places.b,
                             .d = memory + places.d,
                             .aux = key.epilogue == Epilogue::none ? nullptr : memory + places.aux,
                             .scale_a = memory + places.scale,
                             .scale_b = memory + places.scale},
                      .bias = memory + places.bias,
                      .workspace = memory + places.workspace,
                      .own = own};
    const bool has_parts = own && !is_plain(key);
    if (has_parts) {
      const GemmKey part = without_last(trial.at).key;
      if (!product(part).chosen()) choose_timed(part, memory, own);
    }
    // A number of ordinary size whatever the type: products of zeros take less power.
    check_cuda(
        cudaMemsetAsync(memory, 0x3c, static_cast<std::size_t>(places.workspace), queue.stream),
        "timing a matrix product");
    Product& p = product(key);
    const auto whole = fastest(trial, p);
    if (!whole) return;
    const auto parts =
        has_parts ? time_of(key, whole->time, [&] { return queue_parts(trial); }) : std::nullopt;
    p.apart = parts && whole->time > kAsFast * *parts;
    if (!p.apart) p.algorithm = whole->algorithm;
  }

  CublasLt lt;
  const Queue& queue;
  cublasLtHandle_t handle = nullptr;
  GemmMachine machine;
  std::map<GemmKey, Product> products;
};

Matmul::Matmul(const Queue& queue, int driver)
    : library_(std::make_unique<Library>(queue, driver)) {}
Matmul::~Matmul() = default;

void Matmul::run(const Gemm& product, const std::byte* bias, const View& workspace) {
  Library::Product& p = library_->product(product.key);
  if (!p.algorithm) p.algorithm = library_->first(product.key, p);
  if (!p.algorithm) {
    throw DeviceError(fmt::format("cuBLASLt {} has no algorithm for {}", machine().library,
                                  text_of(product.key)));
  }
  library_->check(
      library_->queue_product(product.key, p, *p.algorithm, product, bias, workspace.data),
      text_of(product.key));
}

bool Matmul::takes(const GemmKey& key) {
  const Library::Product& p = library_->product(key);
  return p.algorithm || !library_->proposals(key, p).empty();
}

std::int64_t Matmul::timing_bytes(std::span<const GemmKey> keys) {
  std::int64_t most = 0;
  for (const GemmKey& key : keys) most = std::max(most, TimingPlaces(key).end);
  return most;
}

void Matmul::choose(std::span<const GemmKey> keys, AlgorithmChoice how, const View& memory,
                    const OwnKernels& own) {
  TESSERA_CHECK(how == AlgorithmChoice::first || memory.span_bytes() >= timing_bytes(keys),
                "{} bytes of memory, timing needs {}", memory.span_bytes(), timing_bytes(keys));
  for (const GemmKey& key : keys) {
    Library::Product& p = library_->product(key);
    p.algorithm.reset(), p.apart = false;
    apart_.erase(key);
  }
  for (const GemmKey& key : keys) {
    Library::Product& p = library_->product(key);
    if (how == AlgorithmChoice::first) {
      p.algorithm = library_->first(key, p);
    } else if (!p.chosen()) {  // it may be a part of one before
      library_->choose_timed(key, memory.data, own);
    }
  }
  for (const auto& [key, product] : library_->products) {
    if (product.apart) apart_.insert(key);
  }
}

std::vector<GemmKey> Matmul::adopt(const AlgorithmTable& table, std::span<const GemmKey> keys) {
  TESSERA_CHECK(table.machine == library_->machine, "a table of {} on {}", table.machine.gpu,
                library_->machine.gpu);
  std::vector<GemmKey> missing;
  for (const GemmKey& key : keys) {
    const auto entry = table.chosen.find(key);
    Library::Product& p = library_->product(key);
    p.apart = table.apart.contains(key);
    if (p.apart) {
      apart_.insert(key);
    } else if (entry != table.chosen.end() && library_->takes(p, entry->second)) {
      p.algorithm = entry->second;
    } else {
      missing.push_back(key);
    }
  }
  return missing;
}

AlgorithmTable Matmul::table() const {
  AlgorithmTable table{.machine = library_->machine, .chosen = {}, .apart = {}};
  for (const auto& [key, product] : library_->products) {
    if (product.apart) {
      table.apart.insert(key);
    } else if (product.algorithm) {
      table.chosen.emplace(key, *product.algorithm);
    }
  }
  return table;
}

GemmMachine Matmul::machine() const { return library_->machine; }

}  // namespace tessera::kernels::cuda
