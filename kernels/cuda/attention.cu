// Attention on a GPU by kernels of our own: checks arguments, chooses tiles, launches.
#include "kernels/cuda/attention.cuh"

#include <algorithm>

#include "core/math.hpp"
#include "kernels/common/types.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/operations.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/sdpa.hpp"

namespace tessera::kernels::cuda {
namespace {

/// f.operator()<kDim>() for the narrowest tile that a head fits in; columns beyond the head's are
/// 0.
template <typename F>
void with_dim(const AttentionShape& shape, F&& f) {
  const std::int64_t wider = std::max(shape.head_dim, shape.values());
  if (wider <= 64) {
    f.template operator()<64>();
  } else if (wider <= 128) {
    f.template operator()<128>();
  } else {
    f.template operator()<kMostGpuHeadDim>();
  }
}

/// Whether rows of all heads of all operands begin on 16 bytes and are whole vectors.
bool whole_vectors(const AttentionShape& shape, std::initializer_list<View> views) {
  constexpr std::int64_t kBytes = 16;
  bool all = true;
  for (const View& v : views) {
    const auto whole = [&](std::int64_t elements) {
      return elements * size_of(v.type) % kBytes == 0;
    };
    all = all && reinterpret_cast<std::uintptr_t>(v.data) % kBytes == 0 && whole(v.ld) &&
          whole(shape.head_dim) && whole(shape.values());
  }
  return all;
}

/// f.operator()<kMasking>() for the kernels that a call needs.
template <typename F>
void with_masking(const AttentionSetting& s, F&& f) {
  const bool among_keys = s.first >= 0 && s.first + s.queries <= s.keys;
  if (among_keys && s.sight.after == 0 && s.sight.before >= s.keys && s.documents == nullptr &&
      s.soft_cap == 0) {
    f.template operator()<Masking::causal>();
  } else {
    f.template operator()<Masking::ranges>();
  }
}

int narrow(std::int64_t n) {
  TESSERA_CHECK(n <= 0x7fffffff, "an extent of {}", n);
  return static_cast<int>(n);
}

template <typename Operation>
AttentionSetting setting_of(const Operation& a, bool vectors) {
  const AttentionShape& shape = a.shape;
  return {.samples = narrow(a.q.extent(0)),
          .queries = narrow(a.q.extent(1)),
          .keys = narrow(keys_of(a)),
          .heads = narrow(shape.heads),
          .kv_heads = narrow(shape.kv_heads),
          .first = narrow(first_query_of(a)),
          .first_key = narrow(a.first_key),
          .tokens = narrow(sequence_of(a)),
          .group = narrow(shape.group > 0 ? shape.group : shape.heads / shape.kv_heads),
          .skip = narrow(shape.skip),
          .scale = shape.scale,
          .whole_vectors = vectors,
          .dropped = static_cast<bool>(a.dropout),
          .rule = dropout_rule(a.dropout),
          .sample_index = reinterpret_cast<const std::int64_t*>(a.dropout.samples.data),
          .sight = sight_of(shape.mask, shape.window, sequence_of(a)),
          .documents = reinterpret_cast<const std::int32_t*>(a.documents.data),
          .soft_cap = shape.soft_cap,
          .cap_scale = shape.soft_cap > 0 ? shape.scale / shape.soft_cap : 0};
}

template <typename T>
HeadsView<const T> read(const View& v, std::int64_t dim) {
  return {reinterpret_cast<const T*>(v.data), v.ld, narrow(dim)};
}
template <typename T>
HeadsView<T> write(const View& v, std::int64_t dim) {
  return {reinterpret_cast<T*>(v.data), v.ld, narrow(dim)};
}

template <typename T, int kDim, Masking kMasking>
void run_forward(const Attention& a, const AttentionSetting& s, const Context& context) {
  using Tiles = ForwardTiles<T, kDim>;
  const std::int64_t dim = a.shape.head_dim, values = a.shape.values();
  launch_large({.operation = a.kName,
                .stream = context.queue.stream,
                .blocks = std::int64_t{s.samples} * s.heads * ceil_div(s.queries, Tiles::kQueries),
                .threads = Tiles::kThreads,
                .shared_bytes = Tiles::kSharedBytes},
               attention_forward<T, kDim, kMasking>, s,
               {.q = read<T>(a.q, dim),
                .k = read<T>(a.k, dim),
                .v = read<T>(a.v, values),
                .out = write<T>(a.out, values),
                .lse = reinterpret_cast<float*>(a.lse.data)});
}

template <typename T, int kDim, Side kSide, Masking kMasking>
void run_gradient(const AttentionBackward& a, const AttentionSetting& s, const float* delta,
                  const Context& context) {
  using Tiles = BackwardTiles<T, kDim, kSide>;
  const std::int64_t dim = a.shape.head_dim, values = a.shape.values();
  const std::int64_t heads = std::int64_t{s.samples} * (kSide == Side::keys ? s.kv_heads : s.heads);
  launch_large({.operation = a.kName,
                .stream = context.queue.stream,
                .blocks = heads * ceil_div(kSide == Side::keys ? s.keys : s.queries, Tiles::kRows) *
                          Tiles::kPieces,
                .threads = Tiles::kThreads,
                .shared_bytes = Tiles::kSharedBytes},
               attention_gradient<T, kDim, kSide, kMasking>, s,
               {.q = read<T>(a.q, dim),
                .k = read<T>(a.k, dim),
                .v = read<T>(a.v, values),
                .d_out = read<T>(a.d_out, values),
                .d_q = write<T>(a.d_q, dim),
                .d_k = write<std::byte>(a.d_k, dim),
                .d_v = write<std::byte>(a.d_v, values),
                .wide_keys = a.d_k.type != a.q.type,
                .add_keys = a.write == Write::add,
                .lse = reinterpret_cast<const float*>(a.lse.data),
                .delta = delta});
}

}  // namespace

void run(const Attention& a, const Context& context) {
  if (context.sdpa.run(a)) return;
  AttentionSetting s = setting_of(a, whole_vectors(a.shape, {a.q, a.k, a.v, a.out}));
  if (a.cached) {
    s.cached = reinterpret_cast<const CachedSample*>(a.cached.data);
    s.pages = reinterpret_cast<const std::int32_t*>(a.pages.data);
    s.most_pages = narrow(a.pages.extent(1)), s.page_tokens = narrow(a.k.extent(1));
  }
  with_type(a.q.type, [&]<typename T>() {
    with_dim(a.shape, [&]<int kDim>() {
      if (a.cached) return run_forward<T, kDim, Masking::cached>(a, s, context);
      with_masking(s, [&]<Masking kMasking>() { run_forward<T, kDim, kMasking>(a, s, context); });
    });
  });
}

void run(const AttentionBackward& a, const Context& context) {
  if (context.sdpa.run(a)) return;
  const bool vectors = whole_vectors(a.shape, {a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v});
  const AttentionSetting s = setting_of(a, vectors);
  auto* delta = reinterpret_cast<float*>(a.scratch.data);
  with_type(a.q.type, [&]<typename T>() {
    constexpr int kThreads = 128;
    const std::int64_t rows = a.lse.elements();
    launch({.operation = a.kName,
            .stream = context.queue.stream,
            .blocks = ceil_div(rows, kThreads / kWarp),
            .threads = kThreads},
           attention_delta<T>, s, read<T>(a.out, a.shape.values()),
           read<T>(a.d_out, a.shape.values()), delta);
    with_dim(a.shape, [&]<int kDim>() {
      with_masking(s, [&]<Masking kMasking>() {
        run_gradient<T, kDim, Side::keys, kMasking>(a, s, delta, context);
        run_gradient<T, kDim, Side::queries, kMasking>(a, s, delta, context);
      });
    });
  });
}

void run(const MergeAttention& a, const Context& context) {
  constexpr int kThreads = 128;
  const std::int64_t rows = a.lse.elements(), columns = a.out.cols() / a.heads;
  with_type(a.x.type, [&]<typename T>() {
    launch({.operation = a.kName,
            .stream = context.queue.stream,
            .blocks = ceil_div(rows, kThreads / kWarp),
            .threads = kThreads},
           attention_merge<T>,
           MergeOperands<T>{.x = read<T>(a.x, columns),
                            .out = write<float>(a.out, columns),
                            .x_lse = reinterpret_cast<const float*>(a.x_lse.data),
                            .lse = reinterpret_cast<float*>(a.lse.data),
                            .heads = narrow(a.heads),
                            .queries = narrow(a.out.extent(1)),
                            .rows = rows});
  });
}

}  // namespace tessera::kernels::cuda
