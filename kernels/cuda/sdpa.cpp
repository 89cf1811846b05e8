#include "kernels/cuda/sdpa.hpp"

#include <cudnn_frontend.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <unordered_map>

#include "core/cuda.hpp"
#include "core/library.hpp"
#include "kernels/cuda/sdpa_rules.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend looks the library's functions up
}  // namespace cudnn_frontend

namespace tessera::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

struct Cudnn {
  Library library{"libcudnn.so.9"};
  TESSERA_SYMBOL(cudnnCreate)
  TESSERA_SYMBOL(cudnnDestroy)
  TESSERA_SYMBOL(cudnnSetStream)
  TESSERA_SYMBOL(cudnnGetVersion)
  TESSERA_SYMBOL(cudnnGetErrorString)
};

/// Names of a graph's tensors in its calls.
enum Operand : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };

/// Tensors of a call, q first; the rows of each are divided evenly among its samples.
using Operands = std::vector<std::pair<Operand, View>>;

/// All that a plan depends on.
struct ShapeKey {
  bool backward = false, with_lse = false;
  SumOrder order = SumOrder::fixed;
  DType type = DType::bf16;
  std::int64_t samples = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, dim = 0;
  std::int64_t key_rows = 0;  // of a sample: keys that no query sees may follow those of the call
  SdpaSight sight = SdpaSight::up_to_own;
  float scale = 0;
  std::array<std::int64_t, 8> distances{};  // between rows of the operands

  auto operator<=>(const ShapeKey&) const = default;
};

std::string text_of(const ShapeKey& key) {
  return fmt::format(
      "{} {}{} of ({}, {}) queries, {} keys{}, {} heads, {} kv heads of {} columns{}",
      to_string(key.type), key.backward ? "attention_backward" : "attention",
      key.order == SumOrder::any ? " in any order" : "", key.samples, key.queries, key.keys,
      key.sight == SdpaSight::all ? " before them" : "", key.heads, key.kv_heads, key.dim,
      key.with_lse ? "" : ", no lse");
}

template <typename Operation>
ShapeKey shape_of(const Operation& a, std::int64_t samples) {
  const AttentionShape& shape = a.shape;
  const View &q = a.q, &k = a.k;
  const SdpaSight sight = sight_of_call(a);
  return {.type = q.type,
          .samples = samples,
          .queries = q.extent(1),
          .keys = sight == SdpaSight::all ? k.extent(1) : first_query_of(a) + q.extent(1),
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .dim = shape.head_dim,
          .key_rows = k.extent(1),
          .sight = sight,
          .scale = shape.scale};
}

bool on_vectors(std::initializer_list<View> views) {
  for (const View& v : views) {
    if (reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0) return false;
  }
  return true;
}

/// A graph under construction.
class Builder {
 public:
  explicit Builder(const ShapeKey& key) : key_(key), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_
        ->set_io_data_type(key.type == DType::bf16 ? fe::DataType_t::BFLOAT16
                                                   : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  /// The columns of `heads` heads: element (b, h, t, d) of (B, T, H D).
  Tensor_attributes heads(Operand name, std::int64_t tokens, std::int64_t heads,
                          std::int64_t distance) const {
    const bool of_keys = name == kK || name == kV || name == kDK || name == kDV;
    const std::int64_t rows = of_keys ? key_.key_rows : tokens;
    return Tensor_attributes()
        .set_uid(name)
        .set_dim({key_.samples, heads, tokens, key_.dim})
        .set_stride({rows * distance, key_.dim, distance, 1});
  }
  Tensor_attributes lse() const {
    return Tensor_attributes()
        .set_uid(kLse)
        .set_dim({key_.samples, key_.heads, key_.queries, 1})
        .set_stride({key_.heads * key_.queries, key_.queries, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  std::shared_ptr<Tensor_attributes> input(const Tensor_attributes& tensor) const {
    return graph_->tensor(tensor);
  }
  static void output(const std::shared_ptr<Tensor_attributes>& made, const Tensor_attributes& as) {
    made->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
    made->set_data_type(as.get_data_type());
  }
  /// Query t sees keys up to t + (keys - queries), or all.
  template <typename Attributes>
  Attributes masked() const {
    Attributes attributes;
    attributes.set_name("attention").set_attn_scale(key_.scale);
    if (key_.sight == SdpaSight::all) return attributes;
    return attributes
        .set_diagonal_alignment(key_.queries == key_.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                          : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
  }
  const std::shared_ptr<fe::graph::Graph>& graph() const { return graph_; }

 private:
  const ShapeKey& key_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

std::shared_ptr<fe::graph::Graph> forward_graph(const ShapeKey& key) {
  const Builder b(key);
  const auto& ld = key.distances;
  auto attributes = b.masked<fe::graph::SDPA_attributes>().set_generate_stats(key.with_lse);
  const auto [out, stats] =
      b.graph()->sdpa(b.input(b.heads(kQ, key.queries, key.heads, ld[0])),
                      b.input(b.heads(kK, key.keys, key.kv_heads, ld[1])),
                      b.input(b.heads(kV, key.keys, key.kv_heads, ld[2])), attributes);
  Builder::output(out, b.heads(kOut, key.queries, key.heads, ld[3]));
  if (key.with_lse) Builder::output(stats, b.lse());
  return b.graph();
}

std::shared_ptr<fe::graph::Graph> backward_graph(const ShapeKey& key) {
  const Builder b(key);
  const auto& ld = key.distances;
  auto attributes = b.masked<fe::graph::SDPA_backward_attributes>().set_deterministic_algorithm(
      key.order == SumOrder::fixed);
  const auto [d_q, d_k, d_v] = b.graph()->sdpa_backward(
      b.input(b.heads(kQ, key.queries, key.heads, ld[0])),
      b.input(b.heads(kK, key.keys, key.kv_heads, ld[1])),
      b.input(b.heads(kV, key.keys, key.kv_heads, ld[2])),
      b.input(b.heads(kOut, key.queries, key.heads, ld[3])),
      b.input(b.heads(kDOut, key.queries, key.heads, ld[4])), b.input(b.lse()), attributes);
  Builder::output(d_q, b.heads(kDQ, key.queries, key.heads, ld[5]));
  Builder::output(d_k, b.heads(kDK, key.keys, key.kv_heads, ld[6]));
  Builder::output(d_v, b.heads(kDV, key.keys, key.kv_heads, ld[7]));
  return b.graph();
}

/// A call that the library is asked for.
struct SdpaCall {
  ShapeKey key;
  SdpaPlan at_a_time;
  Operands operands;
};

std::optional<SdpaCall> sdpa_call(const Attention& a) {
  const auto plan = sdpa_plan(a);
  if (!plan || !on_vectors({a.q, a.k, a.v, a.out})) return std::nullopt;
  ShapeKey key = shape_of(a, plan->samples);
  key.with_lse = static_cast<bool>(a.lse);
  key.distances = {a.q.ld, a.k.ld, a.v.ld, a.out.ld};
  Operands operands = {{kQ, a.q}, {kK, a.k}, {kV, a.v}, {kOut, a.out}};
  if (a.lse) operands.emplace_back(kLse, a.lse);
  return SdpaCall{key, *plan, operands};
}

std::optional<SdpaCall> sdpa_call(const AttentionBackward& a, std::int64_t most_scores) {
  const auto plan = sdpa_plan(a, most_scores);
  if (!plan || !on_vectors({a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v}))
    return std::nullopt;
  ShapeKey key = shape_of(a, plan->samples);
  key.backward = key.with_lse = true;
  key.order = a.order;
  key.distances = {a.q.ld, a.k.ld, a.v.ld, a.out.ld, a.d_out.ld, a.d_q.ld, a.d_k.ld, a.d_v.ld};
  return SdpaCall{key,
                  *plan,
                  {{kQ, a.q},
                   {kK, a.k},
                   {kV, a.v},
                   {kOut, a.out},
                   {kLse, a.lse},
                   {kDOut, a.d_out},
                   {kDQ, a.d_q},
                   {kDK, a.d_k},
                   {kDV, a.d_v}}};
}

}  // namespace

struct Sdpa::Library {
  /// A plan, or the reason why there is none.
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;
    std::string refusal;
  };

  explicit Library(const Queue& on) : queue(on) {
    fe::cudnn_dlhandle = cudnn.library.handle();
    // Of several versions of the CUDA runtime the frontend would take the oldest.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", 1);
    check(cudnn.cudnnCreate(&handle), "cudnnCreate");
  }
  ~Library() {
    plans.clear();  // they were made with the handle
    cudnn.cudnnDestroy(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void check(cudnnStatus_t status, std::string_view what) const {
    if (status != CUDNN_STATUS_SUCCESS) fail(what, cudnn.cudnnGetErrorString(status));
  }
  [[noreturn]] static void fail(std::string_view what, std::string_view why) {
    check_room(what, why);
    throw DeviceError(fmt::format("cuDNN, {}: {}", what, why));
  }
  /// The frontend tells causes in words only.
  static void check_room(std::string_view what, std::string_view why) {
    if (why.find("DEVICE_ALLOCATION_FAILED") != why.npos) gpu_is_full(what);
  }

  /// Why the library has no plan for the graph that fits in the workspace; empty when it has one.
  std::string build(fe::graph::Graph& graph, std::int64_t workspace) const {
    for (const auto& step : std::initializer_list<std::function<fe::error_t()>>{
             [&] { return graph.validate(); }, [&] { return graph.build_operation_graph(handle); },
             [&] { return graph.create_execution_plans({fe::HeurMode_t::A}); },
             [&] {
               graph.deselect_workspace_greater_than(workspace);
               return graph.check_support();
             },
             [&] { return graph.build_plans(); }}) {
      if (fe::error_t error = step(); error.is_bad()) {
        check_room("a plan of cuDNN", error.get_message());
        return error.get_message();
      }
    }
    std::int64_t needed = 0;
    if (auto error = graph.get_workspace_size(needed); error.is_bad()) {
      return error.get_message();
    }
    if (needed <= workspace) return {};
    return fmt::format("{} bytes of workspace, more than {}", needed, workspace);
  }

  const Plan& plan(const ShapeKey& key, std::int64_t workspace) {
    const auto [entry, is_new] = plans.try_emplace(key);
    Plan& plan = entry->second;
    if (!is_new) return plan;
    try {
      plan.graph = key.backward ? backward_graph(key) : forward_graph(key);
      plan.refusal = build(*plan.graph, workspace);
    } catch (const std::runtime_error& e) {  // the frontend's, of a library that is not there
      throw DeviceError(fmt::format("cuDNN: {}", e.what()));
    }
    if (!plan.refusal.empty()) plan.graph = nullptr;
    return plan;
  }

  const Plan& plan(const SdpaCall& call) { return plan(call.key, call.at_a_time.workspace_bytes); }

  /// All samples of the call, as many at a time as its plan says.
  bool run(const SdpaCall& call, const View& scratch) {
    const auto& [key, at_a_time, operands] = call;
    const Plan& chosen = plan(call);
    if (!chosen.graph) return false;
    check(cudnn.cudnnSetStream(handle, queue.stream), "cudnnSetStream");
    const std::int64_t samples = operands.front().second.extent(0);
    for (std::int64_t first = 0; first < samples; first += key.samples) {
      std::unordered_map<std::int64_t, void*> addresses;
      for (const auto& [name, view] : operands) {
        const View rows = view.matrix();
        addresses[name] =
            rows.data + first * (rows.extent(0) / samples) * rows.ld * size_of(view.type);
      }
      if (auto error = chosen.graph->execute(handle, addresses, scratch.data); error.is_bad()) {
        fail(text_of(key), error.get_message());
      }
    }
    return true;
  }

  Cudnn cudnn;
  const Queue& queue;
  cudnnHandle_t handle = nullptr;
  std::map<ShapeKey, Plan> plans;
};

Sdpa::Sdpa(const Queue& queue, std::int64_t most_scores)
    : most_scores_(most_scores), library_(std::make_unique<Library>(queue)) {}
Sdpa::~Sdpa() = default;

bool Sdpa::run(const Attention& a) {
  const auto call = sdpa_call(a);
  return call && library_->run(*call, a.scratch);
}
bool Sdpa::run(const AttentionBackward& a) {
  const auto call = sdpa_call(a, most_scores_);
  return call && library_->run(*call, a.scratch);
}

void Sdpa::prepare(const Attention& a) {
  if (const auto call = sdpa_call(a)) library_->plan(*call);
}
void Sdpa::prepare(const AttentionBackward& a) {
  if (const auto call = sdpa_call(a, most_scores_)) library_->plan(*call);
}

std::uint64_t Sdpa::version() const { return library_->cudnn.cudnnGetVersion(); }

std::vector<Sdpa::Choice> Sdpa::choices() const {
  std::vector<Choice> all;
  for (const auto& [key, plan] : library_->plans) all.push_back({text_of(key), plan.refusal});
  return all;
}

}  // namespace tessera::kernels::cuda
